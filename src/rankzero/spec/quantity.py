"""Kubernetes quantities such as 500m or 512Gi. Pure."""

from __future__ import annotations

import math
import re
from fractions import Fraction

_SUFFIXES = {"": Fraction(1), "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000)}
_SUFFIXES |= {letter: Fraction(1000 ** (power + 1)) for power, letter in enumerate("kMGTPE")}
_SUFFIXES |= {f"{letter}i": Fraction(1024 ** (power + 1)) for power, letter in enumerate("KMGTPE")}
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:[eE](?P<power>[+-]?[0-9]{1,2})|(?P<suffix>[numkMGTPE]|[KMGTPE]i))?"
)


def exact(quantity: str) -> Fraction:
    """The plain number: cores, bytes or pieces, so that sums are what they are on the cluster. Raises ValueError where
    it is not a quantity."""
    match = _QUANTITY.fullmatch(quantity.strip())
    if match is None:
        raise ValueError(f"not a quantity: {quantity!r}")
    return Fraction(match["number"]) * Fraction(10) ** int(match["power"] or 0) * _SUFFIXES[match["suffix"] or ""]


def as_number(quantity: str) -> float:
    """As `exact`, for what is shown or divided."""
    number = exact(quantity)
    try:
        return float(number)
    except OverflowError:
        return math.inf


def as_bytes(quantity: str) -> int:
    """Whole bytes of a quantity of memory."""
    return int(exact(quantity))


def cores(value: float) -> str:
    """`8`, or `500m` for half a core."""
    return str(int(value)) if value == int(value) else f"{round(value * 1000)}m"
