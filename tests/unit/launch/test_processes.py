"""Processes of one start that are suspended, interrupted or asked to stop; stand-ins do what a test tells them."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankzero.errors import PeerLostError, ServiceError, StoppedError
from rankzero.launch import local, processes
from rankzero.launch.processes import Ranks, Workers
from rankzero.spec.run_options import RunOptions
from tests.support.runs import small_spec

SECONDS = 60.0


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Two:
    """Two stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers = Workers(folder, Ranks(0, 2, 2), module="tests.support.stand_in")
        self.workers.start(folder, {**os.environ, "STAND_IN": str(folder)}, 0.0, lambda _local: None)
        wait_for(lambda: self.happened("up-0") and self.happened("up-1"))

    def happened(self, name: str) -> bool:
        return (self.folder / name).exists()

    def tell(self, rank: int, code: int) -> None:
        staged = self.folder / f"staged-{rank}"
        staged.write_text(str(code))
        staged.rename(self.folder / f"go-{rank}")

    def suspend(self, rank: int) -> None:
        process = self.workers.processes[rank]
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: processes._is_suspended(process))

    def left(self, rank: int) -> bool:
        self.workers.running()
        return self.workers.processes[rank].poll() is not None


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    found = Two(tmp_path)
    yield found
    found.workers.kill()


def test_nobody_waits_for_a_suspended_peer_of_a_dead_process(two: Two) -> None:
    two.suspend(1)
    two.tell(0, 69)
    assert not two.workers.peers_are_late(SECONDS)
    wait_for(lambda: two.left(0))
    assert two.workers.peers_are_late(SECONDS), "it would never notice"
    two.workers.kill()
    failure = two.workers.failure()
    assert failure is not None and "process 0 failed with exit code 69" in str(failure)


def test_the_one_that_was_waited_for_is_named_with_its_place(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0's collective timed out; rank 1 is still there, and has not noticed."""
    error = {"type": "PeerLostError", "problems": [{"what": "Timed out", "where": "", "hint": ""}], "traceback": ""}
    (two.folder / "error-0.json").write_text(json.dumps(error))
    two.tell(0, 69)
    wait_for(lambda: two.left(0))
    monkeypatch.setattr(processes, "PEER_SECONDS", -1.0)
    assert two.workers.peers_are_late(SECONDS)
    two.workers.end_late_peers()
    assert not two.workers.running()
    failure = two.workers.failure()
    assert isinstance(failure, ServiceError) and not isinstance(failure, PeerLostError)
    assert re.search(r"waited in vain for process 1 at .*stand_in.py:\d+ in main", str(failure)), failure


def test_a_suspended_process_hears_that_it_is_to_stop(two: Two) -> None:
    """It saves with the others instead of keeping them until the grace period is over."""
    two.suspend(1)
    two.workers.signal(signal.SIGTERM)
    wait_for(lambda: two.happened("asked-1-1"))
    two.tell(0, 75)
    two.tell(1, 75)
    wait_for(lambda: not two.workers.running())
    assert isinstance(two.workers.failure(), StoppedError)


def test_processes_that_wait_for_a_suspended_one_are_ended(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    two.suspend(1)
    two.workers.end_where_suspended(all_of_them=False)
    assert two.workers.running(), "not at once"
    monkeypatch.setattr(processes, "SUSPENDED_SECONDS", -1.0)
    two.workers.end_where_suspended(all_of_them=False)
    assert not two.workers.running()
    failure = two.workers.failure()
    assert isinstance(failure, ServiceError)
    assert "process 1 was suspended (SIGSTOP)" in str(failure)


def test_all_of_them_suspended_is_a_pause(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SUSPENDED_SECONDS", -1.0)
    two.suspend(0)
    two.suspend(1)
    two.workers.end_where_suspended(all_of_them=False)
    assert two.workers.running()
    two.workers.end_where_suspended(all_of_them=True)  # a node, for whose processes those of other nodes wait
    assert not two.workers.running()


def test_a_suspension_that_ends_in_time_is_forgotten(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    two.suspend(1)
    two.workers.end_where_suspended(all_of_them=False)
    two.workers.processes[1].send_signal(signal.SIGCONT)
    wait_for(lambda: not processes._is_suspended(two.workers.processes[1]))
    two.workers.end_where_suspended(all_of_them=False)
    monkeypatch.setattr(processes, "SUSPENDED_SECONDS", -1.0)
    two.workers.end_where_suspended(all_of_them=False)
    assert two.workers.running()


def test_an_interrupted_run_ends_as_an_interrupted_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C: the processes have said what is lost, and left with 130."""
    monkeypatch.setattr(Workers.__init__, "__kwdefaults__", {"module": "tests.support.stand_in"})
    monkeypatch.setenv("STAND_IN", str(tmp_path))
    (tmp_path / "go-0").write_text("130")
    with pytest.raises(KeyboardInterrupt):
        local.run_processes(small_spec(tmp_path, tmp_path), RunOptions(), 2, os.environ)
