"""Low-rank adapters through peft: which modules, applying, and what is trained. Knows nothing of files or training."""

from __future__ import annotations

import difflib
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers.pytorch_utils import Conv1D

from rankzero.errors import ConfigError, Problem
from rankzero.spec.run_spec import LoraSpec

ATTENTION_PROJECTIONS = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "qkv_proj"),  # Llama, Qwen, Gemma, Mistral, OPT, Phi
    *("query_key_value", "c_attn", "Wqkv"),  # Falcon and NeoX, GPT-2, MPT
    *("q_lin", "k_lin", "v_lin", "out_lin", "query", "key", "value"),  # DistilBERT, BERT
)
"""What attention's projections are called, by architecture family."""


def linear_names(model: Any) -> list[str]:
    """Full names of all modules that an adapter can be put on, the output head left out."""
    head = model.get_output_embeddings()
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.Linear, Conv1D)) and module is not head
    ]


def target_modules(spec: LoraSpec, model: Any) -> list[str]:
    """Last segments of the module names to adapt. Raises ConfigError naming every entry that matches nothing."""
    names = linear_names(model)
    last = sorted({name.rpartition(".")[2] for name in names})
    if spec.target_modules == "all-linear":
        return last
    if spec.target_modules == "auto":
        return [name for name in last if name in ATTENTION_PROJECTIONS] or last
    problems = []
    for wanted in spec.target_modules:
        if not any(name == wanted or name.endswith(f".{wanted}") for name in names):
            close = difflib.get_close_matches(wanted, last, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            problems.append(
                Problem(
                    f"the model has no linear module {wanted}",
                    "lora.target_modules",
                    f"{hint}it has: {', '.join(last)} (or say all-linear)",
                )
            )
    if problems:
        raise ConfigError(problems)
    return list(spec.target_modules)


def apply_lora(model: Any, spec: LoraSpec, *, seed: int, base_name: str) -> Any:
    """Freeze the base and add adapters in float32, initialised from `seed` alone: the same on every rank."""
    config = LoraConfig(
        task_type="CAUSAL_LM",
        base_model_name_or_path=base_name,
        r=spec.r,
        lora_alpha=spec.alpha,
        lora_dropout=spec.dropout,
        target_modules=target_modules(spec, model),
        use_dora=spec.use_dora,
        use_rslora=spec.use_rslora,
    )
    model.name_or_path = base_name  # peft writes this name, not the config's, into the adapter
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def parameter_counts(model: Any) -> tuple[int, int]:
    """(trainable, all) parameters."""
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return trainable, sum(p.numel() for p in model.parameters())
