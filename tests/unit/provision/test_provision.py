"""Clusters made by stand-ins of the providers' programs: every command, every failure, and only what was made goes."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankzero.cli.init import recipe_files
from rankzero.errors import AccessError, ConfigError, RankzeroError, ServiceError, StorageError
from rankzero.provision.programs import Answer, Command, Programs
from rankzero.provision.providers import provider
from rankzero.provision.record import Record
from rankzero.provision.steps import Walk
from rankzero.spec.infra_load import load_infra_spec
from rankzero.spec.infra_spec import InfraSpec
from tests.support.provider_programs import CHANGING, State, called, fresh

ROOT = Path(__file__).parents[3]
SHIPPED = recipe_files("distilbert-sst2")["infra.yaml"]
"""To start from."""
NEBIUS = SHIPPED.replace("name: reza-k8s1\n", 'name: reza-k8s1\nkubernetes_version: "1.36"\n')
KIND = "provider: kind\nname: here\nnodes: {name: all, count: 2}\n"
TOKEN = "very-secret-token-of-nebius"


class StandIns(Programs):
    """The stand-ins, without a process for each."""

    def __init__(self, state: State) -> None:
        self.said: list[str] = []
        super().__init__({"NEBIUS_IAM_TOKEN": TOKEN}, self.said.append)
        self.state = state

    def finish(self, command: Command) -> tuple[Answer, BaseException | None]:
        self.said.append(f"$ {self.shown(command)}")
        answer = Answer(*called(self.state, command.words, command.stdin, {"NEBIUS_IAM_TOKEN": TOKEN}))
        return answer, KeyboardInterrupt() if set(self.state["stop"]) & set(command.words) else None


class Bench:
    """One infra.yaml, and commands about it: each a new start, as a user gives them."""

    def __init__(self, directory: Path, text: str, **state: Any) -> None:
        directory.mkdir(exist_ok=True)
        self.file = directory / "infra.yaml"
        self.file.write_text(text)
        self.state = fresh(**state)
        self.said: list[str] = []
        self.slept: list[float] = []

    @property
    def spec(self) -> InfraSpec:
        return load_infra_spec(self.file, env={}).spec

    def walk(self) -> Walk:
        programs = StandIns(self.state)
        programs.said = self.said
        programs._say = self.said.append
        steps = provider(self.spec.provider).steps(self.spec)
        clock = lambda: sum(self.slept)  # noqa: E731
        return Walk(steps, programs, Record(self.file), self.said.append, 1800.0, self.slept.append, clock)

    def create(self) -> dict[str, str]:
        return self.walk().create()

    def delete(self, *, with_data: bool = False) -> list[str]:
        walk = self.walk()
        there = walk.inventory()
        doomed = [step for step in there.ours if with_data or not step.data]
        walk.delete(doomed, there)
        return [step.kind for step in doomed]

    @property
    def things(self) -> dict[str, list[str]]:
        return {kind: sorted(names) for kind, names in self.state["things"].items() if names and kind != "file"}

    def changes(self) -> list[str]:
        return [" ".join(call) for call in self.state["calls"] if set(call[1:5]) & set(CHANGING)]

    def fail_at(self, call: int, *, after: bool = False) -> None:
        """From now on, so many calls ahead."""
        self.state.update(fail_at=len(self.state["calls"]) + call, after=after)


WHOLE = {
    "cluster": ["reza-k8s1"],
    "service-account": ["k8s-node-group-sa"],
    "filesystem": ["mk8s-csi-storage"],
    "node-group": ["mk8s-node-group-reza"],
    "release": ["csi-mounted-fs-path"],
}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, NEBIUS)


def test_every_command_of_before_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of the setup by hand that this replaces, and what is theirs alone."""
    monkeypatch.chdir(tmp_path)
    bench = Bench(Path(), NEBIUS.replace('"1.36"', '"1.30"'))  # theirs, which has had its end
    assert bench.create()["kubeconfig"] == "nebius-mk8s"
    assert bench.delete(with_data=True) == ["node-group", "filesystem", "service-account", "cluster"]
    names = (ROOT / "tests/fixtures/seed_names/4-distilbert.txt").read_text(encoding="utf-8").splitlines()
    names = names[: names.index("32 vCPU")]
    shell = {name for name in names if name.isupper() or name.startswith("NB_")} | {"clusterconfig.json"}
    run = " ".join(" ".join(call) for call in bench.state["calls"])
    data_dir = "dataDir=$MOUNT_POINT/csi-mounted-fs-path-data/"
    wanted = [name.replace("$MOUNT_POINT", "/mnt/data") if name == data_dir else name for name in names]
    assert [name for name in wanted if name not in run and name not in shell - {"READ_WRITE"}] == []
    deletion = "nebius mk8s node-group delete --id node-group-mk8s-node-group-reza"
    assert deletion in bench.changes()


def test_what_hosts_are_told_mounts_the_file_system(bench: Bench) -> None:
    bench.create()
    template = json.loads(bench.state["things"]["node-group"]["mk8s-node-group-reza"]["options"]["--"])["spec"][
        "template"
    ]
    assert template["filesystems"] == [
        {
            "attach_mode": "READ_WRITE",
            "mount_tag": "csi-storage",
            "existing_filesystem": {"id": "filesystem-mk8s-csi-storage"},
        }
    ]
    assert template["cloud_init_user_data"].splitlines() == [
        "runcmd:",
        "  - sudo mkdir -p /mnt/data",
        "  - sudo mount -t virtiofs csi-storage /mnt/data",
        '  - echo csi-storage /mnt/data "virtiofs" "defaults,nofail" "0" "2" | sudo tee -a /etc/fstab',
    ]


BARE = NEBIUS.partition("filesystem:")[0]
"""The same hosts, without what they share."""


def test_a_file_system_that_comes_after_the_hosts_is_not_made_for_nothing(bench: Bench) -> None:
    """Hosts mount it when they start: what is written to its mount point would land on their own disks."""
    bench.file.write_text(BARE)
    bench.create()
    bench.file.write_text(NEBIUS)
    for _ in range(2):
        with pytest.raises(ConfigError, match="were made without the file system mk8s-csi-storage") as raised:
            bench.create()
        assert "nebius mk8s node-group delete --id node-group-mk8s-node-group-reza" in raised.value.problems[0].hint
        assert "filesystem" not in bench.things and "release" not in bench.things
    del bench.state["things"]["node-group"]["mk8s-node-group-reza"]
    bench.create()
    assert bench.things == WHOLE
    bench.delete(with_data=True)
    assert bench.things == {}


