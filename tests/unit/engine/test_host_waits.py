"""How often a pass makes the host wait for the device: what is read back, and sizes that only the device knows.

On a CPU nothing waits, but the same operations are called.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rankzero.data.batches.collators.packed import PackedText
from rankzero.data.batches.collators.text import MicroBatch, PaddedText
from rankzero.engine.heads import SupervisedHead, weighted_cross_entropy
from rankzero.model import varlen
from tests.unit.model.packed import Rows, collated, tiny

READ_BACK = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "unique", "repeat_interleave")


class Waits(TorchDispatchMode):
    """Names of such operations, as they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.strip("_")
        booleans = name in ("index", "index_put", "index_put_") and any(
            isinstance(one, torch.Tensor) and one.dtype is torch.bool for one in args[1]
        )
        if booleans or name in [one.strip("_") for one in READ_BACK]:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def one_pass(model: Any, batch: MicroBatch) -> list[str]:
    """Of the second pass: the first one looks at the model."""
    head = SupervisedHead(model, model, in_parts=True)
    for _ in range(2):
        with Waits() as waits:
            torch.autograd.backward(head.loss_sum(batch, weighted_cross_entropy))
    return waits.found


def test_a_boolean_index_is_found() -> None:
    with Waits() as waits:
        x = torch.ones(3)
        x[x > 0], x.sum().item(), bool(x.all())
    assert len(waits.found) >= 3


@pytest.mark.parametrize(("model_type", "masks"), [("llama", 1), ("qwen3", 2), ("gemma3_text", 2)])
def test_a_packed_pass_waits_where_transformers_asks_for_borders_and_nowhere_else(
    model_type: str, masks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each kind of mask (of all before, of a window), at the beginning. A GPU's kernel is told borders where
    they are."""

    def kernel(query: torch.Tensor, *_others: Any, **_options: Any) -> torch.Tensor:
        return query

    monkeypatch.setattr(varlen, "_kernel_takes", lambda *_: True)
    monkeypatch.setattr(varlen, "_KERNEL", kernel)
    assert len(one_pass(tiny(model_type), collated(Rows(), PackedText()))) == masks


def test_a_padded_pass_waits_once() -> None:
    """transformers looks whether positions begin again within it."""
    assert len(one_pass(tiny("llama", "sdpa"), collated(Rows(), PaddedText()))) == 1
