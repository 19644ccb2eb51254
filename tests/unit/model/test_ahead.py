"""A model that sees what it is to predict is refused by what it does, where its config does not tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rankzero.errors import ConfigError
from rankzero.model.ahead import require_not_ahead
from tests.support.runs import run_here, small_spec
from tests.support.tiny_configs import CONFIGS

CPU = torch.device("cpu")
CODE = """
from transformers import LlamaConfig, LlamaForCausalLM


class OwnConfig(LlamaConfig):
    model_type = "own"


class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.self_attn.is_causal = not config.looks_ahead
"""


@pytest.mark.parametrize(
    ("name", "ahead"), [("llama", False), ("gpt2", False), ("mixtral", False), ("gpt_oss", False), ("bert", True)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_who_sees_ahead(name: str, ahead: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=dtype).train()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    if not ahead:
        require_not_ahead(model, CPU)
    else:
        with pytest.raises(ConfigError, match="follows from those behind it"):
            require_not_ahead(model, CPU)
    assert model.training


@pytest.mark.parametrize("ahead", [False, True])
def test_models_with_code_of_their_own_are_asked_before_they_are_trained(
    ahead: bool, tiny: Path, tmp_path: Path
) -> None:
    """Such as models of diffusion, which say of themselves that they write."""
    own = tmp_path / "own"
    own.mkdir()
    for file in tiny.iterdir():
        (own / file.name).write_bytes(file.read_bytes())
    config: dict[str, Any] = json.loads((own / "config.json").read_text())
    config |= {"model_type": "own", "architectures": ["OwnForCausalLM"], "looks_ahead": ahead}
    config |= {"auto_map": {"AutoConfig": "own_code.OwnConfig", "AutoModelForCausalLM": "own_code.OwnForCausalLM"}}
    (own / "config.json").write_text(json.dumps(config))
    (own / "own_code.py").write_text(CODE)
    spec = small_spec(tmp_path, own, rows=8, eval_rows=0, model__trust_remote_code=True, train__max_steps=1)
    if not ahead:
        run_here(spec)
    else:
        with pytest.raises(ConfigError, match="follows from those behind it"):
            run_here(spec)
