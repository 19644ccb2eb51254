"""An adapter for a tiny model, without training: weights that change what is said."""

from __future__ import annotations

import json
from pathlib import Path


def tiny_adapter(base: Path, directory: Path, *, seed: int = 3) -> Path:
    """A LoRA adapter with random weights, as a run's final/ has one beside its tokenizer."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base)
    settings = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(model, settings).save_pretrained(directory)
    AutoTokenizer.from_pretrained(base).save_pretrained(directory)
    config = json.loads((directory / "adapter_config.json").read_text())
    (directory / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": str(base)}))
    return directory
