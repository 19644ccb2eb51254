"""Which models' experts may lie on several ranks, and what the memory plan makes of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rankzero.errors import ConfigError
from rankzero.model.expert_exchange import exchange_problems, mixtures, place_experts, place_mixture, require_exchange
from rankzero.model.facts import of_a_rank
from rankzero.model.low_bits import Float8Weight, Nf4Weight, hold, keep_some, to_float8
from rankzero.model.memory import state_parts
from rankzero.model.shapes import model_facts
from tests.support.memory import make_model, make_spec
from tests.support.memory_table import facts_of_shape
from tests.support.tiny_configs import deepseek_v3, gpt_oss, llama, mixtral, olmoe, qwen2_moe, qwen3_moe

FUSED = {make.__name__: make for make in (qwen3_moe, qwen2_moe, deepseek_v3, mixtral, olmoe, gpt_oss)}


def empty(config: Any) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


class Alone:
    """Of two ranks the second, which meets nobody."""

    number, size = 1, 2

    def counts(self, sent: torch.Tensor) -> torch.Tensor:
        raise AssertionError("nobody meets it")

    def rows(self, rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        raise AssertionError("nobody meets it")


@pytest.mark.parametrize("name", FUSED)
def test_mixtures_of_these_families_can_be_divided(name: str) -> None:
    """Every tensor of experts is cut, those of a shared one and of routers are not."""
    model = AutoModelForCausalLM.from_config(FUSED[name]())
    assert mixtures(model) and not exchange_problems(model, 2)
    before = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    cut = place_experts(model, Alone())
    for key, parameter in model.named_parameters():
        assert torch.equal(parameter, before[key][2:] if key in cut else before[key]), key
        assert (key in cut) == (".experts." in key), key


@pytest.mark.parametrize(
    ("config", "size", "reasons"),
    [
        (llama, 2, ["the model has no experts"]),
        (qwen3_moe, 3, ["4 experts cannot be divided among 3 processes"]),
    ],
)
def test_what_cannot_be_divided_is_refused(config: Any, size: int, reasons: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        require_exchange(empty(config()), size)
    assert [problem.what for problem in caught.value.problems] == reasons
    assert all(problem.where == "train.expert_parallel" and problem.hint for problem in caught.value.problems)
    require_exchange(empty(config()), 1)


def test_all_reasons_are_said_at_once() -> None:
    """Experts in a number that cannot be divided, with a norm that they share, in 4 bits, and trained in full beside
    adapters."""
    model = empty(qwen3_moe())
    for mixture in mixtures(model):
        mixture.module.post_expert_norm = torch.nn.LayerNorm(16, device="meta")
    problems = exchange_problems(model, 3, whole=["model.layers.0.mlp"], quantization="nf4")
    assert [problem.where for problem in problems] == [*["train.expert_parallel"] * 3, "lora.modules_to_save"]
    assert "block of 64 packed weights" in problems[2].what
    assert "share weights (post_expert_norm.weight, post_expert_norm.bias)" in problems[1].what


def test_experts_that_are_modules_of_their_own_are_refused() -> None:
    model = empty(qwen3_moe())
    for layer in model.model.layers:
        layer.mlp.experts = torch.nn.ModuleList([torch.nn.Linear(16, 16, device="meta")])
    (problem,) = exchange_problems(model, 2)
    assert "are not fused" in problem.what


@pytest.mark.parametrize("method", [{}, {"lora": {}}, {"lora": {}, "train": {"parts": ["language", "experts"]}}])
def test_a_rank_holds_as_many_bytes_as_the_plan_says(method: dict[str, Any]) -> None:
    """Weights, counted in a real model that is cut; gradients and optimizer follow the trained ones."""
    spec = make_spec(**{**method, "train": {"expert_parallel": 2, **method.get("train", {})}})
    config = qwen3_moe()
    model = make_model(spec, config, torch.float32, empty=False)
    facts = model_facts(model, config, torch.float32, quantization="none", use="writes")
    whole = sum(parameter.nbytes for parameter in model.parameters())
    experts = facts.experts
    assert experts is not None and experts.trained == ("lora" not in method)
    place_experts(model, Alone())
    held = {flag: sum(p.nbytes for p in model.parameters() if p.requires_grad is flag) for flag in (True, False)}
    assert whole - sum(held.values()) == experts.bytes / 2 == 4 * experts.weights / 2
    parts = state_parts(spec.train, facts, "ddp", 2)
    assert parts["weights"] == sum(held.values())
    assert (parts["gradients"], parts["optimizer"]) == (held[True], 2 * held[True])
    assert facts.text.remade_bytes == 2 * of_a_rank(facts, 2).text.remade_bytes


def test_beside_fsdp_experts_are_not_divided_again() -> None:
    """Float32 weights, gradients and two moments, and what is rounded: of a quarter of the experts; the rest of the
    model is divided among all sixteen, and two of its blocks are gathered without experts."""
    facts = facts_of_shape("Qwen3 30B-A3B", "full")
    train = make_spec(train={"expert_parallel": 4}).train
    parts = state_parts(train, facts, "fsdp", 16)
    experts = 48 * 128 * 3 * 2048 * 768
    rest = facts.trainable - experts
    assert parts["gradients"] == 4 * (experts / 4 + rest / 16)
    assert parts["weights"] == parts["gradients"] + facts.frozen_bytes / 16, "routers are not trained"
    assert parts["optimizer"] == 2 * parts["gradients"] and parts["copies"] == 2 * experts / 4
    spread = state_parts(make_spec().train, facts, "fsdp", 16)
    assert parts["gathered"] == pytest.approx(spread["gathered"] - 3 * 2 * experts / 48)


class Itself:
    """The only rank of its group."""

    number, size = 0, 1

    def counts(self, sent: torch.Tensor) -> torch.Tensor:
        return sent

    def rows(self, rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        assert sent == received == [len(rows)]
        return rows


@pytest.mark.parametrize("name", FUSED)
def test_models_of_these_families_compute_the_same_with_an_exchange(name: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FUSED[name]())
    ids = torch.randint(3, 60, (2, 9))
    before = model(input_ids=ids).logits
    place_experts(model, Itself())
    torch.testing.assert_close(model(input_ids=ids).logits, before, rtol=1e-5, atol=1e-6)


def test_experts_compute_rounded_and_learn_as_they_are_held() -> None:
    """Beside FSDP2, which rounds all other weights itself."""
    held, rounded = (AutoModelForCausalLM.from_config(qwen3_moe()) for _ in range(2))
    rounded.load_state_dict(held.state_dict())
    (mixture, _), (other, _) = mixtures(held), mixtures(rounded)
    place_mixture(mixture, held, Itself(), rounded=torch.bfloat16)
    other.module.to(torch.bfloat16)
    x_TH = torch.randn(6, 16)
    chosen_TK, weights_TK = torch.tensor([[0, 1], [3, 2]] * 3), torch.rand(6, 2)
    out, wanted = (one.module(x_TH.bfloat16(), chosen_TK, weights_TK.bfloat16()) for one in (mixture, other))
    torch.testing.assert_close(out, wanted)
    torch.autograd.backward(out.float().square().sum())
    gradient = mixture.module.gate_up_proj.grad
    assert gradient.dtype is mixture.module.gate_up_proj.dtype is torch.float32 and gradient.abs().sum() > 0


def test_thirty_billion_weights_of_which_sixteen_processes_hold_one_and_a_half_each() -> None:
    facts = facts_of_shape("Qwen3 30B-A3B", "full")
    own = of_a_rank(facts, 16)
    assert facts.trainable == pytest.approx(30.5e9, rel=0.01)
    experts = 48 * 128 * 3 * 2048 * 768
    assert facts.trainable - own.trainable == experts * 15 // 16
    assert own.trained_bytes / own.trainable == facts.trained_bytes / facts.trainable
    packed = facts_of_shape("Qwen3 30B-A3B", "QLoRA")
    assert packed.unpacked_bytes == 2 * 128 * 2048 * 2 * 768 == 16 * of_a_rank(packed, 16).unpacked_bytes


def pack(module: Any, name: str, quantization: str) -> None:
    """As loading does."""
    from bitsandbytes.functional import quantize_4bit

    weight = getattr(module, name).data.contiguous()
    unpack: torch.nn.Module
    if quantization == "fp8":
        packed, scale = to_float8(weight)
        unpack = Float8Weight(scale, torch.float32)
    else:
        packed, state = quantize_4bit(weight, compress_statistics=True, quant_type="nf4", quant_storage=torch.float32)
        unpack = Nf4Weight(state)
    setattr(module, name, torch.nn.Parameter(packed, requires_grad=False))
    hold(module, name, unpack)


@pytest.mark.parametrize(
    ("quantization", "rows"),
    [("fp8", slice(1, 2)), ("nf4", slice(1, 2)), ("nf4", slice(2, 4))],
    ids=["8 bits", "4 bits", "whole scales"],
)
def test_packed_experts_are_divided_without_being_packed_again(quantization: Any, rows: slice) -> None:
    """Each rank's are the same values as in the whole model, also where scales of scales have to be cut through."""
    pytest.importorskip("bitsandbytes")
    config = qwen3_moe()
    config.hidden_size, config.moe_intermediate_size = 128, 64
    experts = AutoModelForCausalLM.from_config(config).model.layers[0].mlp.experts
    for name in ("gate_up_proj", "down_proj"):
        pack(experts, name, quantization)
    whole = {name: getattr(experts, name).clone() for name in ("gate_up_proj", "down_proj")}
    before = sum(tensor.nbytes for tensor in experts.state_dict().values())
    for name, weight in whole.items():
        keep_some(experts, name, rows)
        assert torch.equal(getattr(experts, name), weight[rows])
    share = (rows.stop - rows.start) / 4
    assert sum(tensor.nbytes for tensor in experts.state_dict().values()) == share * before
    state = None if quantization == "fp8" else experts.parametrizations.down_proj[0].quant_state
    assert state is None or state.nested == (rows.start == 2)
