"""Gradients of weights that are held in bfloat16, added up over the passes of a step in the memory of one.

A sum in bfloat16 ends where it is some 256 times what is added, so that of a step of many passes most would be lost.
Each sum is rounded up or down at random instead, so that the mean is right (Croci et al., "Stochastic rounding:
implementation, error analysis and applications", 2022): after P passes it is off by some 0.2 % times the root of P / 3,
in no direction. What is drawn depends on the pass and the weight alone: a step that is made again is the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch

from rankzero.engine.adamw_bfloat16 import round_at_random
from rankzero.engine.parallel.parts import local

_DRAWN = 1 << 16
"""How many numbers are drawn, once: as many as the bits that a sum loses have values. Each weight uses them again and
again, from another place on in each pass."""

_AT_ONCE = 256 * _DRAWN
"""Values whose sums are in float32 at a time: 64 MiB of them."""


class HalfSums:
    """The sums of one step."""

    def __init__(self, weights: Iterable[torch.nn.Parameter]) -> None:
        """Of those of `weights` that are bfloat16."""
        self._numbers = {weight: number for number, weight in enumerate(weights) if weight.dtype is torch.bfloat16}
        self._sums: dict[torch.nn.Parameter, torch.Tensor] = {}
        self._passes = 0

    def __contains__(self, weight: torch.nn.Parameter) -> bool:
        return weight in self._numbers

    def begin_pass(self) -> None:
        self._passes += 1

    @torch.no_grad()
    def take(self, weight: torch.nn.Parameter) -> None:
        """Add the gradient that a pass has left to the sum, in its place."""
        gradient, weight.grad = weight.grad, None
        if gradient is None:
            return
        held = self._sums.setdefault(weight, gradient)
        if held is not gradient:
            add_at_random(local(held), local(gradient), place=self._passes * 40_503 + self._numbers[weight] * 9_973)

    def take_all(self) -> None:
        """As `take`, of every weight."""
        for weight in self._numbers:
            self.take(weight)

    def give(self, weight: torch.nn.Parameter) -> None:
        """Make the sum the weight's gradient."""
        held = self._sums.pop(weight, None)
        if held is not None:
            weight.grad = held

    def give_all(self) -> None:
        """As `give`, of every weight that has not been given its sum. The step's passes are over."""
        for weight in list(self._sums):
            self.give(weight)
        self._passes = 0

    def drop(self) -> None:
        """Forget the step."""
        self._sums.clear()
        self._passes = 0


def add_at_random(total: torch.Tensor, more: torch.Tensor, *, place: int) -> None:
    """Add `more` to `total`, both bfloat16 of one shape, and round at random. `place`: which random numbers."""
    if not total.is_contiguous():
        packed = total.contiguous()
        add_at_random(packed, more, place=place)
        total.copy_(packed)
        return
    drawn = _numbers(total.device).roll(-(place % _DRAWN))
    for part, added in zip(torch.split(total.view(-1), _AT_ONCE), torch.split(more.reshape(-1), _AT_ONCE), strict=True):
        # A CPU adds numbers of one precision only, and torch would make the same copy unseen.
        wide = part.float().add_(added.float() if added.device.type == "cpu" else added)
        whole, rest = len(wide) // _DRAWN * _DRAWN, len(wide) % _DRAWN
        part[:whole].view(-1, _DRAWN).copy_(round_at_random(wide[:whole].view(-1, _DRAWN), drawn))
        part[whole:].copy_(round_at_random(wide[whole:], drawn[:rest]))


@cache
def _numbers(device: torch.device) -> torch.Tensor:
    """What the bits that a sum loses are compared with: each value that they may have, once, so that there is no
    direction in them."""
    drawn = torch.randperm(_DRAWN, generator=torch.Generator().manual_seed(0))
    return drawn.to(device, torch.int32)
