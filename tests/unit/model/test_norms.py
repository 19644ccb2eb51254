"""Norms in torch's kernel compute what models' own do, and what is no plain RMS norm stays as it is."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch

from rankzero.model.norms import FusedNorm, fuse_norms
from tests.support.tiny import tiny_model

PLAIN = ["llama.Llama", "qwen2.Qwen2", "qwen3.Qwen3", "mistral.Mistral", "olmo2.Olmo2", "phi3.Phi3", "glm4.Glm4"]
OTHERS = ["gemma.Gemma", "gemma3.Gemma3", "qwen3_next.Qwen3Next"]


def norm_of(name: str) -> Any:
    package, _, prefix = name.partition(".")
    module = import_module(f"transformers.models.{package}.modeling_{package}")
    norm = getattr(module, f"{prefix}RMSNorm")(48, eps=1e-5)
    torch.manual_seed(0)
    torch.nn.init.normal_(norm.weight, 1.0, 0.3)
    return norm


def computed(norm: torch.nn.Module, dtype: torch.dtype) -> list[torch.Tensor]:
    """The output, and the gradients of input and weight."""
    draw = torch.Generator().manual_seed(1)
    hidden = torch.randn(5, 7, 48, generator=draw).to(dtype).requires_grad_()
    gradient = torch.randn(5, 7, 48, generator=draw)
    norm.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
        out = norm.to(dtype)(hidden)
    out.backward(gradient.to(out.dtype))
    assert hidden.grad is not None and isinstance(norm.weight, torch.Tensor) and norm.weight.grad is not None
    return [out.detach(), hidden.grad, norm.weight.grad]


@pytest.mark.parametrize("name", PLAIN)
def test_it_is_what_the_model_computes(name: str) -> None:
    norm = norm_of(name)
    wanted, rounded = computed(norm, torch.float32), computed(norm, torch.bfloat16)
    norm = norm_of(name)
    assert fuse_norms(norm) == 1 and isinstance(norm, FusedNorm) and fuse_norms(norm) == 0
    for ours, theirs in zip(computed(norm, torch.float32), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for ours, theirs, true in zip(computed(norm, torch.bfloat16), rounded, wanted, strict=True):
        assert ours.dtype is theirs.dtype
        assert (ours.float() - true).norm() <= 1.1 * (theirs.float() - true).norm() <= 0.02 * true.norm()


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_plain_norm_stays(name: str) -> None:
    norm = norm_of(name)
    kind = type(norm)
    assert fuse_norms(norm) == 0 and type(norm) is kind


def test_weights_in_another_precision_are_computed_as_before() -> None:
    norm = norm_of("llama.Llama")
    hidden = torch.randn(3, 48).bfloat16()
    wanted = norm(hidden)
    assert fuse_norms(norm) == 1
    assert wanted.dtype is torch.float32 and torch.equal(norm(hidden), wanted)


def test_of_a_whole_model_names_and_weights_stay(tmp_path: Any) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model(tmp_path)).eval()
    state, ids = set(model.state_dict()), torch.tensor([[5, 6, 7, 8]])
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    wanted = model(ids).logits
    assert fuse_norms(model) == sum("norm" in name for name in kinds)
    assert set(model.state_dict()) == state
    assert {name: type(module).__name__ for name, module in model.named_modules()} == kinds
    torch.testing.assert_close(model(ids).logits, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [torch.nn.LayerNorm, torch.nn.RMSNorm])
def test_torchs_own_keep_their_inputs_precision(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast would have them in float32 on a GPU; on a CPU it has to be asked for what is off."""
    norm, hidden = kind(48).bfloat16(), torch.randn(3, 48).bfloat16()
    wanted = norm(hidden)
    assert fuse_norms(norm) == 1 and type(norm).__name__ == kind.__name__
    forward, on = kind.forward, []

    def told(*given: Any) -> torch.Tensor:
        on.append(torch.is_autocast_enabled("cpu"))
        normed: torch.Tensor = forward(*given)
        return normed

    monkeypatch.setattr(kind, "forward", told)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(norm(hidden), wanted) and on == [False]


def test_without_a_weight_it_is_computed_as_before() -> None:
    norm, hidden = torch.nn.LayerNorm(48, elementwise_affine=False), torch.randn(3, 48)
    wanted = norm(hidden)
    fuse_norms(norm)
    assert torch.equal(norm(hidden), wanted)
