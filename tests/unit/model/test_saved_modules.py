"""What is trained whole, or token by token, beside adapters: computed as its base, and trained by whole gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft.utils.other import ModulesToSaveWrapper
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.pytorch_utils import Conv1D

from rankzero.model.lora import apply_lora
from rankzero.model.norms import fuse_norms
from rankzero.model.saved_modules import compute_in_base_precision, look_up_trained_tokens
from rankzero.spec.run_spec import LoraSpec
from tests.support.tiny_configs import CONFIGS, HEADS_WITH_BIAS

IDS = torch.tensor([[7, 3, 7, 9, 11, 2, 7, 5]])
BFLOAT16 = torch.bfloat16


def base_of(name: str, dtype: torch.dtype = BFLOAT16) -> Any:
    torch.manual_seed(0)
    config = CONFIGS[name]()
    auto: Any = AutoModelForImageTextToText if name == "gemma3" else AutoModelForCausalLM
    model = auto.from_config(config)
    for held in model.parameters():  # norms and biases too
        held.data.add_(0.1 * torch.randn(held.shape))
    return model.to(dtype).eval()


def adapted(base: Any, **changes: Any) -> Any:
    """With adapters that change nothing yet, and computing as a run's model."""
    lora = LoraSpec(r=2, target_modules="all-linear", **changes)
    model = by_peft(base, lora)
    fuse_norms(model)
    compute_in_base_precision(model)
    look_up_trained_tokens(model)
    return model


def by_peft(base: Any, lora: LoraSpec) -> Any:
    tokens = tuple(int(token) for token in lora.trainable_token_indices)
    model = copy.deepcopy(base)
    return apply_lora(
        model, lora, parts=("language",), use="writes", seed=0, packed=False, base_name="base", tokens=tokens
    )


def outputs(model: Any) -> dict[str, Any]:
    """Of every layer, by its name in the base."""
    found: dict[str, Any] = {}

    def keep(name: str) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            found[name] = output

        return hook

    for name, module in model.named_modules():
        plain = name.removeprefix("base_model.model.").replace(".modules_to_save.default", "")
        if ".original_module" not in name:
            module.register_forward_hook(keep(plain))
    with torch.autocast("cpu", BFLOAT16), torch.no_grad():
        found["logits"] = model(input_ids=IDS).logits
    return found


def kinds_of(name: str) -> list[str]:
    """A layer's last name for each kind of layer, linear ones aside, that has weights of its own."""
    model = base_of(name)
    decoder = [
        (path, module)
        for path, module in model.named_modules()
        if "vision" not in path and "projector" not in path and list(module.parameters(recurse=False))
    ]
    kinds = {
        (type(module).__name__, path.rpartition(".")[2])
        for path, module in decoder
        if not isinstance(module, torch.nn.Linear | Conv1D) and not list(module.children())
    }
    return sorted(last for _, last in kinds)


CASES = [
    (name, last) for name in ("gemma3", "gpt2", "gpt_oss", "llama", "olmoe", "qwen3_moe") for last in kinds_of(name)
]


@pytest.mark.parametrize(("name", "last"), CASES)
def test_what_is_saved_whole_computes_as_its_base(name: str, last: str) -> None:
    """To the bit, in all layers: the base has the same weights, in the precision that they are rounded to."""
    base = base_of(name)
    model = adapted(base, modules_to_save=(last,))
    wrapped = [module for module in model.modules() if isinstance(module, ModulesToSaveWrapper)]
    assert wrapped, "nothing was saved whole"
    held = [weight for one in wrapped for weight in one.modules_to_save.parameters()]
    assert {weight.dtype for weight in held} == {torch.float32}
    fuse_norms(base)
    wanted, given = outputs(base), outputs(model)
    for layer, output in wanted.items():
        if isinstance(output, torch.Tensor) and layer in given:
            assert given[layer].dtype is output.dtype, layer
            assert torch.equal(given[layer], output), layer


def gradients(model: Any, ids: torch.Tensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Of what is no adapter."""
    with torch.autocast("cpu", BFLOAT16, enabled=dtype is not torch.float32):
        logits = model(input_ids=ids).logits
    (logits.float() * torch.linspace(0, 1, logits.shape[-1])).sum().backward()
    found = {name: held.grad for name, held in model.named_parameters() if held.grad is not None}
    return {name: grad for name, grad in found.items() if "lora_" not in name}


@pytest.mark.parametrize(
    "changes",
    [{"trainable_token_indices": (9, 7)}, {"modules_to_save": ("embed_tokens", "norm")}],
    ids=["tokens", "saved"],
)
@pytest.mark.parametrize("as_fsdp", [False, True], ids=["", "rounded by FSDP"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_gradients_of_frequent_tokens_are_whole(name: str, changes: dict[str, Any], *, as_fsdp: bool) -> None:
    ids = torch.full((64, 63), 7)
    ids[:, ::9] = 9
    found = {}
    for dtype in (torch.float32, BFLOAT16):
        model = adapted(base_of(name, dtype), **changes)
        if as_fsdp:
            for held in model.parameters():
                held.data = held.data.to(dtype)
        found[dtype] = gradients(model, ids, dtype)
    assert found[torch.float32] and found[BFLOAT16].keys() == found[torch.float32].keys()
    for layer, wanted in found[torch.float32].items():
        assert (found[BFLOAT16][layer].float() - wanted).norm() < 0.03 * wanted.norm(), layer


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_single_tokens_are_trained_as_by_peft(name: str) -> None:
    base = base_of(name, torch.float32)
    lora = LoraSpec(r=2, target_modules="all-linear", trainable_token_indices=(9, 3, 7))
    found = []
    for model in (adapted(base, trainable_token_indices=lora.trainable_token_indices), by_peft(base, lora)):
        torch.manual_seed(1)
        for layer, held in model.named_parameters():
            if "trainable_tokens_delta" in layer:
                held.data.add_(torch.randn(held.shape))
        found.append((model(input_ids=IDS).logits, gradients(model, IDS, torch.float32)))
    torch.testing.assert_close(found[0], found[1])
    assert any("trainable_tokens_delta" in layer for layer in found[0][1])
    assert not torch.equal(found[0][0], base(input_ids=IDS).logits)


@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", HEADS_WITH_BIAS)
def test_a_head_of_which_rows_are_trained_keeps_its_bias(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its first step a run says what its base says, to the bit."""
    monkeypatch.setitem(CONFIGS, name, HEADS_WITH_BIAS[name])
    base = base_of(name, dtype)
    assert base.get_output_embeddings().bias.any()
    model = adapted(base, trainable_token_indices=(9, 3, 7))
    assert torch.equal(model(input_ids=IDS).logits, base(input_ids=IDS).logits)
    with model.disable_adapter():
        assert torch.equal(model(input_ids=IDS).logits, base(input_ids=IDS).logits)


def test_no_table_is_copied_for_a_few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[torch.Size] = []
    index_copy = torch.Tensor.index_copy

    def watched(table: torch.Tensor, **named: Any) -> torch.Tensor:
        copied.append(table.shape)
        return index_copy(table, **named)

    monkeypatch.setattr(torch.Tensor, "index_copy", watched)
    model = adapted(base_of("llama"), trainable_token_indices=(9, 3))
    model.base_model.model.model(input_ids=IDS)  # behind it is the head, whose rows are products
    assert copied == []
