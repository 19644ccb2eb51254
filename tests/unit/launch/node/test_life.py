"""The life of a node, with stand-ins for its processes and node 0: who is signalled when, what is made of an end."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from rankzero.errors import RankzeroError, ServiceError, StoppedError, StorageError
from rankzero.launch.hang import HangWatch
from rankzero.launch.node import command
from rankzero.launch.node.client import Client
from rankzero.launch.node.command import GatherAgainError, Node
from rankzero.launch.node.output import Output
from rankzero.launch.node.pid1 import StopWish
from rankzero.launch.node.platform import Place
from rankzero.launch.node.settings import NodeSettings
from rankzero.launch.node.submission import Submission
from rankzero.launch.processes import Ranks, Workers
from rankzero.redaction import Redactor
from rankzero.run_dir.handover import write_payload
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.setting import is_finished
from rankzero.spec.run_options import RunOptions
from tests.support.ports import free_port
from tests.support.runs import run_here, run_root, small_spec

Scene = tuple[Callable[[], bool], Callable[[], Any]]
"""When, and what then: a message from node 0, or None."""


class Script:
    """Node 0 as this node sees it: plays its scenes in order, each as soon as its time has come."""

    def __init__(self, scenes: list[Scene]) -> None:
        self.scenes, self.sent = scenes, list[dict[str, Any]]()

    def connect(self, _stopped: Callable[[], bool], _wait: Any) -> bool:
        return True

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def next(self, timeout: float) -> Any:
        if self.scenes and self.scenes[0][0]():
            return self.scenes.pop(0)[1]()
        time.sleep(min(timeout, 0.01))
        return None

    def close(self) -> None:
        pass


class Play:
    """One node, node 1 of 2."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, self.stop, self.node = folder, StopWish(), 1
        self.first: list[Scene] = [(lambda: True, lambda: {"start": 1, "nodes": [0, 1]})]
        self.settings = NodeSettings(run="r", num_nodes=2, **settings)

    def happened(self, name: str) -> Callable[[], bool]:
        return lambda: (self.folder / name).exists()

    def run(self, *scenes: Scene) -> tuple[RankzeroError | None, Script]:
        self.script = script = Script([*self.first, *scenes])
        env = {**os.environ, "STAND_IN": str(self.folder)}
        spec = small_spec(self.folder, self.folder)
        place, output = Place(self.node, 2, 1, "x"), Output(Redactor({}))
        node = Node(spec, self.settings, place, env, output, self.stop, script)  # type: ignore[arg-type]
        try:
            node.run()
        except RankzeroError as error:
            return error, script
        return None, script

    def asked_to_stop(self) -> None:
        """A signal, as the handler notes it."""
        self.stop(signal.SIGTERM)


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankzero.launch.processes.TRAINS", "tests.support.stand_in")


def test_processes_that_save_are_not_asked_a_second_time(tmp_path: Path) -> None:
    """All pods get SIGTERM at once; then node 0 says that another has stopped, while our processes are saving."""
    play = Play(tmp_path)
    error, script = play.run(
        (play.happened("up"), play.asked_to_stop),
        (play.happened("asked-1"), lambda: {"again": "node 0 was stopped", "gentle": True}),
        (lambda: True, lambda: (tmp_path / "go").write_text("75") and None),
    )
    assert isinstance(error, StoppedError)
    assert not (tmp_path / "asked-2").exists()
    assert script.sent[-1]["ended"] == 75
    assert script.sent[-1]["leaving"] is True


