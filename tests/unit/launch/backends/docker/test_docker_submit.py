"""Submitting to docker: what is made, in which order, and what is left standing when something fails."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rankzero.errors import ConfigError, ExitCode, ServiceError
from rankzero.launch import labels
from rankzero.launch.backend import AlreadyRunsError, LogQuery
from rankzero.launch.backends.docker.backend import DockerBackend
from rankzero.launch.backends.preparation import PreparationError
from rankzero.launch.node.settings import TOKEN_VARIABLE
from tests.unit.launch.backends.docker.conftest import NODES, Submit, states
from tests.unit.launch.backends.docker.docker_objects import objects, pod
from tests.unit.launch.backends.docker.fake_docker import Daemon

SECRET = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}


def test_submit_makes_volumes_network_and_containers_and_starts_them(daemon: Daemon, submit: Submit) -> None:
    assert submit() == ["2 containers started: rankzero-tiny-0, rankzero-tiny-1"]
    assert states(daemon) == dict.fromkeys(NODES, "running")
    scratch = {"rankzero-tiny-0.tmp", "rankzero-tiny-1.tmp"}
    assert set(daemon.state["volumes"]) == {"rankzero-results", "rankzero-results.used-by.tiny", *scratch}
    assert list(daemon.state["networks"]) == ["rankzero-tiny"]
    created = daemon.container(NODES[1])["fake"]
    assert created["options"]["--network"] == ["rankzero-tiny"]
    assert created["rest"] == ["rankzero:test", "-P", "-m", "rankzero.launch.node", "/etc/rankzero"]
    environment = daemon.container(NODES[1])["Config"]["Env"]
    assert environment == ["POD_NAME=tiny-1", "NODE_NAME=box", "HOME=/tmp", "RANKZERO_NODE=1"]
    verbs = [call[0] for call in daemon.state["calls"]]
    assert verbs.index("start") > max(index for index, verb in enumerate(verbs) if verb == "create")


def test_the_config_map_is_laid_out_as_its_volume_says(daemon: Daemon, submit: Submit) -> None:
    submit()
    (mount,) = [one for one in daemon.container(NODES[0])["fake"]["options"]["--mount"] if "/etc/rankzero" in one]
    fields = dict(part.partition("=")[::2] for part in mount.split(","))
    root = Path(fields["source"])
    assert "readonly" in fields
    assert (root / "run.yaml").read_text() == "name: tiny\n"
    assert (root / "files/data/train.jsonl").read_bytes() == b"{}\n"
    assert all(path.stat().st_mode & 0o004 for path in root.rglob("*")), "the pod's user can read it"


def test_volumes_are_given_to_the_pods_user(daemon: Daemon, submit: Submit) -> None:
    submit()
    (call,) = daemon.calls("run")
    assert call[call.index("--user") + 1] == "0:0"
    assert call[-3:] == ["1000:1000"] * 3


@pytest.mark.parametrize("value", ["canary-5d1f", "canary-first\nsecond"])
def test_a_secret_reaches_the_container_and_nothing_else(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str
) -> None:
    backend = DockerBackend()  # through processes, whose arguments and environment are recorded
    monkeypatch.setenv("HF_TOKEN", value)
    said: list[str] = []
    backend.submit(objects(pod(0, [SECRET])), said.append)
    container = daemon.container(NODES[0])
    assert f"HF_TOKEN={value}" in container["Config"]["Env"] or container["fake"]["passed"] == {"HF_TOKEN": value}
    assert container["fake"]["mode"] == 0o600
    left = [path.read_text(errors="replace") for path in (tmp_path / "state").rglob("*") if path.is_file()]
    elsewhere = [repr(daemon.state["calls"]), repr(said), repr(backend.collect("tiny")), *left]
    assert all("canary" not in text for text in elsewhere)
    assert all("canary" not in text for text in container["Config"]["Labels"].values())


def test_a_secret_that_is_not_set_is_named_before_anything_is_made(daemon: Daemon, submit: Submit) -> None:
    with pytest.raises(ConfigError, match=r"HF_TOKEN is not set[\s\S]*export HF_TOKEN"):
        submit(pod(0, [SECRET]))
    assert not daemon.names() and not daemon.state["volumes"]


def test_an_optional_secret_may_be_missing(daemon: Daemon, submit: Submit) -> None:
    reference = {"secretKeyRef": {"name": "hf", "key": "token", "optional": True}}
    submit(pod(0, [{"name": "HF_TOKEN", "valueFrom": reference}]))
    assert not any(line.startswith("HF_TOKEN") for line in daemon.container(NODES[0])["Config"]["Env"])


def test_an_image_that_is_not_here_is_named_with_the_way_to_get_it(daemon: Daemon, submit: Submit) -> None:
    daemon.change(images=[])
    with pytest.raises(ConfigError, match=r"no image rankzero:test[\s\S]*docker pull rankzero:test"):
        submit()
    assert not daemon.names()


def test_a_claim_that_nobody_makes_is_named(daemon: Daemon, backend: DockerBackend) -> None:
    without = [one for one in objects() if one["kind"] != "PersistentVolumeClaim"]
    with pytest.raises(ConfigError, match=r"rankzero-results[\s\S]*docker volume create rankzero-results"):
        backend.submit(without, lambda line: None)
    daemon.change(volumes={"rankzero-results": {}})
    backend.submit(without, lambda line: None)
    assert daemon.names() == set(NODES)


def test_other_kinds_are_refused(daemon: Daemon, backend: DockerBackend) -> None:
    training = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "tiny", "labels": {}}, "spec": {}}
    with pytest.raises(ConfigError, match=r"Job/tiny[\s\S]*--kind docker"):
        backend.submit([*objects()[:2], training], lambda line: None)


def test_gpus_are_shared_out(daemon: Daemon, submit: Submit) -> None:
    pods = [pod(0), pod(1)]
    for one in pods:
        one["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "1"
    submit(*pods)
    options = [daemon.container(name)["fake"]["options"]["--gpus"] for name in NODES]
    assert options == [['"device=0"'], ['"device=1"']]


@pytest.mark.parametrize(
    ("visible", "devices"),
    [("2,3", ["2", "3"]), ("GPU-b, GPU-a", ["GPU-b", "GPU-a"]), ("3,1,9,0", ["3", "1"]), ("1,2,-1,0", ["1", "2"])],
)
def test_gpus_that_are_hidden_here_are_left_to_others(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str, devices: list[str]
) -> None:
    program = tmp_path / "bin" / "nvidia-smi"
    program.write_text("#!/bin/sh\nfor n in 0 1 2 3; do echo GPU $n: H100; done\n", encoding="utf-8")
    program.chmod(0o755)
    pods = [pod(0), pod(1)]
    for one in pods:
        one["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "1"
    DockerBackend(env={**os.environ, "CUDA_VISIBLE_DEVICES": visible}).submit(objects(*pods), lambda line: None)
    options = [daemon.container(name)["fake"]["options"]["--gpus"] for name in NODES]
    assert options == [[f'"device={device}"'] for device in devices]


def test_what_fails_half_way_is_named(daemon: Daemon, submit: Submit) -> None:
    daemon.behave(refuses={"create --name rankzero-tiny-1": "no space left on device"})
    with pytest.raises(ServiceError) as raised:
        submit()
    text = str(raised.value)
    assert "no space left" in text and "container rankzero-tiny-0" in text and "rankzero delete tiny" in text
    assert states(daemon) == {NODES[0]: "created"}, "nothing runs"


def test_a_container_that_cannot_start_takes_the_others_down(daemon: Daemon, submit: Submit) -> None:
    daemon.behave(refuses={"start": 'exec: "python": executable file not found in $PATH'})
    with pytest.raises(ServiceError, match="executable file not found"):
        submit()
    assert daemon.calls("stop") == [["stop", *NODES]]


def test_the_same_run_again_is_left_alone(daemon: Daemon, submit: Submit) -> None:
    submit()
    before = daemon.state["containers"]
    assert "already" in submit()[0]
    assert daemon.state["containers"] == before


def test_only_what_ended_is_replaced_while_the_others_wait(daemon: Daemon, submit: Submit) -> None:
    submit()
    kept = daemon.container(NODES[0])["Id"]
    daemon.finish(NODES[1], 137)
    submit()
    assert states(daemon) == dict.fromkeys(NODES, "running")
    assert daemon.container(NODES[0])["Id"] == kept
    assert not daemon.calls("stop")


def test_a_replacement_counts_as_a_restart(daemon: Daemon, submit: Submit, backend: DockerBackend) -> None:
    submit()
    for code in (137, 75):
        daemon.finish(NODES[1], code)
        submit()
    daemon.finish(NODES[0], 75)
    daemon.finish(NODES[1], 75)
    before = backend.collect("tiny")
    submit()  # the whole run again is no restart
    after = backend.collect("tiny")
    counts = [[one["status"]["containerStatuses"][0]["restartCount"] for one in e.pods] for e in (before, after)]
    assert counts == [[0, 2], [0, 0]]


def test_a_finished_run_starts_anew(daemon: Daemon, submit: Submit) -> None:
    submit()
    before = {daemon.container(name)["Id"] for name in NODES}
    for name in NODES:
        daemon.finish(name, 0)
    submit()
    assert states(daemon) == dict.fromkeys(NODES, "running")
    assert before.isdisjoint(daemon.container(name)["Id"] for name in NODES)


def test_a_changed_run_is_stopped_with_its_grace_and_made_anew(daemon: Daemon, submit: Submit) -> None:
    submit()
    said = submit(pod(0), replace=True)  # one node instead of two
    assert "stopping 2 containers" in said[0]
    assert daemon.names() == {NODES[0]}
    assert daemon.container(NODES[0])["Id"] == "id3"


def test_a_run_that_is_up_with_another_spec_is_not_ended_unasked(daemon: Daemon, submit: Submit) -> None:
    theirs = [pod(0), pod(1)]
    for one in theirs:
        one["metadata"]["annotations"][labels.SUBMITTED_BY] = "ann@there"
    submit(*theirs)
    ids = {name: daemon.container(name)["Id"] for name in NODES}
    with pytest.raises(
        AlreadyRunsError, match=r"another spec \(submitted by ann@there at 2026-01-01T00:00:0"
    ) as caught:
        submit(pod(0))
    assert "--replace" in caught.value.problems[0].hint
    assert states(daemon) == dict.fromkeys(NODES, "running")
    assert "left as it is" in submit()[0], "the same spec, by somebody else"
    assert {name: daemon.container(name)["Id"] for name in NODES} == ids


def test_pods_of_a_submission_share_a_secret_of_its_own(daemon: Daemon, submit: Submit) -> None:
    def tokens() -> list[str]:
        found = [daemon.container(name)["Config"]["Env"] for name in NODES]
        return [next(line for line in lines if line.startswith(f"{TOKEN_VARIABLE}=")) for lines in found]

    own = {"secretKeyRef": {"name": "tiny-submission", "key": "token", "optional": True}}
    pods = [pod(node, [{"name": TOKEN_VARIABLE, "valueFrom": own}]) for node in (0, 1)]
    submit(*pods)
    first, second = tokens()
    assert first == second and len(first) > len(TOKEN_VARIABLE) + 32
    daemon.finish(NODES[1], 137)
    submit(*pods)
    assert tokens() == [first, first], "the one that waits knows no other"
    for name in NODES:
        daemon.finish(name, 75)
    submit(*pods)
    assert len(set(tokens())) == 1 and tokens()[0] != first
    assert first.partition("=")[2] not in repr(daemon.state["calls"])


def test_the_preparation_goes_first_and_is_heard_once(daemon: Daemon, submit: Submit, backend: DockerBackend) -> None:
    daemon.behave(
        ends={"rankzero-tiny-prepare": [[0]]}, says={"rankzero-tiny-prepare": ["2026-01-01T00:00:00.1Z fetched"]}
    )
    said = submit(prepare=True)
    assert "tiny-prepare: fetched" in said
    assert daemon.calls("start") == [["start", "rankzero-tiny-prepare"], ["start", *NODES]]
    for name in NODES:
        daemon.finish(name, 0)
    assert not list(backend.logs("tiny", LogQuery(follow=True))), "submit has passed it on"
    assert [line.text for line in backend.logs("tiny", LogQuery())] == ["fetched"]


def test_a_preparation_that_may_succeed_is_tried_again(daemon: Daemon, submit: Submit) -> None:
    daemon.behave(ends={"rankzero-tiny-prepare": [[69], [0]]})
    said = submit(prepare=True)
    assert any("attempt 2 of 2" in line for line in said)
    assert daemon.calls("start")[-1] == ["start", *NODES]


def test_a_preparation_that_fails_leaves_with_its_code_and_message(daemon: Daemon, submit: Submit) -> None:
    message = {"rankzero": 1, "outcome": "failed", "exit_code": 77, "what": "gated", "where": "", "hint": "ask for it"}
    daemon.behave(ends={"rankzero-tiny-prepare": [[77, json.dumps(message)]]})
    with pytest.raises(PreparationError, match=r"gated[\s\S]*ask for it") as raised:
        submit(prepare=True)
    assert raised.value.exit_code == ExitCode.ACCESS
    assert daemon.names() == {"rankzero-tiny-prepare"}, "its log stays, and nothing waits for it"
    assert len(daemon.calls("start")) == 1, "77 is never right by trying again"


def test_a_stopped_preparation_is_not_started_again(daemon: Daemon, submit: Submit) -> None:
    daemon.behave(ends={"rankzero-tiny-prepare": [[143], [0]]})
    with pytest.raises(PreparationError):
        submit(prepare=True)
    assert len(daemon.calls("start")) == 1


def test_replacing_one_node_does_not_prepare_again(daemon: Daemon, submit: Submit) -> None:
    daemon.behave(ends={"rankzero-tiny-prepare": [[0]]})
    submit(prepare=True)
    daemon.finish(NODES[0], 137)
    submit(prepare=True)
    assert [call for call in daemon.calls("start") if "rankzero-tiny-prepare" in call] == [daemon.calls("start")[0]]
    assert "rankzero-tiny-prepare" in daemon.names()
