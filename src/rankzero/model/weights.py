"""Trained weights to and from a directory. Knows nothing of optimizers or commits.

Checkpoints of adapters are in peft's layout. Those of whole models are safetensors shards under the names that the
parameters have in the model, since transformers renames and cuts up weights when it saves and a checkpoint has to come
back bit for bit. A result is in Hugging Face format, for everything else to load.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from peft import PeftConfig, PeftModel, get_peft_model_state_dict
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PretrainedConfig
from transformers.utils import GENERATION_CONFIG_NAME

from rankzero.directories import is_file
from rankzero.errors import RankzeroError, StorageError
from rankzero.model.files import weight_files
from rankzero.run_dir.atomic import stage_name, storage_errors, write_json

State = dict[str, torch.Tensor]


@contextmanager
def library_errors(where: Path) -> Iterator[None]:
    """What the libraries that write and read a model's files say of one, and the system, as a StorageError. Those of
    Rust, safetensors and tokenizers, have the errno in words only."""
    try:
        with storage_errors(where):
            yield
    except RankzeroError:
        raise
    except Exception as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is not None:
            with storage_errors(where):
                raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        if isinstance(error, SafetensorError):
            what = f"the tensors cannot be read or written: {error}"
            raise StorageError(what, where=str(where)) from error
        raise


@contextmanager
def staged_for(output: Path) -> Iterator[Path]:
    """A directory beside `output` to fill and commit as it. Whatever ends the block before, nothing of it stays. Raises
    StorageError where it cannot be made."""
    staged = output.parent / stage_name(output.name)
    with storage_errors(output):
        staged.mkdir(parents=True)
    try:
        yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class FileLayout:
    """What a model's weights are called in its files.

    Made where nobody computes with the model; to write and to read, the model is then not needed. Asking a model that
    is spread by FSDP for its state would put parts in the place of the whole weights that a pass computes with.
    """

    config: PeftConfig | PretrainedConfig
    names: Mapping[str, str]
    """The model's name of every tensor, by its name in the files."""

    def write(self, directory: Path, state: Mapping[str, torch.Tensor]) -> None:
        """`state`: the values, by the model's names; what no file holds may be among them. An adapter goes into one
        file, as peft writes it, a whole model into shards."""
        directory.mkdir(parents=True, exist_ok=True)
        named = _on_cpu({in_file: state[name] for in_file, name in self.names.items()})
        if isinstance(self.config, PeftConfig):
            save_file(_apart(named), directory / SAFETENSORS_WEIGHTS_NAME, metadata={"format": "pt"})
            as_result = copy(self.config)
            as_result.inference_mode = True
            as_result.save_pretrained(str(directory))
        else:
            save_torch_state_dict(named, str(directory))
            self.config.save_pretrained(str(directory))

    def read(self, directory: Path) -> State:
        """What `write` wrote, by the model's names. Raises StorageError where it does not fit."""
        shards = sorted(directory.glob("*.safetensors"))
        saved = {in_file: tensor for shard in shards for in_file, tensor in load_file(shard).items()}
        different = sorted(self.names.keys() ^ saved.keys())
        if different:
            first = ", ".join(different[:5])
            raise StorageError(
                "the saved weights do not fit this model", where=str(directory), hint=f"they differ in {first}"
            )
        return {self.names[in_file]: tensor for in_file, tensor in saved.items()}


def file_layout(model: Any) -> FileLayout:
    """Of what a run saves of `model`: its adapter, or all of it. Not to be called while the model computes."""
    if isinstance(model, PeftModel):
        return FileLayout(model.peft_config[model.active_adapter], adapter_file_names(model))
    return FileLayout(model.config, {name: name for name in (*dict(model.named_parameters()), *saved_buffers(model))})


def adapter_file_names(model: Any) -> dict[str, str]:
    """The model's name of every tensor in an adapter file, by its name there."""
    held = list(_under_all_names(model).items())
    first: dict[int, str] = {}
    for name, tensor in held:
        first.setdefault(id(tensor), name)
    shared = {name: first[id(tensor)] for name, tensor in held}
    own = {name: torch.empty(0, device="meta") for name in shared}
    names = {id(own[name]): held_as for name, held_as in shared.items()}
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
    shard_bytes: int | None = None,
) -> None:
    """Write the result: adapter or full weights in `dtype`, tokenizer with its chat template, generation config.

    The generation config names every token that ends a turn, so that a server stops where training taught to stop.
    Beside an adapter there is no config.json: with one, transformers would look for whole weights. `state` has the
    values by parameter name where the model itself does not hold them, as in a sharded run.
    """
    model.config.use_cache = True
    if isinstance(model, PeftModel):
        file_layout(model).write(directory, state or _under_all_names(model))
        generation = getattr(model, "generation_config", None)
        if generation is not None and model.get_base_model().can_generate():
            generation.save_pretrained(str(directory))
    else:
        save_whole(model, directory, dtype=dtype, state=state, shard_bytes=shard_bytes)
    name_stop_ids(directory, stop_ids)
    tokenizer.save_pretrained(str(directory))


def result_bytes(model: Any, *, dtype: torch.dtype, state: State | None = None) -> int:
    """How much the weights take that `export_final` writes."""
    if isinstance(model, PeftModel):
        held = state or _under_all_names(model)
        return sum(held[name].nbytes for name in file_layout(model).names.values())
    return sum(tensor.numel() for tensor in _own_state(model, state).values()) * dtype.itemsize


def name_stop_ids(directory: Path, stop_ids: list[int]) -> None:
    """Name the tokens that end a turn in the generation config of a directory, where it has one.

    In the file, whose other values stay: transformers refuses to save a config that was changed where it has values for
    sampling without `do_sample`, as published ones do, and servers take these for their defaults.
    """
    path = directory / GENERATION_CONFIG_NAME
    if stop_ids and is_file(path):
        config = json.loads(path.read_text(encoding="utf-8"))
        write_json(path, {**config, "eos_token_id": stop_ids if len(stop_ids) > 1 else stop_ids[0]})


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


def saved_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that belong to a model's state, by name."""
    return {
        f"{prefix}.{key}".lstrip("."): buffer
        for prefix, part in module.named_modules()
        for key, buffer in part.named_buffers(recurse=False)
        if key not in part._non_persistent_buffers_set
    }


def _under_all_names(model: Any) -> State:
    """All state, what is shared under each of its names: peft writes embeddings that are tied once for each. Without
    the copies that a packed model's own state dict makes."""
    return {**dict(model.named_parameters(remove_duplicate=False)), **saved_buffers(model)}


def _own_state(model: Any, state: Mapping[str, torch.Tensor] | None) -> State:
    """A model's parameters and saved buffers, each once: a weight that is shared has the first of its names."""
    shared = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    shared -= {name for name, _ in model.named_parameters()}
    return {name: tensor for name, tensor in (state or model.state_dict()).items() if name not in shared}


def _on_cpu(state: State) -> State:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}


def _apart(state: State) -> State:
    """With memory of its own for each tensor, as safetensors wants it: tied embeddings have several names."""
    apart, seen = {}, set()
    for name, tensor in state.items():
        memory = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return apart


def _write_dtype(path: Path, name: str) -> None:
    """transformers writes the precision that the model has in memory, which is not that of the files."""
    config = json.loads(path.read_text(encoding="utf-8"))
    for section in (config, *(value for value in config.values() if isinstance(value, dict))):
        if "dtype" in section:
            section["dtype"] = name
    write_json(path, config)