def test_processes_that_save_for_others_are_not_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No platform ends this node when its time is over; what is lost is the work since the checkpoint before."""
    watched, gets_on, looks = Node._watch, HangWatch.gets_on, list[bool]()

    def saving(self: Node, workers: Workers) -> None:
        workers.beats[0].write_text("save 5 5")
        watched(self, workers)

    def looked(self: HangWatch) -> bool:
        looks.append(gets_on(self))
        if len(looks) == 3:
            (tmp_path / "go").write_text("75")
        return looks[-1]

    monkeypatch.setattr(Node, "_watch", saving)
    monkeypatch.setattr(HangWatch, "gets_on", looked)
    play = Play(tmp_path, grace_seconds=0.0)
    error, script = play.run(
        (play.happened("up"), lambda: {"again": "node 0 was stopped", "gentle": True}),
        (lambda: {"ready": True} in play.script.sent, lambda: {"end": 75, "because": "all has been seen"}),
    )
    assert isinstance(error, StoppedError) and "all has been seen" in str(error)
    assert all(looks) and len(looks) >= 3
    assert script.sent == [{"ready": True}]


def test_what_fails_while_processes_stop_for_others_is_a_failure(tmp_path: Path) -> None:
    """A checkpoint that cannot be saved, say: the nodes gathered again, in silence, and made all of it once more."""
    play = Play(tmp_path)
    error, script = play.run(
        (play.happened("up"), lambda: {"again": "node 2 has come", "gentle": True}),
        (play.happened("asked-1"), lambda: (tmp_path / "go").write_text("74") and None),
        (lambda: {"ready": True} in play.script.sent, lambda: {"end": 75, "because": "it gathers"}),
    )
    assert isinstance(error, StorageError)
    assert script.sent[-1]["ended"] == 74 and "exit code 74" in script.sent[-1]["why"]["because"]


def test_processes_that_do_not_save_for_others_in_time_are_ended_and_the_nodes_gather(tmp_path: Path) -> None:
    play = Play(tmp_path, grace_seconds=0.1)
    error, script = play.run(
        (play.happened("up"), lambda: {"again": "node 2 has come", "gentle": True}),
        (lambda: {"ready": True} in play.script.sent, lambda: {"end": 75, "because": "all has been seen"}),
    )
    assert isinstance(error, StoppedError) and "all has been seen" in str(error)
    assert script.sent == [{"ready": True}]


@pytest.mark.parametrize(("max_restarts", "ends"), [(0, False), (3, True)])
def test_a_late_step_ends_the_start_only_where_there_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_restarts: int, ends: bool
) -> None:
    """Where nobody would start the run again, a slow volume or a debugger would have cost it."""
    looks: list[bool] = []

    class Watch:
        over = False

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def look(self, *, end: bool) -> None:
            if not looks:
                (tmp_path / "go").write_text("0")
            looks.append(end)

        def gets_on(self) -> bool:
            return True

    monkeypatch.setattr(command, "HangWatch", Watch)
    play = Play(tmp_path, max_restarts=max_restarts)
    error, _ = play.run((lambda: any("ended" in sent for sent in play.script.sent), lambda: {"end": 0, "because": ""}))
    assert error is None and set(looks) == {ends}


def test_nodes_tell_each_other_that_they_save_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else those whose ranks wait for it would take that for a hang, and end the start before the checkpoint is."""
    waits: list[bool] = []

    class Watch:
        over = True

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def look(self, *, end: bool) -> None: ...

        def gets_on(self) -> bool:
            return True

        def wait_for_others(self) -> None:
            waits.append(True)
            (tmp_path / "go").write_text("0")

    monkeypatch.setattr(command, "HangWatch", Watch)
    play = Play(tmp_path, max_restarts=3)
    error, script = play.run(
        (lambda: {"over": True} in play.script.sent, lambda: {"over": 0}),
        (lambda: any("ended" in sent for sent in play.script.sent), lambda: {"end": 0, "because": ""}),
    )
    assert error is None and waits == [True] and script.sent.count({"over": True}) == 1


def test_a_stop_before_processes_can_listen_is_a_stop(tmp_path: Path) -> None:
    """Importing torch takes seconds; a death by our own signal is no failure that counts against the run."""
    (tmp_path / "deaf").touch()
    play = Play(tmp_path)
    error, _ = play.run((play.happened("up"), play.asked_to_stop))
    assert isinstance(error, StoppedError)
    assert "without saving" in str(error)


def test_processes_that_do_not_save_in_time_are_ended_and_it_is_said(tmp_path: Path) -> None:
    play = Play(tmp_path, grace_seconds=0.2)
    error, _ = play.run((play.happened("up"), play.asked_to_stop))
    assert isinstance(error, StoppedError)
    assert "not saved in 0 s" in str(error)
    assert "longer grace period" in str(error)


def test_a_killed_process_is_a_failure(tmp_path: Path) -> None:
    play = Play(tmp_path)
    error, script = play.run((play.happened("up"), lambda: (tmp_path / "go").write_text("70") and None))
    assert error is not None and error.exit_code == 70
    assert script.sent[-1]["ended"] == 70
    assert "node 1: process 1 failed with exit code 70" in script.sent[-1]["why"]["because"]


