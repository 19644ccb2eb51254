"""The page of a sweep: history, importance, coordinates and every trial, whole and in one file."""

from __future__ import annotations

import dataclasses
import re

import pytest

from rankzero.redaction import HIDDEN
from rankzero.report.sweep import Dimension, SweepPage, TrialRow, coordinates, history, sweep_page
from tests.unit.report.test_page import EVIL, Page


def page_of(*trials: TrialRow, higher: bool = False) -> SweepPage:
    """A sweep over a number and a choice."""
    dimensions = (Dimension("train.learning_rate", "numbers", log=True), Dimension("lora.target_modules", "names"))
    best = min((trial.number for trial in trials if trial.complete), default=None)
    return SweepPage(
        "search", "eval_loss", higher, "tpe, seed 42", dimensions, trials, 12, {"train.learning_rate": 1.0}, best
    )


def trial(number: int, value: float | None, rate: float, names: str, *, complete: bool = True) -> TrialRow:
    """One that has ended."""
    fields = {"train.learning_rate": rate, "lora.target_modules": names}
    return TrialRow(number, "done", value, complete, fields, f"trials/trial-{number:03}/report.html")


TRIALS = (
    trial(0, 0.9, 1e-5, "auto"),
    trial(1, 0.5, 1e-4, "all-linear"),
    trial(2, 0.7, 1e-3, "auto", complete=False),
    trial(3, 0.6, 1e-3, "auto"),
    TrialRow(4, "failed", None, False, {"train.learning_rate": 0.1, "lora.target_modules": "auto"}, "r", "NaN"),
)


def test_the_best_so_far_never_gets_worse_and_every_trial_has_its_dot() -> None:
    drawn = history(page_of(*TRIALS))
    assert drawn is not None
    assert (drawn.dots.count("M"), drawn.early.count("M")) == (3, 1)
    heights = [float(place.split()[1]) for place in drawn.best.removeprefix("M").split("L")]
    assert heights == sorted(heights)  # downwards: lower is better
    upwards = history(page_of(*TRIALS, higher=True))
    assert upwards is not None
    assert len({place.split()[1] for place in upwards.best.removeprefix("M").split("L")}) == 1  # the first stays best


def test_lines_go_through_all_axes_and_the_best_is_drawn_last() -> None:
    pillars, threads = coordinates(page_of(*TRIALS))
    assert [pillar.name for pillar in pillars] == ["train.learning_rate", "lora.target_modules", "eval_loss"]
    assert [pillar.at for pillar in pillars] == [0.0, 50.0, 100.0]
    assert [mark.text for mark in pillars[1].marks] == ["auto", "all-linear"]
    assert [thread.text for thread in threads] == [
        "trial 0: eval_loss 0.9",
        "trial 3: eval_loss 0.6",
        "trial 1: eval_loss 0.5",
    ]
    assert threads[-1].rank == 0 and all(thread.path.count("L") == 2 for thread in threads)
    first = float(threads[0].path[1:].split("L")[0].split()[1])
    middle = float(threads[-1].path[1:].split("L")[0].split()[1])
    last = float(threads[1].path[1:].split("L")[0].split()[1])
    assert middle == pytest.approx((first + last) / 2, abs=1)  # a logarithmic axis


def test_long_values_are_told_apart_by_all_of_their_words() -> None:
    """Paths of one directory begin alike; only what is shown of them is cut."""
    first, second = (f"/data/rows/collected-in-2026/{part}.jsonl" for part in ("a", "b"))
    pillars, threads = coordinates(page_of(trial(0, 0.9, 1e-5, first), trial(1, 0.5, 1e-4, second)))
    marks = pillars[1].marks
    assert len(marks) == 2 and len({mark.at for mark in marks}) == 2
    assert all(len(mark.text) == 24 for mark in marks)
    heights = {thread.path[1:].split("L")[1] for thread in threads}
    assert len(heights) == 2


def test_tables_have_values_in_full() -> None:
    """By which trials are told apart, and a result is made again."""
    first, second = (f"/data/rows/collected-in-2026/{part}.jsonl" for part in ("a", "b"))
    page = sweep_page(page_of(trial(0, 0.9, 1e-5, first), trial(1, 0.5, 1e-4, second)))
    cells = re.findall(r'<td[^>]*data-head="(?:Value|lora.target_modules)"[^>]*>([^<]*)</td>', page)
    assert cells.count(first) == 2 and cells.count(second) == 1, "the best trial's fields, and every trial"


def test_a_secret_is_taken_out_before_a_value_is_cut() -> None:
    """Half of one is known by nobody."""
    values = [f"https://alice:correct-horse-battery-staple@data.example.org/{part}" for part in ("a", "b")]
    page = sweep_page(page_of(trial(0, 0.9, 1e-5, values[0]), trial(1, 0.5, 1e-4, values[1])))
    assert "alice:" not in page.replace(f"alice:{HIDDEN}", "") and "correct" not in page


def test_a_page_says_all_of_it() -> None:
    text = Page(sweep_page(page_of(*TRIALS))).text
    for words in ("0.9 (trial 0)", "lower is better", "100.0 %", "Parallel coordinates", "failed: NaN", "5 of 12"):
        assert words in text, words


@pytest.mark.parametrize("trials", [(), TRIALS[4:], TRIALS[:1], TRIALS[2:3]])
def test_a_page_of_little_is_a_page(trials: tuple[TrialRow, ...]) -> None:
    assert "search" in Page(sweep_page(page_of(*trials))).text


def test_others_words_are_words() -> None:
    bad = dataclasses.replace(TRIALS[4], cause=EVIL, fields={"train.learning_rate": 0.1, "lora.target_modules": EVIL})
    done = dataclasses.replace(TRIALS[1], fields={"train.learning_rate": 0.1, "lora.target_modules": EVIL})
    page = Page(sweep_page(dataclasses.replace(page_of(bad, done), name=EVIL)))
    assert not {tag for tag, _ in page.tags} & {"script", "img"}
