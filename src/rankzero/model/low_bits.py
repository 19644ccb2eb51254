"""Frozen weights in fewer bits: how they are packed, and how they look unpacked to whoever reads them.

A held weight is a parametrisation: `module.weight` is the unpacked weight in the precision that the model computes in,
made anew at each read, and the parameter behind it is the packed one. So whatever computes with a weight, adapters
included, works as before. Knows nothing of loading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.nn.utils import parametrize

from rankzero.model.nf4 import NF4_BLOCK, unpack_nf4

FLOAT8 = torch.float8_e4m3fn
FLOAT8_MAX = torch.finfo(FLOAT8).max
BLOCK = 128
"""One scale for BLOCK x BLOCK values of a matrix, as published FP8 checkpoints have it: theirs are kept exactly."""
_AT_ONCE = 2**21
"""Values that are scaled at once where that takes copies."""


class Float8Weight(torch.nn.Module):
    """Unpacks 8-bit floats."""

    scale: torch.Tensor

    def __init__(self, scale: torch.Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.dtype = dtype

    @torch.no_grad()
    def forward(self, packed: torch.Tensor) -> torch.Tensor:
        return from_float8(packed, self.scale, self.dtype)

    def outline(self, packed: torch.Tensor) -> torch.Tensor:
        """Stands for the unpacked weight where only its shape, precision and place matter."""
        return torch.empty((), dtype=self.dtype, device=packed.device).expand(packed.shape)

    def some(self, packed: torch.Tensor, rows: slice) -> tuple[torch.Tensor, Float8Weight]:
        """Of a weight (experts, …, …) some experts, and what unpacks them, to the same values."""
        return packed[rows].clone(), Float8Weight(self.scale[rows].clone(), self.dtype)


class Nf4Weight(torch.nn.Module):
    """Unpacks 4-bit NormalFloats of bitsandbytes."""

    def __init__(self, quant_state: Any) -> None:
        super().__init__()
        self.quant_state = quant_state

    @torch.no_grad()
    def forward(self, packed: torch.Tensor) -> torch.Tensor:
        return unpack_nf4(packed, self.quant_state)

    def outline(self, packed: torch.Tensor) -> torch.Tensor:
        """Stands for the unpacked weight where only its shape, precision and place matter."""
        return torch.empty((), dtype=self.quant_state.dtype, device=packed.device).expand(self.quant_state.shape)

    def some(self, packed: torch.Tensor, rows: slice) -> tuple[torch.Tensor, Nf4Weight]:
        """Of a weight (experts, …, …) some experts, and what unpacks them, to the same values.

        Experts have to begin and end with a block of NF4_BLOCK values. Where they do not begin and end with a block of
        scales as well, scales are kept in float32: 0.05 bytes more for a weight.
        """
        from bitsandbytes.functional import QuantState, dequantize_blockwise

        state = self.quant_state
        each = prod(state.shape[1:])
        values = slice(rows.start * each, rows.stop * each)
        if values.start % NF4_BLOCK or values.stop % NF4_BLOCK or state.blocksize != NF4_BLOCK:
            raise ValueError("these experts do not begin and end with a block of their packed weight")
        blocks, nested = _divided(values, NF4_BLOCK), {}
        scales = state.absmax
        if state.nested:
            outer = state.state2
            if blocks.start % outer.blocksize or blocks.stop % outer.blocksize:
                scales = dequantize_blockwise(scales, outer) + state.offset
            else:
                kept = outer.absmax[_divided(blocks, outer.blocksize)].clone()
                inner = QuantState(absmax=kept, code=outer.code, blocksize=outer.blocksize, dtype=outer.dtype)
                nested = {"offset": state.offset, "state2": inner}
        part = QuantState(
            absmax=scales[blocks].clone(),
            shape=torch.Size((rows.stop - rows.start, *state.shape[1:])),
            code=state.code,
            blocksize=state.blocksize,
            quant_type=state.quant_type,
            dtype=state.dtype,
            **nested,
        )
        two_in_a_byte = packed.reshape(-1).view(torch.uint8)[_divided(values, 2)].clone()
        return two_in_a_byte.view(packed.dtype).reshape(-1, 1), Nf4Weight(part)


def _divided(span: slice, by: int) -> slice:
    return slice(span.start // by, span.stop // by)


class Float8Linear(torch.nn.Linear):
    """A linear layer over a held weight that keeps only the packed one for the backward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held: Any = self.parametrizations["weight"]  # type: ignore[index]
        dtype = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        out: torch.Tensor = _Float8Product.apply(x.to(dtype), held.original, held[0].scale)  # type: ignore[no-untyped-call]
        return out if self.bias is None else out + self.bias.to(dtype)


