"""Packed bases: what is packed, that training through them is training on the unpacked weights, and what is refused."""

from __future__ import annotations

import builtins
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rankzero.engine.parallel.placing import tensors
from rankzero.engine.setup import to_train
from rankzero.errors import ConfigError
from rankzero.model import low_bits
from rankzero.model.load import ClassHead, empty_model, load_config, load_model
from rankzero.model.lora import load_adapter, parameter_counts
from rankzero.model.low_bits import FLOAT8, from_float8, to_float8
from rankzero.model.quantize import quantization_config, unpack
from rankzero.model.recomputing import recompute_blocks
from tests.support.tiny_configs import CONFIGS
from tests.support.weights import save_weights
from tests.unit.model.support import (
    CLASSES,
    PARTS,
    bytes_of,
    loaded,
    logits,
    packed_spec,
    saved,
    shaken,
    spec_of,
)

FORMATS = ["nf4", "fp8"]


@pytest.mark.parametrize("shape", [(128, 256), (130, 70), (3, 16, 300), (1, 1)])
def test_8_bit_floats_come_back_within_their_precision(shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    packed, scale = to_float8(weight)
    assert packed.dtype is FLOAT8 and packed.shape == shape
    assert scale.shape == (*shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128))
    back = from_float8(packed, scale, torch.float32)
    assert ((back - weight).abs() <= weight.abs() / 16 + scale.max() * 2**-9).all(), "3 bits of mantissa"
    again, same = to_float8(back)
    assert torch.equal(again.view(torch.uint8), packed.view(torch.uint8)), "what was packed is kept exactly"
    assert torch.allclose(same, scale, rtol=1e-6, atol=0)
    assert from_float8(*to_float8(torch.zeros(4, 4)), torch.float32).eq(0).all()