def test_hosts_that_have_another_file_system_are_not_those_that_were_asked_for(bench: Bench) -> None:
    bench.create()
    bench.state["things"]["filesystem"]["mk8s-csi-storage"]["id"] = "another"
    for act in (bench.create, bench.walk().plan):
        with pytest.raises(ConfigError, match="with another file system of that name, filesystem-mk8s-csi-storage"):
            act()
    bench.state["things"]["filesystem"].clear()
    with pytest.raises(ConfigError, match="with another file system of that name"):
        bench.create()
    assert "filesystem" not in bench.things
    made = {"id": "filesystem-mk8s-csi-storage", "looks": 0}
    bench.state["things"]["filesystem"]["mk8s-csi-storage"] = made
    bench.file.write_text(NEBIUS.replace("mount_tag: csi-storage", "mount_tag: other"))
    with pytest.raises(ConfigError, match="as csi-storage, and are to mount other"):
        bench.create()
    assert bench.walk().create(["kubeconfig"])["kubeconfig"] == "nebius-mk8s", "they can be reached all the same"
    assert "node-group" in bench.delete()


@pytest.mark.parametrize("text", [NEBIUS, NEBIUS.replace("service_account: k8s-node-group-sa", "")])
def test_an_account_that_comes_after_the_hosts_keeps_none_from_being_used(bench: Bench, text: str) -> None:
    """Added to the file later, or deleted by somebody: their file system is looked at when it is known."""
    bench.file.write_text(text)
    bench.create()
    bench.state["things"].get("service-account", {}).clear()
    bench.file.write_text(NEBIUS)
    bench.create()
    assert bench.things == WHOLE
    assert text == NEBIUS or [one for one in bench.said if "has service account none, and is to have" in one]


def test_a_file_system_of_another_name_keeps_no_hosts_from_being_deleted(bench: Bench) -> None:
    bench.create()
    bench.file.write_text(NEBIUS.replace("name: mk8s-csi-storage", "name: another"))
    assert bench.walk().inventory().unasked == ["filesystem mk8s-csi-storage"]
    assert bench.delete() == ["node-group", "service-account", "cluster"]
    bench.file.write_text(NEBIUS)
    bench.delete(with_data=True)
    assert bench.things == {}


def test_a_second_time_makes_nothing(bench: Bench) -> None:
    bench.create()
    before = len(bench.changes())
    bench.create()
    assert bench.changes()[before:] == ["nebius mk8s cluster get-credentials --id cluster-reza-k8s1 --external"]
    assert bench.things == WHOLE


def calls_of_a_creation(tmp_path: Path, text: str) -> int:
    whole = Bench(tmp_path / "whole", text)
    whole.create()
    return len(whole.state["calls"])


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("text", "things"), [(NEBIUS, WHOLE), (KIND, {"kind": ["here"]})], ids=["nebius", "kind"])
def test_after_a_failure_at_any_call_the_same_command_goes_on(
    tmp_path: Path, text: str, things: dict[str, list[str]], after: bool
) -> None:
    calls = calls_of_a_creation(tmp_path, text)
    assert calls > 5
    for call in range(1, calls + 1):
        bench = Bench(tmp_path / f"{call}", text)
        bench.fail_at(call, after=after)
        with pytest.raises(ServiceError) as raised:
            bench.create()
        assert "the same command goes on from here" in str(raised.value) and TOKEN not in str(raised.value)
        bench.create()
        assert bench.things == things, bench.state["calls"]
        assert not [one for one in bench.said if "was there before" in one], "what was half made is known to be ours"
        bench.delete(with_data=True)
        assert bench.things == {}, f"call {call}"
        assert not Record(bench.file).path.exists()


def test_after_a_failure_at_any_call_of_a_deletion_the_same_command_goes_on(tmp_path: Path) -> None:
    whole = Bench(tmp_path / "whole", NEBIUS)
    whole.create()
    made = len(whole.state["calls"])
    whole.delete(with_data=True)
    for call in range(1, len(whole.state["calls"]) - made + 1):
        for after in (False, True):
            bench = Bench(tmp_path / f"{call}-{after}", NEBIUS)
            bench.create()
            bench.fail_at(call, after=after)
            with pytest.raises(RankzeroError):
                bench.delete(with_data=True)
            bench.delete(with_data=True)
            assert bench.things == {}, f"call {call}, after {after}"


def test_what_was_there_before_is_used_and_never_deleted(bench: Bench) -> None:
    accounts = {"k8s-node-group-sa": {"id": "theirs", "looks": 0}}
    bench.state["things"]["service-account"] = accounts
    bench.create()
    assert "service-account k8s-node-group-sa was there before: it is used, and will not be deleted" in bench.said
    group = bench.state["things"]["node-group"]["mk8s-node-group-reza"]["options"]
    assert group["--template-service-account-id"] == "theirs"
    bench.delete(with_data=True)
    assert bench.things == {"service-account": ["k8s-node-group-sa"]}


def test_a_cluster_that_was_there_loses_only_what_was_put_into_it(bench: Bench) -> None:
    bench.state["things"]["cluster"] = {"reza-k8s1": {"id": "theirs", "looks": 0}}
    bench.create()
    assert bench.delete(with_data=True) == ["chart", "node-group", "filesystem", "service-account"]
    assert bench.things == {"cluster": ["reza-k8s1"]}
    assert bench.walk().inventory().unasked == [] and bench.state["contexts"] == ["nebius-mk8s"]
    bench.create()
    assert bench.things == WHOLE


def test_something_of_the_same_name_and_another_id_is_somebody_elses(bench: Bench) -> None:
    bench.create()
    bench.state["things"]["filesystem"]["mk8s-csi-storage"]["id"] = "made-by-another"
    assert "filesystem" not in bench.delete(with_data=True)
    assert bench.things == {"filesystem": ["mk8s-csi-storage"]}


