"""Starts of a node, counted where the platform does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankzero.errors import RankzeroError
from rankzero.launch.node.attempts import Attempts
from rankzero.run_dir.paths import RunDir


def start(folder: Path, *, node: int = 0, submission: str = "s") -> Attempts:
    attempts = Attempts(RunDir(folder), node, submission, max_restarts=2)
    attempts.begin()
    return attempts


def test_failures_end_at_max_restarts(tmp_path: Path) -> None:
    assert [start(tmp_path).may_restart for _ in range(3)] == [True, True, False]
    with pytest.raises(RankzeroError, match="the 2 restarts of max_restarts are used up") as caught:
        start(tmp_path)  # the one before was killed without a word
    assert caught.value.exit_code == 70


def test_stops_are_free(tmp_path: Path) -> None:
    for _ in range(10):
        attempts = start(tmp_path)
        assert attempts.may_restart
        attempts.excuse()


def test_another_submission_and_another_node_begin_anew(tmp_path: Path) -> None:
    for _ in range(3):
        start(tmp_path)
    assert start(tmp_path, submission="t").may_restart
    assert start(tmp_path, node=1).may_restart
    (tmp_path / "attempts" / "node-0.json").write_text("{cut")
    assert start(tmp_path).may_restart
