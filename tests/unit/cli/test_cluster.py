"""`rankzero cluster` as it is typed, with the providers' programs as executables on PATH."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankzero.errors import StorageError
from rankzero.provision.record import Record
from tests.support.cli import Cli
from tests.support.gone import unread_pipe
from tests.support.provider_programs import VARIABLE, installed, program
from tests.unit.provision.test_provision import KIND, NEBIUS


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "state.json"))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    return Cli(capfd, monkeypatch)


def test_from_nothing_to_a_cluster_and_back(cli: Cli, tmp_path: Path) -> None:
    installed(tmp_path / "bin", "nebius", "helm", "kubectl")
    Path("infra.yaml").write_text(NEBIUS)
    done = cli("cluster create -f infra.yaml")
    assert done.code == 0, done.err
    plan, _, run = done.out.partition("this is all of it")
    assert "nebius mk8s node-group create --parent-id '<cluster>'" in plan and "$" not in plan
    assert "$ nebius mk8s node-group create --parent-id cluster-reza-k8s1" in run
    assert "context: nebius-mk8s" in done.out and "class: csi-mounted-fs-path-sc" in done.out
    assert cli("cluster credentials -f infra.yaml").out.endswith("context: nebius-mk8s\n")

    refused = cli("cluster delete -f infra.yaml")
    assert refused.code == 2 and "nobody to ask" in refused.err
    assert "filesystem mk8s-csi-storage stays" in refused.out
    assert cli("cluster delete -f infra.yaml --yes --with-data").code == 0
    things = json.loads(Path("state.json").read_text())["things"]
    assert not any(names for kind, names in things.items() if kind != "file")
    again = cli("cluster delete -f infra.yaml --yes")
    assert again.code == 0 and "nothing that was made is there" in again.out


def test_another_provider_by_the_same_commands(cli: Cli, tmp_path: Path) -> None:
    installed(tmp_path / "bin", "kind", "kubectl")
    Path("infra.yaml").write_text(KIND.replace("provider: kind\n", ""))
    assert cli("cluster create -f infra.yaml --provider kind").code == 0
    planned = cli("cluster plan -f infra.yaml --provider kind")
    assert "# cluster here is there" in planned.out
    assert cli("cluster delete -f infra.yaml --provider kind --yes").code == 0
    Path("infra.yaml").write_text(KIND)
    wrong = cli("cluster plan -f infra.yaml --provider nebius")
    assert wrong.code == 78 and "the file says kind" in wrong.err


def test_what_a_provider_makes_nothing_of_is_said(cli: Cli, tmp_path: Path) -> None:
    installed(tmp_path / "bin", "kind", "kubectl")
    Path("infra.yaml").write_text(KIND.replace("count: 2", "count: 2, boot_disk_gib: 500") + "public_endpoint: false\n")
    for command in ("plan", "create"):
        done = cli(f"cluster {command} -f infra.yaml")
        assert done.code == 0 and "warning: infra.yaml:3 nodes.boot_disk_gib: kind makes nothing of it" in done.err
        assert "infra.yaml:4 public_endpoint: kind makes nothing of it" in done.err and "boot_disk_type" not in done.err
    assert cli("cluster delete -f infra.yaml --yes").err == ""


def test_what_is_not_found_is_not_forgotten_without_asking(cli: Cli, tmp_path: Path) -> None:
    """Another docker daemon, say, has none of it."""
    installed(tmp_path / "bin", "kind", "kubectl")
    Path("infra.yaml").write_text(KIND)
    assert cli("cluster create -f infra.yaml").code == 0
    here = json.loads(Path("state.json").read_text())
    Path("state.json").write_text(json.dumps({**here, "things": {}}))
    refused = cli("cluster delete -f infra.yaml")
    assert refused.code == 2 and "nobody to ask" in refused.err
    assert "cluster here was made, and is not found there any more: it will be forgotten" in refused.out
    Path("infra.yaml").write_text(KIND.replace("name: here", "name: there"))
    renamed = cli("cluster delete -f infra.yaml --yes")
    assert renamed.code == 0 and "cluster here was made from this file, and not asked for" in renamed.out
    Path("state.json").write_text(json.dumps(here))
    Path("infra.yaml").write_text(KIND)
    assert "deleted: cluster here" in cli("cluster delete -f infra.yaml --yes").out
    assert cli("cluster create -f infra.yaml").code == 0
    Path("state.json").write_text(json.dumps({**here, "things": {}}))
    assert "forgotten: cluster here" in cli("cluster delete -f infra.yaml --yes").out
    assert "nothing that was made is there" in cli("cluster delete -f infra.yaml").out


def test_of_another_directory_what_is_relative_stays_where_it_was_typed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path / "bin", "nebius", "helm", "kubectl")
    monkeypatch.setenv("PATH", "bin")
    Path("sub").mkdir()
    Path("sub/infra.yaml").write_text(NEBIUS)
    done = cli("cluster create -f sub/infra.yaml")
    assert done.code == 0, done.err
    assert "helm upgrade csi-mounted-fs-path ./sub/csi-mounted-fs-path-0.1.2.tgz" in done.out
    assert "--version 0.1.2 --destination sub" in done.out


def test_helm_is_asked_for_by_a_chart_alone(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(tmp_path / "bin", "nebius", "kubectl")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    Path("infra.yaml").write_text(NEBIUS.partition("chart:")[0])
    assert cli("cluster create -f infra.yaml").code == 0
    Path("infra.yaml").write_text(NEBIUS)
    refused = cli("cluster create -f infra.yaml")
    assert refused.code == 78 and "the program helm is not installed" in refused.err
    assert cli("cluster credentials -f infra.yaml").code == 0
    assert cli("cluster delete -f infra.yaml --yes --with-data").code == 0


def test_programs_that_are_not_installed(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    Path("infra.yaml").write_text(NEBIUS)
    refused = cli("cluster create -f infra.yaml")
    assert refused.code == 78 and all(name in refused.err for name in ("nebius", "helm", "kubectl"))
    plan = cli("cluster plan -f infra.yaml")
    assert plan.code == 0 and "nobody is asked" in plan.err
    assert "nebius compute filesystem create --name mk8s-csi-storage" in plan.out


def test_what_nobody_knows_to_be_ours_is_named_with_what_would_delete_it(cli: Cli, tmp_path: Path) -> None:
    """The record was lost, say: all of it runs, and costs what it costs."""
    installed(tmp_path / "bin", "nebius", "helm", "kubectl")
    Path("infra.yaml").write_text(NEBIUS)
    assert cli("cluster create -f infra.yaml").code == 0
    record = Path("infra.made.json").read_text()
    Path("infra.made.json").unlink()
    told = cli("cluster delete -f infra.yaml --yes --with-data")
    assert told.code == 0 and "nothing that was made is there" not in told.out
    lines = told.out.splitlines()
    for kind, name in (("node-group", "mk8s-node-group-reza"), ("filesystem", "mk8s-csi-storage")):
        line = next(index for index, one in enumerate(lines) if one.startswith(f"{kind} {name} is there and stays"))
        assert lines[line + 1].endswith(f"{kind} delete --id {kind}-{name}")
    assert "infra.made.json does not say" in told.out and "with all that is on it by" in told.out

    entries = json.loads(record)
    entries["cluster/reza-k8s1"]["id"] = "cluster-of-before"
    Path("infra.made.json").write_text(json.dumps(entries))
    told = cli("cluster delete -f infra.yaml")
    assert "cluster reza-k8s1 is there and stays" in told.out, "what has the name now is another's"
    assert "cluster reza-k8s1 was made, and is not found there any more" in told.out
    assert "node-group mk8s-node-group-reza will be deleted" in told.out


SLOW = """
import os, signal, sys
heard = []
def finishes(number, frame):
    heard.append(number)
    if len(heard) > 1:
        os.write(2, b"heard again\\n")
    open("door").read()
    open("finished", "w")
    sys.exit(1)