def test_data_stay_unless_they_are_asked_for(bench: Bench) -> None:
    bench.create()
    assert bench.delete() == ["node-group", "service-account", "cluster"]
    assert bench.things == {"filesystem": ["mk8s-csi-storage"]}
    assert bench.delete(with_data=True) == ["filesystem"], "it is still known whose it is"


def test_in_another_project_nothing_is_made_deleted_or_forgotten(bench: Bench) -> None:
    bench.create()
    before = Record(bench.file).path.read_text()
    bench.state["project"] = "project-of-another-profile"
    for act in (bench.create, bench.delete, lambda: bench.walk().create(["kubeconfig"]), bench.walk().plan):
        with pytest.raises(ConfigError, match="was made in project-1, and this is project-of-another-profile"):
            act()
    assert bench.things == WHOLE and not bench.state["elsewhere"]
    assert Record(bench.file).path.read_text() == before
    bench.state["project"] = "project-1"
    bench.delete(with_data=True)
    assert bench.things == {}


def test_a_name_that_was_edited_loses_nothing(bench: Bench) -> None:
    bench.create()
    bench.file.write_text(NEBIUS.replace("mk8s-node-group-reza", "another-group"))
    there = bench.walk().inventory()
    assert there.unasked == ["node-group mk8s-node-group-reza"] and there.gone == []
    with pytest.raises(RankzeroError, match="FailedPrecondition"):
        bench.delete(with_data=True)
    bench.create()
    assert bench.things["node-group"] == ["another-group", "mk8s-node-group-reza"]
    bench.file.write_text(NEBIUS)
    with pytest.raises(RankzeroError, match="FailedPrecondition"):
        bench.delete(with_data=True)
    bench.file.write_text(NEBIUS.replace("mk8s-node-group-reza", "another-group"))
    bench.delete(with_data=True)
    assert bench.things == {}


def test_a_cluster_that_was_renamed_loses_none_of_its_hosts(bench: Bench) -> None:
    """Hosts are asked for within their cluster: without it nobody knows whether they are there."""
    bench.create()
    bench.file.write_text(NEBIUS.replace("reza-k8s1", "another"))
    there = bench.walk().inventory()
    assert there.gone == [] and "node-group mk8s-node-group-reza" in there.unasked
    with pytest.raises(ConfigError, match="cluster reza-k8s1 was made from this file"):
        bench.create()
    assert bench.things == WHOLE
    bench.file.write_text(NEBIUS)
    bench.delete(with_data=True)
    assert bench.things == {} and not Record(bench.file).path.exists()


def test_what_was_not_found_is_forgotten_only_by_its_own_name(bench: Bench) -> None:
    bench.create()
    del bench.state["things"]["node-group"]["mk8s-node-group-reza"]
    assert [step.title for step in bench.walk().inventory().gone] == ["node-group mk8s-node-group-reza"]
    bench.delete()
    assert Record(bench.file).titles == ["filesystem mk8s-csi-storage"]


def test_a_record_of_before_names_had_entries_is_read(bench: Bench) -> None:
    bench.create()
    path = Record(bench.file).path
    entries = json.loads(path.read_text())
    old = {
        key.partition("/")[0]: {name: one[name] for name in ("name", "id", "others")} for key, one in entries.items()
    }
    path.write_text(json.dumps(old))
    bench.delete(with_data=True)
    assert bench.things == {}


def test_what_is_still_being_made_is_waited_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, NEBIUS, slow=3)
    bench.create()
    assert bench.slept and bench.things == WHOLE
    assert not [one for one in bench.said if "stays as it is" in one], "what is not told yet is not another"
    never = Bench(tmp_path / "never", NEBIUS, slow=10**6)
    with pytest.raises(ServiceError, match="is not ready after 1800 s"):
        never.create()
    assert sum(never.slept) >= 1800


@pytest.mark.parametrize("state", ["ERROR", "DELETING"])
@pytest.mark.parametrize("kind", ["filesystem", "node-group", "cluster", "service-account"])
def test_what_cannot_be_used_any_more_is_taken_down_like_the_rest(bench: Bench, kind: str, state: str) -> None:
    """Hosts cost what they cost, whatever has become of the file system beside them."""
    bench.create()
    (thing,) = bench.state["things"][kind].values()
    thing["state"] = state
    for act in (bench.create, bench.walk().plan):
        with pytest.raises(ServiceError, match=f"is there and cannot be used: {state}"):
            act()
    before = len(bench.changes())
    assert bench.delete() == ["node-group", "service-account", "cluster"]
    assert bench.delete(with_data=True) == ["filesystem"]
    assert bench.things == {} and len(bench.changes()) > before


@pytest.mark.parametrize(("text", "kind"), [(NEBIUS, "node-group"), (KIND, "kind")])
def test_hosts_of_others_are_not_those_that_are_waited_for(tmp_path: Path, text: str, kind: str) -> None:
    """Of another group, and kind's control plane: ready long before."""
    bench = Bench(tmp_path, text)
    bench.create()
    (thing,) = bench.state["things"][kind].values()
    thing["unready"] = True
    if kind == "node-group":
        bench.state["things"][kind]["cpus"] = {"id": "g", "looks": 0, "options": {"--fixed-node-count": "8"}}
    with pytest.raises(ServiceError, match="hosts .2 of them. is not ready after 1800 s") as raised:
        bench.create()
    assert "`rankzero cluster delete` takes" in raised.value.problems[0].hint
    thing["unready"] = False
    assert bench.create()["hosts"] == "2"


def test_hosts_that_do_not_say_what_they_are_of_are_all_counted(tmp_path: Path) -> None:
    assert Bench(tmp_path, NEBIUS, label="another").create()["hosts"] == "2"


def test_what_breaks_while_it_is_waited_for_is_not_waited_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, NEBIUS, slow=10**6)
    walk = bench.walk()

    def breaks(seconds: float) -> None:
        bench.slept.append(seconds)
        bench.state["things"]["cluster"]["reza-k8s1"]["state"] = "ERROR"

    with pytest.raises(ServiceError, match="cannot be used: ERROR"):
        replace(walk, sleep=breaks).create()
    assert len(bench.slept) == 1
    bench.delete()
    assert bench.things == {}


