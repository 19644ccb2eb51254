"""Where the wall time of a run went: all starts add up, and a killed one's line says how far it was."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rankzero.run_dir.goodput import KINDS, LINE_BYTES, Start, StartLine, held_seconds, read_starts, summed_up
from tests.support.work import calls


def test_the_time_between_and_after_kills_is_attributed() -> None:
    starts = [
        Start(begun=100, updated=160, step=5, seconds={"model": 10, "step": 50}),  # killed at 163, as its lease says
        Start(begun=170, updated=200, step=7, alive_before=163, seconds={"repeated": 5, "step": 25}, ended="stopped"),
        Start(begun=260, updated=270, step=8, alive_before=210, seconds={"step": 10}),  # killed, and nothing says when
        Start(begun=300, updated=310, step=9, seconds={"step": 10}, ended="finished"),
    ]
    total = summed_up(starts)
    assert total.wall_seconds == 310 - 100 == sum(total.seconds.values())
    assert (total.seconds["lost"], total.seconds["down"]) == (3, 7 + 60 + 30)
    assert (total.starts, total.killed, total.steps) == (4, 2, 9)
    assert total.goodput == pytest.approx((50 + 25 + 10 + 10) / 210, abs=1e-4)
    assert str(total) == "45.2 % of 3:30 in new steps; down 1:37, start-up 0:10, repeated 0:05"
    assert set(total.to_json()) == {"wall_seconds", "goodput", "starts", "killed", "steps", "seconds"}
    assert set(total.seconds) == set(KINDS)


def test_a_clock_that_was_set_back_makes_no_negative_time() -> None:
    total = summed_up([Start(begun=5000, updated=5010, seconds={"step": 10}), Start(begun=1400, updated=1410)])
    assert total.wall_seconds == 10 and min(total.seconds.values()) == 0
    assert summed_up([]).goodput == 0


def test_a_start_holds_its_devices_until_it_is_seen_to_be_gone() -> None:
    starts = [
        Start(begun=100, updated=160, seconds={"step": 60}),  # killed at 163
        Start(begun=170, updated=200, alive_before=163, seconds={"step": 30}, ended="stopped"),
        Start(begun=260, updated=270, alive_before=210, seconds={"step": 10}),
    ]
    assert held_seconds(starts) == [63, 30, 10]
    assert sum(held_seconds(starts)) == summed_up(starts).wall_seconds - summed_up(starts).seconds["down"]


def test_a_start_rewrites_its_own_line_only(tmp_path: Path) -> None:
    path = tmp_path / "starts.jsonl"
    for number in range(3):
        start = Start(begun=100.0 * number, updated=0, alive_before=50.0 if number else None, kind=max(KINDS, key=len))
        start.owner = "0123456789abcdef"
        line = StartLine(path, start)
        for step in range(20):
            line.start.step = step
            line.write({kind: step * 1234567.8901 for kind in KINDS})  # as long as a line gets
        line.start.ended = "failed"
        line.write({"step": number})
        line.close()
    assert path.stat().st_size == 3 * LINE_BYTES
    found = read_starts(path)
    assert [(start.begun, start.step, start.ended) for start in found] == [(n * 100, 19, "failed") for n in range(3)]
    assert [start.seconds for start in found] == [{"step": n} for n in range(3)]
    assert {start.owner for start in found} == {"0123456789abcdef"}
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_what_is_no_line_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "starts.jsonl"
    whole = '{"begun": 1, "updated": 2, "from_step": 0, "step": 0, "ended": null, "alive_before": null, "seconds": {}}'
    bad = ['{"begun": 1', whole.replace("1,", "NaN,"), whole.replace("{}", '{"step": -1}'), whole.replace("{}", "[]")]
    path.write_bytes("\n".join([*bad, "\x80\x04", "[" * 5000, whole]).encode("latin-1"))
    assert len(read_starts(path)) == 1
    line = StartLine(path, Start(begun=7, updated=7))  # begins where lines are whole again
    line.write({})
    line.close()
    assert [start.begun for start in read_starts(path)] == [1, 7]
    assert path.stat().st_size % LINE_BYTES == 0
    assert read_starts(tmp_path / "none") == []


def test_a_line_is_cheap(tmp_path: Path) -> None:
    """One is written after each step: a few calls, and the file grows no longer."""
    line = StartLine(tmp_path / "starts.jsonl", Start(begun=0, updated=0))
    seconds = {kind: 1.0 for kind in KINDS}
    line.write(seconds)
    assert calls(lambda: line.write(seconds)) < 30
    line.close()
    assert os.path.getsize(tmp_path / "starts.jsonl") == LINE_BYTES
