"""Classes, images, four bits and experts: processes and pass sizes move work around, the loss curve stays.

Dropout is on: that of adapters, and in the classifier the model's own, of embeddings, blocks, attention and head.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankzero.data.batches.collators.images import PicturedText
from rankzero.data.batches.collators.text import MicroBatch
from tests.support.forked import run_forked
from tests.support.runs import metrics, run_here
from tests.support.tasks import TASKS, task_spec

pytestmark = pytest.mark.distributed

LOSS_TOLERANCE = 1e-4
OF_RANKS = {"slowest_rank", "slowest_rank_slowdown", "straggler"}
"""What is said of several ranks beside each other."""
CURVES = (
    *("loss", "eval_loss", "accuracy", "macro_f1", "router_aux_loss", "expert_load_max", "expert_load_min"),
    *("reward_accuracy", "reward_margin", "reward_chosen", "reward_rejected", "train_reward_margin"),
)
EXACT = 1e-6
"""How close the first step is, from which rounding has not grown yet."""


SHOWN_BY_OTHERS = "nf4"
"""Layouts of it are compared in test_fsdp.py, too."""


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=pytest.mark.slow) if task == SHOWN_BY_OTHERS else task for task in TASKS]
)
def test_the_curve_is_of_the_data_alone(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that do not divide evenly: 29 in batches of 8, and for the model with a tower passes without any image, and
    rows end to end."""
    changes: dict[str, Any] = {"dropout": 0.1, "rows": 29, "train__num_train_epochs": 2}
    layouts = LAYOUTS if task != "vision" else {**LAYOUTS, "small": {**LAYOUTS["small"], "train__padding_free": True}}
    one, small, two = (task_spec(task, tmp_path / name, **changes, **more) for name, more in layouts.items())
    with_images = note_images(monkeypatch)
    run_here(one)
    assert with_images == ({True, False} if task == "vision" else set())
    run_here(small)
    ranks = run_forked(two)
    assert ranks.report is not None and ranks.report["world_size"] == 2, ranks.said
    expected = metrics(one)
    assert len(expected) == 8 and expected[-1]["loss"] != pytest.approx(expected[0]["loss"], rel=0.001)
    for other in (small, two):
        for found, wanted in zip(metrics(other), expected, strict=True):
            assert found["supervised_tokens"] == wanted["supervised_tokens"]
            assert found.keys() - OF_RANKS == wanted.keys()
            assert task != "dpo" or {"train_reward_margin", "train_reward_accuracy"} <= found.keys()
            close = EXACT if found["step"] == 1 else LOSS_TOLERANCE
            for name in found.keys() & set(CURVES):
                assert found[name] == pytest.approx(wanted[name], rel=close), f"{name} of step {found['step']}"


def note_images(monkeypatch: pytest.MonkeyPatch) -> set[bool]:
    """Whether there were passes with pixels, and without."""
    collate, noted = PicturedText.__call__, set()

    def noting(self: PicturedText, *arguments: Any) -> MicroBatch:
        batch = collate(self, *arguments)
        noted.add("pixel_values" in batch.inputs)
        return batch

    monkeypatch.setattr(PicturedText, "__call__", noting)
    return noted


LAYOUTS: dict[str, dict[str, Any]] = {"one": {}, "small": {"train__micro_batch_tokens": 40}, "two": {}}