@pytest.mark.parametrize(
    ("text", "command"), [(NEBIUS, "--fixed-node-count 4"), (KIND, "kind delete cluster --name here")]
)
def test_hosts_that_nobody_makes_are_not_waited_for(tmp_path: Path, text: str, command: str) -> None:
    """Their number was raised after they were made; what is there is not made again."""
    bench = Bench(tmp_path, text)
    bench.create()
    bench.file.write_text(text.replace("count: 2", "count: 4"))
    for act in (bench.create, bench.walk().plan):
        with pytest.raises(ConfigError, match="has 2 hosts, and is to have 4") as raised:
            act()
        assert raised.value.problems[0].where == "nodes.count" and command in raised.value.problems[0].hint
    assert not bench.slept
    assert bench.delete(with_data=True) and bench.things == {}


@pytest.mark.parametrize(("text", "state"), [(KIND, ""), (NEBIUS, ""), (NEBIUS, "ERROR"), (NEBIUS, "DELETING")])
def test_access_is_given_to_what_is_there_whatever_is_wrong_with_it(tmp_path: Path, text: str, state: str) -> None:
    """It makes no hosts: their number and their state are for who does, and said."""
    bench = Bench(tmp_path, text)
    context = bench.create()["kubeconfig"]
    for thing in bench.state["things"].get("cluster", {}).values():
        thing |= {"state": state} if state else {}
    bench.file.write_text(text.replace("count: 2", "count: 4"))
    before = len(bench.changes())
    assert bench.walk().create(["kubeconfig"])["kubeconfig"] == context
    assert not bench.slept and not [one for one in bench.changes()[before:] if "create" in one]


def test_a_cluster_of_others_is_not_to_be_deleted_for_its_size(tmp_path: Path) -> None:
    """By rankzero, which deletes only what it made."""
    bench = Bench(tmp_path, KIND)
    bench.create()
    bench.walk().record.path.unlink()
    bench.file.write_text(KIND.replace("count: 2", "count: 4"))
    with pytest.raises(ConfigError, match="has 2 hosts") as raised:
        bench.create()
    assert bench.delete() == []
    hint = raised.value.problems[0].hint
    assert "kind delete cluster --name here" in hint and "nodes.count back to 2" in hint
    assert "rankzero cluster delete" not in hint


@pytest.mark.parametrize("text", [NEBIUS, KIND])
def test_hosts_that_are_more_than_asked_for_are_used_and_named(tmp_path: Path, text: str) -> None:
    bench = Bench(tmp_path, text)
    bench.create()
    bench.file.write_text(text.replace("count: 2", "count: 1"))
    bench.create()
    assert [one for one in bench.said if "has 2 hosts, and is to have 1: it stays as it is" in one]


CHANGES = {
    "gpu-h100-sxm": "gpu-h200-sxm",
    "1gpu-16vcpu-200gb": "8gpu-128vcpu-1600gb",
    "drivers: cuda12": "drivers: cuda12.8",
    "boot_disk_gib: 1000": "boot_disk_gib: 500",
    "size_gib: 2000": "size_gib: 8000",
    "block_size_bytes: 4096": "block_size_bytes: 8192",
    '"1.36"': '"1.37"',
    "version: 0.1.2": "version: 0.1.5",
    "provider: nebius": "provider: nebius\npublic_endpoint: false\nsubnet: subnet-2",
}


def test_what_is_shipped_asks_for_the_newest_version(tmp_path: Path) -> None:
    """One that it names is out of support a year later, and then no cluster can be made of it."""
    bench = Bench(tmp_path, SHIPPED)
    bench.create()
    [made] = [call for call in bench.state["calls"] if call[1:4] == ["mk8s", "cluster", "create"]]
    assert "--control-plane-version" not in made and "reza-k8s1" in made


def test_what_was_changed_in_the_file_since_is_said(bench: Bench) -> None:
    bench.create()
    for act in (bench.create, bench.walk().plan):
        before = len(bench.said)
        act()
        assert not [one for one in bench.said[before:] if "stays as it is" in one], "what is as it was asked for"
    text = NEBIUS
    for old, new in CHANGES.items():
        assert old in text
        text = text.replace(old, new)
    bench.file.write_text(text)
    changes = len(bench.changes())
    for act in (bench.create, lambda: bench.walk().plan()):
        before = len(bench.said)
        act()
        said = [one for one in bench.said[before:] if "stays as it is" in one]
        assert len(said) == 10, said
        assert "node-group mk8s-node-group-reza has platform gpu-h100-sxm, and is to have gpu-h200-sxm" in said[5]
        assert "filesystem mk8s-csi-storage has size_gib 2000, and is to have 8000: it stays as it is" in said
    assert not [one for one in bench.changes()[changes:] if "get-credentials" not in one]


def test_a_plan_of_what_is_all_there_has_nothing_to_make(bench: Bench) -> None:
    """But access, which create gives each time."""
    bench.create()
    assert [step.kind for step, commands in bench.walk().plan() if commands] == ["kubeconfig"]
    bench.state["contexts"].clear()
    assert [step.kind for step, commands in bench.walk().plan() if commands] == ["kubeconfig", "chart"]


def test_a_plan_says_what_is_there_and_not_ready(bench: Bench) -> None:
    bench.create()
    bench.state["things"]["node-group"]["mk8s-node-group-reza"]["unready"] = True
    assert bench.walk().plan()[-1][1] == [], "hosts are looked for"
    assert "hosts (2 of them) is not ready: create waits for it" in bench.said
    bench.state["things"]["cluster"]["reza-k8s1"]["state"] = "PROVISIONING"
    assert [step.kind for step, commands in bench.walk().plan() if commands] == ["kubeconfig"], "nothing is made twice"
    assert "cluster reza-k8s1 is not ready: create waits for it" in bench.said


def test_a_group_that_does_not_say_how_many_it_has_is_taken_as_it_is(bench: Bench) -> None:
    """One that grows and shrinks by itself, say."""
    bench.create()
    del bench.state["things"]["node-group"]["mk8s-node-group-reza"]["options"]["--fixed-node-count"]
    programs = StandIns(bench.state)
    (step,) = [one for one in provider("nebius").steps(bench.spec) if one.kind == "node-group"]
    found = step.find(programs, {"cluster": "cluster-reza-k8s1", "filesystem": "filesystem-mk8s-csi-storage"})
    assert found is not None and found.trouble is None and found.notes == ()


