"""What operations on a GPU would read, write and multiply: counted as they are called on tensors without memory."""

from __future__ import annotations

import traceback
import weakref
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

PRODUCTS, BANDWIDTH, LAUNCH = 680e12, 2.7e12, 1.5e-6
ATTENTION = {"_varlen_attn": 450e12, "_varlen_attn_backward": 350e12}
"""What is assumed of an H100: operations a second in products and in attention, bytes a second, seconds of a kernel."""
PEAK = 989e12
"""Its maker's figure for dense bfloat16, which MFU is of."""
MOVES_NOTHING = ("detach", "view", "_unsafe_view", "alias", "t", "empty", "empty_strided", "empty_like", "new_empty")


class Counts(TorchDispatchMode):  # type: ignore[misc]
    """Bytes that are alive and were at most, seconds by operation and line, waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.most = self.operations = 0
        self.seconds = self.flops = self.moved = 0.0
        """`moved`: bytes of operations that memory bounds."""
        self.rows, self.squares = 0, 0.0
        """Of the pass that is computed: how many rows, and the squares of their lengths."""
        self.by_place: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        self.waits: Counter[tuple[str, str]] = Counter()
        self._held: dict[int, int] = {}

    def begin(self) -> None:
        self.most, self.operations = self.live, 0
        self.seconds = self.flops = self.moved = 0.0
        self.by_place.clear()
        self.waits.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func._schema.name.partition("::")[2]
        if func.namespace == "prim":
            return func(*args, **kwargs)
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        here = any(one.device.type == "cuda" for one in given)
        if name in ("_local_scalar_dense", "equal"):
            self._wait(here, name)
            asked = args[0].dtype
            packed = any("masking_utils" in frame.filename for frame in traceback.extract_stack()[-9:])
            made_up = self.rows == 1 or not packed if asked is torch.bool or name == "equal" else 1
            return float(made_up) if asked.is_floating_point and name != "equal" else made_up
        self._wait(here and asks_for_sizes(name, args), name)
        out = func(*args, **kwargs)
        made = [one for one in tree_leaves(out) if isinstance(one, torch.Tensor)]
        if is_blocking_copy(name, args, kwargs, given, made):
            self._wait(True, f"{name} between devices")
        if not func.is_view and name.partition(".")[0] not in MOVES_NOTHING:
            self._cost(func, name, args, kwargs, given, made)
        for one in made:
            if one.device.type == "cuda":
                self._hold(one)
        return out

    def _wait(self, waits: bool, name: str) -> None:
        if waits:
            self.waits[name, place()] += 1

    def _cost(self, func: Any, name: str, args: Any, kwargs: Any, given: Any, made: Any) -> None:
        written = made or _written(func, args, kwargs)  # what returns nothing writes to what it is given
        moved = sum(one.numel() * one.element_size() for one in given + written if one.device.type == "cuda")
        if not moved:
            return
        seconds = flops = 0.0
        if name in ATTENTION:
            flops = 2 * self.squares * given[0].shape[-2] * given[0].shape[-1] * (2.5 if "back" in name else 1)
            seconds = flops / ATTENTION[name]
        elif name == "gemm_4bit":
            flops = 2 * made[0].numel() * given[0].shape[-1]
            seconds = flops / PRODUCTS
        elif func._overloadpacket in flop_registry:
            flops = flop_registry[func._overloadpacket](*args, **kwargs, out_val=made[0])
            seconds = flops / PRODUCTS
        if moved / BANDWIDTH >= seconds:
            self.moved += moved
        seconds = max(seconds, moved / BANDWIDTH) + LAUNCH
        self.operations, self.seconds, self.flops = self.operations + 1, self.seconds + seconds, self.flops + flops
        of_place = self.by_place[name, place()]
        for at, value in enumerate((seconds, 1, moved)):
            of_place[at] += value

    def _hold(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._held:
            self._held[storage._cdata] = size = -(-storage.nbytes() // 512) * 512
            self.live += size
            self.most = max(self.most, self.live)
            weakref.finalize(storage, self._gone, storage._cdata)

    def _gone(self, key: int) -> None:
        self.live -= self._held.pop(key)


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The tensors that an operation changes in place."""
    named = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | kwargs
    changed = [one.name for one in func._schema.arguments if one.alias_info is not None and one.alias_info.is_write]
    return [one for one in tree_leaves([named.get(name) for name in changed]) if isinstance(one, torch.Tensor)]


def place() -> str:
    """The innermost line of ours or of the model's that is being run; none in a backward pass of torch's own."""
    frames = [f for f in traceback.extract_stack() if "/rankzero/" in f.filename or "transformers/" in f.filename]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


class Waits(TorchDispatchMode):  # type: ignore[misc]
    """Real operations that make the host wait for what a device has computed, by name and line."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.found: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func._schema.name.partition("::")[2]
        out = func(*args, **kwargs)
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        made = [one for one in tree_leaves(out) if isinstance(one, torch.Tensor)]
        here = any(one.device.type == self.device for one in given)
        if here and (name in ("_local_scalar_dense", "equal") or asks_for_sizes(name, args)):
            self.found[name, place()] += 1
        if is_blocking_copy(name, args, kwargs, given, made):
            self.found[f"{name} between devices", place()] += 1
        return out


def asks_for_sizes(name: str, args: Any) -> bool:
    """Whether how large the result is follows from values."""
    by_mask = name.strip("_").startswith("index") and len(args) > 1 and isinstance(args[1], list | tuple)
    by_mask = by_mask and any(one is not None and one.dtype is torch.bool for one in args[1])
    return by_mask or name in ("nonzero", "masked_select", "_unique2", "unique_consecutive", "bincount")


def is_blocking_copy(name: str, args: Any, kwargs: Any, given: Any, made: Any) -> bool:
    """Whether it is a copy from one device to another that is waited for."""
    if name not in ("_to_copy", "copy_") or made[0].device == (given[-1] if name == "copy_" else given[0]).device:
        return False
    return not kwargs.get("non_blocking", len(args) > 2 and args[2])
