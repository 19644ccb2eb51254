"""Attention on a GPU: every implementation gives the same losses, and no row sees another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from rankzero.model import varlen
from tests.gpu.support import gpu_spec, losses, needs, needs_capability, on_gpu
from tests.support.tiny import tiny_model

pytestmark = on_gpu

ROWS = [37, 1, 64, 20]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With heads of 32: some kernels take no smaller ones than 16."""
    return tiny_model(tmp_path_factory.mktemp("model"), hidden=128)


@pytest.mark.parametrize(
    "attention",
    [
        pytest.param("varlen", marks=needs_capability(8, 0)),
        "flex_attention",
        pytest.param("flash_attention_2", marks=[needs("flash_attn"), needs_capability(8, 0)]),
        pytest.param("flash_attention_3", marks=[needs("flash_attn_interface"), needs_capability(9, 0)]),
    ],
)
def test_losses_without_padding_are_those_of_padded_sdpa(attention: str, tmp_path: Path, model: Path) -> None:
    padded = losses(
        gpu_spec(tmp_path / "sdpa", model, model__attention="sdpa", train__padding_free=False, name="padded")
    )
    packed = losses(
        gpu_spec(tmp_path / attention, model, model__attention=attention, train__padding_free=True, name="packed")
    )
    assert len(packed) == 6 and packed == pytest.approx(padded, rel=1e-2)


@needs_capability(8, 0)
def test_auto_takes_an_attention_without_padding(tmp_path: Path, model: Path) -> None:
    padded = losses(gpu_spec(tmp_path / "sdpa", model, model__attention="sdpa", train__padding_free=False))
    assert losses(gpu_spec(tmp_path / "auto", model)) == pytest.approx(padded, rel=1e-2)


def heads(size: int, seed: int = 0) -> tuple[Any, ...]:
    """Queries, keys and values of all ROWS end to end: 4 heads, of which two share keys."""
    draw = torch.Generator("cuda").manual_seed(seed)
    total = sum(ROWS)
    shapes = ((1, 4, total, size), (1, 2, total, size), (1, 2, total, size))
    return tuple(torch.randn(shape, generator=draw, device="cuda", dtype=torch.bfloat16) for shape in shapes)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    ends = torch.tensor([0, *ROWS], device="cuda").cumsum(0).to(torch.int32)
    module = torch.nn.Module()
    attended, _ = varlen.varlen_attention(
        module, q, k, v, None, is_causal=True, cu_seq_lens_q=ends, max_length_q=max(ROWS)
    )
    return attended[0].transpose(0, 1)


@needs_capability(8, 0)
@pytest.mark.parametrize("size", [16, 20, 64, 128])
def test_the_kernel_attends_to_each_row_alone(size: int) -> None:
    if not varlen.has_kernel():
        pytest.skip("this torch has no variable-length attention")
    q, k, v = heads(size)
    together, start = attend(q, k, v), 0
    for length in ROWS:
        row = slice(start, start + length)
        alone = F.scaled_dot_product_attention(
            q[:, :, row].float(), k[:, :, row].float(), v[:, :, row].float(), is_causal=True, enable_gqa=True
        )
        assert torch.allclose(together[:, row].float(), alone[0], atol=2e-2)
        start += length


@needs_capability(8, 0)
def test_changing_one_row_changes_no_other() -> None:
    q, k, v = heads(64)
    before = attend(q, k, v)
    changed = [tensor.clone() for tensor in (q, k, v)]
    for tensor, other in zip(changed, heads(64, seed=1), strict=True):
        tensor[:, :, : ROWS[0]] = other[:, :, : ROWS[0]]
    after = attend(*changed)
    assert torch.equal(after[:, ROWS[0] :], before[:, ROWS[0] :])
    assert not torch.equal(after[:, : ROWS[0]], before[:, : ROWS[0]])
