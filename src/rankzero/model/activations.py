"""Activations kept in the machine's memory between forward and backward pass. Knows tensors; nothing of models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

SMALLEST = 1 << 20
"""Bytes. Smaller tensors are not worth the trip."""


@contextmanager
def offloaded(enabled: bool) -> Iterator[None]:
    """What a forward pass inside saves for its backward pass waits in pinned memory of the machine.

    Weights and small tensors stay where they are. Values, and so gradients, do not change by a bit. On a CPU nothing
    is moved. With gradient checkpointing this moves the inputs of the blocks.
    """
    if not enabled:
        yield
        return
    host = _Host()
    with saved_tensors_hooks(host.pack, _unpack):
        yield


@dataclass(frozen=True, slots=True)
class _Moved:
    """A tensor's values on the host, and where it comes back to."""

    values: torch.Tensor
    device: torch.device


class _Host:
    """Moves each tensor once, however many operations save it: the input of three projections is one tensor."""

    def __init__(self) -> None:
        self._moved: dict[tuple[Any, ...], tuple[StorageWeakRef, _Moved]] = {}

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | _Moved:
        if not _worth_moving(tensor):
            return tensor
        storage = tensor.untyped_storage()
        key = (
            storage.data_ptr(),
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            tensor._version,
        )
        known = self._moved.get(key)
        if known is not None and not _gone(known[0]):  # else other values may have got the same address
            return known[1]
        moved = _Moved(_to_host(tensor), tensor.device)
        self._moved[key] = (StorageWeakRef(storage), moved)  # type: ignore[no-untyped-call]
        return moved


def _gone(storage: StorageWeakRef) -> bool:
    return bool(storage.expired())  # type: ignore[no-untyped-call]


def _unpack(saved: torch.Tensor | _Moved) -> torch.Tensor:
    if isinstance(saved, torch.Tensor):
        return saved
    return saved.values.to(saved.device, non_blocking=saved.values.is_pinned())


def _worth_moving(tensor: torch.Tensor) -> bool:
    plain = type(tensor) is torch.Tensor and tensor.device.type not in ("cpu", "meta")
    return plain and tensor.nbytes >= SMALLEST and not _is_weight(tensor)


def _is_weight(tensor: torch.Tensor) -> bool:
    """A view of a parameter, or of what autocast has made of one."""
    whole = tensor if tensor._base is None else tensor._base
    if isinstance(whole, torch.nn.Parameter):
        return True
    made_by = whole.grad_fn
    if made_by is None or made_by.name() != "ToCopyBackward0":
        return False
    return hasattr(made_by.next_functions[0][0], "variable")


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides where memory has no gaps. The copy is ordered in the stream that made the tensor and
    in which the backward pass runs, so nothing has to wait for it here."""
    pinned = tensor.device.type == "cuda"
    host = torch.empty_like(tensor, device="cpu", pin_memory=pinned)
    return host.copy_(tensor.detach(), non_blocking=pinned)