def test_what_ended_another_node_is_said_here_too(tmp_path: Path) -> None:
    play = Play(tmp_path)
    end = {"end": 77, "because": "node 0: the model is gated", "where": "m", "hint": "accept its licence"}
    error, _ = play.run((play.happened("up"), lambda: end))
    assert error is not None and error.exit_code == 77
    assert str(error) == "m: node 0: the model is gated\n  hint: accept its licence"


class Sleeper:
    """Node 0 as this node sees it, and the clock: before its first answer the machine stands still for a while."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers, self.now, self.still = list(answers), 0.0, 300.0

    def monotonic(self) -> float:
        return self.now

    def next(self, timeout: float) -> dict[str, Any] | None:
        self.now += self.still or timeout
        if self.still:
            self.still = 0.0
            return None
        return self.answers.pop(0) if self.answers else None


@pytest.mark.parametrize("answers", [[{"again": "node 0 was stopped"}], []])
def test_a_machine_that_stood_still_has_not_waited_for_news(
    answers: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All nodes may have stood: their machines were moved, or are one that was suspended."""
    sleeper = Sleeper(*answers)
    monkeypatch.setattr(command, "time", sleeper)
    play, stopped = Play(tmp_path), StoppedError("stopped by another process")
    client, output = cast(Client, sleeper), Output(Redactor({}))
    node = Node(small_spec(tmp_path, tmp_path), play.settings, Place(1, 2, 1, "x"), {}, output, play.stop, client)
    with pytest.raises(GatherAgainError if answers else StoppedError):
        node._await_news(stopped, command.PEER_NEWS_SECONDS)
    assert answers or 380 < sleeper.now < 400, "without news a node leaves all the same"


def test_done_and_asked_to_stop_is_done(tmp_path: Path) -> None:
    """Leaving with 75 would bring a replacement that waits for nodes which never come again."""
    (tmp_path / "go").write_text("0")
    play = Play(tmp_path)
    error, script = play.run((lambda: {"ended": 0} in play.script.sent, play.asked_to_stop))
    assert error is None
    assert script.sent == [{"ended": 0}]


