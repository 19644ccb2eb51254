"""`rankzero list`, `status`, `describe`, `cancel`, `delete`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.fake_cluster import Act
from tests.unit.cli.conftest import Place

HOLDING: list[Act] = [("run",), ("log", "training"), ("hold",), ("exit", 0, "")]


@pytest.fixture
def running(place: Place) -> Place:
    """A run in mid-training."""
    for node in (0, 1):
        place.cluster.script("node", node, HOLDING)
    assert place("submit run.yaml --detach").code == 0
    place.cluster.world.run_down()
    return place


def test_list(running: Place) -> None:
    done = running("list")
    assert done.code == 0
    assert done.out.splitlines()[1].split()[:3] == ["r", "Running", "2/2"] or "r " in done.out
    rows = json.loads(running("list --json").out)
    assert [row["run"] for row in rows] == ["r"]


def test_list_of_nothing(place: Place) -> None:
    assert place("list").out == "no runs\n"
    assert place("list --json").out == "[]\n"


@pytest.mark.parametrize("name", ["r", "run.yaml"])
def test_status(running: Place, name: str) -> None:
    done = running(f"status {name}")
    assert done.code == 0, done.err
    verdict = json.loads(running(f"status {name} --json").out)
    assert verdict["run"] == "r" and verdict["running"] == 2
    assert done.out.startswith(verdict["phase"])


def test_status_says_what_is_wrong(place: Place) -> None:
    message = 'Back-off pulling image "i"'
    place.cluster.script("node", 0, [("wait", "ImagePullBackOff", message)])
    place.cluster.script("node", 1, [("wait", "ImagePullBackOff", message)])
    place("submit run.yaml --detach")
    place.cluster.world.run_down()
    verdict = json.loads(place("status r --json").out)
    assert verdict["findings"] and "image" in verdict["findings"][0]["cause"].lower()


@pytest.mark.parametrize("command", ["status", "describe", "logs", "cancel", "delete --yes"])
def test_a_run_that_is_not_there(place: Place, command: str) -> None:
    for name in ("train-big", "other"):
        assert place(f"submit run.yaml name={name} --detach").code == 0
    done = place(f"{command} trainbig")
    assert done.code == 2
    assert "there is no such run" in done.err and "did you mean train-big?" in done.err


def test_describe(running: Place) -> None:
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "type": "Warning",
        "reason": "BackOff",
        "message": "token=canary-1234567890",
        "eventTime": "2026-11-21T07:00:00.000000Z",
        "involvedObject": {"kind": "Job", "name": "r"},
    }
    running.cluster.store.put(event)
    running.cluster.forbidden.add(("list", "nodes"))
    done = running("describe r")
    assert done.code == 0, done.err
    for words in ("Objects", "Job/r", "Pods", "2026-11-21 07:00:00  Warning  BackOff  Job/r", "Not permitted to see"):
        assert words in done.out
    assert "canary" not in done.out
    facts = json.loads(running("describe r --json").out)
    assert {"objects", "pods", "events", "logs", "verdict"} <= set(facts)


def test_cancel_and_submit_again(running: Place) -> None:
    done = running("cancel r")
    assert done.code == 0
    running.cluster.world.run_down()
    assert running.cluster.names("pods") == []
    assert running("submit run.yaml --detach").code == 0
    running.cluster.world.run_down()
    assert len(running.cluster.names("pods")) == 2


def test_delete(running: Place) -> None:
    done = running("delete r --yes --json")
    assert done.code == 0, done.err
    assert "Job/r" in json.loads(done.out)
    assert running.cluster.names() == ["persistentvolumeclaims/outputs"]
    assert "kept with all that is in them" in done.err


def test_delete_asks(running: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    done = running("delete r")
    assert done.code == 2 and "--yes" in done.err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda text, **_: "AND ITS VOLUMES" in text)
    assert running("delete r --claims").code == 0
    assert running.cluster.names() == []


def test_what_is_left_of_a_run_can_be_deleted(running: Place) -> None:
    running.cluster.world.run_down()
    for pod in list(running.cluster.store.of("pods")):
        running.cluster.store.drop("pods", pod["metadata"]["name"])
    running.cluster.store.drop("jobs", "r")
    assert running("delete r --yes").code == 0
    assert running.cluster.names() == ["persistentvolumeclaims/outputs"]


def test_no_cluster_answers(running: Place) -> None:
    running.cluster.die()
    done = running("status r")
    assert done.code == 69
    assert "does not answer" in done.err


@pytest.mark.parametrize("command", ["status here", "logs here", "describe here", "open tensorboard here", "list"])
def test_a_run_of_this_machine_is_told_where_a_cluster_was_asked(place: Place, command: str) -> None:
    """A recipe writes a cluster.yaml, and its first page trains here."""
    run = Path("runs/here")
    run.mkdir(parents=True)
    (run / "run.yaml").write_text(f"name: here\noutput_dir: {Path('runs').absolute()}\n")
    what = "`rankzero list runs`" if command == "list" else "`rankzero status runs/here`"
    done = place(command)
    assert what in done.err and done.code == (
        0 if command == "list" else 2 if "tensorboard" not in command else done.code
    )
    place.cluster.stop()
    done = place(command)
    assert what in done.err and done.code != 0
