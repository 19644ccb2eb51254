"""Dropout whose masks are no stream of random numbers but a function of where a value stands.

A value is dropped by (seed, step, row, position in its row, module, channel) alone, so that whichever process computes
a row, in whatever pass, beside which others and how often, it loses the same values. Torch's own draws from a stream
for each process, in the order of computing.

    key of a token      mix(mix(mix(seed and step) + row G) + position G) xor the module's key
    bits of channels    the inner half of mix(key xor pair G): 16 for each of a pair of channels
    kept                where the bits, as a number from 0 to 1, are below 1 - p; then scaled by 1 / (1 - p)

mix is C. Wellons' integer hash "lowbias32", and G is 2^32 over the golden ratio: SplitMix (Steele, Lea and Flood, 2014)
in 32 bits. p is rounded to 15 bits. All of it is integer arithmetic, which every device does alike. The backward pass
makes a mask again instead of keeping it, and so does recomputing a block. A module that a pass calls several times
drops the same each time.

Knows tensors and modules; nothing of data, processes or passes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from rankzero.wording import first_line

_log = logging.getLogger("rankzero.model")

_G = 0x9E3779B9 - 2**32
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B - 2**32
_WHOLE_ROW = -1
"""The position of what stands for a row as a whole."""


class Places:
    """Where the values of the current pass stand, as keys. Set before each forward pass, and good until the next one:
    its backward pass may compute parts of it again."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._tokens_BT: torch.Tensor | None = None
        self._rows_B: torch.Tensor | None = None
        self._predicts_N: torch.Tensor | None = None
        self.unknown: set[str] = set()
        """Modules that were given values of which nobody knows where they stand: they drop as torch does."""
        self.wanted = True
        """Whether anything drops by them. Where nothing does, no keys are made, which are twenty kernels a pass."""

    def begin_pass(
        self,
        step: int,
        rows_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        predicts_N: torch.Tensor | None,
    ) -> None:
        """The next pass is of this step, 0 at first. `rows_BT` has each token's row in the data set, `positions_BT` its
        place in the row, both int64 and of shapes that broadcast to (B, T). `predicts_N`: the places in the pass,
        row after row, that reach the output head; None where each row has one prediction, so that values of shape
        (B, C) stand for whole rows."""
        if not self.wanted:
            return
        digest = hashlib.blake2b(f"{self._seed}/{step}".encode(), digest_size=4).digest()
        (start,) = struct.unpack("<i", digest)
        rows = _mix(_to_int32(rows_BT) * _G + start)
        self._tokens_BT = _mix(rows + _to_int32(positions_BT) * _G)
        self._rows_B = _mix(rows[:, 0] + _WHOLE_ROW * _G) if predicts_N is None else None
        self._predicts_N = predicts_N

    def keys(self, shape: torch.Size) -> torch.Tensor | None:
        """int32 keys of this shape, for values of this shape and channels; None where their places are not known.

        (B, T), or all of it flat; (B, heads, T) for attention of queries to keys; tokens that are predicted from, flat;
        (B) where each row has one prediction.
        """
        tokens = self._tokens_BT
        if tokens is None:
            return None
        if shape == tokens.shape:
            return tokens
        if len(shape) == 3 and (shape[0], shape[2]) == tuple(tokens.shape):
            heads = torch.arange(shape[1], dtype=torch.int32, device=tokens.device)
            return _mix(tokens[:, None, :] + heads[:, None] * _G)
        if len(shape) != 1:
            return None
        if self._rows_B is not None and shape == self._rows_B.shape:
            return self._rows_B
        if shape[0] == tokens.numel():
            return tokens.reshape(-1)
        chosen = None if self._predicts_N is None else tokens.reshape(-1)[self._predicts_N]
        return chosen if chosen is not None and shape == chosen.shape else None

    def what_is_left(self) -> str:
        """That, and as far as it is known where, dropout does not follow from places."""
        where = f"dropout of {', '.join(sorted(self.unknown)[:3])}" if self.unknown else "some of this model's dropout"
        more = f" and {len(self.unknown) - 3} more modules" if len(self.unknown) > 3 else ""
        return f"{where}{more} draws from each process's own stream: losses depend on processes and passes"