@pytest.mark.parametrize("status", ["pending-install", "failed", "uninstalling"])
def test_a_release_that_was_cut_off_is_made_once_more(bench: Bench, status: str) -> None:
    """helm installs nothing over it, and shows it in no list of what is deployed."""
    bench.state["cut"] = status
    with pytest.raises(ServiceError):
        bench.create()
    (planned,) = [commands for step, commands in bench.walk().plan() if step.kind == "chart"]
    assert planned is not None and planned[-1].words[1] == "upgrade"
    bench.create()
    (release,) = bench.state["things"]["release"].values()
    assert (release["status"], release["revision"]) == ("deployed", 1)
    assert "chart csi-mounted-fs-path was left half made: it is made once more" in bench.said


@pytest.mark.parametrize(("status", "mend"), [("pending-upgrade", ["rollback"]), ("failed", [])])
def test_a_release_whose_upgrade_was_cut_off_loses_nothing(bench: Bench, status: str, mend: list[str]) -> None:
    """Volumes are in use by what runs: that is not to be uninstalled."""
    bench.create()
    (release,) = bench.state["things"]["release"].values()
    release |= {"status": status, "revision": 2}
    before = len(bench.changes())
    bench.create()
    helm = [one.split()[1] for one in bench.changes()[before:] if one.startswith("helm")]
    assert helm == ["pull", "upgrade"] and ("helm rollback" in " ".join(bench.said)) == bool(mend)
    (release,) = bench.state["things"]["release"].values()
    assert (release["status"], release["revision"]) == ("deployed", 3)


@pytest.mark.parametrize("status", ["pending-install", "failed"])
def test_a_release_of_others_that_was_cut_off_is_theirs_to_put_right(bench: Bench, status: str) -> None:
    bench.create()
    bench.walk().record.drop("chart", "csi-mounted-fs-path")
    (release,) = bench.state["things"]["release"].values()
    release["status"] = status
    with pytest.raises(ServiceError, match=f"the release csi-mounted-fs-path is {status}") as raised:
        bench.create()
    assert "`helm uninstall csi-mounted-fs-path --kube-context nebius-mk8s`" in raised.value.problems[0].hint


@pytest.mark.parametrize("status", ["pending-install", "failed"])
def test_a_release_that_was_cut_off_is_not_forgotten(bench: Bench, status: str) -> None:
    bench.state["things"]["cluster"] = {"reza-k8s1": {"id": "theirs", "looks": 0}}
    bench.state["cut"] = status
    with pytest.raises(ServiceError):
        bench.create()
    assert bench.walk().inventory().gone == []
    assert "chart" in bench.delete(with_data=True)
    assert bench.things == {"cluster": ["reza-k8s1"]}


@pytest.mark.parametrize("count", [1, 2])
def test_a_cluster_of_containers_that_was_left_half_made_is_no_cluster(tmp_path: Path, count: int) -> None:
    """kind was killed: its containers are there, and it takes them for a cluster."""
    bench = Bench(tmp_path, KIND.replace("count: 2", f"count: {count}"), cut="killed")
    with pytest.raises(ServiceError, match="exit code -9"):
        bench.create()
    for act in (bench.create, bench.walk().plan):
        with pytest.raises(ServiceError, match="cluster here was left half made") as raised:
            act()
        assert "`rankzero cluster delete` takes down" in raised.value.problems[0].hint
    assert bench.delete() == ["cluster"] and bench.things == {}
    bench.create()
    assert bench.things == {"kind": ["here"]}


def test_hosts_of_a_cluster_of_containers_that_was_cut_off_are_not_waited_for(tmp_path: Path) -> None:
    """kind was killed once its control plane ran: that has a kubeconfig, and no network, and never will have one."""
    bench = Bench(tmp_path, KIND, refuse=["create"], said="ERROR: killed", after=True)
    with pytest.raises(ServiceError, match="killed"):
        bench.create()
    bench.state["refuse"] = []
    bench.state["things"]["kind"]["here"]["unready"] = True
    for _ in range(2):
        with pytest.raises(ServiceError, match="hosts .2 of them. is not ready, and nobody said") as raised:
            bench.create()
        assert "`rankzero cluster delete` takes" in raised.value.problems[0].hint
    assert not bench.slept
    bench.state["things"]["kind"]["here"]["unready"] = False
    assert bench.create()["hosts"] == "2", "it was starting still"
    assert bench.delete() == ["cluster"] and bench.things == {}


def test_an_outage_is_no_answer(bench: Bench) -> None:
    """Whatever is not said to be missing is not made a second time."""
    bench.create()
    bench.fail_at(3)
    with pytest.raises(ServiceError, match="Unavailable"):
        bench.create()
    assert len([one for one in bench.changes() if "cluster create" in one]) == 1


@pytest.mark.parametrize("said", ["profile default not found", "/etc/config: does not exist", "host not found"])
def test_what_is_missing_on_this_machine_is_no_answer_either(said: str) -> None:
    assert not Answer(1, "", f"Error: {said}").says_absent
    assert Answer(1, "", "rpc error: code = NotFound desc = cluster reza-k8s1").says_absent


def test_a_context_of_another_cluster_is_never_installed_into(bench: Bench) -> None:
    bench.create()
    bench.state["contexts"].append("production")
    bench.state["things"]["release"].clear()
    bench.create()
    installs = [one for one in bench.changes() if one.startswith("helm upgrade")]
    assert len(installs) == 2 and all(one.endswith("--kube-context nebius-mk8s") for one in installs)
    Record(bench.file).path.unlink()
    for _ in range(2):
        with pytest.raises(ServiceError, match="already exists"):
            bench.create()


@pytest.mark.parametrize("untold", [False, True])
def test_a_context_that_comes_after_a_refusal_is_not_that_of_the_cluster(bench: Bench, untold: bool) -> None:
    """The name that it is to have was taken before; somebody adds another one since."""
    bench.state.update(contexts=["nebius-mk8s"], untold=untold)
    with pytest.raises(ServiceError, match="already exists") as raised:
        bench.create()
    hint = raised.value.problems[0].hint
    assert "there is nebius-mk8s;" in hint and "`kubectl config delete-context NAME`" in hint
    bench.state["contexts"].append("production")
    with pytest.raises(ServiceError, match="already exists"):
        bench.create()
    assert "node-group" not in bench.things
    bench.state["contexts"].remove("nebius-mk8s")
    assert bench.create()["kubeconfig"] == "nebius-mk8s"


