"""A pass in half precision has the gradients of the same pass in float32, but for rounding: also of what many tokens
have a part in, which a sum in half precision would lack most of."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSequenceClassification

from rankzero.engine.device import Device
from rankzero.engine.layers import fit_layers
from rankzero.model.attention import Attention
from rankzero.model.dropout import Places
from rankzero.spec.run_spec import RunSpec
from tests.support.runs import small_spec
from tests.support.tiny_configs import CONFIGS

TOLERANCE = 0.05
"""Of a gradient's norm. A product of bfloat16 is off by 0.004 at most, a sum in bfloat16 lacks half and more."""
NONE = 1e-4
"""Of the largest gradient's norm: what is less is 0 but for rounding, as that of the keys' bias is."""


def bloom() -> Any:
    from transformers import BloomConfig

    return BloomConfig(hidden_size=16, n_layer=2, n_head=2, vocab_size=64, hidden_dropout=0.0, attention_dropout=0.0)


def falcon_mamba() -> Any:
    from transformers import FalconMambaConfig

    return FalconMambaConfig(hidden_size=16, num_hidden_layers=2, state_size=8, vocab_size=64)


def opt() -> Any:
    from transformers import OPTConfig

    return OPTConfig(
        hidden_size=16,
        word_embed_proj_dim=16,
        ffn_dim=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=64,
        max_position_embeddings=512,
        dropout=0.0,
    )


MADE = {"bloom": bloom, "falcon_mamba": falcon_mamba, "opt": opt}
CLASSIFIERS = ("bert", "distilbert")
NAMES = (*CLASSIFIERS, *MADE, "gemma3", "gpt2", "gpt_oss", "llama", "qwen2_moe", "qwen3_moe")


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    config = (MADE | CONFIGS)[name]()
    for field in ("max_position_embeddings", "n_positions"):
        if hasattr(config, field):
            setattr(config, field, 512)
    auto: Any = AutoModelForImageTextToText if name == "gemma3" else AutoModelForCausalLM
    model = (AutoModelForSequenceClassification if name in CLASSIFIERS else auto).from_config(config)
    for held in model.parameters():  # norms and biases too, and all of them numbers of bfloat16
        held.data.add_(0.02 * torch.randn(held.shape)).copy_(held.data.bfloat16().float())
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model.train()


def gradients(model: Any, spec: RunSpec, dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    fitted = copy.deepcopy(model).to(device, dtype)
    fit_layers(fitted, spec, Device(device), Attention("sdpa", padding_free=False), Places(0))
    torch.manual_seed(1)
    ids = torch.randint(3, 64, (8, 256))
    ids[torch.rand(ids.shape) < 0.7] = 7
    with torch.autocast(device, dtype, enabled=dtype is not torch.float32):
        logits = fitted(input_ids=ids.to(device)).logits
    (logits.float() * torch.linspace(-1, 1, logits.shape[-1], device=device)).square().mean().backward()
    return {name: held.grad.float().cpu() for name, held in fitted.named_parameters() if held.grad is not None}


def lacking(model: Any, spec: RunSpec, device: str, tolerance: float = TOLERANCE) -> dict[str, float]:
    """Weights whose gradient in bfloat16 is another than in float32, and by which share of its norm."""
    wanted, found = (gradients(model, spec, dtype, device) for dtype in (torch.float32, torch.bfloat16))
    assert wanted.keys() == found.keys() and len(wanted) > 5
    largest = max(float(gradient.norm()) for gradient in wanted.values())
    off = {
        layer: float((found[layer] - gradient).norm() / gradient.norm())
        for layer, gradient in wanted.items()
        if gradient.norm() > NONE * largest
    }
    return {layer: share for layer, share in off.items() if share > tolerance}


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_float32(name: str, tmp_path: Path, tiny: Path) -> None:
    assert not lacking(model_of(name), small_spec(tmp_path, tiny, lora=None), "cpu")
