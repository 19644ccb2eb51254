"""Processes of one start that are suspended, interrupted or asked to stop; stand-ins do what a test tells them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankzero.errors import DataError, PeerLostError, RankzeroError, ServiceError, StoppedError, StorageError
from rankzero.launch import hang, local, processes
from rankzero.launch.hang import HangWatch
from rankzero.launch.processes import Ranks, Workers
from rankzero.run_dir.handover import Beat, write_beat
from rankzero.run_dir.paths import RunDir
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

    def lost_its_peer(self, rank: int) -> None:
        """A rank's collective timed out."""
        error = {"type": "PeerLostError", "problems": [{"what": "Timed out", "where": "", "hint": ""}], "traceback": ""}
        (self.folder / f"error-{rank}.json").write_text(json.dumps(error))
        self.tell(rank, 69)

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
    two.lost_its_peer(0)
    assert not two.workers.peers_are_late(SECONDS, gets_on=lambda: True)
    wait_for(lambda: two.left(0))
    assert two.workers.peers_are_late(SECONDS, gets_on=lambda: True), "it would never notice"
    two.workers.end_late_peers()
    assert "waited in vain for process 1, which is suspended" in str(two.workers.failure())


def test_the_one_that_was_waited_for_is_named_with_its_place(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is still there when the other one has given up."""
    two.lost_its_peer(0)
    wait_for(lambda: two.left(0))
    monkeypatch.setattr(processes, "PEER_SECONDS", -1.0)
    assert two.workers.peers_are_late(SECONDS, gets_on=lambda: True)
    two.workers.end_late_peers()
    assert not two.workers.running()
    failure = two.workers.failure()
    assert isinstance(failure, ServiceError) and not isinstance(failure, PeerLostError)
    assert re.search(r"waited in vain for process 1 at .*stand_in.py:\d+ in main", str(failure)), failure


@pytest.mark.parametrize(("places", "of_this_node"), [("c.py:9 in sums_of_step", False), ("m.py:7 in forward", True)])
def test_of_several_nodes_those_that_wait_as_well_are_not_who_was_waited_for(
    places: str, of_this_node: bool, two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the same collective, for a process on another node, which finds out for itself."""
    monkeypatch.setattr(two.workers, "_ranks", Ranks(0, 2, 4))
    monkeypatch.setattr(two.workers, "ask_for_stacks", lambda: {1: places})
    two.lost_its_peer(0)
    wait_for(lambda: two.left(0))
    two.workers.end_late_peers()
    failure = two.workers.failure()
    assert isinstance(failure, ServiceError) and isinstance(failure, PeerLostError) is not of_this_node
    assert ("waited in vain for process 1" in str(failure)) is of_this_node


def test_an_abort_whose_words_nobody_has_names_those_that_were_late(two: Two) -> None:
    """Local rank 0 of one machine speaks to the terminal, also where NCCL ends it for a collective's time limit."""
    two.workers.processes[0].send_signal(signal.SIGABRT)
    wait_for(lambda: two.left(0))
    two.workers.end_late_peers()
    failure = str(two.workers.failure())
    assert "process 0 was killed by SIGABRT" in failure
    assert re.search(r"that a collective timed out, it waited for process 1 at .*stand_in.py:\d+ in main", failure)


@pytest.mark.parametrize(("activity", "late"), [("save", False), ("rows", True)])
def test_what_a_stopped_one_s_peer_still_saves_is_not_cut_off(two: Two, activity: str, late: bool) -> None:
    """However long the stopped one has been gone, and whatever it said last."""
    for beat, words in zip(two.workers.beats, ("save 5 5", f"{activity} 5 5"), strict=True):
        beat.write_text(words)
    watch = HangWatch(two.workers, RunDir(two.folder / "run"), print, compiled=False, alone=True, attended=False)
    two.tell(0, 75)
    wait_for(lambda: two.left(0))
    assert two.workers.peers_are_late(-1.0, watch.gets_on) is late
    assert not two.workers.peers_are_late(SECONDS, watch.gets_on)


def test_where_a_process_is_says_its_main_thread_not_one_that_is_written_before_it() -> None:
    """A stack that is being written has the threads that save, and not yet the one that is asked for."""
    saving = (
        'Thread 0x1 (most recent call first):\n  File "d.py", line 9 in broadcast\n  File "s.py", line 2 in commit\n'
    )
    main = (
        'Current thread 0x2 (most recent call first):\n  File "t.py", line 7 in step\n  File "t.py", line 1 in train\n'
    )
    whole = f"{saving}\n{main}"
    named = [processes._innermost(whole[:length]) for length in range(len(whole) + 1)]
    assert set(named) == {"", "t.py:7 in step"} and named[-1]
    assert processes._innermost(whole + whole.replace("line 7", "line 8")) == "t.py:8 in step"


def test_who_is_asked_again_has_not_answered_before(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late step is told and waited for; what a process said then is not where it is now."""
    monkeypatch.setattr(processes, "STACK_SECONDS", SECONDS)
    assert all(two.workers.ask_for_stacks().values())
    asked: list[int] = []
    own = subprocess.Popen.send_signal

    def lost(process: subprocess.Popen[bytes], number: int) -> None:
        asked.append(number) if process is two.workers.processes[1] else own(process, number)

    monkeypatch.setattr(subprocess.Popen, "send_signal", lost)
    monkeypatch.setattr(processes, "STACK_SECONDS", 0.5)
    places = two.workers.ask_for_stacks()
    assert asked and places[1] == ""


def test_a_suspended_process_hears_that_it_is_to_stop(two: Two) -> None:
    """It saves with the others instead of keeping them until the grace period is over."""
    two.suspend(1)
    two.workers.signal(signal.SIGTERM)
    wait_for(lambda: two.happened("asked-1-1"))
    two.tell(0, 75)
    two.tell(1, 75)
    wait_for(lambda: not two.workers.running())
    assert isinstance(two.workers.failure(), StoppedError)


def watch(two: Two, monkeypatch: pytest.MonkeyPatch, **place: bool) -> HangWatch:
    """One that looks each time that it is asked to, and takes the shortest suspension for a long one."""
    monkeypatch.setattr(processes, "SUSPENDED_SECONDS", -1.0)
    monkeypatch.setattr(hang, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(processes, "STACK_SECONDS", SECONDS)
    run_dir = RunDir(two.folder / "run")
    return HangWatch(
        two.workers, run_dir, lambda _: None, **{"compiled": False, "alone": True, "attended": True, **place}
    )


def test_processes_that_wait_for_a_suspended_one_are_ended(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    two.suspend(1)
    assert two.workers.long_suspended() == [], "not at once"
    watch(two, monkeypatch).look(end=False)
    assert not two.workers.running()
    failure = two.workers.failure()
    assert isinstance(failure, ServiceError)
    assert re.search(r"rank 1 on \S+ was suspended \(SIGSTOP\)", str(failure))
    kept = two.folder / "run/logs/hang-step-0"
    assert str(kept) in str(failure)
    assert re.search(r"in main\n", (kept / "rank-0.txt").read_text()), "where the others waited"
    assert re.search(r"rank 1 on \S+, pid \d+, suspended, None: some are suspended", (kept / "rank-1.txt").read_text())


def test_all_of_them_suspended_is_a_pause(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    two.suspend(0)
    two.suspend(1)
    watch(two, monkeypatch).look(end=False)
    assert two.workers.running()
    watch(two, monkeypatch, attended=False).look(end=False)  # a pod, in which nobody pauses anything
    assert not two.workers.running()


def test_a_suspension_that_ends_in_time_is_forgotten(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    two.suspend(1)
    assert two.workers.long_suspended() == []
    two.workers.processes[1].send_signal(signal.SIGCONT)
    wait_for(lambda: not processes._is_suspended(two.workers.processes[1]))
    watch(two, monkeypatch).look(end=False)
    assert two.workers.running()


def test_what_a_dead_process_leaves_behind_is_no_hang(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    found = late(two, monkeypatch)
    two.workers.processes[0].kill()
    wait_for(lambda: two.left(0))
    found.look(end=True)
    assert two.workers.running(), "the other one is about to notice by itself"
    assert not (two.folder / "run").exists()


def late(two: Two, monkeypatch: pytest.MonkeyPatch, **place: bool) -> HangWatch:
    """A watch that has seen both in step 8 for long."""
    found = watch(two, monkeypatch, **place)
    monkeypatch.setattr(hang, "FLOOR_SECONDS", -1.0)
    found = watch(two, monkeypatch, **place)
    for path in two.workers.beats:
        with path.open("wb", buffering=0) as file:
            write_beat(file.fileno(), Beat("step", 7, 3))
    found.look(end=True)
    assert two.workers.running(), "it has only begun"
    return found


def test_a_late_step_ends_a_start_that_another_can_follow(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    late(two, monkeypatch).look(end=True)
    failure = two.workers.failure()
    assert isinstance(failure, ServiceError) and not isinstance(failure, PeerLostError)
    assert re.search(r"step 8 has not ended after 0 s: rank 0 on \S+ at .*in main, rank 1 on", str(failure)), failure
    stacks = (two.folder / "run/logs/hang-step-8/rank-1.txt").read_text()
    assert len(re.findall(r'stand_in\.py", line \d+ in main\n', stacks)) == 1


def test_nodes_of_several_leave_it_to_each_other_who_was_waited_for(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    late(two, monkeypatch, alone=False).look(end=True)
    assert isinstance(two.workers.failure(), PeerLostError)


def test_a_late_step_is_said_once_where_nothing_would_start_the_run_again(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    found = late(two, monkeypatch)
    monkeypatch.setattr(found, "_say", said.append)
    found.look(end=False)
    found.look(end=False)
    assert two.workers.running()
    assert len(said) == 1 and "it is waited for" in said[0]


@pytest.mark.parametrize(
    ("words", "kind"), [("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL", PeerLostError), ("", None)]
)
def test_nccls_own_end_of_a_process_is_a_lost_peer(words: str, kind: type | None, two: Two) -> None:
    """NCCL aborts a process whose collective has timed out; rank 0's words went to the terminal."""
    (two.folder / "stderr-1").write_text(words + "\nFatal Python error: Aborted\n" + "  File x, line 1 in y\n" * 300)
    for rank, process in enumerate(two.workers.processes):
        process.send_signal(signal.SIGABRT)
        wait_for(lambda rank=rank: two.left(rank))
    failure = two.workers.failure()
    assert failure is not None and failure.exit_code == (69 if kind else 70)
    assert isinstance(failure, kind or RankzeroError)
    assert re.search(r"rank 0 on \S+: process 0", str(failure))


@pytest.mark.parametrize(("code", "kind"), [(65, DataError), (74, StorageError), (1, RankzeroError)])
def test_an_exit_code_that_comes_without_an_error_is_kept(code: int, kind: type, two: Two) -> None:
    """It found no room for its error, which may be one that no restart cures."""
    (two.folder / "stderr-1").write_text("rows.jsonl:1: not valid JSON\n")
    two.tell(1, code)
    wait_for(lambda: two.left(1))
    two.workers.kill()
    failure = two.workers.failure()
    assert type(failure) is kind and failure.exit_code == (code if code > 1 else 70)
    assert "rows.jsonl:1: not valid JSON" in str(failure)


def test_an_interrupted_run_ends_as_an_interrupted_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C: the processes have said what is lost, and left with 130."""
    monkeypatch.setattr("rankzero.launch.processes.TRAINS", "tests.support.stand_in")
    monkeypatch.setenv("STAND_IN", str(tmp_path))
    (tmp_path / "go-0").write_text("130")
    with pytest.raises(KeyboardInterrupt):
        local.run_processes(small_spec(tmp_path, tmp_path), RunOptions(), 2, os.environ)


def test_processes_that_do_not_save_in_time_were_stopped_not_short_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """We end them with the kernel's own signal for a machine without memory."""
    monkeypatch.setattr("rankzero.launch.processes.TRAINS", "tests.support.stand_in")
    monkeypatch.setattr(local, "GRACE_SECONDS", 0.0)
    monkeypatch.setenv("STAND_IN", str(tmp_path))
    watched = local._Local._watch

    def asked_when_up(self: local._Local, workers: Workers) -> None:
        wait_for(lambda: (tmp_path / "up-0").exists() and (tmp_path / "up-1").exists())
        os.kill(os.getpid(), signal.SIGTERM)
        watched(self, workers)

    monkeypatch.setattr(local._Local, "_watch", asked_when_up)
    with pytest.raises(StoppedError, match="stopped by SIGTERM; not saved in 0 s, so ended") as caught:
        local.run_processes(small_spec(tmp_path, tmp_path), RunOptions(), 2, os.environ, max_restarts=3)
    assert "memory" not in str(caught.value) and "the same command continues" in str(caught.value)


def test_a_save_that_takes_longer_than_a_stop_may_is_not_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the workers say of themselves; `go` has them leave, once it was looked three times whether they get on
    after their time was over."""
    monkeypatch.setattr("rankzero.launch.processes.TRAINS", "tests.support.stand_in")
    monkeypatch.setattr(local, "GRACE_SECONDS", 0.0)
    monkeypatch.setenv("STAND_IN", str(tmp_path))
    watched, gets_on, looks = local._Local._watch, hang.HangWatch.gets_on, []

    def asked_while_saving(self: local._Local, workers: Workers) -> None:
        wait_for(lambda: (tmp_path / "up-0").exists() and (tmp_path / "up-1").exists())
        workers.beats[1].write_text("save 5 5")
        os.kill(os.getpid(), signal.SIGTERM)
        watched(self, workers)

    def looked(self: hang.HangWatch) -> bool:
        looks.append(gets_on(self))
        if len(looks) == 3:
            (tmp_path / "go").write_text("75")
        return looks[-1]

    monkeypatch.setattr(local._Local, "_watch", asked_while_saving)
    monkeypatch.setattr(hang.HangWatch, "gets_on", looked)
    with pytest.raises(StoppedError, match="^stopped"):
        local.run_processes(small_spec(tmp_path, tmp_path), RunOptions(), 2, os.environ, max_restarts=3)
    assert all(looks) and len(looks) >= 3
