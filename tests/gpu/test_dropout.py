"""Dropout on a GPU drops what it drops on a CPU, whatever the passes are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankzero.model.dropout import Places, Share, factors
from tests.gpu.support import gpu_spec, losses, on_gpu

pytestmark = on_gpu


def test_masks_are_those_of_a_cpu() -> None:
    masks = []
    for device in ("cpu", "cuda"):
        places, rows = Places(7), torch.arange(5, device=device)[:, None]
        places.begin_pass(3, rows, torch.arange(11, device=device)[None], None)
        keys = places.keys(torch.Size((5, 4, 11)))
        assert keys is not None
        masks.append(factors(keys, 300, Share.of(0.1)).cpu())
    assert torch.equal(*masks)


def test_losses_do_not_depend_on_passes(tmp_path: Path, tiny: Path) -> None:
    found = [
        losses(
            gpu_spec(
                tmp_path / str(tokens),
                tiny,
                model__dtype="float32",
                lora__dropout=0.1,
                train__micro_batch_tokens=tokens,
            )
        )
        for tokens in (64, 1024)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-4)