@pytest.mark.parametrize("noted", [{"id": "production", "others": ["production"]}, {"id": "", "others": []}])
def test_a_wrong_context_that_an_older_version_noted_is_not_used(bench: Bench, noted: dict[str, Any]) -> None:
    bench.create()
    bench.state["things"]["release"].clear()
    bench.state["contexts"].append("production")
    path = Record(bench.file).path
    entries = json.loads(path.read_text())
    entries["kubeconfig/reza-k8s1"].update(noted)
    path.write_text(json.dumps(entries))
    assert [step.kind for step, commands in bench.walk().plan() if commands] == ["kubeconfig", "chart"]
    assert bench.create()["kubeconfig"] == "nebius-mk8s"
    installs = [one for one in bench.changes() if one.startswith("helm upgrade")]
    assert len(installs) == 2 and all(one.endswith("--kube-context nebius-mk8s") for one in installs)
    bench.state["servers"]["nebius-mk8s"] = "https://somebody-elses.example.com"
    with pytest.raises(ServiceError, match="which kubeconfig is that of reza-k8s1 cannot be told") as raised:
        bench.create()
    hint = raised.value.problems[0].hint
    assert "nebius-mk8s, production" in hint and "kubectl config delete-context" in hint


def test_a_wrong_context_that_an_older_version_noted_is_not_deleted(bench: Bench) -> None:
    bench.create()
    bench.state["contexts"].append("production")
    path = Record(bench.file).path
    path.write_text(path.read_text().replace('"nebius-mk8s"', '"production"'))
    bench.delete(with_data=True)
    assert "production" in bench.state["contexts"] and bench.things == {}


def test_access_through_a_tunnel_is_that_to_the_cluster(bench: Bench) -> None:
    bench.create()
    bench.state["servers"]["nebius-mk8s"] = "https://127.0.0.1:6443 pu.cluster-reza-k8s1.example.com"
    assert bench.create()["kubeconfig"] == "nebius-mk8s"


def test_access_from_within_the_network_is_that_to_the_cluster(tmp_path: Path) -> None:
    bench = Bench(tmp_path, f"{NEBIUS}public_endpoint: false\n", contexts=["production"])
    for _ in range(2):
        assert bench.create()["kubeconfig"] == "nebius-mk8s"
    bench.file.write_text(NEBIUS)
    assert bench.create()["kubeconfig"] == "nebius-mk8s", "it leads there all the same"


def test_a_context_that_the_program_has_overwritten_is_that_of_the_cluster(bench: Bench) -> None:
    bench.state.update(contexts=["nebius-mk8s"], overwrites=True)
    for _ in range(2):
        assert bench.create()["kubeconfig"] == "nebius-mk8s"


@pytest.mark.parametrize(("text", "context"), [(NEBIUS, "nebius-mk8s"), (KIND, "kind-here")])
def test_a_context_that_another_terminal_switched_to_meanwhile_is_not_that_of_the_cluster(
    tmp_path: Path, text: str, context: str
) -> None:
    """`kubectl config use-context production` between the program's end and the next look: the chart would go there."""
    bench = Bench(tmp_path, text, contexts=["production"])
    walk = bench.walk()
    run = walk.programs.run

    def switched(command: Command) -> Answer:
        answer = run(command)
        if {"get-credentials", "export"} & set(command.words):
            bench.state["contexts"].sort(key="production".__eq__)  # the last one is current
        return answer

    walk.programs.run = switched  # type: ignore[method-assign]
    assert walk.create()["kubeconfig"] == context
    assert bench.create()["kubeconfig"] == context
    bench.delete(with_data=True)
    assert bench.state["contexts"] == ["production"]


@pytest.mark.parametrize(("text", "things"), [(NEBIUS, WHOLE), (KIND, {"kind": ["here"]})], ids=["nebius", "kind"])
def test_what_was_deleted_can_be_made_again(tmp_path: Path, text: str, things: dict[str, list[str]]) -> None:
    bench = Bench(tmp_path, text, contexts=["production"])
    for _ in range(2):
        bench.create()
        assert bench.things == things
        bench.delete(with_data=True)
        assert bench.things == {} and bench.state["contexts"] == ["production"]
        assert not Record(bench.file).path.exists()


def test_a_cluster_that_went_elsewhere_leaves_no_context_that_stops_the_next(bench: Bench) -> None:
    bench.create()
    for kind in ("node-group", "filesystem", "service-account", "cluster", "release"):
        bench.state["things"].pop(kind)
    bench.delete(with_data=True)
    bench.create()
    assert bench.things == WHOLE


def test_access_to_a_cluster_of_before_is_not_taken_for_that_to_the_next(bench: Bench) -> None:
    """Somebody took the cluster down at the provider; one of the same name has another id, and is elsewhere."""
    bench.create()
    path = Record(bench.file).path
    path.write_text(path.read_text().replace("cluster-reza-k8s1", "cluster-of-before"))
    bench.state["things"].clear()
    before = len(bench.state["calls"])
    assert bench.create()["kubeconfig"] == "nebius-mk8s"
    calls = [" ".join(call) for call in bench.state["calls"][before:]]
    away = calls.index("kubectl config delete-context nebius-mk8s")
    assert away < calls.index("nebius mk8s cluster get-credentials --id cluster-reza-k8s1 --external")


def test_a_context_that_was_there_before_stays(bench: Bench) -> None:
    """It is that of somebody's cluster, into which the same name leads."""
    bench.state["contexts"].append("nebius-mk8s")
    with pytest.raises(ServiceError, match="already exists"):
        bench.create()
    assert bench.things == {"cluster": ["reza-k8s1"]}, "no hosts are made before access is sure"
    bench.delete(with_data=True)
    assert bench.state["contexts"] == ["nebius-mk8s"]


def test_tokens_are_in_no_output(bench: Bench) -> None:
    bench.fail_at(3)
    with pytest.raises(ServiceError) as raised:
        bench.create()
    assert "token [hidden]" in str(raised.value)
    bench.create()
    text = "\n".join(bench.said) + Record(bench.file).path.read_text()
    assert TOKEN not in text and "nebius mk8s cluster create --name reza-k8s1" in text


