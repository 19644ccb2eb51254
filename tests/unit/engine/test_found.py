"""Which checkpoint a run goes on from, and what is only away for a moment."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from rankzero.engine.checkpoint import Position, find_checkpoints
from rankzero.engine.finish import chosen_step
from rankzero.errors import StorageError
from rankzero.run_dir import atomic
from rankzero.run_dir.atomic import FORMAT, SEAL, NotReadError, commit_directory
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.steps import newest_step
from tests.support.runs import small_spec
from tests.support.unreadable import shut, stale


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """Three checkpoints of a run."""
    run_dir = RunDir(tmp_path / "r")
    for step in (2, 4, 6):
        staged = run_dir.checkpoints / f".tmp-{step}"
        staged.mkdir(parents=True)
        (staged / "weights").write_text(f"of step {step}")
        commit_directory(staged, run_dir.checkpoint(step), {"step": step})
    return run_dir


def away(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """A file of this checkpoint cannot be read, as on a server that has begun anew."""
    own = atomic.file_sha256

    def read(path: Path) -> str:
        if f"step-{step}/" in str(path):
            raise OSError(errno.ESTALE, "Stale file handle")
        return own(path)

    monkeypatch.setattr(atomic, "file_sha256", read)


def test_what_cannot_be_read_now_is_not_damaged(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older one would be gone on from, and the newest lost."""
    away(monkeypatch, 6)
    with pytest.raises(StorageError, match="cannot be read: Stale file handle") as refused:
        find_checkpoints(run_dir, lambda _: None)
    assert "give the same command again" in refused.value.problems[0].hint
    assert run_dir.committed_steps() == [6, 4, 2]


def test_what_this_user_may_not_read_is_not_waited_for(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    shut(monkeypatch, run_dir.checkpoints)
    with pytest.raises(NotReadError, match="Permission denied") as refused:
        find_checkpoints(run_dir, lambda _: None)
    assert refused.value.problems[0].hint == f"try: ls -ld {run_dir.checkpoints}"


def test_what_is_older_than_the_one_that_is_gone_on_from_may_be_away(run_dir: RunDir) -> None:
    manifest = run_dir.checkpoint(2) / "manifest.json"
    manifest.unlink()
    manifest.mkdir()  # which cannot be read as a file
    told: list[str] = []
    found = find_checkpoints(run_dir, told.append)
    assert found.newest is not None and found.newest["step"] == 6 and not found.damaged
    assert len(told) == 1 and "step-2 is left as it is" in told[0]


def test_a_newer_version_s_is_none_of_the_damaged(run_dir: RunDir) -> None:
    path = run_dir.checkpoint(6) / "manifest.json"
    value = json.loads(path.read_text())
    value.pop(SEAL)
    value["format"] = FORMAT + 1
    path.write_text(json.dumps({**value, SEAL: atomic._digest(value)}))
    with pytest.raises(NotReadError, match=f"of a newer rankzero .format {FORMAT + 1}."):
        find_checkpoints(run_dir, lambda _: None)


def test_a_damaged_one_is_passed_over(run_dir: RunDir) -> None:
    (run_dir.checkpoint(6) / "weights").write_text("of step 7")
    found = find_checkpoints(run_dir, lambda _: None)
    assert found.newest is not None and (found.newest["step"], found.damaged) == (4, (6,))


def test_a_result_is_made_of_the_best_or_later_where_that_is_only_away(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next best would be the result from then on, and the best be moved aside."""
    run_dir.metrics.write_text("".join(f'{{"step": {step}, "eval_loss": {step}}}\n' for step in (2, 4, 6)))
    position = Position(step=6, best_step=2, best={"eval_loss": 2.0})
    spec = small_spec(tmp_path, tmp_path)
    away(monkeypatch, 2)
    with pytest.raises(NotReadError, match="cannot be read: Stale file handle") as refused:
        chosen_step(spec, run_dir, position)
    assert "the next best" in refused.value.problems[0].hint
    assert run_dir.committed_steps() == [6, 4, 2]
    run_dir.checkpoint(2).rename(tmp_path / "step-2")  # as the hint says
    assert chosen_step(spec, run_dir, position) == 4


@pytest.mark.parametrize("blind", [False, True], ids=["as it is", "as in Python 3.14"])
def test_a_volume_that_is_away_is_no_run_that_begins(
    blind: bool, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Python says of whether there is a directory depends on its version: from 3.14 on `False` of every error."""
    if blind:
        monkeypatch.setattr(Path, "is_dir", lambda path: os.path.isdir(path))
    with monkeypatch.context() as patch:
        stale(patch, run_dir.checkpoints)
        with pytest.raises(NotReadError, match="Stale file handle"):
            find_checkpoints(run_dir, lambda _: None)
        assert newest_step(run_dir, otherwise=4) == 4
    assert run_dir.committed_steps() == [6, 4, 2] and newest_step(run_dir, otherwise=4) == 6
    assert not RunDir(run_dir.root / "none").committed_steps()
    run_dir.report.write_text("{}")
    assert not RunDir(run_dir.report).committed_steps(), "a file is no run"


def test_links_that_lead_nowhere_hide_no_checkpoint(run_dir: RunDir) -> None:
    (run_dir.root / "archive.tar").write_text("of older ones")
    (run_dir.checkpoints / "step-1").symlink_to(run_dir.root / "archive.tar" / "step-1")
    (run_dir.checkpoints / "step-3").symlink_to(run_dir.root / "gone")
    (run_dir.checkpoints / "step-5").symlink_to(run_dir.checkpoints / "step-5")
    assert run_dir.committed_steps() == [6, 4, 2]
