"""Dropout on a GPU drops what it drops on a CPU, whatever the passes are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankzero.model.dropout import Places, Share, by_kernel, drop, factors
from tests.gpu.support import gpu_spec, losses, needs, on_gpu

pytestmark = on_gpu


def test_masks_are_those_of_a_cpu() -> None:
    masks = []
    for device in ("cpu", "cuda"):
        places, rows = Places(7), torch.arange(5, device=device)[:, None]
        places.begin_pass(3, rows, torch.arange(11, device=device)[None], None)
        keys = places.keys(torch.Size((5, 4, 11)))
        assert keys is not None
        masks.append(factors(keys, 300, Share.of(0.1)).cpu())
    torch.testing.assert_close(*masks, atol=0, rtol=0)


@needs("triton")
def test_they_take_one_kernel_which_drops_the_same() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    assert by_kernel(device)
    keys, share = torch.randint(-(2**31), 2**31 - 1, (5, 11), device=device, dtype=torch.int32), Share.of(0.1)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        values = torch.randn(5, 11, 301, device=device).to(dtype)
        wanted = (values * factors(keys, 301, share)).to(dtype)
        torch.testing.assert_close(drop(values, keys, share), wanted, atol=0, rtol=0)


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
