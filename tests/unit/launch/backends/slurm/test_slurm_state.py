"""The directory of a run, while it is made anew on a file system that fails in between."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rankzero.errors import StorageError
from rankzero.launch.backends.slurm.state import RunState, states
from tests.support.unreadable import stale

ABOUT = {"name": "r"}


@pytest.fixture
def state(tmp_path: Path) -> RunState:
    """A run whose job is known, with its log."""
    state = RunState(tmp_path / "slurm/runs/r")
    with state.anew(ABOUT, "first"):
        pass
    state.settle("17")
    state.batch_log.write_text("before")
    return state


def kept(state: RunState) -> tuple[str, object, str, list[str]]:
    """What is known of the run, and what lies beside it."""
    beside = sorted(one.name for one in state.root.parent.iterdir())
    return state.job, state.about, state.batch_log.read_text(), beside


def failing(patch: pytest.MonkeyPatch, name: str, fails: Callable[[Path], bool]) -> None:
    """From here on this call fails for some paths."""
    call = getattr(os, name)

    def guarded(path: str | Path, *more: object, **named: object) -> object:
        if fails(Path(path)):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return call(path, *more, **named)

    patch.setattr(os, name, guarded)


@pytest.mark.parametrize("moment", ["the run", "its log", "the new one", "what is in it"])
def test_a_submit_that_fails_on_the_way_leaves_all_as_before(
    state: RunState, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kept(state)
    with monkeypatch.context() as away:
        if moment in ("the run", "its log"):
            moved = state.root if moment == "the run" else state.batch_log
            failing(away, "rename", lambda path: path == moved)
        else:
            made = state.root if moment == "the new one" else state.root / "logs"
            failing(away, "mkdir", lambda path: path == made)
        with pytest.raises(StorageError, match="Stale file handle"), state.anew(ABOUT, "second"):
            pytest.fail("it was submitted")
    assert kept(state) == before


def test_a_sbatch_that_fails_leaves_all_as_before(state: RunState) -> None:
    before = kept(state)
    with pytest.raises(KeyboardInterrupt), state.anew(ABOUT, "second"):
        assert state.job == ""
        state.batch_log.write_text("the new job's")
        raise KeyboardInterrupt
    assert kept(state) == before


def test_what_does_not_go_back_is_put_back_by_the_next_submit(state: RunState, monkeypatch: pytest.MonkeyPatch) -> None:
    before = kept(state)
    with monkeypatch.context() as away:
        failing(away, "rename", lambda path: path.parent.name == ".r.before")
        with pytest.raises(StorageError, match="Stale file handle"), state.anew(ABOUT, "second"):
            raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), state.anew(ABOUT, "third"):
        raise KeyboardInterrupt
    assert kept(state) == before


class Killed(BaseException):
    """In place of SIGKILL."""


@pytest.mark.parametrize("settled", [True, False])
def test_of_a_submit_that_was_killed_the_newest_job_counts(
    state: RunState, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kept(state)
    with monkeypatch.context() as dead, pytest.raises(Killed), state.anew(ABOUT, "second"):
        if settled:
            state.settle("18")  # as the script of a job that has begun does
        dead.setattr(RunState, "_put_back", lambda *_, **__: None)
        raise Killed
    with pytest.raises(KeyboardInterrupt), state.anew(ABOUT, "third"):
        raise KeyboardInterrupt
    assert state.job == ("18" if settled else "17")
    assert settled or kept(state) == before


def test_a_directory_that_cannot_be_looked_at_is_left_alone(state: RunState, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.14 on, Path.exists says False of it."""
    before = kept(state)
    with monkeypatch.context() as away:
        away.setattr(Path, "exists", lambda _path: False)
        with pytest.raises(KeyboardInterrupt), state.anew(ABOUT, "second"):
            raise KeyboardInterrupt
        assert state.remove() == [f"directory {state.root}", f"file {state.batch_log}"]
    assert before[0] == "17" and not state.root.exists() and not state.batch_log.exists()


def test_what_cannot_be_looked_at_is_no_run_without_a_job(state: RunState, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.14 on, Path.exists and Path.is_dir say False of it."""
    state.doubt(ABOUT)
    assert [one.root for one in states(state.root.parent)] == [state.root]
    looks: list[Callable[[], object]] = [
        lambda: state.job,
        lambda: state.about,
        lambda: state.is_cancelled("17"),
        lambda: state.is_in_doubt,
        lambda: list(states(state.root.parent)),
        state.remove,
    ]
    for name in ("exists", "is_dir"):
        monkeypatch.setattr(Path, name, lambda _path: False)
    stale(monkeypatch, state.root.parent)
    for look in looks:
        with pytest.raises(StorageError, match="Stale file handle"):
            look()