RELEASE = {"revision": 1, "status": "deployed", "chart": "csi-mounted-fs-path-0.1.2"}
REFUSALS = {
    "a right": "rpc error: code = PermissionDenied desc = no",
    "a quota": "rpc error: code = ResourceExhausted desc = Quota limit exceeded",
    "a name": "rpc error: code = AlreadyExists desc = made a moment ago by another",
    "a flag": "Error: unknown flag: --block-size-bytes",
    "a size": "rpc error: code = OutOfRange desc = size is too big",
    "a project": "rpc error: code = NotFound desc = project not found",
}


@pytest.mark.parametrize("said", REFUSALS.values(), ids=REFUSALS)
def test_what_was_refused_is_not_ours_when_another_makes_it(bench: Bench, said: str) -> None:
    bench.state.update(refuse=["filesystem", "create"], said=said)
    with pytest.raises(RankzeroError):
        bench.create()
    bench.state["things"]["filesystem"] = {"mk8s-csi-storage": {"id": "theirs", "looks": 0}}
    bench.state["refuse"] = []
    bench.create()
    assert "filesystem mk8s-csi-storage was there before: it is used, and will not be deleted" in bench.said
    bench.delete(with_data=True)
    assert bench.things == {"filesystem": ["mk8s-csi-storage"]}


def test_a_release_that_was_refused_is_not_ours_when_another_makes_it(bench: Bench) -> None:
    """Its chart was fetched before, which makes nothing there."""
    bench.state["things"]["cluster"] = {"reza-k8s1": {"id": "theirs", "looks": 0}}
    bench.state.update(refuse=["upgrade"], said="Error: UPGRADE FAILED: User cannot create resource")
    with pytest.raises(RankzeroError, match="cannot create"):
        bench.create()
    bench.state["refuse"] = []
    bench.state["things"]["release"] = {"csi-mounted-fs-path": RELEASE}
    assert "chart" not in bench.delete(with_data=True)
    assert bench.things == {"cluster": ["reza-k8s1"], "release": ["csi-mounted-fs-path"]}


def test_a_release_that_failed_is_ours_whatever_it_says_is_there(bench: Bench) -> None:
    said = "Error: INSTALLATION FAILED: a storage class already exists"
    bench.state.update(refuse=["upgrade"], said=said, after=True, cut="failed")
    with pytest.raises(RankzeroError, match="already exists"):
        bench.create()
    bench.state["refuse"] = []
    bench.create()
    assert bench.state["things"]["release"]["csi-mounted-fs-path"]["status"] == "deployed"


def test_what_was_made_in_spite_of_a_refusal_is_ours(bench: Bench) -> None:
    """Hosts were asked for, and the last of them was refused."""
    bench.state.update(refuse=["node-group", "create"], said=REFUSALS["a quota"], after=True)
    with pytest.raises(RankzeroError, match="Quota"):
        bench.create()
    bench.state["refuse"] = []
    bench.create()
    bench.delete(with_data=True)
    assert bench.things == {}


@pytest.mark.parametrize("status", ["deployed", "pending-install"])
def test_a_release_in_a_cluster_of_others_is_not_ours_by_its_name(bench: Bench, status: str) -> None:
    """Ours was deleted at the provider; a colleague made one of that name since, and installed the same chart."""
    bench.create()
    bench.state["things"] = {"cluster": {"reza-k8s1": {"id": "colleagues", "looks": 0}}, "file": {}}
    bench.state["things"]["release"] = {"csi-mounted-fs-path": {**RELEASE, "status": status}}
    before = len(bench.changes())
    if status == "deployed":
        bench.create()
        assert "chart csi-mounted-fs-path was there before: it is used, and will not be deleted" in bench.said
    else:
        with pytest.raises(ServiceError, match="the release csi-mounted-fs-path is pending-install"):
            bench.create()
    assert not [one for one in bench.changes()[before:] if one.startswith("helm")]
    bench.delete(with_data=True)
    assert bench.things == {"cluster": ["reza-k8s1"], "release": ["csi-mounted-fs-path"]}


def test_a_deletion_leaves_a_cluster_of_others_as_it_is(bench: Bench) -> None:
    bench.create()
    bench.state["things"] = {"cluster": {"reza-k8s1": {"id": "colleagues", "looks": 0}}}
    bench.state["things"]["release"] = {"csi-mounted-fs-path": RELEASE}
    before = len(bench.changes())
    there = bench.walk().inventory()
    assert there.ours == [] and there.unasked == []
    bench.delete(with_data=True)
    assert bench.things == {"cluster": ["reza-k8s1"], "release": ["csi-mounted-fs-path"]}
    assert bench.changes()[before:] == [] and not Record(bench.file).path.exists()


OPEN = "rpc error: code = DeadlineExceeded desc = nobody knows"


def test_what_is_taken_for_ours_by_its_name_is_said_to_be(bench: Bench) -> None:
    """After a time limit nobody knows whether it was made, or who made what is there."""
    bench.state.update(refuse=["filesystem", "create"], said=OPEN)
    with pytest.raises(RankzeroError, match="nobody knows"):
        bench.create()
    bench.state["refuse"] = []
    bench.state["things"]["filesystem"] = {"mk8s-csi-storage": {"id": "perhaps-theirs", "looks": 0}}
    for _ in range(2):
        bench.create()
    said = "filesystem mk8s-csi-storage was asked for, and nobody said that it was made: what has its name is taken"
    assert len([one for one in bench.said if one.startswith(said)]) == 2
    walk = bench.walk()
    assert [step.kind for step in walk.inventory().ours if walk.is_guessed(step)] == ["filesystem"]


@pytest.mark.parametrize(("text", "count"), [(NEBIUS, 5), (KIND, 1)])
def test_what_was_made_in_spite_of_a_stop_is_known_by_its_id(tmp_path: Path, text: str, count: int) -> None:
    """After Ctrl-C the program ended its work, and said so: nobody has to guess whose it is."""
    bench = Bench(tmp_path, text)
    for stops in range(1, count + 1):
        bench.state["stop"] = ["create", "upgrade"]
        with pytest.raises(KeyboardInterrupt):
            bench.create()
        entries = json.loads(Record(bench.file).path.read_text())
        made = [key for key, one in entries.items() if one["id"] and not key.startswith("kubeconfig")]
        assert len(made) == stops
    bench.state["stop"] = []
    bench.create()
    assert not [one for one in bench.said if "was asked for" in one]