def test_a_finished_run_waits_for_nobody(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_spec(tmp_path, tiny, train__num_train_epochs=1)
    run_dir = RunDir(run_root(spec))
    assert not is_finished(run_dir, spec)
    run_here(spec)
    assert is_finished(run_dir, spec)
    assert not is_finished(run_dir, spec.model_copy(update={"name": "other"}))
    monkeypatch.setattr(command, "FINISHED_SECONDS", 0.0)
    script = Script([])
    place, output = Place(1, 2, 1, "x"), Output(Redactor({}))
    settings = NodeSettings(run="r", num_nodes=2, rendezvous_seconds=5.0)
    Node(spec, settings, place, {}, output, StopWish(), script).run()  # type: ignore[arg-type]
    (run_dir.final / "manifest.json").unlink()
    assert not is_finished(run_dir, spec)


def away_from_node_0(folder: Path, *, seconds: float, node: int = 1) -> Node:
    """A node whose node 0 is not there, with the client that pods have."""
    place, output = Place(node, 4, 1, "127.0.0.1", control_port=free_port()), Output(Redactor({}))
    client = Client(place, {}, Submission({}), output.say)
    settings = NodeSettings(run="r", num_nodes=4, rendezvous_seconds=seconds, max_restarts=1)
    return Node(small_spec(folder, folder), settings, place, {}, output, StopWish(), client)


def test_a_replacement_in_a_finished_run_leaves_though_node_0_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is seen once, while node 0 is being looked for; the next look is seconds away."""
    monkeypatch.setattr(command, "FINISHED_SECONDS", 0.3)
    monkeypatch.setattr(command, "is_finished", lambda _run_dir, _spec: True)
    away_from_node_0(tmp_path, seconds=300.0).run()


def test_one_attempt_without_node_0_is_charged_to_one_node(tmp_path: Path) -> None:
    """Each pod that leaves with 69 is charged: node 1 leaves, the others wait for as many attempts as there may be."""
    took: list[float] = []
    for number in (1, 2):
        since = time.monotonic()
        with pytest.raises(ServiceError, match="node 0 was not reached in"):
            away_from_node_0(tmp_path, seconds=0.4, node=number).run()
        took.append(time.monotonic() - since)
    assert took[1] >= 0.4 * 3 > 0.4 <= took[0]


def test_who_waits_beside_node_0_leaves_the_giving_up_to_it(tmp_path: Path) -> None:
    """Node 0 gives up and is replaced, at the price of one restart; those that it has let in wait for the next one."""
    play = Play(tmp_path, rendezvous_seconds=0.3)
    since = time.monotonic()
    waiting: list[Scene] = [(lambda: True, lambda: {"waiting": [2]})]
    late: list[Scene] = [(lambda: any("ended" in sent for sent in play.script.sent), lambda: {"end": 0, "because": ""})]
    start = play.first
    play.first = [*waiting, (lambda: time.monotonic() - since > 0.6, start[0][1])]
    (tmp_path / "go").write_text("0")
    error, _ = play.run(*late)
    assert error is None


def test_node_0_gives_up_and_names_those_that_did_not_come(tmp_path: Path) -> None:
    play = Play(tmp_path, rendezvous_seconds=0.3)
    play.node, play.first = 0, [(lambda: True, lambda: {"waiting": [2, 3]})]
    error, _ = play.run()
    assert isinstance(error, ServiceError)
    assert "nodes 2, 3 did not come in 0 s" in str(error)


def test_a_wait_in_which_nothing_comes_of_node_0_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lets in and hangs up: all these connections are one wait."""
    node = away_from_node_0(tmp_path, seconds=0.3)
    monkeypatch.setattr(Client, "connect", lambda _self, _stopped, _wait: True)
    monkeypatch.setattr(Client, "next", lambda _self, _timeout: {"lost": True})
    with pytest.raises(ServiceError, match="did not come in"):
        node.run()


def test_a_node_whose_place_was_taken_leaves(tmp_path: Path) -> None:
    play = Play(tmp_path)
    error, script = play.run((play.happened("up"), lambda: {"replaced": True}))
    assert isinstance(error, StoppedError)
    assert "another pod has taken the place of node 1" in str(error)
    assert script.sent == [], "it has no say in the run any more"


def test_a_full_place_for_temporary_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended as an internal error."""
    monkeypatch.setenv("TMPDIR", "/scratch")
    for takes_nothing in ("TemporaryDirectory", "gettempdir"):
        with monkeypatch.context() as full:
            full.setattr(tempfile, takes_nothing, no_room)
            error, _ = Play(tmp_path).run()
        assert isinstance(error, StorageError) and error.exit_code == 74
        assert str(error).startswith("/scratch: No space left on device") and "TMPDIR" in str(error)


def test_a_place_for_temporary_files_that_is_full_a_moment_later_is_named(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, tmp_path)
    with pytest.raises(StorageError, match="TMPDIR"):
        write_payload(tmp_path / "gone", spec, RunOptions())
    with pytest.raises(StorageError, match="TMPDIR"):
        Workers(tmp_path / "gone", Ranks(0, 1, 1)).start(tmp_path, os.environ, 0.0, lambda _local: None)


def no_room(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("module", ["__main__", "prepare"])
def test_handlers_are_there_before_anything_that_takes_time(module: str) -> None:
    """PID 1 ignores SIGTERM until it has a handler, and importing what a node needs takes over a second."""
    code = f"import sys, rankzero.launch.node.{module}; print([m for m in ('pydantic', 'yaml') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_what_a_process_started_ends_with_it(tmp_path: Path) -> None:
    """A helper, such as a loader of data or a compiler, holds memory and a device after its parent was killed."""
    helper = tmp_path / "helper"
    code = f"import subprocess; p = subprocess.Popen(['sleep', '600']); open({str(helper)!r}, 'w').write(str(p.pid))"
    (tmp_path / "starts_a_helper.py").write_text(code)
    workers = Workers(tmp_path, Ranks(0, 1, 1), module="starts_a_helper")
    workers.start(tmp_path / "none", {**os.environ, "PYTHONPATH": str(tmp_path)}, 0.0, lambda _local: None)
    workers.processes[0].wait(timeout=300)
    process = psutil.Process(int(helper.read_text()))
    workers.kill()
    assert process.wait(timeout=300) is not None or not process.is_running()
