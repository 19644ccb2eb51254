"""Attention on a GPU: every implementation gives the same losses, and no row sees another."""

from __future__ import annotations

from importlib.util import find_spec
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
def test_torchs_kernel_is_taken_where_there_is_one() -> None:
    assert varlen.has_kernel() == (find_spec("torch.nn.attention.varlen") is not None)


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
        torch.testing.assert_close(together[:, row].float(), alone[0], atol=2e-2, rtol=1e-5)
        start += length


@needs_capability(8, 0)
@pytest.mark.parametrize("window", [None, 9])
def test_the_kernel_puts_the_last_query_at_the_last_key(window: int | None) -> None:
    """Chunks of a pass that several processes share have fewer queries than keys: forward and backward."""
    if not varlen.has_kernel():
        pytest.skip("this torch has no variable-length attention")
    q, k, v = (tensor.requires_grad_() for tensor in heads(64))
    here = [(0, 20, 37), (37, 38, 38), (38, 70, 102)]  # first token, first query, end
    borders = [
        torch.tensor([0, *sizes], device="cuda").cumsum(0).to(torch.int32)
        for sizes in zip(*((end - query, end - first) for first, query, end in here), strict=True)
    ]
    rows = varlen.Borders(borders[0], borders[1], 32, 64)
    queries = torch.cat([q[:, :, query:end] for _, query, end in here], dim=2)
    rule = varlen.Rule(64**-0.5, True, window)
    found = varlen.attend(queries, k[:, :, :102], v[:, :, :102], rows, rule)
    exact = varlen._one_by_one(queries.float(), k[:, :, :102].float(), v[:, :, :102].float(), rows, rule)
    torch.testing.assert_close(found.float(), exact, atol=2e-2, rtol=1e-5)
    one, other = (
        torch.autograd.grad(out.float().square().sum(), (q, k, v), retain_graph=True) for out in (found, exact)
    )
    for a, b in zip(one, other, strict=True):
        assert (a.float() - b.float()).norm() < 0.05 * b.float().norm()


@needs_capability(8, 0)
def test_changing_one_row_changes_no_other() -> None:
    q, k, v = heads(64)
    before = attend(q, k, v)
    changed = [tensor.clone() for tensor in (q, k, v)]
    for tensor, other in zip(changed, heads(64, seed=1), strict=True):
        tensor[:, :, : ROWS[0]] = other[:, :, : ROWS[0]]
    after = attend(*changed)
    torch.testing.assert_close(after[:, ROWS[0] :], before[:, ROWS[0] :], atol=0, rtol=0)
    assert not torch.equal(after[:, : ROWS[0]], before[:, : ROWS[0]])
