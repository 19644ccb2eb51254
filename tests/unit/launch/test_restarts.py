"""When a failed run starts again, and when that is given up."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from rankzero.errors import ConfigError, DataError, RankzeroError, ServiceError, StoppedError, StorageError
from rankzero.launch import local
from rankzero.launch.restarts import Restarts, may_be_cured
from rankzero.run_dir import handover
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from tests.support.gone import Gone
from tests.support.runs import run_root, small_spec
from tests.support.unreadable import stale


def made(restarts: Restarts, saved: list[int | None]) -> int:
    """How many restarts there are where the newest checkpoint is so at each failure."""
    for count, step in enumerate(saved):
        if restarts.refused(step):
            return count
        restarts.make(step)
    return len(saved)


@pytest.mark.parametrize(
    ("most", "saved", "expected"),
    [
        (0, [None], 0),
        (2, [10, 20, 30, 40], 2),
        (9, [None] * 9, 3),
        (9, [10, 10, 10, 10, 10], 3),
        (9, [None, None, 5, 5, 5, 5], 5),
        (9, [10, 10, 10, 20, 20, 20, 20], 6),
        (9, list(range(9)), 9),
        (9, [10, 5, 5, 5, 5], 3),  # the newest was damaged: that is no progress
    ],
)
def test_restarts_end_at_their_number_and_where_nothing_new_is_saved(
    most: int, saved: list[int | None], expected: int
) -> None:
    assert made(Restarts(most), saved) == expected


def test_what_trying_again_may_cure() -> None:
    assert all(may_be_cured(kind("x")) for kind in (RankzeroError, ServiceError, StorageError))
    assert not any(may_be_cured(kind("x")) for kind in (StoppedError, DataError, ConfigError))


class Starts:
    """Stands in for starts: each ends as told, having saved the checkpoint that is told."""

    def __init__(self, spec: RunSpec, monkeypatch: pytest.MonkeyPatch, *ends: tuple[int | None, Exception | str]):
        self.count = 0
        self.paused: list[float] = []
        run_dir, coming = RunDir(run_root(spec)), itertools.chain(ends)

        def start(_local: object) -> str:
            self.count += 1
            saved, end = next(coming)
            if saved is not None:
                run_dir.checkpoint(saved).mkdir(parents=True, exist_ok=True)
            if isinstance(end, Exception):
                raise end
            return end

        monkeypatch.setattr(local._Local, "start", start)
        monkeypatch.setattr(local._Local, "pause", lambda _local, seconds: self.paused.append(seconds) or False)


def killed(step: int) -> RankzeroError:
    return RankzeroError(f"process 1 was killed by SIGKILL in step {step}", where="rank 1 on gpu-a", hint="memory?")


def test_a_failed_start_is_followed_by_another_and_why_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = small_spec(tmp_path, tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrst")
    poisoned = RankzeroError("no answer for hf_abcdefghijklmnopqrst", where="hub \udcff")
    poisoned.add_note("Traceback: line 7, hf_abcdefghijklmnopqrst")
    starts = Starts(spec, monkeypatch, (5, killed(7)), (5, poisoned), (10, "done"))
    assert local.run_processes(spec, RunOptions(), 2, os.environ, max_restarts=3) == "done"
    assert starts.count == 3 and starts.paused == [1.0, 10.0]
    said = capfd.readouterr().err
    assert "[RESTART] rank 1 on gpu-a: process 1 was killed by SIGKILL in step 7" in said
    assert "[RESTART] 1 of 3: starting again from step 5" in said
    kept = (run_root(spec) / "restarts.jsonl").read_text()
    assert "hf_abc" not in said + kept
    lines = [json.loads(line) for line in kept.splitlines()]
    assert [(line["restart"], line["from_step"], line["exit_code"], line["where"]) for line in lines] == [
        (1, 5, 70, "rank 1 on gpu-a"),
        (2, 5, 70, "hub \udcff"),
    ]
    assert [(line["hint"], line["traceback"]) for line in lines] == [
        ("memory?", ""),
        ("", "Traceback: line 7, [hidden]"),
    ], "an internal error is followed by a start as well, and nobody could find it"
    assert "no answer for [hidden]\nTraceback: line 7, [hidden]\n" in said


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO])
def test_a_restart_needs_nobody_who_reads_of_it(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_spec(tmp_path, tmp_path)
    starts = Starts(spec, monkeypatch, (5, killed(7)), (10, "done"))
    monkeypatch.setattr(sys, "stderr", Gone(number))
    assert local.run_processes(spec, RunOptions(), 2, os.environ, max_restarts=3) == "done"
    assert starts.count == 2


def test_it_is_given_up_with_the_last_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_spec(tmp_path, tmp_path)
    starts = Starts(spec, monkeypatch, *((5, killed(step)) for step in range(7, 20)))
    with pytest.raises(RankzeroError, match="in step 10") as ended:
        local.run_processes(spec, RunOptions(), 2, os.environ, max_restarts=9)
    assert starts.count == 4
    assert "3 restarts in a row have brought nothing new: the newest checkpoint is still that of step 5" in str(
        ended.value
    )
    assert "restarts.jsonl" in str(ended.value) and "memory?" in str(ended.value)


def test_a_run_that_never_had_a_directory_is_given_up_without_naming_a_file_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(tmp_path, tmp_path)
    Starts(spec, monkeypatch, *((None, ServiceError("the Hub does not answer", hint="network?")) for _ in range(9)))
    with pytest.raises(ServiceError, match="restarts of max_restarts are used up. network\\?") as ended:
        local.run_processes(spec, RunOptions(), 2, os.environ, max_restarts=2)
    assert "restarts.jsonl" not in str(ended.value) and not run_root(spec).exists()


@pytest.mark.parametrize("error", [StoppedError("stopped"), ConfigError("wrong"), DataError("bad")])
def test_what_is_final_is_not_tried_again(
    error: RankzeroError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(tmp_path, tmp_path)
    starts = Starts(spec, monkeypatch, (None, error))
    with pytest.raises(type(error)):
        local.run_processes(spec, RunOptions(), 2, os.environ, max_restarts=3)
    assert starts.count == 1 and not run_root(spec).exists()


def test_while_a_start_may_be_followed_by_another_its_processes_know_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the launcher lets go of the run, as its process may go on: they note it for who watches."""
    spec, told = small_spec(tmp_path, tmp_path), list[str]()

    def no_start(_directory: object, _ranks: object, _payload: object, env: dict[str, str], *_: object) -> None:
        told.append(env[handover.AGAIN_VARIABLE])
        assert not told[-1] or Path(told[-1]).is_dir()
        raise killed(3)

    monkeypatch.setattr(local, "started", no_start)
    monkeypatch.setattr(local, "PAUSE_SECONDS", (0.0,))
    with pytest.raises(RankzeroError):
        local.run_processes(spec, RunOptions(), 2, {handover.AGAIN_VARIABLE: "of another run"}, max_restarts=2)
    assert told[0] and told == [told[0], told[0], ""] and not Path(told[0]).exists()


