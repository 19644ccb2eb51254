"""Round numbers along an axis, and how they are written. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

MOST_TICKS = 6


@dataclass(frozen=True, slots=True)
class Axis:
    """From where to where, with marks at round numbers. `log`: equal distances are equal factors."""

    low: float
    high: float
    marks: tuple[tuple[float, str], ...]
    log: bool = False

    def share(self, value: float) -> float:
        """How far along the axis a value lies, from 0 to 1."""
        scale = math.log10 if self.log else float
        low, high = scale(self.low), scale(self.high)
        return (scale(value) - low) / (high - low)


def linear(low: float, high: float, write: Callable[[float, float], str], *, whole: bool = False) -> Axis:
    """An axis over [low, high]. `write` is given a mark and the distance between two; `whole`: marks are integers."""
    if high - low <= max(1e-300, 1e-9 * max(abs(low), abs(high))):  # too near to be told apart
        room = 0.1 * max(abs(low), abs(high))
        room = room if room > 1e-300 else 1.0
        low, high = (low, low + 1) if whole else (low - room, low + room)
    step = _round_step((high - low) / (MOST_TICKS - 1), whole=whole)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(low, high, tuple((k * step, write(k * step, step)) for k in range(first, last + 1)))


def padded(low: float, high: float, write: Callable[[float, float], str]) -> Axis:
    """As `linear`, with room above and below; 0 is the floor of what is never below it and comes near it."""
    room = (high - low) * 0.05
    floor = 0.0 if 0 <= low < 0.35 * high else low - room
    return linear(floor, high + room if high > low else high, write)


def logarithmic(low: float, high: float, write: Callable[[float, float], str]) -> Axis:
    """An axis over positive values."""
    low, high = low / 1.15, high * 1.15
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(decades) <= 3 else (1,)
    every = 1 if len(decades) <= 8 else math.ceil(len(decades) / 6)
    values = [factor * 10.0**decade for decade in decades[::every] for factor in factors]
    return Axis(low, high, tuple((value, write(value, value)) for value in values if low <= value <= high), log=True)


def plain(value: float, step: float) -> str:
    """`0.05`, `1,200`, `20k`, `1.5B`, `3e-05`: as few digits as tell two marks apart."""
    if abs(value) < step * 1e-6:
        return "0"
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.{_decimals(step / size)}f}{letter}"
    if step >= 1e4 or (abs(value) >= 1e5 and step >= 1):
        return f"{value / 1e3:.{_decimals(step / 1e3)}f}k"
    if step < 1e-4:
        digits = max(3, 1 + math.floor(math.log10(abs(value))) - math.floor(math.log10(step)))
        return f"{value:.{digits}g}"
    return f"{value:,.{_decimals(step)}f}"


_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
"""Powers of 1,000, as in a run's log and in what is said before its first step."""


def of_memory(low: float, high: float) -> Axis:
    """As `padded`, over bytes; marks are round in the unit that the highest value has."""
    size, name = _unit(high)
    axis = padded(low / size, high / size, plain)
    marks = tuple((at * size, f"{text} {name}") for at, text in axis.marks)
    return Axis(axis.low * size, axis.high * size, marks)


def memory(value: float) -> str:
    """`1.5 GB`."""
    size, name = _unit(value)
    return f"{value / size:.1f} {name}"


def _unit(value: float) -> tuple[float, str]:
    return next((unit for unit in _SIZES if abs(value) >= unit[0]), _SIZES[-1])


def _round_step(least: float, *, whole: bool) -> float:
    if whole and least <= 1:
        return 1.0
    size = 10.0 ** math.floor(math.log10(least))
    factors = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    return next(size * factor for factor in factors if size * factor >= least * (1 - 1e-9))


def _decimals(step: float) -> int:
    """Digits after the point that a multiple of this needs, at most fifteen."""
    multiples = ((digits, step * 10**digits) for digits in range(15))
    return next((digits for digits, at in multiples if at > 0.5 and abs(at - round(at)) < 1e-6), 15)
