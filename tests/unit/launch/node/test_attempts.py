"""Starts of a node, counted where the platform does not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rankzero.errors import RankzeroError, StorageError
from rankzero.launch.node import entry
from rankzero.launch.node.attempts import Attempts
from rankzero.launch.node.pid1 import StopWish
from rankzero.launch.node.settings import NodeSettings
from rankzero.run_dir.paths import RunDir
from rankzero.spec.resolve import resolve, to_yaml
from tests.support.runs import small_spec
from tests.support.unreadable import stale


def start(
    folder: Path, *, node: int = 0, submission: str = "s", allocation: str = "", max_restarts: int = 2
) -> Attempts:
    attempts = Attempts(RunDir(folder), node, submission, max_restarts, allocation)
    attempts.begin()
    return attempts


def saves(folder: Path, step: int) -> None:
    (RunDir(folder).checkpoints / f"step-{step}").mkdir(parents=True)


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


@pytest.mark.parametrize("max_restarts", [0, 2])
def test_a_lost_allocation_is_free_as_long_as_the_run_gets_on(tmp_path: Path, max_restarts: int) -> None:
    """Its host failed, or it was preempted before it could save: nothing was said."""
    for number in range(8):
        attempts = start(tmp_path, allocation=str(number), max_restarts=max_restarts)
        saves(tmp_path, 10 * number + 10)
    assert attempts.may_restart == (max_restarts > 0)


def test_lost_allocations_that_bring_nothing_new_are_not_repeated_for_ever(tmp_path: Path) -> None:
    saves(tmp_path, 10)
    for number in range(4):
        start(tmp_path, allocation=str(number))
    with pytest.raises(RankzeroError, match="3 restarts in a row have brought nothing new: .* step 10"):
        start(tmp_path, allocation="4")
    assert start(tmp_path / "stops", allocation="0").excuse() is None
    for number in range(1, 9):
        start(tmp_path / "stops", allocation=str(number)).excuse()


def test_failures_within_allocations_are_counted_over_all_of_them(tmp_path: Path) -> None:
    start(tmp_path, allocation="0")
    assert start(tmp_path, allocation="0").may_restart
    saves(tmp_path, 10)
    assert start(tmp_path, allocation="1").may_restart, "one is left"
    assert not start(tmp_path, allocation="1").may_restart
    saves(tmp_path, 20)
    assert not start(tmp_path, allocation="2").may_restart


def test_what_an_older_version_noted_is_of_this_allocation(tmp_path: Path) -> None:
    start(tmp_path, allocation="3")
    path = tmp_path / "attempts" / "node-0.json"
    noted = json.loads(path.read_text())
    del noted["allocation"]
    path.write_text(json.dumps(noted))
    start(tmp_path, allocation="3")
    assert json.loads(path.read_text())["made"] == 1


def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_restarts: int) -> None:
    """What the node command is given where the platform counts nothing, for a run that does nothing."""
    spec = small_spec(tmp_path, tmp_path)
    config = tmp_path / "config"
    config.mkdir()
    (config / "run.yaml").write_text(to_yaml(resolve(spec)))
    (config / "node.json").write_text(NodeSettings(run="r", max_restarts=max_restarts, retry_exit_offset=128).to_json())
    monkeypatch.setattr(sys, "argv", ["node", str(config)])
    monkeypatch.setattr(entry, "run", lambda *_: None)
    monkeypatch.setenv("RANKZERO_TERMINATION_LOG", str(tmp_path / "words"))
    monkeypatch.setenv("RANKZERO_SUBMISSION_TOKEN", "secret")


def test_slurm_says_which_allocation_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live(tmp_path, monkeypatch, max_restarts=0)
    codes = []
    for number in ("", "1", "1"):  # the first one has none
        monkeypatch.setenv("SLURM_RESTART_COUNT", number)
        if not number:
            monkeypatch.delenv("SLURM_RESTART_COUNT")
        with pytest.raises(SystemExit) as left:
            entry.live(StopWish())
        codes.append(left.value.code)
    assert codes == [0, 0, 70], "a start again in its allocation is one too many"


@pytest.mark.parametrize(("max_restarts", "code"), [(2, 74 + 128), (0, 74)])
def test_a_volume_that_is_away_at_the_end_leaves_the_last_words_and_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_restarts: int, code: int
) -> None:
    """It ended with 1 and without a word, and nothing started it again."""
    live(tmp_path, monkeypatch, max_restarts)
    run_dir = RunDir(tmp_path / "runs/small")

    def away(*_: object) -> None:
        stale(monkeypatch, run_dir.root)
        raise StorageError("Stale file handle", where=str(run_dir.root))

    monkeypatch.setattr(entry, "run", away)
    with pytest.raises(SystemExit) as left:
        entry.live(StopWish())
    assert left.value.code == code
    said = json.loads((tmp_path / "words").read_text())
    assert (said["what"], said["exit_code"], said["checkpoint"]) == ("Stale file handle", 74, None)


def test_another_submission_and_another_node_begin_anew(tmp_path: Path) -> None:
    for _ in range(3):
        start(tmp_path)
    assert start(tmp_path, submission="t").may_restart
    assert start(tmp_path, node=1).may_restart
    (tmp_path / "attempts" / "node-0.json").write_text("{cut")
    assert start(tmp_path).may_restart


def test_a_count_that_cannot_be_read_does_not_begin_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(tmp_path)
    with monkeypatch.context() as broken:
        stale(broken, tmp_path / "attempts/node-0.json")
        with pytest.raises(StorageError, match="Stale file handle"):
            start(tmp_path)
    with monkeypatch.context() as broken:
        stale(broken, RunDir(tmp_path).checkpoints)
        assert start(tmp_path).may_restart, "it is counted, by what was known of checkpoints"
    assert not start(tmp_path).may_restart
    with pytest.raises(RankzeroError, match="the 2 restarts of max_restarts are used up"):
        start(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff"])
def test_a_count_that_says_nothing_begins_anew(tmp_path: Path, content: bytes) -> None:
    start(tmp_path)
    (tmp_path / "attempts/node-0.json").write_bytes(content)
    assert start(tmp_path).may_restart
