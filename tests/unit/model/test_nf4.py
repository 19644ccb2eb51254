"""4-bit weights are read as they were packed, whatever the width of their rows: in blocks that rows need not end with.

bitsandbytes packs so everywhere and reads so on GPUs; on CPUs it takes each row for the start of a block.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from rankzero.model.low_bits import NF4_BLOCK, Nf4Weight
from rankzero.model.nf4 import pack_nf4, unpack_nf4
from tests.unit.model.support import loaded, logits, packed_spec, saved, spec_of

pytest.importorskip("bitsandbytes")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
WIDTHS = [(64, 64), (64, 48), (32, 96), (16, 16), (32, 100), (31, 100), (5, 31), (7, 1440), (4, 64, 16), (3, 31, 8)]
WIDTHS_OF = {
    "llama": {"hidden_size": 48, "intermediate_size": 80, "head_dim": 12},
    "gpt2": {"n_embd": 48},
    "mixtral": {"hidden_size": 48, "intermediate_size": 80, "head_dim": 12},
}
WIDEST_GAP = 0.304
"""Between two numbers of NF4, from -1 to -0.696: appendix E of Dettmers et al., "QLoRA" (2023)."""


def values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Each block has a scale of its own, of one of six magnitudes: a wrong one shows."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator).reshape(-1)
    block = torch.arange(weight.numel()) // NF4_BLOCK
    return (weight * 2.0 ** -(block % 6)).reshape(shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", WIDTHS, ids=str)
def test_a_weight_comes_back_within_the_precision_of_its_block(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    weight = values(shape, dtype)
    back = unpack_nf4(*pack_nf4(weight, torch.uint8))
    assert back.shape == weight.shape and back.dtype is dtype
    flat = functional.pad(weight.float().reshape(-1), (0, -weight.numel() % NF4_BLOCK)).view(-1, NF4_BLOCK)
    wrong = functional.pad((back - weight).float().reshape(-1), (0, -weight.numel() % NF4_BLOCK)).view(-1, NF4_BLOCK)
    largest = flat.abs().amax(dim=1, keepdim=True)
    of_scales = flat.abs().max() / 64  # scales are 8-bit floats of their own largest one
    assert (wrong.abs() <= largest * (WIDEST_GAP / 2 + 0.01) + of_scales).all()


@pytest.mark.parametrize("shape", [(4, 64, 16), (4, 16, 48)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_some_experts_are_read_as_in_the_whole(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    packed, state = pack_nf4(values(shape, dtype), dtype)
    whole = Nf4Weight(state)(packed)
    for rows in (slice(0, 2), slice(2, 4), slice(1, 2)):
        part, unpack = Nf4Weight(state).some(packed, rows)
        assert torch.equal(unpack(part), whole[rows])


@pytest.mark.parametrize("name", sorted(WIDTHS_OF))
@pytest.mark.parametrize("quantization", ["nf4", "fp8"])
def test_a_packed_model_says_almost_what_the_model_says(name: str, quantization: str, tmp_path: Path) -> None:
    """Of layers whose rows are no whole number of blocks."""
    source = saved(name, tmp_path, **WIDTHS_OF[name])
    plain, packed = (logits(loaded(source, spec)) for spec in (spec_of(), packed_spec(name, quantization)))
    error = float((packed - plain).norm() / plain.norm())
    assert error < 0.2
