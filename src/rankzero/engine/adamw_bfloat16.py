"""AdamW for weights that are held in bfloat16 alone, without float32 copies. Knows tensors; nothing of models or files.

Rounded to the nearest bfloat16, a weight does not move at all by less than half a unit in its last place, 0.2 % to
0.4 % of itself, and most steps of a fine-tune are smaller. There are two ways to keep them:

kahan                A second bfloat16 beside each weight holds what rounding took away, and is added to the next step.
                     W. Kahan, "Further remarks on reducing truncation errors", Communications of the ACM, 1965.
stochastic_rounding  Sums are rounded up or down at random, up with the probability that makes the mean right: to the
                     32 bits of a float32 a random number of 16 bits is added, then the low 16 bits are cut off.

Both are what P. Zamirai et al., "Revisiting BFloat16 Training", 2020, do to weights. All arithmetic is in float32. The
two moments are held in bfloat16 as well, and always rounded at random: with beta2 = 0.999 a second moment falls by no
more than 0.1 % a step, so rounded to the nearest it would never fall.

Random numbers are no stream but a function of (seed, the weight's number, its step, the element's place in the whole
weight). So a run that was stopped continues with the same ones, a part of a weight gets those that the whole one would
get, whatever spreads it, and every device draws the same.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
from collections.abc import Iterable
from functools import lru_cache
from math import prod
from typing import Any, Literal

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from rankzero.wording import first_line

Keep = Literal["kahan", "stochastic_rounding"]

CHUNK_ELEMENTS = {"cpu": 2**18}
"""Elements that are computed at once, by kind of device: what is made on the way takes some 40 bytes for each of them,
which should stay in a CPU's caches, and on other devices be worth starting kernels for."""
OTHER_CHUNK_ELEMENTS = 2**24
KERNEL_ELEMENTS = 2**30
"""Elements that one kernel moves: their places fit an int32."""
_LOW_HALF = 0xFFFF
_MAY_DIFFER = 0.01
"""Share of elements whose last bit a kernel may have otherwise: it may round a product and a sum once."""
_log = logging.getLogger("rankzero.engine")


class BFloat16AdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov & Hutter, "Decoupled Weight Decay Regularization", 2019) over bfloat16 weights.

    With g the gradient and t the weight's step, 1 at first:

        m <- m + (1 - beta1) (g - m)            v <- beta2 v + (1 - beta2) g²
        u  = -lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) - lr weight_decay w

        stochastic_rounding:  w <- round_at_random(w + u)
        kahan:                y = u + c;   s = nearest(w + y);   c <- nearest((w - s) + y);   w <- s

    Weights in float32 among the others are moved as they are, with float32 moments. State of each weight: `step`, a
    float32 number on the CPU, `exp_avg`, `exp_avg_sq`, and with kahan `compensation`, all of the weight's shape and
    precision. Weights may be DTensors that are cut by rows, and then so is their state.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        keep: Keep,
        seed: int,
    ) -> None:
        """Each group has `params`, `weight_decay`, and for each weight in `numbers` its number, which no other weight
        of any group has, and in `begins` the place of its first element in the whole weight: 0 for a whole one."""
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps})
        self._keep, self._seed = keep, seed

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every weight that has a gradient. There is no closure to call."""
        for group in self.param_groups:
            for weight, number, begin in zip(group["params"], group["numbers"], group["begins"], strict=True):
                if weight.grad is not None:
                    gradient = _own(weight.grad).reshape(-1)
                    self._move(weight, gradient, group, number, begin + _first_element(weight))

    def _move(
        self, weight: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any], number: int, begin: int
    ) -> None:
        state = self.state[weight]
        names = ["exp_avg", "exp_avg_sq"]
        if self._keep == "kahan" and weight.dtype is torch.bfloat16:
            names.append("compensation")
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            for name in names:
                state[name] = torch.zeros_like(weight, memory_format=torch.contiguous_format)
        state["step"] += 1
        step = int(state["step"].item())
        flat = [_own(tensor).view(-1) for tensor in (weight, *(state[name] for name in names))]
        key = f"{self._seed}/{number}/{step}"
        one = by_kernel(weight.device) and weight.dtype is torch.bfloat16
        (_move_by_kernel if one else _move_by_operations)(flat, gradient, group, step, key, begin)


def round_at_random(values: torch.Tensor, random_bits: torch.Tensor) -> torch.Tensor:
    """Float32 `values`, of any shape, as bfloat16: each is rounded to one of its two neighbours, and if the integers
    from 0 to 65535 in `random_bits` (int32) are equally likely, its expectation is itself. What is no number stays so:
    NVIDIA's has all bits set, and the sum of it and a random one would be a zero."""
    bits = values.view(torch.int32) + random_bits
    rounded = bits.bitwise_and_(~_LOW_HALF).view(torch.float32)
    return torch.where(values.isnan(), values, rounded).to(torch.bfloat16)


