"""Progress: silent when quick, lines where there is no terminal, a bar where there is one."""

from __future__ import annotations

import io

import pytest

import rankzero.data.progress
from rankzero.data.progress import Reached, Telling, show_progress, told


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(rankzero.data.progress.time, "monotonic", lambda: now[0])
    return now


def test_quick_jobs_say_nothing(clock: list[float]) -> None:
    for stream in (io.StringIO(), Terminal()):
        with show_progress("checking", 100, stream) as advance:
            clock[0] += 1
            advance(100)
        assert stream.getvalue() == ""


def test_lines_now_and_then(clock: list[float]) -> None:
    stream = io.StringIO()
    with show_progress("checking", 10_000_000, stream) as advance:
        for _ in range(10):
            clock[0] += 2
            advance(1_000_000)
    assert stream.getvalue() == "checking: 10% of 10 MB, 2 s\nchecking: 90% of 10 MB, 18 s\n"


def test_the_time_left_forgets_a_slow_start(clock: list[float]) -> None:
    left: list[float] = []

    def line(at: Reached) -> str:
        left.append(at.left)
        return ""

    telling = Telling(line, lambda _width: (), quiet_seconds=0.0, line_seconds=1.0, end=True, redirects=False)
    with told(telling, "step", 20, terminal=None, say=lambda _line: None) as advance:
        for seconds in (100, 2, 2, 2, 2):
            clock[0] += seconds
            advance(1, "")
    assert (left[0], left[-1]) == (1900, 2 * 15)


def test_a_bar_on_a_terminal(clock: list[float]) -> None:
    stream = Terminal()
    with show_progress("checking", 100, stream) as advance:
        clock[0] += 5
        advance(50)
        advance(50)
    assert "checking" in stream.getvalue()


def test_a_total_that_nobody_knows(clock: list[float]) -> None:
    stream = io.StringIO()
    with show_progress("download", 0, stream) as advance:
        clock[0] += 2
        advance(3_000_000)
    assert stream.getvalue() == "download: 3 MB, 2 s\n"
