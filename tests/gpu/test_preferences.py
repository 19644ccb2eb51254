"""Preferences on a GPU, in bfloat16: rows end to end are as those that are padded, also in a pass of one pair alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gpu.support import losses, needs_capability, on_gpu
from tests.support.tasks import task_spec
from tests.support.tiny import tiny_model

pytestmark = on_gpu

STEPS: dict[str, Any] = {
    "rows": 12,
    "dropout": 0.0,
    "model__dtype": "bfloat16",
    "train__max_steps": 4,
    "train__learning_rate": 1e-3,
}


@needs_capability(8, 0)
@pytest.mark.parametrize("tokens", [4, 2048], ids=["a pass of one pair", "a pass of all pairs"])
def test_losses_without_padding_are_those_of_padded_sdpa(tokens: int, tmp_path: Path) -> None:
    model = str(tiny_model(tmp_path / "heads of 32", hidden=128))
    changes = {**STEPS, "model__name": model, "train__micro_batch_tokens": tokens}
    padded = losses(
        task_spec("dpo", tmp_path / "a", model__attention="sdpa", train__padding_free=False, **changes),
    )
    packed = losses(task_spec("dpo", tmp_path / "b", model__attention="varlen", **changes))
    assert len(packed) == 4 and packed == pytest.approx(padded, rel=1e-2)
    assert padded[-1] < padded[0]


@needs_capability(8, 0)
@pytest.mark.parametrize("master_weights", ["float32", "stochastic_rounding"])
def test_all_weights_begin_as_their_own_reference_and_move_away_from_it(master_weights: str, tmp_path: Path) -> None:
    changes = {**STEPS, "train__learning_rate": 1e-4, "train__master_weights": master_weights}
    found = losses(task_spec("dpo in full", tmp_path, **changes))
    assert len(found) == 4 and found[0] == pytest.approx(0.6931, abs=1e-3)
    assert found[-1] < found[0] - 0.01
