"""Which parts a run has its layers compute with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rankzero.engine.device import Device
from rankzero.engine.layers import fit_layers
from rankzero.model import cpu_products, dropout_attention
from rankzero.model.attention import Attention
from rankzero.model.dropout import PlacedDropout, Places
from tests.support.runs import small_spec
from tests.support.tiny_configs import CONFIGS

AMD, INTEL = "avx2 sse4a avx512f avx512_bf16", "avx2 avx512f avx512_bf16 avx512_fp16 amx_bf16"


@pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch is built without oneDNN")
@pytest.mark.parametrize(
    ("features", "dtype", "compiled", "wanted"),
    [
        (AMD, torch.float32, False, True),
        (AMD, torch.bfloat16, False, False),
        (AMD, torch.float32, True, False),
        (INTEL, torch.float32, False, False),
        (INTEL, torch.bfloat16, False, False),
        (INTEL.replace("amx_bf16", ""), torch.bfloat16, False, True),
        (INTEL.replace("amx_bf16", ""), torch.bfloat16, True, False),
    ],
)
def test_who_multiplies(
    features: str,
    dtype: torch.dtype,
    compiled: bool,
    wanted: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tiny: Path,
) -> None:
    monkeypatch.setenv("RANKZERO_CPU_FEATURES", features)
    spec = small_spec(tmp_path, tiny, lora=None, train={"torch_compile": compiled})
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"]()).to(dtype)
    fit_layers(model, spec, Device("cpu"), Attention("sdpa", padding_free=False), Places(0))
    kinds = {type(module) for module in model.modules() if isinstance(module, torch.nn.Linear)}
    assert kinds == {cpu_products.Linear if wanted else torch.nn.Linear}


@pytest.mark.parametrize(
    ("name", "attention"), [("llama", "sdpa"), ("gpt2", "sdpa"), ("llama", dropout_attention.NAME)]
)
def test_places_are_made_where_something_drops_by_them(name: str, attention: str, tmp_path: Path, tiny: Path) -> None:
    """A tiny GPT-2 has modules that drop, a tiny Llama has none, and its attention is asked by its name."""
    model, places = AutoModelForCausalLM.from_config(CONFIGS[name]()).train(), Places(0)
    spec = small_spec(tmp_path, tiny, lora=None)
    fit_layers(model, spec, Device("cpu"), Attention(attention, padding_free=False), places)
    row, position, predicts = torch.zeros(2, 1), torch.arange(7)[None], torch.arange(14)
    places.begin_pass(0, row.long(), position, predicts)
    drops = any(isinstance(module, PlacedDropout) for module in model.modules()) or attention != "sdpa"
    assert drops == (name == "gpt2" or attention != "sdpa")
    assert (places.keys(torch.Size((2, 7))) is not None) == drops