def test_a_stop_while_nothing_was_made_yet_notes_no_id(bench: Bench) -> None:
    """The chart was fetched."""
    bench.state["stop"] = ["pull"]
    with pytest.raises(KeyboardInterrupt):
        bench.create()
    assert json.loads(Record(bench.file).path.read_text())["chart/csi-mounted-fs-path"]["id"] == ""


def test_a_look_that_fails_after_a_stop_is_no_other_end(bench: Bench) -> None:
    bench.state["stop"] = ["create"]
    bench.fail_at(5)
    with pytest.raises(KeyboardInterrupt):
        bench.create()
    assert json.loads(Record(bench.file).path.read_text())["cluster/reza-k8s1"]["id"] == ""


def test_what_failed_is_said_and_not_that_nobody_could_look_afterwards(bench: Bench) -> None:
    walk, expired = bench.walk(), "rpc error: code = Unauthenticated desc = token expired"
    finish = walk.programs.finish

    def expires(command: Command) -> tuple[Answer, BaseException | None]:
        if {"filesystem", "create"} <= set(command.words):
            bench.state.update(refuse=["filesystem"], said=expired)
        return finish(command)

    walk.programs.finish = expires  # type: ignore[method-assign]
    with pytest.raises(AccessError) as raised:
        walk.create()
    assert raised.value.problems[0].where == "nebius compute filesystem create"
    assert "filesystem mk8s-csi-storage" in Record(bench.file).titles, "it may have been made"


def test_a_right_that_is_missing(bench: Bench) -> None:
    programs = StandIns(bench.state)
    refused = Answer(1, "", "rpc error: code = PermissionDenied desc = no")
    assert isinstance(programs.failure(("nebius", "mk8s"), refused), AccessError)


def test_a_plan_changes_nothing_and_says_what_is_there(bench: Bench) -> None:
    planned = bench.walk().plan(look=False)
    assert not bench.state["calls"]
    assert [step.kind for step, commands in planned if commands] == [
        *("cluster", "kubeconfig", "service-account", "filesystem", "node-group", "chart"),
    ]
    bench.state["things"]["filesystem"] = {"mk8s-csi-storage": {"id": "fs-1", "looks": 0}}
    planned = bench.walk().plan()
    assert not bench.changes()
    assert [step.kind for step, commands in planned if commands is None] == ["project", "subnet", "filesystem"]
    assert '"id": "fs-1"' in str(planned[6][1])


def test_two_commands_at_once_do_not_forget_what_the_other_made(bench: Bench) -> None:
    """Another terminal, or a colleague on the same volume: each has read the record before the other writes it."""
    first, second = bench.walk(), bench.walk()
    with first.record.held():
        first.create()
        with (
            pytest.raises(StorageError, match="another command is at work on this file") as raised,
            second.record.held(),
        ):
            pass
        assert raised.value.problems[0].where == str(bench.file)
        other = Bench(bench.file.parent / "other", NEBIUS)
        with other.walk().record.held():
            pass
    with second.record.held():
        assert len(second.record.titles) == 6, "what the first has made since"
        second.delete(second.inventory().ours, second.inventory())
    assert bench.things == {} and not second.record.path.exists()


def test_a_colleague_who_may_not_write_to_the_lock_has_it_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever came first has made it, with the rights that files have; the directory is of both."""
    real = os.open

    def refuses(path: str, flags: int, mode: int = 0o777, **options: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, flags, mode, **options)

    record = bench.walk().record
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuses)
        with pytest.raises(StorageError, match="infra.made.lock") as raised, record.held():
            pass
        assert "output_dir" not in str(raised.value) and "beside infra.yaml" in raised.value.problems[0].hint
    with record.held():
        pass
    monkeypatch.setattr(os, "open", refuses)
    with (
        record.held(),
        pytest.raises(StorageError, match="another command is at work"),
        Record(bench.file).held(),
    ):
        pass


def test_a_record_that_cannot_be_read_is_no_empty_one(bench: Bench) -> None:
    Record(bench.file).path.write_text("[")
    with pytest.raises(StorageError, match="cannot be read"):
        bench.create()


def test_every_problem_of_a_file_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "infra.yaml").write_text(
        'provider: kind\nname: here\nkubernetes_version: "1.30"\nnodes: {name: a, preset: p, cuont: 2}\n'
        "filesystem: {name: f, size_gib: -1}\nchart: {name: c, ref: https://x, version: 1.0.0}\n"
    )
    with pytest.raises(ConfigError) as raised:
        load_infra_spec(tmp_path / "infra.yaml", env={})
    said = str(raised.value)
    for words in ("infra.yaml:4 nodes.cuont", "infra.yaml:5 filesystem.size_gib", "infra.yaml:6 chart.ref"):
        assert words in said, said
    (tmp_path / "infra.yaml").write_text(KIND + 'subnet: s\nkubernetes_version: "1.30"\n')
    with pytest.raises(ConfigError) as raised:
        load_infra_spec(tmp_path / "infra.yaml", env={})
    assert "infra.yaml:4 subnet: kind has no use for it" in str(raised.value)
    assert "kind takes a version of 3 parts, not 1.30" in str(raised.value)
    (tmp_path / "infra.yaml").write_text("provider: nebius\nname: n\nnodes: {name: a}\n")
    with pytest.raises(ConfigError) as raised:
        load_infra_spec(tmp_path / "infra.yaml", env={})
    assert len(raised.value.problems) == 2, "platform and preset"
    (tmp_path / "infra.yaml").write_text(NEBIUS.replace('"1.36"', '"1.36.4"'))
    with pytest.raises(ConfigError, match=r"infra.yaml:5 kubernetes_version: nebius takes .* of 2 parts, not 1.36.4"):
        load_infra_spec(tmp_path / "infra.yaml", env={})


def test_several_hosts_in_containers(tmp_path: Path) -> None:
    bench = Bench(tmp_path, KIND)
    assert bench.create()["kubeconfig"] == "kind-here"
    (config,) = [call[-1] for call in bench.state["calls"] if call[:2] == ["kind", "create"]]
    assert config.count("role: worker") == 2
    assert any("<<'END'" in line for line in bench.said), "what it reads is shown, too"
