"""Rank 0's values on every process, module by module: no process holds more of a model than it asks for at once.

Knows nothing of how the model is spread afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, MutableMapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from rankzero.engine.distributed import World, gather_objects
from rankzero.errors import ConfigError

_SCALES = ("quant_state", "state2")
"""Under which names bitsandbytes keeps scales, and the scales of scales: objects that hold tensors."""


def keep_as_stored(module: torch.nn.Module, like: torch.nn.Module) -> None:
    """Have `take_from_main` give each parameter the precision that it has in `like`, the same module on meta.

    As long as they are as their files have them, weights are the files' pages, which take no memory of the process.
    Buffers, which are small, have that precision at once.
    """
    for name, parameter in like.named_parameters():
        module.get_parameter(name).held_as = parameter.dtype  # type: ignore[attr-defined]
    for name, buffer in like.named_buffers():
        own = module.get_buffer(name)
        own.data = own.data.to(buffer.dtype)


def _held_as(tensor: torch.Tensor) -> torch.dtype:
    wanted: torch.dtype = getattr(tensor, "held_as", tensor.dtype)
    return wanted


def check_same_model(module: torch.nn.Module) -> None:
    """Raise ConfigError on every rank where names, shapes or precisions differ between ranks. A collective."""
    found = [(name, tuple(tensor.shape), _held_as(tensor)) for _, name, tensor in tensors(module)]
    digests = gather_objects(hashlib.sha256(repr(found).encode()).hexdigest())
    if len(set(digests)) > 1:
        hint = "give every process the same model files and the same versions of torch, transformers and peft"
        raise ConfigError("the processes have different models", where="model.name", hint=hint)


def take_from_main(
    module: torch.nn.Module, world: World, device: torch.device, *, leave: Collection[torch.Tensor] = ()
) -> None:
    """Put every tensor of `module` on `device` with rank 0's value. A collective; DTensors are left as they are, and
    those of `leave`.

    Ranks other than 0 may come with tensors on the meta device. Weights that are shared stay shared, and what a module
    keeps as a plain attribute is placed as its parameters and buffers are.
    """
    placed: dict[int, torch.Tensor] = {}
    left = {id(tensor) for tensor in leave}
    for holder, name, tensor in list(tensors(module)):
        if isinstance(tensor, DTensor) or id(tensor) in left:
            continue
        key = name.rpartition(".")[2]
        if id(tensor) not in placed:
            value = _value(tensor, world, device)
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            placed[id(tensor)] = torch.nn.Parameter(value, tensor.requires_grad) if is_parameter else value
        holder[key] = placed[id(tensor)]


def _value(tensor: torch.Tensor, world: World, device: torch.device) -> torch.Tensor:
    """Rank 0's value of a tensor, a plain one."""
    if world.is_main:
        value = tensor.detach().to(device, _held_as(tensor)).contiguous()
    else:
        value = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    if value.numel():
        dist.broadcast(value.reshape(-1).view(torch.uint8), src=0)
    return value


def tensors(module: torch.nn.Module) -> Iterator[tuple[MutableMapping[str, Any], str, torch.Tensor]]:
    """(what holds it, full name, tensor) for parameters, buffers, plain attributes and the scales of bitsandbytes;
    shared ones once per holder."""
    for prefix, part in module.named_modules():
        holders: tuple[MutableMapping[str, Any], ...] = (part._parameters, part._buffers, vars(part))
        for holder in holders:
            yield from _tensors_in(holder, prefix)


def _tensors_in(
    holder: MutableMapping[str, Any], prefix: str
) -> Iterator[tuple[MutableMapping[str, Any], str, torch.Tensor]]:
    for key, value in holder.items():
        if isinstance(value, torch.Tensor):
            yield holder, f"{prefix}.{key}", value
        elif key in _SCALES and value is not None:
            yield from _tensors_in(vars(value), f"{prefix}.{key}")
