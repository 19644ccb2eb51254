"""How a checkpoint's tensors lie on disk: whole files of one writer, or a part from each process. Knows no models.

model/, optimizer.safetensors   whole tensors, written by the main rank (adapters, and replicas)
sharded/                        safetensors of every process: weights under their names in the model, and the
                                optimizer's state as <name>/<state>; each file's header says where its parts belong
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from rankzero.engine.distributed import World
from rankzero.engine.parallel.base import OPTIMIZER_FILE, WEIGHTS_DIRECTORY, Snapshot
from rankzero.engine.parallel.parts import Cut, cut_of, local
from rankzero.errors import StorageError
from rankzero.model.weights import FileLayout, library_errors, saved_buffers

SHARDED_DIRECTORY = "sharded"
FILE_BYTES = 2**30
"""A process writes its part in files of about this size: each is put together in memory before it is written."""


def is_sharded(directory: Path) -> bool:
    """Whether a checkpoint is of a fully sharded run with full weights."""
    return (directory / SHARDED_DIRECTORY).is_dir()


@dataclass(frozen=True, slots=True)
class WholeSnapshot:
    """Whole tensors, which the main rank writes."""

    layout: FileLayout
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    frozen: dict[str, torch.Tensor] = field(default_factory=dict)
    """Weights that are saved and never change: nobody has to copy them."""

    @property
    def nbytes(self) -> int:
        return _bytes((*self.weights.values(), *self.optimizer.values(), *self.frozen.values()))

    @property
    def held(self) -> int:
        return _bytes((*self.weights.values(), *self.optimizer.values()))

    def not_finite(self) -> list[str]:
        return _not_finite(self.weights, _moved_by(self.optimizer))

    def copied(self, into: Snapshot | None = None) -> WholeSnapshot:
        old_weights, old_optimizer = (into.weights, into.optimizer) if isinstance(into, WholeSnapshot) else ({}, {})
        weights, optimizer = on_host(self.weights, old_weights), on_host(self.optimizer, old_optimizer)
        return WholeSnapshot(self.layout, weights, optimizer, self.frozen)

    def write(self, staged: Path, group: dist.ProcessGroup | None = None) -> None:
        del group  # no other rank has anything to write
        with library_errors(staged / WEIGHTS_DIRECTORY):
            self.layout.write(staged / WEIGHTS_DIRECTORY, self.frozen | self.weights)
        write_tensors(self.optimizer, staged / OPTIMIZER_FILE)


class NothingToWrite:
    """The snapshot of a rank beside one that writes everything."""

    @property
    def nbytes(self) -> int:
        return 0

    @property
    def held(self) -> int:
        return 0

    def not_finite(self) -> list[str]:
        return []

    def copied(self, into: Snapshot | None = None) -> NothingToWrite:
        del into
        return self

    def write(self, staged: Path, group: dist.ProcessGroup | None = None) -> None:
        pass


@dataclass(frozen=True, slots=True)
class ShardedSnapshot:
    """This rank's parts of all tensors, as DTensors of one of `cuts`; plain tensors are written once."""

    state: dict[str, torch.Tensor]
    cuts: Sequence[Cut]
    world_size: int
    on_host_already: bool = False

    @property
    def nbytes(self) -> int:
        return sum(-(-_bytes([local(tensor)]) // self._writers(tensor)) for tensor in self.state.values())

    @property
    def held(self) -> int:
        return _bytes(local(tensor) for tensor in self.state.values())

    def not_finite(self) -> list[str]:
        return _not_finite(self.state, _moved_by(self.state))

    def _writers(self, tensor: torch.Tensor) -> int:
        """How many ranks have what this one has of a tensor: among them torch divides it."""
        return cut_of(tensor, self.cuts).copies if isinstance(tensor, DTensor) else self.world_size

    def copied(self, into: Snapshot | None = None) -> ShardedSnapshot:
        if self.on_host_already:
            return self
        old = into.state if isinstance(into, ShardedSnapshot) else {}
        parts = on_host(
            {name: local(tensor) for name, tensor in self.state.items()},
            {name: local(tensor) for name, tensor in old.items()},
        )
        state = {
            name: cut_of(tensor, self.cuts).spread(parts[name], tensor.shape)
            if isinstance(tensor, DTensor)
            else parts[name]
            for name, tensor in self.state.items()
        }
        return ShardedSnapshot(state, self.cuts, self.world_size, on_host_already=True)

    def write(self, staged: Path, group: dist.ProcessGroup | None = None) -> None:
        write_sharded(self.state, staged, world_size=self.world_size, group=group)


def _moved_by(optimizer: Iterable[str]) -> dict[str, None]:
    """The names of weights that an `optimizer` moves, by its `<name>/<state>`."""
    return dict.fromkeys(key.rpartition("/")[0] for key in optimizer)


def _not_finite(weights: Mapping[str, torch.Tensor], names: Iterable[str]) -> list[str]:
    return [name for name in names if name in weights and not is_finite(local(weights[name]))]


def is_finite(tensor: torch.Tensor) -> bool:
    """Without a mask of its size in memory. NaN is the least and the most of whatever has one."""
    if not tensor.numel() or not tensor.is_floating_point() or tensor.element_size() == 1:
        return True
    least, most = torch.aminmax(tensor)
    return bool(least.isfinite() & most.isfinite())


def on_host(tensors: Mapping[str, torch.Tensor], into: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies in the machine's memory: in that of `into` where a tensor there has the same name and form. Those of a GPU
    go to pinned memory and are all under way at once."""
    copies, devices = {}, set()
    for name, tensor in tensors.items():
        pinned = tensor.device.type == "cuda"
        room = into.get(name)
        if room is None or (room.shape, room.dtype) != (tensor.shape, tensor.dtype):
            room = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
        copies[name] = room
        copies[name].copy_(tensor.detach(), non_blocking=pinned)
        if pinned:
            devices.add(tensor.device)
    for device in devices:
        torch.cuda.synchronize(device)
    return copies


def written_by(rank: int, directory: Path) -> list[Path]:
    """The files of a sharded checkpoint that this rank wrote."""
    return sorted(directory.glob(f"{SHARDED_DIRECTORY}/shard-{rank + 1:05d}-*"))


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def write_tensors(tensors: dict[str, torch.Tensor], file: Path) -> None:
    """Whole tensors to one file. Raises StorageError."""
    with library_errors(file):
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, file)


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """Whole tensors from one file, on the CPU; their bytes are read when they are used. Raises StorageError."""
    with library_errors(file):
        tensors: dict[str, torch.Tensor] = load_file(file)
    return tensors


def write_sharded(
    state: dict[str, torch.Tensor], directory: Path, *, world_size: int, group: dist.ProcessGroup | None = None
) -> None:
    """Write each rank's part of `state` (DTensors; plain tensors once). A collective of `group`.

    Raises StorageError, on every rank where one fails.
    """
    target = directory / SHARDED_DIRECTORY
    writer = HuggingFaceStorageWriter(
        str(target), fqn_to_index_mapping=_files(state, FILE_BYTES * world_size), save_distributed=True
    )
    with _agreed_errors(target):
        save(state, storage_writer=writer, process_group=group)


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


def read_weights(
    layout: FileLayout,
    weights: dict[str, torch.Tensor],
    directory: Path,
    mine: Callable[[str, torch.Tensor], torch.Tensor],
) -> None:
    """Fill `weights` of a model of `layout` with what a checkpoint of either kind holds of them. `mine`: what this rank
    has of a whole one, by its name. Raises StorageError."""
    if is_sharded(directory):
        read_sharded(weights, directory)
        return
    for name, whole in layout.read(directory / WEIGHTS_DIRECTORY).items():
        own = weights[name]
        if own.shape != whole.shape:
            shapes = f"{tuple(whole.shape)} is saved, {tuple(own.shape)} is needed"
            raise StorageError(f"a saved weight does not fit this model: {shapes}", where=f"{directory} {name}")
        local(own).copy_(mine(name, whole))


def read_sharded_optimizer(
    directory: Path,
    parts: Mapping[str, torch.Tensor],
    spread: Callable[[str, torch.Tensor, torch.Size], torch.Tensor],
) -> dict[str, torch.Tensor]:
    """This rank's share of the optimizer's state in a sharded checkpoint, by `<parameter name>/<state name>`. `parts`
    are what it has of the parameters that are trained; `spread` makes of such a part, and the shape of the whole one,
    the tensor that is read into. Raises StorageError."""
    state = {}
    for key, (shape, dtype) in sharded_tensors(directory).items():
        name, is_state, _ = key.rpartition("/")
        if is_state and name in parts:
            part = parts[name]
            empty = torch.empty(part.shape if shape else shape, dtype=dtype, device=part.device)
            state[key] = spread(name, empty, shape)
    read_sharded(state, directory)
    return {key: local(tensor) for key, tensor in state.items()}


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


def whole_on_main(state: Mapping[str, torch.Tensor], cuts: Sequence[Cut], world: World) -> dict[str, torch.Tensor]:
    """Whole tensors on the CPU of the main rank, gathered one after the other; {} on the others. A collective."""
    whole = {}
    for name, tensor in state.items():
        value = tensor
        if isinstance(tensor, DTensor):
            value = cut_of(tensor, cuts).gather(local(tensor), tensor.shape)
        if world.is_main:
            whole[name] = value.detach().cpu()
    return whole


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
        with library_errors(where):
            yield
    except CheckpointException as failure:
        cause = next(cause for cause, _ in failure.failures.values())
        with library_errors(where):
            if isinstance(cause, OSError | SafetensorError):
                raise cause from failure
        raise StorageError(f"{type(cause).__name__}: {cause}", where=str(where)) from failure