class PlacedDropout(torch.nn.Module):
    """Takes the place of a torch.nn.Dropout; `p` is the share of values that are dropped."""

    key: torch.Tensor

    def __init__(self, p: float, name: str, places: Places) -> None:
        super().__init__()
        self.p, self.share, self._name, self._places = p, Share.of(p), name, places
        self.register_buffer("key", module_key(name), persistent=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return values
        keys = self.keys(values)
        if keys is None:
            self._places.unknown.add(self._name)
            return torch.nn.functional.dropout(values, self.p, training=True)
        return drop(values, keys, self.share)

    def keys(self, values: torch.Tensor) -> torch.Tensor | None:
        """What decides of values of shape (…, C), of shape (…); None where their places are not known."""
        keys = self._places.keys(values.shape[:-1])
        return None if keys is None else keys ^ self.key

    def extra_repr(self) -> str:
        return f"p={self.p}"


def place_dropout(model: torch.nn.Module, places: Places) -> int:
    """Put a PlacedDropout where the model has a torch.nn.Dropout that drops some, adapters' included. How many."""
    placed: dict[torch.nn.Module, PlacedDropout] = {}
    for prefix, parent in list(model.named_modules()):
        for name, child in list(parent._modules.items()):
            if type(child) is not torch.nn.Dropout or not 0 < child.p < 1:
                continue
            if child not in placed:
                placed[child] = PlacedDropout(child.p, f"{prefix}.{name}", places).train(child.training)
            parent._modules[name] = placed[child]
    return len(placed)


def module_key(name: str) -> torch.Tensor:
    """What tells a module's masks from those of others: one int32, from its name in the model."""
    digest = hashlib.blake2b(name.encode(), digest_size=4).digest()
    return torch.tensor(struct.unpack("<i", digest), dtype=torch.int32)


@dataclass(frozen=True, slots=True)
class Share:
    """A share of values to drop, as the integers that `factors` works with."""

    below: int
    """Of the numbers from -2^14 to 2^14 - 1, those below this are kept."""
    scale: int
    """The bits of 1 / (1 - p) in float32."""
    factor: float
    """1 / (1 - p) as float32 has it."""

    @classmethod
    @lru_cache
    def of(cls, p: float) -> Share:
        dropped = min(max(1, round(p * 2**15)), 2**15 - 1)
        bits = struct.pack("<f", 2**15 / (2**15 - dropped))
        (scale,), (factor,) = struct.unpack("<i", bits), struct.unpack("<f", bits)
        return cls(2**14 - dropped, scale, factor)


def drop(values: torch.Tensor, keys: torch.Tensor, share: Share) -> torch.Tensor:
    """`values`, shape (…, C), with a share p of them 0 and the others scaled by 1 / (1 - p); keys of shape (…)."""
    dropped: torch.Tensor = _Drop.apply(values, keys, share)  # type: ignore[no-untyped-call]
    return dropped


def factors(keys: torch.Tensor, channels: int, share: Share) -> torch.Tensor:
    """What `drop` multiplies by: 0 or 1 / (1 - p) in float32, of shape (…, C)."""
    return kept(keys, channels, share).to(torch.int32).bitwise_and_(share.scale).view(torch.float32)


def kept(keys: torch.Tensor, channels: int, share: Share) -> torch.Tensor:
    """All bits of an int16 where `drop` keeps a value, and none where it does not, of shape (…, C).

    On integers alone, in place, two channels at once: on a CPU comparisons and booleans are several times as slow.
    """
    pairs = torch.arange(-(-channels // 2), dtype=torch.int32, device=keys.device) * _G
    bits = (keys[..., None] ^ pairs).mul_(_FIRST)
    bits.bitwise_xor_(bits >> 15).mul_(_SECOND)
    each = bits.view(torch.int16)[..., :channels]
    return each.bitwise_right_shift_(1).sub_(share.below).bitwise_right_shift_(15)


def by_kernel(device: torch.device) -> bool:
    """Whether what is dropped on a device takes one kernel there (dropout_triton.py). Compilers make their own."""
    return device.type == "cuda" and not torch.compiler.is_compiling() and _kernel_is_right(device.index)


@lru_cache
def _kernel_is_right(index: int | None) -> bool:
    """Whether it can be made for a GPU, and gives there what the operations here give: asked once, on that GPU."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        return _gives_the_same(torch.device("cuda", index or 0))
    except Exception as error:  # whatever a compiler has to say; the operations here do without
        _log.warning("[MODEL] dropout takes many kernels, not one: Triton says %s", first_line(error))
        return False


def _gives_the_same(device: torch.device) -> bool:
    from rankzero.model.dropout_triton import dropped

    keys, share = torch.arange(-3, 4, dtype=torch.int32, device=device) * _FIRST, Share.of(0.3)
    for dtype, channels in ((torch.float32, 7), (torch.float16, 64), (torch.bfloat16, 1025)):
        values = torch.arange(7 * channels, device=device).view(7, channels).to(dtype) / 64
        wanted = (values * factors(keys, channels, share)).to(dtype)
        if not torch.equal(dropped(values, keys, share.below, share.factor), wanted):
            _log.warning("[MODEL] dropout takes many kernels instead of one: Triton's drops other values in %s", dtype)
            return False
    return True


def alone(values: torch.Tensor, keys: torch.Tensor, share: Share, scale: float = 1.0) -> torch.Tensor:
    """`values`, shape (…, C), that are kept times `scale`, and 0 for the others, where `by_kernel` says so."""
    from rankzero.model.dropout_triton import dropped

    return dropped(values, keys, share.below, scale)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, keys: torch.Tensor, share: Share) -> torch.Tensor:
        ctx.save_for_backward(keys)
        ctx.share = share
        return _scaled(values, keys, share)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (keys,) = ctx.saved_tensors
        return _scaled(gradient, keys, ctx.share), None, None


def _scaled(values: torch.Tensor, keys: torch.Tensor, share: Share) -> torch.Tensor:
    if by_kernel(values.device):
        return alone(values, keys, share, share.factor)
    scaled = values * factors(keys, values.shape[-1], share)
    # A conversion to what it is already has no gradient where torch 2.11 compiles it.
    return scaled if scaled.dtype is values.dtype else scaled.to(values.dtype)


def _mix(bits: torch.Tensor) -> torch.Tensor:
    """lowbias32 of each number, in place; shifts keep the sign, which serves as well."""
    bits.bitwise_xor_(bits >> 16).mul_(_FIRST)
    bits.bitwise_xor_(bits >> 15).mul_(_SECOND)
    return bits.bitwise_xor_(bits >> 16)


def _to_int32(numbers: torch.Tensor) -> torch.Tensor:
    """Both halves of int64 numbers in one."""
    return (numbers ^ (numbers >> 32)).to(torch.int32)
