"""What the line of a start says while it goes on: where its time went, and what it is doing at this moment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankzero.engine.goodput import Ledger
from rankzero.run_dir.goodput import read_starts
from rankzero.run_dir.lease import Lease
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.view import view_run


class Clock:
    """Both clocks of a process, which pass when they are told to."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        patch.setattr("time.monotonic", lambda: self.now)
        patch.setattr("time.time", lambda: 1_800_000_000.0 + self.now)

    def passes(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@contextmanager
def under_way(root: Path, clock: Clock) -> Iterator[Ledger]:
    """A run of 100 steps that has done five, evaluated, saved, and done five more."""
    root.mkdir()
    lease, ledger = Lease(root), Ledger(clock.now)
    lease.acquire()
    try:
        with ledger.kept_in(RunDir(root), alive_before=None, world_size=1, owner=lease.owner):
            ledger.continues_from(0, 100, 0)
            with ledger.phase("model"):
                clock.passes(10)
            for step in range(1, 11):
                ledger.loop_at(step - 1)
                with ledger.phase("step"):
                    clock.passes(10)
                    ledger.step_done(step)
                for kind in ("evaluation", "save_wait") if step == 5 else ():
                    with ledger.phase(kind):
                        clock.passes(60)
            yield ledger
    finally:
        lease.release()


def seconds(root: Path) -> dict[str, float]:
    """What is seen of the run at this moment."""
    seen = view_run(root)
    assert seen.phase == "Running" and seen.goodput is not None
    return seen.goodput.seconds


@pytest.mark.parametrize("kind", ["evaluation", "save_wait", "step"])
def test_what_goes_on_at_this_moment_is_of_its_kind(kind: str, tmp_path: Path, clock: Clock) -> None:
    """Also where it came before another one in this start: an hour in an evaluation is no hour of saving."""
    with under_way(tmp_path / "run", clock) as ledger:
        before = seconds(tmp_path / "run")
        with ledger.phase(kind):
            clock.passes(3600)
            during = seconds(tmp_path / "run")
        assert during == before | {kind: before[kind] + 3600} == seconds(tmp_path / "run")
        clock.passes(50)
        assert seconds(tmp_path / "run") == during | {"logging": during["logging"] + 50}, "between two phases"


def test_a_step_that_is_made_again_is_that_at_this_moment(tmp_path: Path, clock: Clock) -> None:
    with under_way(tmp_path / "run", clock):
        pass
    lease, again = Lease(tmp_path / "run"), Ledger(clock.now)
    lease.acquire()
    with again.kept_in(RunDir(tmp_path / "run"), alive_before=None, world_size=1, owner=lease.owner):
        again.continues_from(5, 100, 0)
        again.loop_at(5)
        with again.phase("step"):
            clock.passes(100)
            assert seconds(tmp_path / "run")["repeated"] == 100
    lease.release()


def test_a_line_that_does_not_say_what_goes_on_is_not_brought_up_to_now(tmp_path: Path, clock: Clock) -> None:
    """One of an older version: it may be anything."""
    starts = tmp_path / "run/starts.jsonl"
    with under_way(tmp_path / "run", clock) as ledger, ledger.phase("evaluation"):
        before = seconds(tmp_path / "run")
        starts.write_text(starts.read_text().replace('"kind": "evaluation", ', ""))
        assert '"kind"' not in starts.read_text() and read_starts(starts)[0].kind == ""
        clock.passes(3600)
        assert seconds(tmp_path / "run") == before


def test_the_line_is_written_twice_a_step(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it begins and when it ends, and no more than that."""
    with under_way(tmp_path / "run", clock) as ledger:
        written, write = [], os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda *given: written.append(given) or write(*given))
        for step in range(11, 21):
            ledger.loop_at(step - 1)
            with ledger.phase("step"):
                ledger.step_done(step)
        monkeypatch.undo()
        assert len(written) == 20