class _Float8Product(torch.autograd.Function):
    """x @ weight.T, with a gradient for x alone."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(packed, scale)
        return functional.linear(x, from_float8(packed, scale, x.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        packed, scale = ctx.saved_tensors
        return gradients[0] @ from_float8(packed, scale, gradients[0].dtype), None, None


def to_float8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(packed, scale) of a weight of shape (..., R, C); the scale has shape (..., R / BLOCK, C / BLOCK), rounded up."""
    rows, columns = weight.shape[-2:]
    padded = functional.pad(weight.float(), (0, -columns % BLOCK, 0, -rows % BLOCK))
    tiles = padded.reshape(*weight.shape[:-2], padded.shape[-2] // BLOCK, BLOCK, padded.shape[-1] // BLOCK, BLOCK)
    scale = tiles.abs().amax(dim=(-3, -1), keepdim=True) / FLOAT8_MAX
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    packed = (tiles / scale).to(FLOAT8).flatten(-4, -3).flatten(-2, -1)
    return packed[..., :rows, :columns].contiguous(), scale.squeeze(-1).squeeze(-2)


def from_float8(packed: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The weight that `to_float8` packed, in `dtype`, which holds every 8-bit float: they are scaled where they lie.

    Some rows of blocks at a time on a CPU, whose kernels copy what they multiply in another precision, and where the
    last blocks are cut off, since the scales are spread over the values then.
    """
    rows, columns = packed.shape[-2:]
    weight = packed.to(dtype)
    whole = rows % BLOCK == columns % BLOCK == 0
    at_once = rows
    if packed.device.type == "cpu" or not whole:
        at_once = BLOCK * max(1, _AT_ONCE * rows // (BLOCK * max(1, packed.numel())))
    for top in range(0, rows, max(1, at_once)):
        part = weight[..., top : top + at_once, :]
        scales = scale[..., top // BLOCK : -(-(top + at_once) // BLOCK), :]
        if whole:
            part.unflatten(-1, (-1, BLOCK)).unflatten(-3, (-1, BLOCK)).mul_(scales[..., :, None, :, None])  # type: ignore[no-untyped-call]
        else:
            below = scales.repeat_interleave(BLOCK, dim=-2)[..., : part.shape[-2], :]
            part.mul_(below.repeat_interleave(BLOCK, dim=-1)[..., :columns])
    return weight


def hold(module: torch.nn.Module, name: str, unpack: torch.nn.Module) -> None:
    """Let `module.<name>`, a packed parameter, be read as what `unpack` makes of it; once for each forward pass."""
    parametrize.register_parametrization(module, name, unpack, unsafe=True)
    if not isinstance(module, Float8Linear) and "forward" not in vars(module):
        module.forward = _reading_once(module, module.forward)


def is_held(module: torch.nn.Module, name: str) -> bool:
    """Whether a parameter is packed."""
    return parametrize.is_parametrized(module, name)


def keep_some(module: torch.nn.Module, name: str, rows: slice) -> None:
    """Let a parameter (experts, …, …), packed or not, be that of some experts alone; of others no memory is kept."""
    if not is_held(module, name):
        plain: torch.nn.Parameter = getattr(module, name)
        plain.data = plain.data[rows].clone()  # a view would keep the others' memory
        return
    held: Any = module.parametrizations[name]  # type: ignore[index]
    held.original.data, held[0] = held[0].some(held.original.data, rows)


def tensor_outline(module: torch.nn.Module, name: str) -> torch.Tensor:
    """A parameter, or something of the shape and precision of the weight that a packed one stands for."""
    if not is_held(module, name):
        plain: torch.Tensor = getattr(module, name)
        return plain
    held: Any = module.parametrizations[name]  # type: ignore[index]
    outline: torch.Tensor = held[0].outline(held.original)
    return outline


def release(module: torch.nn.Module, name: str) -> None:
    """Undo `hold`: the parameter becomes the unpacked weight."""
    weight = getattr(module, name)
    parametrize.remove_parametrizations(module, name, leave_parametrized=False)
    setattr(module, name, torch.nn.Parameter(weight, requires_grad=False))
    if not parametrize.is_parametrized(module):
        vars(module).pop("forward", None)


@contextmanager
def outlined(model: torch.nn.Module) -> Iterator[None]:
    """Let the tensors of packed experts look like plain ones without memory, in their order, inside the block.

    peft wraps parametrised tensors in another order than plain ones, and the order is in the names of its files.
    """
    aside = []
    for module in list(model.modules()):
        names = [] if isinstance(module, Float8Linear) else list(getattr(module, "parametrizations", ()))
        for name in names:
            held: Any = module.parametrizations[name]  # type: ignore[index]
            aside.append((module, name, held.original, held[0]))
            parametrize.remove_parametrizations(module, name, leave_parametrized=False)
            delattr(module, name)
            setattr(module, name, torch.nn.Parameter(held[0].outline(held.original), requires_grad=False))
    try:
        yield
    finally:
        for module, name, packed, unpack in aside:
            delattr(module, name)
            setattr(module, name, packed)
            hold(module, name, unpack)


def _reading_once(module: torch.nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward pass of a module that reads its weights many times, such as experts one after the other. The backward
    pass unpacks them again: kept for it, those of all blocks would take what packing them has saved."""

    def cached(*args: Any, **kwargs: Any) -> Any:
        hooks = _UnpackedAgain(module)
        with parametrize.cached(), torch.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack):
            return forward(*args, **kwargs)

    return cached


class _Kept(NamedTuple):
    """What stands for a tensor that the backward pass wants."""

    restore: Callable[[Any], torch.Tensor]
    value: Any


class _UnpackedAgain:
    """Hooks for saved tensors: of views of a module's unpacked weights only the packed ones are kept.

    Other tensors go to the hooks that were there before, such as those of recomputed or offloaded activations.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        outer: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)  # None where there are none
        self._outer = outer or (_as_it_is, _as_it_is)

    def pack(self, tensor: torch.Tensor) -> _Kept:
        for name, held in self._module.parametrizations.items():  # type: ignore[union-attr, operator]
            unpacked = parametrize._cache.get((id(self._module), name))
            if unpacked is None or unpacked.requires_grad:
                continue
            if unpacked.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
                view = (tensor.shape, tensor.stride(), tensor.storage_offset())
                return _Kept(partial(_unpacked_view, held[0], view), held.original)
        return _Kept(self._outer[1], self._outer[0](tensor))

    @staticmethod
    def unpack(kept: _Kept) -> torch.Tensor:
        return kept.restore(kept.value)


def _unpacked_view(unpack: torch.nn.Module, view: tuple[Any, ...], packed: torch.Tensor) -> torch.Tensor:
    weight: torch.Tensor = unpack(packed)
    return weight.as_strided(*view)


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
