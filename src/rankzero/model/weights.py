"""Trained weights to and from a directory. Knows nothing of optimizers or commits.

Checkpoints of adapters are in peft's layout. Those of whole models are safetensors shards under the names that the
parameters have in the model, since transformers renames and cuts up weights when it saves and a checkpoint has to come
back bit for bit. A result is in Hugging Face format, for everything else to load.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file

from rankzero.errors import StorageError
from rankzero.model.files import weight_files
from rankzero.run_dir.atomic import write_json

State = dict[str, torch.Tensor]


def save_weights(model: Any, directory: Path, state: State | None = None) -> None:
    """Write what a run trains to `directory`: the adapter, or the whole model.

    `state` has the values by parameter name where the model itself does not hold them, as in a sharded run.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if isinstance(model, PeftModel):
        _save_adapter(model, directory, state)
    else:
        save_torch_state_dict(_on_cpu(_own_state(model, state)), str(directory))
        model.config.save_pretrained(str(directory))


def read_state(model: Any, directory: Path) -> State:
    """What `save_weights` wrote, by the names of the model's parameters. Raises StorageError where it does not fit."""
    saved = {
        name: tensor for shard in sorted(directory.glob("*.safetensors")) for name, tensor in load_file(shard).items()
    }
    if isinstance(model, PeftModel):
        names = adapter_file_names(model)
    else:
        names = {name: name for name in _own_state(model, None)}
    different = sorted(names.keys() ^ saved.keys())
    if different:
        first = ", ".join(different[:5])
        raise StorageError(
            "the saved weights do not fit this model", where=str(directory), hint=f"they differ in {first}"
        )
    return {names[name]: tensor for name, tensor in saved.items()}


def adapter_file_names(model: Any) -> dict[str, str]:
    """The model's name of every tensor in an adapter file, by its name there."""
    first = {id(tensor): name for name, tensor in _tensors(model).items()}
    shared = {name: first[id(tensor)] for name, tensor in _under_all_names(model).items()}
    own = {name: torch.empty(0, device="meta") for name in shared}
    names = {id(own[name]): held for name, held in shared.items()}
    written = get_peft_model_state_dict(model, state_dict=own, save_embedding_layers=False)
    return {in_file: names[id(tensor)] for in_file, tensor in written.items()}


def export_final(
    model: Any,
    tokenizer: Any,
    directory: Path,
    *,
    dtype: torch.dtype,
    stop_ids: list[int],
    state: State | None = None,
) -> None:
    """Write the result: adapter or full weights in `dtype`, tokenizer with its chat template, generation config.

    The generation config names every token that ends a turn, so that a server stops where training taught to stop.
    Beside an adapter there is no config.json: with one, transformers would look for whole weights. `state` as in
    save_weights.
    """
    generation = getattr(model, "generation_config", None)
    if generation is not None and stop_ids:
        generation.eos_token_id = stop_ids if len(stop_ids) > 1 else stop_ids[0]
    model.config.use_cache = True
    if isinstance(model, PeftModel):
        _save_adapter(model, directory, state)
        if generation is not None and model.get_base_model().can_generate():
            generation.save_pretrained(str(directory))
    else:
        save_whole(model, directory, dtype=dtype, state=state)
    tokenizer.save_pretrained(str(directory))


def save_whole(
    model: Any,
    directory: Path,
    *,
    dtype: torch.dtype,
    state: State | None = None,
    shard_bytes: int | None = None,
) -> None:
    """The model as transformers saves it, in `dtype` except for what the architecture keeps in float32. `shard_bytes`:
    the largest file of weights; None: as transformers likes it."""
    kept = model._get_dtype_plan(dtype)

    def cast(name: str, tensor: torch.Tensor) -> torch.Tensor:
        stays = not tensor.is_floating_point() or any(fnmatch(name, f"*{pattern}*") for pattern in kept)
        return tensor if stays else tensor.to(dtype)

    casted = {name: cast(name, tensor) for name, tensor in _on_cpu(_own_state(model, state)).items()}
    size = {} if shard_bytes is None else {"max_shard_size": shard_bytes}
    model.save_pretrained(str(directory), state_dict=casted, **size)
    _write_dtype(directory / "config.json", str(dtype).removeprefix("torch."))


def copy_in_shards(source: Path, directory: Path, shard_bytes: int) -> None:
    """The weights of a model's directory in files of up to `shard_bytes`, every tensor bit for bit under its name. A
    larger tensor has a file of its own. Reads one file's tensors as they are written, from the mapped file."""
    tensors: State = {}
    for file in weight_files(source):
        tensors |= load_file(file)
    save_torch_state_dict(tensors, str(directory), max_shard_size=shard_bytes)


def _save_adapter(model: Any, directory: Path, state: State | None) -> None:
    # "auto" would ask the Hub whether the base model's vocabulary was changed; adapters never hold embeddings here.
    whole = {**_tensors(model), **(state or {})}
    names = {id(tensor): name for name, tensor in _tensors(model).items()}
    whole |= {name: whole[names[id(tensor)]] for name, tensor in _under_all_names(model).items()}
    model.save_pretrained(str(directory), save_embedding_layers=False, state_dict=whole)
    (directory / "README.md").unlink(missing_ok=True)  # an empty form; what the run was is in the manifest


def saved_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that belong to a model's state, by name."""
    return {
        f"{prefix}.{key}".lstrip("."): buffer
        for prefix, part in module.named_modules()
        for key, buffer in part.named_buffers(recurse=False)
        if key not in part._non_persistent_buffers_set
    }


def _tensors(model: Any) -> State:
    """All state by name, without the copies that a packed model's own state dict makes."""
    return {**dict(model.named_parameters()), **saved_buffers(model)}


def _under_all_names(model: Any) -> State:
    """The same, and what is shared under each of its names: peft writes embeddings that are tied once for each."""
    return {**dict(model.named_parameters(remove_duplicate=False)), **saved_buffers(model)}


def _own_state(model: Any, state: Mapping[str, torch.Tensor] | None) -> State:
    """A model's parameters and saved buffers, each once: a weight that is shared has the first of its names."""
    shared = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    shared -= {name for name, _ in model.named_parameters()}
    return {name: tensor for name, tensor in (state or model.state_dict()).items() if name not in shared}


def _on_cpu(state: State) -> State:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}


def _write_dtype(path: Path, name: str) -> None:
    """transformers writes the precision that the model has in memory, which is not that of the files."""
    config = json.loads(path.read_text(encoding="utf-8"))
    for section in (config, *(value for value in config.values() if isinstance(value, dict))):
        if "dtype" in section:
            section["dtype"] = name
    write_json(path, config)
