"""How a checkpoint's tensors lie on disk: whole files of one writer, or a part from each process. Knows no models.

model/, optimizer.safetensors   whole tensors, written by the main rank (adapters, and replicas)
sharded/                        safetensors of every process: weights under their names in the model, and the
                                optimizer's state as <name>/<state>; each file's header says where its parts belong
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from rankzero.engine.parallel.base import OPTIMIZER_FILE
from rankzero.errors import StorageError
from rankzero.model.weights import saved_buffers
from rankzero.run_dir.atomic import storage_errors

SHARDED_DIRECTORY = "sharded"
FILE_BYTES = 2**30
"""A process writes its part in files of about this size: each is put together in memory before it is written."""


def is_sharded(directory: Path) -> bool:
    """Whether a checkpoint is of a fully sharded run with full weights."""
    return (directory / SHARDED_DIRECTORY).is_dir()


def write_tensors(tensors: dict[str, torch.Tensor], file: Path) -> None:
    """Whole tensors to one file. Raises StorageError."""
    with tensor_file_errors(file):
        save_file(tensors, file)


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """Whole tensors from one file, on the CPU; their bytes are read when they are used. Raises StorageError."""
    with tensor_file_errors(file):
        tensors: dict[str, torch.Tensor] = load_file(file)
    return tensors


@contextmanager
def tensor_file_errors(where: Path) -> Iterator[None]:
    """What safetensors and the system say of a file, as a StorageError. safetensors has the errno in words only."""
    try:
        with storage_errors(where):
            yield
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        with storage_errors(where):
            if number is not None:
                raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        raise StorageError(f"the tensors cannot be read or written: {error}", where=str(where)) from error


def write_sharded(state: dict[str, torch.Tensor], directory: Path, *, world_size: int) -> None:
    """Write each rank's part of `state` (DTensors; plain tensors once). A collective.

    Raises StorageError, on every rank where one fails.
    """
    target = directory / SHARDED_DIRECTORY
    writer = HuggingFaceStorageWriter(
        str(target), fqn_to_index_mapping=_files(state, FILE_BYTES * world_size), save_distributed=True
    )
    with _agreed_errors(target):
        save(state, storage_writer=writer)


def read_sharded(state: dict[str, torch.Tensor], directory: Path) -> None:
    """Fill the tensors of `state` in place: each rank its part of DTensors, and all of plain tensors. A collective.

    What is saved under other names is left out. Raises StorageError, on every rank where one fails.
    """
    source = directory / SHARDED_DIRECTORY
    with _agreed_errors(source), warnings.catch_warnings(action="ignore"):  # torch takes a single process for a mistake
        load(state, storage_reader=HuggingFaceStorageReader(str(source)))


def sharded_tensors(directory: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and precision of every whole tensor in a sharded checkpoint, by name. Raises StorageError."""
    source = directory / SHARDED_DIRECTORY
    with _agreed_errors(source):
        metadata = HuggingFaceStorageReader(str(source)).read_metadata().state_dict_metadata
    return {
        name: (entry.size, entry.properties.dtype)
        for name, entry in metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def read_optimizer(directory: Path) -> dict[str, torch.Tensor]:
    """The optimizer's state in whole tensors on the CPU, by `<parameter name>/<state name>`. A collective.

    Raises StorageError.
    """
    if not is_sharded(directory):
        return read_tensors(directory / OPTIMIZER_FILE)
    saved = sharded_tensors(directory).items()
    state = {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in saved if "/" in name}
    read_sharded(state, directory)
    return state


def model_state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A model's parameters and saved buffers by name, sharing memory; a weight that is shared has its first name."""
    return {name: parameter.detach() for name, parameter in module.named_parameters()} | saved_buffers(module)


def _files(state: dict[str, torch.Tensor], file_bytes: int) -> dict[str, int]:
    """Number of the file, from 1, that each tensor goes to."""
    numbers, total = {}, 0
    for name, tensor in state.items():
        total += tensor.numel() * tensor.element_size()
        numbers[name] = 1 + total // file_bytes
    last = sorted(set(numbers.values()))
    return {name: 1 + last.index(number) for name, number in numbers.items()}


@contextmanager
def _agreed_errors(where: Path) -> Iterator[None]:
    """What went wrong on one rank, which torch tells all of them, as a StorageError."""
    try:
        with tensor_file_errors(where):
            yield
    except CheckpointException as failure:
        cause = next(cause for cause, _ in failure.failures.values())
        with tensor_file_errors(where):
            if isinstance(cause, OSError | SafetensorError):
                raise cause from failure
        raise StorageError(f"{type(cause).__name__}: {cause}", where=str(where)) from failure
