"""4-bit layers compute the same in evaluation as in training, whatever the CPU: bitsandbytes never rearranges them.

On a CPU with avx512_bf16 its layers would, in the first pass of an evaluation, and stay so. Whether they may is asked
when a layer is made, so the answer can be given for any CPU; the rearranging itself needs no special instruction.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rankzero.engine.setup import to_train
from rankzero.model.fused_lora import fuse_adapters
from rankzero.model.generate import answer, load_speaker
from rankzero.model.load import ClassHead, load_config, load_model
from rankzero.model.merge import merge
from rankzero.model.predict import classify, load_classifier
from rankzero.model.source import ModelSource
from rankzero.model.weights import export_final
from rankzero.run_dir.result import as_it_was
from rankzero.spec.run_spec import RunSpec
from tests.support.tiny import tiny_model, tiny_tokenizer
from tests.unit.model.support import CLASSES, loaded, logits, packed_spec, saved, shaken, spec_of
from tests.unit.model.test_packed_files import bitsandbytes_checkpoint, fp8_checkpoint

CPU = torch.device("cpu")
BASES = ["llama", "gpt2", "qwen3_moe", "files in 8 bits", "files in 4 bits"]


@pytest.fixture(params=[True, False], ids=["avx512_bf16", "without"], autouse=True)
def avx512_bf16(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """What bitsandbytes takes the CPU for."""
    from bitsandbytes.nn import modules

    monkeypatch.setattr(modules, "has_avx512bf16", lambda: request.param)
    monkeypatch.setattr(modules, "_convert_weight_packed_for_cpu", lambda *_: pytest.fail("a weight is rearranged"))
    return bool(request.param)


def base(name: str, root: Path) -> tuple[ModelSource, RunSpec]:
    if name == "files in 4 bits":
        return bitsandbytes_checkpoint(root), packed_spec("llama", "nf4")
    if name == "files in 8 bits":
        return fp8_checkpoint(root, "llama")[0], packed_spec("llama", "nf4")
    return saved(name, root), packed_spec(name, "nf4")


def four_bit_layers(model: Any) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__ == "Linear4bit"]


@pytest.mark.parametrize("name", BASES)
def test_an_evaluation_leaves_weights_and_gradients_as_they_were(name: str, tmp_path: Path) -> None:
    source, spec = base(name, tmp_path)
    model = shaken(to_train(loaded(source, spec), spec, base_name="base"))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0

    def gradients() -> list[torch.Tensor]:
        model.train().zero_grad()
        model(input_ids=torch.tensor([[5, 9, 17, 33, 21]])).logits.square().sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.requires_grad]

    before, packed = gradients(), [layer.weight.data.clone() for layer in four_bit_layers(model)]
    with torch.no_grad():
        training = model.train()(input_ids=torch.tensor([[5, 9, 17]])).logits
        evaluation = model.eval()(input_ids=torch.tensor([[5, 9, 17]])).logits
    assert torch.equal(training, evaluation)
    assert packed and all(
        torch.equal(layer.weight.data, was) for layer, was in zip(four_bit_layers(model), packed, strict=True)
    )
    assert all(torch.equal(a, b) for a, b in zip(gradients(), before, strict=True))


def test_the_librarys_own_model_is_rearranged(avx512_bf16: bool, tmp_path: Path) -> None:
    """What these tests are about: where this no longer holds, they show nothing."""
    model = AutoModelForCausalLM.from_pretrained(bitsandbytes_checkpoint(tmp_path).weights).eval()
    with pytest.raises(pytest.fail.Exception, match="rearranged") if avx512_bf16 else nullcontext():
        logits(model)


def test_merging_generating_and_classifying_leave_the_layers_alone(tmp_path: Path) -> None:
    source = ModelSource(tmp_path / "base", tmp_path / "base", "base")
    tiny_model(source.weights)
    spec = spec_of(lora={}, model__quantization="nf4", model__name=str(source.weights))
    adapted = to_train(loaded(source, spec), spec, base_name="base")
    export_final(adapted, tiny_tokenizer(), tmp_path / "final", dtype=torch.float32, stop_ids=[1])
    merge(spec.model, tmp_path / "final", tmp_path / "merged")
    speaker = load_speaker(replace(as_it_was(spec), adapter=tmp_path / "final"), torch.float32, CPU)
    assert four_bit_layers(speaker.model) and len(answer(speaker, ["Hi", "Ping?"], max_new_tokens=3)) == 2

    spec = spec.model_copy(update={"task": "classify"})
    model = load_model(source, spec.model, load_config(source, spec.model), torch.float32, head=ClassHead(CLASSES, 0))
    export_final(
        to_train(model, spec, base_name="base"),
        *(tiny_tokenizer(), tmp_path / "classes"),
        dtype=torch.float32,
        stop_ids=[],
    )
    classifier = load_classifier(
        replace(as_it_was(spec), adapter=tmp_path / "classes", labels=CLASSES), torch.float32, CPU
    )
    assert four_bit_layers(classifier.model)
    assert {prediction.label for prediction in classify(classifier, ["one", "two"])} <= set(CLASSES)


def test_kernels_that_nobody_needs_are_not_missed(avx512_bf16: bool, caplog: pytest.LogCaptureFixture) -> None:
    """bitsandbytes says so when it is imported on such a CPU; another warning of the same place is heard."""
    del avx512_bf16
    source = logging.getLogger("bitsandbytes.backends.cpu.ops")
    source.warning("Failed to load CPU gemm_4bit_forward from kernels-community: %s.", "No module named 'kernels'")
    source.warning("something else")
    assert caplog.messages == ["something else"]


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_fused_adapters_over_them_compute_what_pefts_compute(name: str, tmp_path: Path) -> None:
    source, spec = base(name, tmp_path)
    model = shaken(to_train(loaded(source, spec), spec, base_name="base")).train()

    def found() -> list[torch.Tensor]:
        model.zero_grad()
        loss = model(input_ids=torch.tensor([[5, 9, 17, 33, 21]])).logits.square().sum()
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.requires_grad)]

    wanted = found()
    assert fuse_adapters(model) >= len(four_bit_layers(model)) // 2 > 0
    for ours, theirs in zip(found(), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * max(1.0, float(theirs.abs().max())))


def test_activations_are_in_the_precision_of_products(tmp_path: Path) -> None:
    """A norm whose weight is in float32 makes float32 of all behind it, and of what is kept for the backward pass."""
    source, spec = base("llama", tmp_path)
    packed = load_model(source, spec.model, load_config(source, spec.model), torch.bfloat16)
    model = to_train(packed, spec, base_name="base").train()
    seen: list[torch.dtype] = []

    def see(_module: Any, _inputs: Any, output: torch.Tensor) -> None:
        seen.append(output.dtype)

    for module in model.modules():
        if type(module).__name__ in ("Linear4bit", "LlamaRMSNorm", "LlamaDecoderLayer", "LlamaMLP"):
            module.register_forward_hook(see)
    fuse_adapters(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(input_ids=torch.tensor([[5, 9, 17, 33, 21]])).logits.sum().backward()
    assert len(seen) > 20 and set(seen) == {torch.bfloat16}