@pytest.mark.parametrize("shape", [(256, 384), (200, 300), (3, 256, 128), (3, 130, 128)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_unpacking_rounds_once_and_scales_a_part_at_a_time(
    shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU's kernels copy what they multiply in another precision, within themselves: so only parts are."""
    monkeypatch.setattr(low_bits, "_AT_ONCE", 40_000)
    packed, scale = to_float8(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    rows, columns = shape[-2:]
    spread = scale.repeat_interleave(128, dim=-2)[..., :rows, :].repeat_interleave(128, dim=-1)[..., :columns]
    with Scaled() as scaled:
        found = from_float8(packed, scale, dtype)
    assert torch.equal(found, (packed.float() * spread).to(dtype))
    of_a_row_of_blocks = 128 * found.numel() // rows
    assert max(scaled.values) <= of_a_row_of_blocks and sum(scaled.values) == found.numel()
    spread_over_a_row = 4 * of_a_row_of_blocks * -(-columns // 128) * 128 // columns
    assert scaled.largest <= max(found.nbytes, 0 if columns % 128 == rows % 128 == 0 else spread_over_a_row)


class Scaled(TorchDispatchMode):  # type: ignore[misc]
    """How many values are multiplied at once, and the bytes of the largest tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[int] = []
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func._schema.name == "aten::mul_":
            self.values.append(out.numel())
        if not func.is_view:
            self.largest = max(self.largest, out.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("quantization", FORMATS)
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3_moe", "gpt_oss", "qwen3_vl_moe"])
def test_layers_and_experts_of_the_text_model_are_packed_and_nothing_else(
    name: str, quantization: str, tmp_path: Path
) -> None:
    source = saved(name, tmp_path)
    plain = loaded(source, spec_of())
    model = loaded(source, packed_spec(name, quantization))
    whole = {n for n, p in plain.named_parameters() if torch.equal(p, as_computed(model, n))}
    assert {n for n in dict(plain.named_parameters()) if n not in whole} == {
        n
        for n, p in plain.named_parameters()
        if p.ndim > 1
        and not any(word in n for word in ("embed", "wte", "wpe", "lm_head", "gate.", "router", "visual", "bias"))
    }
    assert bytes_of(model) < bytes_of(plain)
    assert parameter_counts(model)[1] == parameter_counts(plain)[1], "counted as what they stand for"


@pytest.mark.parametrize("quantization", FORMATS)
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3_moe", "gpt_oss", "qwen3_vl_moe"])
def test_an_outline_is_of_the_same_packed_tensors(name: str, quantization: str, tmp_path: Path) -> None:
    """So that a process can be sent a packed model that it never read."""
    source, spec = saved(name, tmp_path), packed_spec(name, quantization)
    shape = empty_model(spec.model, load_config(source, spec.model), torch.float32, packed=True)
    outlined, model = (to_train(made, spec, base_name="tiny") for made in (shape, loaded(source, spec).train()))
    assert described(outlined) == described(model)
    assert all(tensor.device.type == "meta" for _, _, tensor in tensors(outlined.get_base_model()))
    assert str(outlined) == str(model), "the same layers"
    again = loaded(source, spec)  # what was made without memory leaves no table behind that others would use
    for first, second in zip(tensors(again), tensors(model.get_base_model()), strict=False):
        assert first[2].device.type == second[2].device.type == "cpu"


def described(model: Any) -> list[Any]:
    """Every tensor, and for 4 bits what is unpacked to."""
    states = [(name, vars(part).get("quant_state")) for name, part in model.named_modules()]
    unpacked: list[Any] = [(name, state.shape, state.dtype, state.blocksize) for name, state in states if state]
    return unpacked + [(name, tuple(t.shape), t.dtype, t.requires_grad) for _, name, t in tensors(model)]


def as_computed(model: Any, name: str) -> torch.Tensor:
    """A weight as it is computed with, by the name that it has in the plain model."""
    module, _, parameter = name.rpartition(".")
    owner = model.get_submodule(module)
    value = getattr(owner, parameter)
    if getattr(value, "quant_state", None) is not None:
        from bitsandbytes.functional import dequantize_4bit

        value = dequantize_4bit(value.data, value.quant_state)
    return value.T if getattr(owner, "transposed", False) and value.ndim == 2 else value


@pytest.mark.parametrize("quantization", FORMATS)
@pytest.mark.parametrize("name", sorted(PARTS))
def test_training_through_a_packed_base_is_training_on_the_unpacked_one(
    name: str, quantization: str, tmp_path: Path
) -> None:
    source, spec = saved(name, tmp_path / "base"), packed_spec(name, quantization)
    packed = shaken(to_train(loaded(source, spec), spec, base_name="base"))
    plain_base = loaded(source, spec)
    unpack(plain_base)
    unpacked = shaken(to_train(plain_base, spec, base_name="base"))
    assert dict(packed.named_parameters()).keys() >= {n for n, p in unpacked.named_parameters() if p.requires_grad}
    gradients = []
    for model in (packed, unpacked):
        for _ in range(2):  # adapters on packed tensors leave nothing behind
            model.zero_grad()
            model(input_ids=torch.tensor([[5, 9, 17, 33, 21]])).logits.square().sum().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.requires_grad})
    assert gradients[0].keys() == gradients[1].keys()
    for parameter, gradient in gradients[0].items():
        assert gradient is not None, parameter
        assert torch.allclose(gradient, gradients[1][parameter], atol=1e-4, rtol=1e-4), parameter
    assert torch.allclose(logits(packed), logits(unpacked), atol=1e-5, rtol=0)


@pytest.mark.parametrize("quantization", FORMATS)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_no_block_keeps_its_unpacked_experts_for_the_backward_pass(
    quantization: str, checkpointing: bool, tmp_path: Path
) -> None:
    """Else those of all blocks are there at once, as if nothing were packed."""
    source, spec = saved("qwen3_moe", tmp_path), packed_spec("qwen3_moe", quantization)
    spec = spec.model_copy(update={"train": spec.train.model_copy(update={"parts": ["language"]})})
    model = shaken(to_train(loaded(source, spec), spec, base_name="base")).train()
    if checkpointing:
        recompute_blocks(model)
    made: list[weakref.ref[torch.UntypedStorage]] = []
    experts = [module for module in model.modules() if hasattr(module, "parametrizations") and "Experts" in str(module)]
    assert experts
    for module in experts:
        for held in module.parametrizations.values():  # type: ignore[union-attr, operator]
            held[0].register_forward_hook(lambda _m, _i, weight: made.append(weakref.ref(weight.untyped_storage())))
    out = model(input_ids=torch.tensor([[5, 9, 17, 33]]), use_cache=False).logits.square().sum()
    forward = len(made)
    assert forward and not [one for one in made if one() is not None]
    out.backward()
    assert len(made) > forward, "they were unpacked again"
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("quantization", FORMATS)
def test_checkpointing_recomputes_the_same(quantization: str, tmp_path: Path) -> None:
    source, spec = saved("qwen3_moe", tmp_path), packed_spec("qwen3_moe", quantization)
    gradients = []
    for checkpointing in (False, True):
        model = shaken(to_train(loaded(source, spec), spec, base_name="base")).train()
        if checkpointing:
            recompute_blocks(model)
        model(input_ids=torch.tensor([[5, 9, 17, 33]]), use_cache=False).logits.square().sum().backward()
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("quantization", FORMATS)
@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_the_loss_falls_and_the_adapter_loads_again(name: str, quantization: str, tmp_path: Path) -> None:
    source, spec = saved(name, tmp_path / "base"), packed_spec(name, quantization)
    model = to_train(loaded(source, spec), spec, base_name="base").train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.02)
    rows = torch.randint(3, 60, (4, 12), generator=torch.Generator().manual_seed(0))
    losses = []
    for _ in range(12):
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5
    save_weights(model, tmp_path / "adapter")
    again = load_adapter(loaded(source, spec), tmp_path / "adapter").eval()
    assert torch.equal(logits(again), logits(model.eval()))


@pytest.mark.parametrize("quantization", FORMATS)
def test_adapters_are_float32_over_a_bfloat16_base(quantization: str, tmp_path: Path) -> None:
    source, spec = saved("llama", tmp_path), packed_spec("llama", quantization)
    model = to_train(loaded(source, spec, torch.bfloat16), spec, base_name="base")
    assert model.get_base_model().model.norm.weight.dtype is torch.bfloat16
    assert model.get_base_model().model.embed_tokens.weight.dtype is torch.bfloat16
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    assert not any(p.requires_grad for n, p in model.named_parameters() if "lora_" not in n)
    with torch.autocast("cpu", torch.bfloat16):
        model(input_ids=torch.tensor([[5, 9, 17]])).logits.float().sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("quantization", FORMATS)
def test_a_classifiers_head_is_not_packed(quantization: str, tmp_path: Path) -> None:
    source = saved("distilbert", tmp_path)
    spec = spec_of(task="classify", lora={}, model__quantization=quantization)
    model = loaded(source, spec)
    assert type(model.pre_classifier) is torch.nn.Linear and type(model.classifier) is torch.nn.Linear
    adapted = to_train(model, spec, base_name="base")
    adapted(input_ids=torch.tensor([[5, 9]])).logits.sum().backward()
    assert all(p.grad is not None for p in adapted.parameters() if p.requires_grad)


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors"])
def test_files_packed_by_something_else_are_refused(method: str) -> None:
    config = CONFIGS["llama"]()
    config.quantization_config = {"quant_method": method}
    with pytest.raises(ConfigError, match=f"packed by {method}"):
        quantization_config(spec_of(lora={}, model__quantization="nf4").model, config, torch.float32, None)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "bitsandbytes":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match="nf4 needs the package bitsandbytes") as refused:
        quantization_config(packed_spec("llama", "nf4").model, CONFIGS["llama"](), torch.float32, None)
    assert refused.value.problems[0].hint == "pip install 'rankzero[quantization]'"


def test_apples_gpus_have_no_8_bit_floats() -> None:
    with pytest.raises(ConfigError, match="no 8-bit floats"):
        quantization_config(packed_spec("llama", "fp8").model, CONFIGS["llama"](), torch.float32, torch.device("mps"))


def test_labels_reach_a_packed_classifier(tmp_path: Path) -> None:
    source = saved("llama", tmp_path)
    spec = spec_of(task="classify", lora={}, model__quantization="nf4")
    config = load_config(source, spec.model)
    model = load_model(source, spec.model, config, torch.float32, head=ClassHead(CLASSES, 0))
    assert model.score.weight.shape == (3, 16) and type(model.score) is torch.nn.Linear
