"""Rows with images on a GPU: end to end they have the losses that they have padded, with a trained tower too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gpu.support import losses, needs, needs_capability, on_gpu
from tests.support.tasks import task_spec

pytestmark = [*on_gpu, needs("PIL")]


@needs_capability(8, 0)
@pytest.mark.parametrize("parts", [["language"], ["language", "projector", "vision_tower"]], ids=["text", "tower too"])
def test_losses_end_to_end_are_those_of_padded_rows(parts: list[str], tmp_path: Path) -> None:
    """By torch's kernel, which attends to all images of a pass at once, beside one call for each image."""
    same: dict[str, Any] = {"dropout": 0.0, "model__dtype": "bfloat16", "train__parts": parts, "train__max_steps": 6}
    usual = {"model__attention": "sdpa", "train__padding_free": False}
    padded = losses(task_spec("vision", tmp_path / "padded", **same, **usual))
    packed = losses(task_spec("vision", tmp_path / "packed", **same, train__micro_batch_tokens=4096))
    assert len(packed) == 6 and packed == pytest.approx(padded, rel=1e-2)
    assert packed[-1] < packed[0]