def random_bits(key: str, begin: int, count: int, device: torch.device) -> torch.Tensor:
    """32 random bits for each place from `begin` on, shape (count,), int32: a function of the key and the place.

    C. Wellons' integer hash "lowbias32" of the place, with one half of the key added before and one mixed in between.
    """
    first, second = _halves_of(key)
    bits = torch.arange(count, dtype=torch.int32, device=device)
    bits.add_(_signed(begin + first))
    bits.bitwise_xor_(_shifted(bits, 16)).mul_(_signed(0x7FEB352D)).bitwise_xor_(second)
    bits.bitwise_xor_(_shifted(bits, 15)).mul_(_signed(0x846CA68B))
    return bits.bitwise_xor_(_shifted(bits, 16))


def _halves_of(key: str) -> tuple[int, int]:
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    first, second = (int.from_bytes(digest[at : at + 4], "little", signed=True) for at in (0, 4))
    return first, second


def by_kernel(device: torch.device) -> bool:
    """Whether weights on a device are moved by one kernel there (adamw_triton.py)."""
    return device.type == "cuda" and _kernel_is_right(device.index)


@lru_cache
def _kernel_is_right(index: int | None) -> bool:
    """Whether it can be made for a GPU, and moves weights there as the operations here do: asked once, on that GPU."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        right = moves_the_same(torch.device("cuda", index or 0))
    except Exception as error:  # whatever a compiler has to say; the operations here do without
        _log.warning("[MODEL] the optimizer takes many kernels, not one: Triton says %s", first_line(error))
        return False
    if not right:
        _log.warning("[MODEL] the optimizer takes many kernels instead of one: Triton's moves weights elsewhere")
    return right


def moves_the_same(device: torch.device) -> bool:
    """Whether the kernel moves weights as the operations do, but for a last bit here and there."""
    group = {"betas": (0.9, 0.999), "eps": 1e-8, "lr": 0.01, "weight_decay": 0.1}
    draw = torch.Generator().manual_seed(0)
    for kept in (0, 1):
        start = [torch.randn(5000, generator=draw) for _ in range(4 + kept)]
        start[2].abs_()
        ours, theirs = ([tensor.to(device, torch.bfloat16) for tensor in start] for _ in range(2))
        _move_by_kernel([*ours[:3], *ours[4:]], ours[3], group, 3, "probe", 2**31 - 2000)
        _move_by_operations([*theirs[:3], *theirs[4:]], theirs[3], group, 3, "probe", 2**31 - 2000)
        for mine, other in zip(ours, theirs, strict=True):
            off = mine != other
            if off.float().mean() > _MAY_DIFFER or not torch.allclose(
                mine.float(), other.float(), rtol=0.02, atol=0.01
            ):
                return False
    return True


def _move_by_kernel(
    flat: list[torch.Tensor], gradient: torch.Tensor, group: dict[str, Any], step: int, key: str, begin: int
) -> None:
    from rankzero.engine.adamw_triton import Numbers, move

    w, m, v, *owed = flat
    (beta1, beta2), lr = group["betas"], group["lr"]
    numbers = Numbers(beta1, beta2, group["eps"], -lr / (1 - beta1**step), -lr * group["weight_decay"], 1 - beta2**step)
    halves = [_halves_of(f"{key}/{purpose}") for purpose in ("moments", "weight")]
    for start in range(0, len(w), KERNEL_ELEMENTS):
        part = slice(start, start + KERNEL_ELEMENTS)
        of_m, of_w = ((_signed(begin + start + first), second) for first, second in halves)
        move(w[part], (m[part], v[part]), owed[0][part] if owed else None, gradient[part], (of_m, of_w), numbers)


def _move_by_operations(
    flat: list[torch.Tensor], gradient: torch.Tensor, group: dict[str, Any], step: int, key: str, begin: int
) -> None:
    chunk = CHUNK_ELEMENTS.get(flat[0].device.type, OTHER_CHUNK_ELEMENTS)
    for start in range(0, len(flat[0]), chunk):
        w, m, v, *c = (tensor[start : start + chunk] for tensor in flat)
        g = gradient[start : start + chunk]
        draw = _Draw(key, begin + start, len(w), w.device)
        change = _advance(m, v, g.float(), group, step, draw)
        change.add_(w, alpha=-group["lr"] * group["weight_decay"])
        if c:
            _add_compensated(w, c[0], change)
        else:
            _put(w, change.add_(w), draw.upper_half("weight") if w.dtype is torch.bfloat16 else None)


class _Draw:
    """Random numbers for the elements of one chunk."""

    def __init__(self, key: str, begin: int, count: int, device: torch.device) -> None:
        self._key, self._where = key, (begin, count, device)

    def halves(self, purpose: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Two independent numbers from 0 to 65535 for each element."""
        bits = random_bits(f"{self._key}/{purpose}", *self._where)
        return _shifted(bits, 16), bits.bitwise_and_(_LOW_HALF)

    def upper_half(self, purpose: str) -> torch.Tensor:
        """One number from 0 to 65535 for each element."""
        return _shifted(random_bits(f"{self._key}/{purpose}", *self._where), 16)


