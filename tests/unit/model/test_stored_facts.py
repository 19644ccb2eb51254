"""Facts from a model's files: those of the model itself, for every architecture and method that they are told of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig

from rankzero.model.facts import fused_of
from rankzero.model.load import empty_model
from rankzero.model.stored_facts import PLAIN_DECODERS, Held, stored_facts
from rankzero.spec.run_spec import RunSpec
from tests.support.memory import BF16, FP32, facts_of, full, lora, make_spec

SIZES = {"hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "vocab_size": 64, "head_dim": 8}
SIZES |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

METHODS: dict[str, RunSpec] = {
    "auto": lora(),
    "packed": lora("nf4"),
    "dora on all": make_spec(lora={"r": 4, "target_modules": "all-linear", "use_dora": True}),
    "named": make_spec(lora={"r": 4, "target_modules": ["o_proj", "layers.1.self_attn.o_proj"]}),
    "full": full(),
    "kahan": full(master_weights="kahan"),
}


def files_of(config: Any, directory: Path) -> Path:
    """A directory with the config and with weights of its shapes, as `save_pretrained` names them."""
    directory.mkdir()
    model = empty_model(make_spec().model, config, BF16)
    tied = set(getattr(model, "_tied_weights_keys", None) or ()) if config.tie_word_embeddings else set()
    weights = {name: torch.zeros(p.shape, dtype=BF16) for name, p in model.named_parameters() if name not in tied}
    save_file(weights, directory / "model.safetensors")
    config.save_pretrained(directory)
    return directory


@pytest.mark.parametrize("name", sorted(PLAIN_DECODERS))
def test_the_files_say_what_the_model_says(name: str, tmp_path: Path) -> None:
    config = AutoConfig.for_model(name, **SIZES)
    directory = files_of(config, tmp_path / "m")
    for method, spec in METHODS.items():
        for dtype in (BF16,) if name != "llama" else (BF16, FP32):
            trained = 2 if dtype is BF16 and spec.train.master_weights != "float32" else 4
            for device in ("cpu", "cuda"):
                fused, float16 = fused_of(spec, device), dtype is torch.float16
                held = Held(compute=dtype.itemsize, trained=trained, fused=fused, float16=float16)
                found = stored_facts(directory, spec.model, spec.lora, spec.train.parts, held)
                assert found == facts_of(spec, config, dtype, device), (method, device)


def test_what_the_files_do_not_tell(tmp_path: Path) -> None:
    """Then the model itself is asked, which takes torch."""
    directory, held = files_of(AutoConfig.for_model("llama", **SIZES), tmp_path / "m"), Held(2, 4)

    def told(spec: RunSpec) -> bool:
        return stored_facts(directory, spec.model, spec.lora, spec.train.parts, held) is not None

    assert told(lora())
    assert not told(make_spec(lora={"r": 2, "modules_to_save": ["embed_tokens"]}))
    assert not told(make_spec(lora={"r": 2, "target_modules": ["nothing"]}))
    assert not told(full(parts=["experts"]))
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    for changed in ({"model_type": "qwen3_moe"}, {"quantization_config": {"bits": 4}}, {"intermediate_size": None}):
        (directory / "config.json").write_text(json.dumps(config | changed), encoding="utf-8")
        assert not told(lora()), changed
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (directory / "model.safetensors").unlink()
    assert not told(lora())


def test_it_takes_no_torch() -> None:
    code = "import sys, rankzero.model.stored_facts, rankzero.model.fitting; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "False\n"
