"""Trained weights to and from a directory in Hugging Face format. Knows nothing of optimizers or commits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, set_peft_model_state_dict
from safetensors.torch import load_file

from rankzero.errors import StorageError

ADAPTER_FILE = "adapter_model.safetensors"


def save_weights(model: Any, directory: Path) -> None:
    """Write the adapter (peft layout) or the whole model (safetensors shards) to `directory`."""
    if isinstance(model, PeftModel):
        # "auto" would ask the Hub whether the base model's vocabulary was changed; adapters never hold embeddings here.
        model.save_pretrained(str(directory), save_embedding_layers=False)
        (directory / "README.md").unlink(missing_ok=True)  # an empty form; what the run was is in the manifest
    else:
        model.save_pretrained(str(directory))


def load_weights(model: Any, directory: Path) -> None:
    """Put saved weights back into a model of the same shape, bit for bit. Raises StorageError where they do not fit."""
    if isinstance(model, PeftModel):
        result = set_peft_model_state_dict(model, load_file(str(directory / ADAPTER_FILE)))
        unexpected, missing = list(result.unexpected_keys), [key for key in result.missing_keys if "lora_" in key]
    else:
        state = {
            name: tensor
            for shard in sorted(directory.glob("*.safetensors"))
            for name, tensor in load_file(shard).items()
        }
        result = model.load_state_dict(state, strict=False)
        tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - {
            name for name, _ in model.named_parameters()
        }
        unexpected = list(result.unexpected_keys)
        missing = [key for key in result.missing_keys if key not in tied]
    if unexpected or missing:
        names = ", ".join([*missing, *unexpected][:5])
        raise StorageError(
            "the saved weights do not fit this model", where=str(directory), hint=f"they differ in {names}"
        )


def export_final(model: Any, tokenizer: Any, directory: Path, *, dtype: torch.dtype, stop_ids: list[int]) -> None:
    """Write the result: adapter or full weights in `dtype`, tokenizer with its chat template, generation config.

    The generation config names every token that ends a turn, so that a server stops where training taught to stop.
    """
    if not isinstance(model, PeftModel):
        model.to(dtype)
    generation = getattr(model, "generation_config", None)
    if generation is not None and stop_ids:
        generation.eos_token_id = stop_ids if len(stop_ids) > 1 else stop_ids[0]
    model.config.use_cache = True
    save_weights(model, directory)
    if isinstance(model, PeftModel) and generation is not None:
        generation.save_pretrained(str(directory))
    tokenizer.save_pretrained(str(directory))
