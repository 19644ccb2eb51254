"""Fused adapters compute what peft's compute, forward and backward, and leave to peft what they are not made for."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn.functional import linear

from rankzero.data.batches.collators.text import PaddedText
from rankzero.model import fused_lora
from rankzero.model.dropout import Places, Share, drop, factors, place_dropout
from rankzero.model.fused_lora import FusedAdapter, _Adapt, _Linear, _Rule, fuse_adapters
from tests.unit.model.packed import Rows, collated, losses, tiny


def adapted(model_type: str = "llama", *, dropout: float = 0.0, **options: Any) -> tuple[Any, Places]:
    """A model with adapters on all its linear layers, in training."""
    model = tiny(model_type, "sdpa").requires_grad_(False)
    layers = ["c_attn", "c_fc"] if model_type == "gpt2" else "all-linear"
    torch.manual_seed(1)
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules=layers, lora_dropout=dropout, init_lora_weights=False, **options
    )
    model, places = get_peft_model(model, config), Places(3)
    place_dropout(model, places)
    return model.train(), places


def found(model: Any, places: Places) -> list[torch.Tensor]:
    """The loss and all gradients."""
    batch = collated(Rows(), PaddedText())
    places.begin_pass(5, batch.row_of_BT, batch.position_BT, batch.predicts_N)
    model.zero_grad()
    loss = losses(model, batch).sum()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.requires_grad)]


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "falcon"])  # Falcon adds to what its layers return in place
@pytest.mark.parametrize(("dropout", "recomputing"), [(0.0, False), (0.3, False), (0.3, True)])
def test_loss_and_gradients_are_pefts(model_type: str, dropout: float, recomputing: bool) -> None:
    model, places = adapted(model_type, dropout=dropout)
    wanted = found(model, places)
    assert fuse_adapters(model) > 0
    if recomputing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    for ours, theirs in zip(found(model, places), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=3e-6 * max(1.0, float(theirs.abs().max())))


@pytest.mark.parametrize("fused", ["all", "the adapter, in place", "the adapter"])
@pytest.mark.parametrize("bias", [False, True])
def test_what_a_layer_returns_may_be_changed_in_place(fused: str, bias: bool) -> None:
    """As Falcon, Gemma 3n and Llama 4 do."""
    torch.manual_seed(0)
    weight, x, a, b = (torch.randn(shape) for shape in ((6, 4), (2, 3, 4), (2, 4), (6, 2)))
    rule, of_bias = _Rule(2.0, None, torch.float32, in_place="in place" in fused), torch.randn(6) if bias else None
    found = []
    for change in (lambda out: out.mul_(3), lambda out: out * 3):
        given = [tensor.clone().requires_grad_() for tensor in (x, a, b)]
        if fused == "all":
            out = _Linear.apply(given[0], weight, of_bias, *given[1:], None, rule)  # type: ignore[no-untyped-call]
        else:
            out = _Adapt.apply(linear(given[0], weight, of_bias), *given, None, rule)  # type: ignore[no-untyped-call]
        found.append(torch.autograd.grad(change(out).square().sum(), given))
    for changed, new in zip(*found, strict=True):
        torch.testing.assert_close(changed, new)


def test_where_a_device_has_a_kernel_for_it_they_drop_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel itself is in tests/unit/model/test_dropout_triton.py; here is what it is asked for."""
    model, places = adapted(dropout=0.3)
    fuse_adapters(model)
    wanted = found(model, places)

    def alone(values: torch.Tensor, keys: torch.Tensor, share: Share) -> torch.Tensor:
        return torch.where(factors(keys, values.shape[-1], share) > 0, values, torch.zeros_like(values))

    monkeypatch.setattr(fused_lora, "by_kernel", lambda _device: True)
    monkeypatch.setattr(fused_lora, "alone", alone)
    assert all(torch.equal(*pair) for pair in zip(found(model, places), wanted, strict=True))


def test_in_bfloat16_they_are_as_near_to_float64_as_pefts() -> None:
    torch.manual_seed(0)
    rows, size, share = 390, 96, Share.of(0.3)
    keys = torch.randint(-(2**31), 2**31 - 1, (rows,), dtype=torch.int32)
    a, b = torch.randn(8, size) / size**0.5, torch.randn(size, 8) / 8**0.5
    result, x, gradient = torch.randn(3, rows, size).bfloat16()
    given = [tensor.requires_grad_() for tensor in (x, a, b)]

    def peft(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return result + linear(linear(drop(x.float(), keys, share), a), b) * 2.0

    def ours(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return _Adapt.apply(result, x, a, b, keys, _Rule(2.0, share, torch.bfloat16))  # type: ignore[no-untyped-call]

    def exact(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        dropped = x.double() * factors(keys, size, share).double()
        return result.double() + 2 * dropped @ a.double().T @ b.double().T

    found = []
    for compute in (exact, peft, ours):
        out = compute(*given)
        found.append([out, *torch.autograd.grad(out, given, gradient.to(out.dtype))])
    for true, theirs, mine in zip(*found, strict=True):
        assert (mine - true).norm() < 1.3 * (theirs - true).norm() < 0.01 * true.norm()


@pytest.mark.parametrize("what", ["DoRA", "two adapters", "merged", "off", "bias", "dropout nobody knows the place of"])
def test_what_they_are_not_made_for_is_left_to_peft(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"DoRA": {"use_dora": True}, "bias": {"lora_bias": True}}.get(what, {})
    model, places = adapted(dropout=0.3 if "dropout" in what else 0.0, **options)
    if what == "two adapters":
        model.add_adapter("second", copy.deepcopy(model.peft_config["default"]))
        model.base_model.set_adapter(["default", "second"])
    if what == "merged":
        model.merge_adapter()
    if what == "off":
        model.disable_adapter_layers()
    if "dropout" in what:
        monkeypatch.setattr(Places, "keys", lambda *_: None)
    ids = torch.tensor([[5, 6, 7, 8]])
    torch.manual_seed(0)
    wanted = model(ids).logits
    fuse_adapters(model)
    monkeypatch.setattr(_Adapt, "apply", None)
    monkeypatch.setattr(_Linear, "apply", None)
    torch.manual_seed(0)
    assert torch.equal(model(ids).logits, wanted)


def test_an_adapter_is_saved_and_merged_as_pefts_is() -> None:
    model, _ = adapted()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert fuse_adapters(model) == sum(isinstance(module, FusedAdapter) for module in model.modules()) == 14
    assert model.state_dict().keys() == state.keys()
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        computed = model(ids).logits
        torch.testing.assert_close(model.merge_and_unload()(ids).logits, computed, rtol=1e-4, atol=1e-5)