def test_a_stop_between_two_starts_is_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_spec(tmp_path, tmp_path)
    pause = local._Local.pause
    starts = Starts(spec, monkeypatch, (2, killed(3)))
    monkeypatch.setattr(local, "PAUSE_SECONDS", (600.0,))

    def stopped_in(again: local._Local, seconds: float) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        return pause(again, seconds)

    monkeypatch.setattr(local._Local, "pause", stopped_in)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(StoppedError, match="stopped before it was started again"):
        local.run_processes(spec, RunOptions(), 2, os.environ, max_restarts=3)
    assert starts.count == 1 and signal.getsignal(signal.SIGTERM) is before


def test_a_restart_that_cannot_be_noted_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = small_spec(tmp_path, tmp_path)
    starts = Starts(spec, monkeypatch, (2, killed(3)), (4, "{}"))
    RunDir(run_root(spec)).restarts.mkdir(parents=True)
    assert local.run_processes(spec, RunOptions(), 2, os.environ, max_restarts=3) == "{}"
    assert starts.count == 2
    said = capsys.readouterr().err
    assert "not noted in" in said and "starting again from step 2" in said


def test_a_volume_that_is_away_for_a_moment_takes_no_restart_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended as an internal error: where the run stands could not be seen."""
    spec = small_spec(tmp_path, tmp_path)
    away = StorageError("Stale file handle", where=str(run_root(spec)))
    starts = Starts(spec, monkeypatch, (None, away), (None, "{}"))
    stale(monkeypatch, run_root(spec))
    assert local.run_processes(spec, RunOptions(), 2, os.environ, max_restarts=3) == "{}"
    assert starts.count == 2
    said = capsys.readouterr().err
    assert "not noted in" in said and "1 of 3: starting again from its newest checkpoint" in said
    starts = Starts(spec, monkeypatch, *[(None, away)] * 9)
    with pytest.raises(StorageError, match="Stale file handle"):
        local.run_processes(spec, RunOptions(), 2, os.environ, max_restarts=3)
    assert starts.count == 4


def test_a_start_that_fails_while_it_is_asked_to_stop_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(tmp_path, tmp_path)
    monkeypatch.setenv("STAND_IN", str(tmp_path))
    monkeypatch.setattr("rankzero.launch.processes.TRAINS", "tests.support.stand_in")
    looked = local.HangWatch.look

    def look(watch: local.HangWatch, *, end: bool) -> None:
        if (tmp_path / "up-0").exists() and (tmp_path / "up-1").exists() and not (tmp_path / "go").exists():
            os.kill(os.getpid(), signal.SIGHUP)
            (tmp_path / "go").write_text("70")
        looked(watch, end=end)

    monkeypatch.setattr(local.HangWatch, "look", look)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests run under nohup, which ignores it
    try:
        with pytest.raises(RankzeroError):
            local.run_processes(spec, RunOptions(), 2, os.environ, max_restarts=3)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (tmp_path / "asked-1-0").exists() and (tmp_path / "asked-1-1").exists(), "SIGHUP is passed on as a stop"
    assert not (tmp_path / "restarts.jsonl").exists()