def _advance(
    m: torch.Tensor, v: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any], step: int, draw: _Draw
) -> torch.Tensor:
    """Move the moments in place. Returns what Adam adds to the weights, in float32, without weight decay."""
    beta1, beta2 = group["betas"]
    new_m = m.float().lerp(gradient, 1 - beta1)
    new_v = v.float().mul(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    for_m, for_v = draw.halves("moments") if m.dtype is torch.bfloat16 else (None, None)
    _put(m, new_m, for_m)
    _put(v, new_v, for_v)
    root = new_v.div_(1 - beta2**step).sqrt_().add_(group["eps"])
    return new_m.div_(root).mul_(-group["lr"] / (1 - beta1**step))


def _put(target: torch.Tensor, values: torch.Tensor, random: torch.Tensor | None) -> None:
    """Write float32 values; where random numbers are given, rounded by them."""
    target.copy_(values if random is None else round_at_random(values, random))


def _add_compensated(w: torch.Tensor, c: torch.Tensor, change: torch.Tensor) -> None:
    """Add `change` (float32) and what is owed from before to bfloat16 weights, and keep what is owed now."""
    change.add_(c)
    before = w.float()
    w.copy_(before + change)
    c.copy_(before.sub_(w).add_(change))


def _first_element(weight: torch.Tensor) -> int:
    """Where this process's rows of a DTensor begin in the whole one."""
    if not isinstance(weight, DTensor) or not weight.ndim:
        return 0
    _, offset = compute_local_shape_and_global_offset(weight.shape, weight.device_mesh, weight.placements)
    return int(offset[0]) * prod(weight.shape[1:])


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """This process's rows of a DTensor, or a plain tensor itself; shares memory."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _shifted(bits: torch.Tensor, places: int) -> torch.Tensor:
    """Shifted to the right, with zeros from the left."""
    return (bits >> places).bitwise_and_((1 << (32 - places)) - 1)


def _signed(number: int) -> int:
    """The low 32 bits of a number, as an int32 has them."""
    return (number + 2**31) % 2**32 - 2**31