if sys.argv[1] == "create":
    signal.signal(signal.SIGINT, finishes)
    signal.signal(signal.SIGTERM, finishes)
    open("begun", "w").close()
    while True:
        signal.pause()
"""


@pytest.fixture
def slow(cli: Cli, tmp_path: Path, hung_up_on: None) -> Iterator[subprocess.Popen[str]]:
    """`cluster create` in a terminal of its own, in the middle of what kind does."""
    program(tmp_path / "bin", "kind", SLOW)
    program(tmp_path / "bin", "kubectl", "")
    Path("infra.yaml").write_text(KIND.replace("provider: kind\n", ""))
    for name in ("begun", "door"):
        os.mkfifo(name)
    words = [sys.executable, "-m", "rankzero", "cluster", "create", "-f", "infra.yaml", "--provider", "kind"]
    with subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as typed:
        try:
            Path("begun").read_text()
            yield typed
        finally:
            if typed.poll() is None:  # a test failed
                os.killpg(typed.pid, signal.SIGKILL)


@pytest.mark.parametrize("times", [1, 2])
def test_a_program_ends_its_work_after_ctrl_c_and_is_killed_by_another(slow: subprocess.Popen[str], times: int) -> None:
    """As typed in a terminal, which gives it to all of the group. helm that is killed leaves its release pending."""
    assert slow.stderr is not None
    os.killpg(slow.pid, signal.SIGINT)
    assert slow.stderr.readline().startswith("waiting for kind to end")
    if times == 1:
        Path("door").write_text("")
    else:
        os.killpg(slow.pid, signal.SIGINT)
    said = slow.stderr.read()
    assert slow.wait() == 130 and Path("finished").exists() == (times == 1)
    assert "infra.made.json has cluster here" in said
    assert "`rankzero cluster delete -f infra.yaml --provider kind` takes it down" in said


def test_a_stop_of_the_command_alone_is_told_to_its_program(slow: subprocess.Popen[str]) -> None:
    """A batch system's, say: what it has started would go on by itself, beside the next command."""
    assert slow.stderr is not None
    slow.send_signal(signal.SIGTERM)
    assert slow.stderr.readline().startswith("waiting for kind to end")
    Path("door").write_text("")
    said = slow.stderr.read()
    assert slow.wait() == 128 + signal.SIGTERM and Path("finished").exists()
    assert "infra.made.json has cluster here" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stop_after_ctrl_c_is_told_to_its_program_too(slow: subprocess.Popen[str], number: signal.Signals) -> None:
    """The terminal is closed, say, while the program ends its work: nothing goes on by itself."""
    assert slow.stderr is not None
    os.killpg(slow.pid, signal.SIGINT)
    assert slow.stderr.readline().startswith("waiting for kind to end")
    slow.send_signal(number)
    assert slow.stderr.readline() == "heard again\n"
    with pytest.raises(StorageError, match="another command is at work"), Record(Path("infra.yaml")).held():
        pass
    Path("door").write_text("")
    assert "infra.made.json has cluster here" in slow.stderr.read()
    assert slow.wait() == 130 and Path("finished").exists()


