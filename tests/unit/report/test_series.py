"""From metrics.jsonl to lines: nothing that was there is lost to the eye, however long the run."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rankzero.report.curves import NAMED, charts
from rankzero.report.reading import Reader
from rankzero.report.series import COLUMNS, MEANS, Series, means, pieces, read_series
from rankzero.report.ticks import linear, logarithmic, of_memory, padded, plain


def series(values: list[float]) -> Series:
    found = Series()
    found.steps.extend(range(1, len(values) + 1))
    found.values.extend(values)
    return found


def test_lines_that_are_none_are_passed_over_and_said(tmp_path: Path) -> None:
    good = [{"step": 1, "loss": 2.0, "flag": True, "list": [1]}, {"step": 2, "loss": None}, {"step": 3, "loss": 1}]
    odd = ["{", "[]", '{"loss": 1}', '{"step": "4", "loss": 1}', '{"step": 5, "loss": 1e999}', "[" * 10_000, "", " "]
    lines = [*(json.dumps(row) for row in good), *odd]
    (tmp_path / "metrics.jsonl").write_bytes("\n".join(lines).encode() + b'\n\xff\n{"step": 6, "lo')
    reader = Reader(tmp_path)
    found = read_series(reader.lines(tmp_path / "metrics.jsonl"), NAMED)
    assert list(found) == ["loss"]
    assert found["loss"].finite() == [(1, 2.0), (3, 1.0)] and len(found["loss"]) == 3
    assert reader.unread == ["metrics.jsonl: 4 of its lines cannot be read"], "the one that is being written is none"


def test_a_value_that_was_not_finite_is_a_gap() -> None:
    assert pieces(series([3.0, 2.0, math.nan, 1.0])) == [[(1, 3.0), (2, 2.0)], [(4, 1.0)]]
    assert pieces(series([math.nan])) == []
    assert pieces(series([])) == []


def test_a_long_run_is_thinned_to_what_can_be_seen() -> None:
    """Every spike stays, and the line through the noise is the mean of all."""
    chance = random.Random(3)
    values = [1.0 + chance.gauss(0, 0.1) for _ in range(100_000)]
    values[77_777], values[55_555] = 50.0, -50.0
    (line,) = pieces(series(values))
    assert len(line) <= 2 * COLUMNS and line == sorted(line)
    assert {(77_778, 50.0), (55_556, -50.0)} <= set(line)
    (average,) = means(series(values))
    assert len(average) == MEANS
    assert math.fsum(value for _, value in average) / MEANS == pytest.approx(math.fsum(values) / len(values), rel=1e-3)


@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=3000))
def test_thinning_keeps_the_extremes(values: list[float]) -> None:
    finite = [value for value in values if math.isfinite(value)]
    drawn = [value for piece in pieces(series(values)) for _, value in piece]
    assert (min(drawn), max(drawn)) == (min(finite), max(finite)) if finite else drawn == []


@pytest.mark.parametrize("points", [6, 2 * MEANS + 2, 3 * COLUMNS])
def test_no_line_joins_what_is_not_compared(points: int) -> None:
    rare = series([9.0] * (points // 2) + [1.0] * (points // 2))
    rare.apart = points // 2 + 1
    for lines in (pieces(rare), means(rare)):
        assert [{value for _, value in line} for line in lines] == [{9.0}, {1.0}] or (lines == [] and points == 6)
    assert len(pieces(rare)) == 2


@given(st.floats(-1e12, 1e12), st.floats(0, 1e12))
@example(0.0005, 1e-8)
@example(2.0, 1e-4)
@example(123_456.0, 1e-2)
@example(3e9, 50.0)
def test_marks_lie_on_their_axis_and_differ(low: float, width: float) -> None:
    for axis in (linear(low, low + width, plain), padded(low, low + width, plain)):
        assert axis.low <= low and low + width <= axis.high
        texts = [text for _, text in axis.marks]
        assert len(set(texts)) == len(texts) <= 8, "marks that look the same say nothing"
        assert all(-1e-6 <= axis.share(at) <= 1 + 1e-6 for at, _ in axis.marks)


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [
        (0, 1e-4, "0 2e-05 4e-05 6e-05 8e-05 0.0001"),
        (0.0, 5.2, "0 2 4"),
        (1, 100_000, "20k 40k 60k 80k 100k"),
        (0, 12_000, "0 2,500 5,000 7,500 10,000"),
        (2.5, 2.75, "2.50 2.55 2.60 2.65 2.70 2.75"),
        (0, 5e9, "0 1B 2B 3B 4B 5B"),
        (2, 2.0001, "2 2.00002 2.00004 2.00006 2.00008 2.0001"),
        (123_456, 123_456.009, "123,456.000 123,456.002 123,456.004 123,456.006 123,456.008"),
    ],
)
def test_marks(low: float, high: float, marks: str) -> None:
    assert " ".join(text for _, text in linear(low, high, plain).marks) == marks


def test_marks_of_other_axes() -> None:
    assert [text for _, text in logarithmic(0.3, 2000, plain).marks] == ["1", "10", "100", "1,000"]
    assert [text for _, text in of_memory(1e9, 4e9).marks] == ["0 GB", "1 GB", "2 GB", "3 GB", "4 GB"]
    assert [text for _, text in linear(7, 7, plain, whole=True).marks] == ["7", "8"]


def test_charts_have_what_belongs_together_and_nothing_twice() -> None:
    metrics = {
        "loss": series([3.0, 2.0, 1.0]),
        "eval_loss": series([3.0]),
        "epoch": series([1.0]),
        "peak_memory_bytes": series([1e9, 2e9]),
        "grad_norm": series([1.0] * 60 + [500.0]),
        "accuracy": series([math.nan]),
    }
    loss, norm, memory_used = charts([("run", metrics)], [2, 99])[0]
    assert [label for label, _, _ in loss.labels] == ["train", "eval"]
    assert [mark.text for mark in loss.starts] == ["continued after step 2"]
    assert norm.title == "Gradient norm" and norm.log and not loss.log
    assert memory_used.title == "Peak memory" and memory_used.spans == (("", "1.0 GB", "2.0 GB", "1.0 GB", "2.0 GB"),)
    assert loss.rows[0] == ("1", "3", "3") and loss.rows[-1] == ("3", "1", "")
    assert charts([("run", {})])[0] == []


def test_what_is_not_drawn_is_named_with_its_ends() -> None:
    """Also beyond the series that are kept whole; an evaluation comes late in a file, and is kept."""
    names = [f"mine_{number:03}" for number in range(130)]
    rows = [{"step": step, "loss": 1.0, **dict.fromkeys(names, [4.0, 9.0, 1.0, 3.0][step % 4])} for step in range(101)]
    rows[-1] |= {"eval_loss": 2.0, "late": None}
    runs = [("run", read_series(rows, NAMED))]
    drawn, left = charts(runs)
    assert len(drawn) == 24 and drawn[0].key == "loss" and [span[0] for span in drawn[0].spans] == ["train", "eval"]
    assert [row[0] for row in left] == [f"Mine {number:03}" for number in range(23, 130)]
    assert {row[1:] for row in left} == {("4", "4", "1", "9")}
    assert max(len(one) for name, one in runs[0][1].items() if name > "mine_100" and name != "late") < 20
    assert (
        charts([("run", read_series(rows[:1], NAMED)), ("other", {"loss": series([1.0])})])[1][0][0] == "Mine 023, run"
    )
    assert charts([("run", {"loss": series([1.0])})])[1] == []


def test_not_even_names_are_without_end() -> None:
    rows = [{"step": step, f"of_{step}": 1.0} for step in range(500)]
    left = charts([("run", read_series(rows, NAMED))])[1]
    assert len(left) == 201 and left[-1] == ("and 276 more", "", "", "", "")


@pytest.mark.parametrize(("members", "distinct"), [(("grad_norm",), 36), (("loss", "eval_loss"), 18)])
def test_runs_beside_each_other_have_lines_that_differ(members: tuple[str, ...], distinct: int) -> None:
    """By colour and dash, also where only some were evaluated; the first six lines by their dash alone."""
    metrics = {name: series([2.0, 1.0]) for name in members}
    runs = [(f"run {number}", metrics if number % 5 else {members[0]: series([1.0])}) for number in range(distinct)]
    (chart,) = charts(runs)[0]
    assert len({(colour, dash) for _, colour, dash in chart.labels}) == len(chart.labels)
    (whole,) = charts([(name, metrics) for name, _ in runs])[0]
    assert len({dash for _, _, dash in whole.labels[:6]}) == 6


def test_what_a_line_through_the_noise_is_the_mean_of_is_said_in_steps() -> None:
    """Not in points: an evaluation comes every so many steps."""
    rare = Series()
    rare.steps.extend(range(0, 30_001, 100))
    rare.values.extend([1.0] * 301)
    (alone,) = charts([("a", {"eval_loss": rare})])[0]
    assert alone.averaged == "300 steps"
    (both,) = charts([("a", {"loss": series([1.0] * 250), "eval_loss": rare})])[0]
    assert both.averaged == "3 to 300 steps"
    (few,) = charts([("a", {"loss": series([1.0] * 100)})])[0]
    assert few.averaged == ""


def test_paths_are_numbers_alone() -> None:
    chance = random.Random(1)
    for chart in charts([("<a>", {"loss": series([chance.gauss(0, 1e9) for _ in range(2000)])})])[0]:
        for line in chart.lines:
            assert re.fullmatch(r"(?:[MLh]|\d+\.\d |\d+\.\d|0)+", line.path), line.path[:80]
            places = [float(one) for one in re.findall(r"\d+\.\d", line.path)]
            assert min(places) >= 0 and max(places) <= 1000
