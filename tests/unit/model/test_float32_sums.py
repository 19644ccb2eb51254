"""In half precision on a CPU: gradients that many tokens have a part in are added up in float32."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rankzero.model.float32_sums import sum_in_float32
from tests.support.tiny_configs import CONFIGS


class Scaled(torch.nn.Embedding):
    """As Gemma's."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


def gradient_of(module: Any, dtype: torch.dtype) -> torch.Tensor:
    """Of a token that comes up 4,000 times, another that does once, and padding."""
    torch.manual_seed(0)
    ids = torch.tensor([[0] * 4000 + [3, 1]])
    module = module.to(dtype)
    module.zero_grad()
    out = module(ids)
    assert out.dtype is dtype
    out.backward(torch.rand(out.shape).to(dtype))
    gradient: torch.Tensor = module.weight.grad
    assert gradient.dtype is dtype
    return gradient.float().clone()


@pytest.mark.parametrize("kind", [torch.nn.Embedding, Scaled])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_frequent_tokens_are_whole(kind: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    module = kind(5, 16, padding_idx=1)
    wanted = gradient_of(module, torch.float32)
    assert wanted[0].min() > 1900 and not wanted[1].any()
    lacking = gradient_of(module, dtype)
    assert (lacking - wanted).norm() > 0.1 * wanted.norm() or dtype is torch.float16, "torch has mended this"
    names, name = set(module.state_dict()), type(module).__name__
    assert (sum_in_float32(module), sum_in_float32(module)) == (1, 0)
    assert (set(module.state_dict()), type(module).__name__) == (names, name)
    torch.testing.assert_close(gradient_of(module, dtype), wanted, rtol=0.01, atol=0.01)


def test_what_is_looked_up_and_frozen_weights_stay() -> None:
    module, ids = Scaled(5, 16).bfloat16(), torch.tensor([1, 4, 1])
    wanted = module(ids)
    sum_in_float32(module)
    assert torch.equal(module(ids), wanted) and isinstance(module, Scaled)
    module.requires_grad_(requires_grad=False)
    assert torch.equal(module(ids), wanted) and not module(ids).requires_grad


def test_gradients_of_layer_norms_are_whole() -> None:
    torch.manual_seed(0)
    module = torch.nn.LayerNorm(16)
    module.weight.data.copy_(torch.rand(16).bfloat16())
    inputs = torch.randn(2, 4000, 16).bfloat16()
    given = (torch.rand(inputs.shape) + 0.5).bfloat16()

    def found(dtype: torch.dtype) -> list[torch.Tensor]:
        module.to(dtype).zero_grad()
        entered = inputs.to(dtype, copy=True).requires_grad_()
        out = module(entered)
        assert out.dtype is dtype
        out.backward(given.to(dtype))
        return [out.detach().float(), *(one.grad.float().clone() for one in (entered, module.weight, module.bias))]

    wanted, lacking = found(torch.float32), found(torch.bfloat16)
    assert (lacking[3] - wanted[3]).norm() > 0.3 * wanted[3].norm(), "torch has mended this"
    names = set(module.state_dict())
    assert (sum_in_float32(module), sum_in_float32(module)) == (1, 0)
    assert set(module.state_dict()) == names and type(module).__name__ == "LayerNorm"
    given_again = found(torch.bfloat16)
    assert torch.equal(given_again[0], lacking[0])
    for one, other in zip(given_again[1:], wanted[1:], strict=True):
        assert (one - other).norm() < 0.01 * other.norm()
    assert torch.equal(found(torch.float32)[2], wanted[2])


@pytest.mark.parametrize("trained", ["input", "weight", "bias"])
def test_a_layer_norm_of_which_a_part_is_trained(trained: str) -> None:
    torch.manual_seed(0)
    module = torch.nn.LayerNorm(16).bfloat16()
    sum_in_float32(module)
    entered = torch.randn(3, 16).bfloat16().requires_grad_(requires_grad=trained == "input")
    for name, held in module.named_parameters():
        held.requires_grad_(requires_grad=name == trained)
    module(entered).sum().backward()
    given = {"input": entered.grad, **{name: held.grad for name, held in module.named_parameters()}}
    assert [name for name, grad in given.items() if grad is not None] == [trained]


class Experts(torch.nn.Module):
    """With biases that are looked up, as gpt-oss has them. Computes on no device: what it is given is what is kept."""

    def __init__(self, way: str | None) -> None:
        super().__init__()
        self.config = SimpleNamespace(_experts_implementation=way)
        self.up_proj = torch.nn.Parameter(torch.empty(4, 8, 16, dtype=torch.bfloat16, device="meta"))
        self.up_proj_bias = torch.nn.Parameter(torch.empty(4, 16, dtype=torch.bfloat16, device="meta"))

    def forward(self, experts_N: torch.Tensor) -> torch.Tensor:
        return self.up_proj_bias[experts_N]


def test_on_other_devices_only_biases_that_are_looked_up_are_summed_in_float32() -> None:
    """An H200 rounded the sums of gpt-oss's: the gradient of all its experts' biases lacked 70 %."""
    model = torch.nn.ModuleDict(
        {"tokens": torch.nn.Embedding(5, 16), "norm": torch.nn.LayerNorm(16), "mlp": Experts("grouped_mm")}
    )
    assert sum_in_float32(model, "cuda") == 1
    looked_up = model["mlp"](torch.zeros(3, dtype=torch.long, device="meta"))
    assert looked_up.dtype is torch.float32 and model["mlp"].up_proj_bias.dtype is torch.bfloat16
    model.requires_grad_(requires_grad=False)
    assert model["mlp"](torch.zeros(3, dtype=torch.long, device="meta")).dtype is torch.bfloat16


@pytest.mark.parametrize("way", ["eager", None])
def test_biases_stay_where_experts_are_computed_one_after_the_other(way: str | None) -> None:
    """Each is multiplied in the precision that its bias leaves: in float32 there would be products of two."""
    experts = Experts(way)
    sum_in_float32(experts, "cuda")
    assert experts(torch.zeros(3, dtype=torch.long, device="meta")).dtype is torch.bfloat16


@pytest.mark.parametrize("way", ["eager", "grouped_mm", "batched_mm"])
def test_gpt_oss_trains_in_whichever_way_its_experts_are_computed(way: str) -> None:
    config = CONFIGS["gpt_oss"]()
    model = AutoModelForCausalLM.from_config(config).bfloat16().train()
    model.config._experts_implementation = way
    experts = model.model.layers[0].mlp.experts
    assert experts.config._experts_implementation == way and sum_in_float32(model) > 2
    model(input_ids=torch.arange(3, 20)[None]).logits.float().sum().backward()
    assert experts.gate_up_proj_bias.grad.dtype is torch.bfloat16 and experts.gate_up_proj_bias.grad.any()