def test_data_that_may_be_others_are_not_deleted_without_asking(cli: Cli, tmp_path: Path) -> None:
    """They are known by their name alone: a colleague may have made them since."""
    installed(tmp_path / "bin", "nebius", "helm", "kubectl")
    Path("infra.yaml").write_text(NEBIUS)
    assert cli("cluster create -f infra.yaml").code == 0
    entries = json.loads(Path("infra.made.json").read_text())
    entries["filesystem/mk8s-csi-storage"]["id"] = ""
    Path("infra.made.json").write_text(json.dumps(entries))
    agreed = cli("cluster delete -f infra.yaml --with-data")
    assert agreed.code == 2 and "filesystem mk8s-csi-storage will be deleted WITH ALL THAT IS ON IT" in agreed.out
    assert "it is taken for that by its name alone" in agreed.out
    done = cli("cluster delete -f infra.yaml --with-data --yes")
    assert "filesystem mk8s-csi-storage stays" in done.out and "without --yes asks" in done.out
    again = cli("cluster delete -f infra.yaml --with-data --yes")
    for one in (done, again):
        assert one.code == 2 and "filesystem mk8s-csi-storage is still there, with what is on it" in one.err
    assert cli("cluster delete -f infra.yaml --yes").code == 0, "nobody asked for the data"
    things = json.loads(Path("state.json").read_text())["things"]
    assert list(things["filesystem"]) == ["mk8s-csi-storage"] and not things["cluster"]


def test_a_closed_stdin_is_nobody_to_ask(cli: Cli, tmp_path: Path) -> None:
    """`rankzero cluster delete … <&-`: Python has none then."""
    installed(tmp_path / "bin", "kind", "kubectl")
    Path("infra.yaml").write_text(KIND)
    assert cli("cluster create -f infra.yaml").code == 0
    line = f"{sys.executable} -m rankzero cluster delete -f infra.yaml <&-"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "there is nobody to ask" in done.stderr


def test_one_command_at_a_time(cli: Cli, tmp_path: Path) -> None:
    installed(tmp_path / "bin", "kind", "kubectl")
    Path("infra.yaml").write_text(KIND)
    with Record(Path("infra.yaml")).held():
        for command in ("create", "credentials", "delete --yes"):
            refused = cli(f"cluster {command} -f infra.yaml")
            assert refused.code == 74 and "infra.yaml: another command is at work on this file" in refused.err
        assert cli("cluster plan -f infra.yaml").code == 0
    assert cli("cluster create -f infra.yaml").code == 0


def without_a_reader(line: str) -> tuple[int, str]:
    """Its exit code, and its stderr, where whoever read its stdout is gone before it begins."""
    words = [sys.executable, "-m", "rankzero", *line.split()]
    with unread_pipe() as writing:
        done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


def test_what_changes_a_cluster_goes_on_where_nobody_reads_what_it_says(cli: Cli, tmp_path: Path) -> None:
    """`rankzero cluster delete … | head`: what runs costs what it costs, whoever looks."""
    installed(tmp_path / "bin", "kind", "kubectl")
    Path("infra.yaml").write_text(KIND)

    def things() -> dict[str, object]:
        return {kind: names for kind, names in json.loads(Path("state.json").read_text())["things"].items() if names}

    assert without_a_reader("cluster create -f infra.yaml") == (0, "")
    assert things() and cli("cluster credentials -f infra.yaml").out.endswith("context: kind-here\n")
    assert without_a_reader("cluster credentials -f infra.yaml") == (0, "")
    assert without_a_reader("cluster delete -f infra.yaml")[0] == 2, "nobody to ask"
    assert without_a_reader("cluster delete -f infra.yaml --yes") == (0, "")
    assert not things()
    assert without_a_reader("cluster credentials -f infra.yaml")[0] == 69
