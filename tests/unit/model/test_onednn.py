"""Products of float32 by oneDNN are those by MKL, forward and backward, in plain layers and under adapters."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.checkpoint import checkpoint

from rankzero.data.batches.collators.text import PaddedText
from rankzero.model import onednn
from rankzero.model.dropout import Places, place_dropout
from rankzero.model.fused_lora import fuse_adapters
from rankzero.model.onednn import computes_by_onednn, multiply_by_onednn
from tests.unit.model.packed import Rows, collated, losses, tiny

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch is built without oneDNN"
)


@pytest.fixture(autouse=True)
def however_few(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Products of any size are oneDNN's; how many rows each had."""
    monkeypatch.setattr(onednn, "_FEWEST", 1)
    own, calls = torch.ops.mkldnn._linear_pointwise, []

    def counted(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        calls.append(x[..., 0].numel())
        result: torch.Tensor = own(x, *rest)
        return result

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", counted)
    return calls


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("shape", [(5, 24), (2, 3, 24), (1, 24), (0, 24), (24,)])
def test_a_layer_computes_what_it_did(shape: tuple[int, ...], trained: bool, bias: bool) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.Linear(24, 40, bias=bias).requires_grad_(trained)
    ours = copy.deepcopy(theirs)
    assert (multiply_by_onednn(ours), multiply_by_onednn(ours)) == (1, 0)
    assert isinstance(ours, torch.nn.Linear) and type(ours).__name__ == "Linear"
    x = torch.randn(shape)
    found = []
    for layer in (ours, theirs):
        here = x.clone().requires_grad_()
        out = layer(here)
        out.backward(torch.linspace(-1, 1, 40).expand(out.shape))
        found.append([out, here.grad, *(p.grad for p in layer.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_what_is_returned_may_be_changed_in_place_and_recomputed() -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(24, 40), torch.randn(6, 24)
    found = []
    for _ in range(2):
        here = x.clone().requires_grad_()
        layer.zero_grad()
        changed = checkpoint(lambda x: layer(x).add_(1).relu_(), here, use_reentrant=False)
        changed.sum().backward()
        found.append([changed, here.grad, *(p.grad.clone() for p in layer.parameters())])
        multiply_by_onednn(layer)
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_other_precisions_and_autocast_stay_as_they_are(however_few: list[int]) -> None:
    layer, x = torch.nn.Linear(24, 40), torch.randn(6, 24)
    half = torch.nn.Linear(24, 40).bfloat16()
    assert (multiply_by_onednn(layer), multiply_by_onednn(half)) == (1, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype is torch.bfloat16
    assert layer.bfloat16()(x.bfloat16()).dtype is torch.bfloat16 and not however_few


@pytest.mark.parametrize("model_type", ["llama", "falcon"])
@pytest.mark.parametrize("how", ["full", "adapters", "fused adapters", "fused adapters that drop"])
def test_a_models_loss_and_gradients_are_the_same(model_type: str, how: str, however_few: list[int]) -> None:
    model = tiny(model_type, "sdpa").train()
    places = Places(3)
    if how != "full":
        torch.manual_seed(1)
        dropout = 0.3 if "drop" in how else 0.0
        config = LoraConfig(r=4, target_modules="all-linear", lora_dropout=dropout, init_lora_weights=False)
        model = get_peft_model(model.requires_grad_(False), config).train()
        place_dropout(model, places)
    if "fused" in how:
        fuse_adapters(model)
    batch = collated(Rows(), PaddedText())

    def gradients() -> list[torch.Tensor]:
        places.begin_pass(5, batch.row_of_BT, batch.position_BT, batch.predicts_N)
        model.zero_grad()
        loss = losses(model, batch).sum()
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.requires_grad)]

    wanted = gradients()
    assert not however_few and multiply_by_onednn(model) > 0
    for ours, theirs in zip(gradients(), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=3e-6 * max(1.0, float(theirs.abs().max())))
    assert however_few


def test_small_products_are_not_worth_a_call(monkeypatch: pytest.MonkeyPatch, however_few: list[int]) -> None:
    monkeypatch.setattr(onednn, "_FEWEST", 100 * 24 * 40)
    layer = torch.nn.Linear(24, 40)
    multiply_by_onednn(layer)
    layer(torch.randn(99, 24))
    assert not however_few
    layer(torch.randn(100, 24))
    assert however_few == [100]


@pytest.mark.parametrize(
    ("features", "wanted"),
    [
        ("avx2 fma sse4a avx512f avx512_bf16", True),  # AMD's
        ("avx2 fma sse4a", False),  # where MKL uses all there is
        ("avx2 fma avx512f amx_bf16", False),  # Intel's, that MKL knows
        ("", False),
    ],
)
def test_which_cpus(features: str, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKZERO_CPU_FEATURES", features)
    assert computes_by_onednn() is wanted
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not computes_by_onednn()
