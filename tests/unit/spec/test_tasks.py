"""What an evaluation measures, against the definitions written out."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankzero.engine.tasks.classify import macro_f1
from rankzero.spec.fields import field_at
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.tasks import MEASURES, TASKS, becomes_best, is_better


def textbook(targets: list[int], predicted: list[int], classes: int) -> float:
    scores = []
    for c in range(classes):
        hits = sum(t == p == c for t, p in zip(targets, predicted, strict=True))
        wrong = sum(p == c != t for t, p in zip(targets, predicted, strict=True))
        missed = sum(t == c != p for t, p in zip(targets, predicted, strict=True))
        if hits + wrong + missed == 0:
            continue  # the class does not occur
        precision = hits / (hits + wrong) if hits + wrong else 0.0
        recall = hits / (hits + missed) if hits + missed else 0.0
        scores.append(2 * precision * recall / (precision + recall) if precision + recall else 0.0)
    return sum(scores) / len(scores)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60))
def test_macro_f1_is_the_mean_of_precision_and_recall_of_each_class(pairs: list[tuple[int, int]]) -> None:
    confusion = [[0.0] * 4 for _ in range(4)]
    for target, predicted in pairs:
        confusion[target][predicted] += 1
    targets, predictions = [t for t, _ in pairs], [p for _, p in pairs]
    assert macro_f1(confusion) == pytest.approx(textbook(targets, predictions, 4))


@pytest.mark.parametrize(
    ("metric", "value", "than", "better"),
    [
        ("eval_loss", 0.5, None, True),
        ("eval_loss", 0.5, 0.6, True),
        ("eval_loss", 0.6, 0.6, False),
        ("perplexity", 2.0, 1.9, False),
        ("accuracy", 0.9, 0.8, True),
        ("macro_f1", 0.7, 0.8, False),
        ("accuracy", math.nan, None, False),
        ("eval_loss", math.nan, 9.0, False),
        ("eval_loss", math.inf, None, False),
        ("eval_loss", -math.inf, 9.0, False),
        ("reward_margin", math.inf, 9.0, False),
        ("reward_margin", 9.0, math.inf, True),
        ("eval_loss", 9.0, math.nan, True),
    ],
)
def test_better_is_lower_for_losses_and_higher_for_shares(
    metric: str, value: float, than: float | None, better: bool
) -> None:
    assert is_better(metric, value, than) is better


@pytest.mark.parametrize(
    ("later", "best", "becomes"),
    [
        ({"accuracy": 0.8, "eval_loss": 9.0}, None, True),
        ({"accuracy": 0.8, "eval_loss": 9.0}, {"accuracy": 0.7, "eval_loss": 1.0}, True),
        ({"accuracy": 0.7, "eval_loss": 1.0}, {"accuracy": 0.8, "eval_loss": 9.0}, False),
        ({"accuracy": 0.8, "eval_loss": 1.0}, {"accuracy": 0.8, "eval_loss": 2.0}, True),
        ({"accuracy": 0.8, "eval_loss": 2.0}, {"accuracy": 0.8, "eval_loss": 1.0}, False),
        ({"accuracy": 0.8, "eval_loss": 1.0}, {"accuracy": 0.8, "eval_loss": 1.0}, True),
        ({"accuracy": 0.8, "eval_loss": math.nan}, {"accuracy": 0.8, "eval_loss": 1.0}, False),
        ({"accuracy": 0.8, "eval_loss": 1.0}, {"accuracy": 0.8, "eval_loss": math.nan}, True),
        ({"accuracy": 0.8, "eval_loss": math.nan}, {"accuracy": 0.8, "eval_loss": math.nan}, False),
        ({"accuracy": 0.9, "eval_loss": math.nan}, {"accuracy": 0.8, "eval_loss": 1.0}, False),
        ({"accuracy": 0.9, "eval_loss": math.inf}, None, False),
        ({"accuracy": 0.8, "eval_loss": math.inf}, {"accuracy": 0.8, "eval_loss": math.inf}, False),
        ({"accuracy": 0.7, "eval_loss": 1.0}, {"accuracy": 0.8, "eval_loss": math.nan}, True),
        ({"accuracy": math.nan, "eval_loss": 1.0}, None, False),
        ({"accuracy": math.inf, "eval_loss": 1.0}, {"accuracy": math.inf, "eval_loss": 2.0}, False),
        ({"accuracy": 0.1, "eval_loss": 1.0}, {"accuracy": math.inf, "eval_loss": 1.0}, True),
    ],
)
def test_ties_go_to_the_lower_loss_and_then_to_the_later(
    later: dict[str, float], best: dict[str, float] | None, becomes: bool
) -> None:
    assert becomes_best("accuracy", later, best) is becomes


def test_the_reference_says_whose_each_metric_is_and_which_way_is_better() -> None:
    said = field_at(RunSpec, ("checkpoint", "best_metric"))
    assert said is not None and said.description is not None
    better = {"higher": set[str](), "lower": {"eval_loss"}}
    for name, task in TASKS.items():
        assert not task.metrics or f"task {name}" in said.description
        for metric, way in task.metrics.items():
            better[way].add(metric)
    higher, _, lower = said.description.partition("lower")
    for way, words in (("higher", higher), ("lower", lower)):
        assert {metric for metric in MEASURES if metric in re.findall(r"\w+", words)} == better[way]
