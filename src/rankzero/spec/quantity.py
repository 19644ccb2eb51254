"""Kubernetes quantities such as 500m or 512Gi. Pure."""

from __future__ import annotations

import re

_SUFFIXES = {"": 1.0, "m": 1e-3, "k": 1e3}
_SUFFIXES |= {letter: 1e3 ** (power + 2) for power, letter in enumerate("MGTPE")}
_SUFFIXES |= {f"{letter}i": 1024.0 ** (power + 1) for power, letter in enumerate("KMGTPE")}


def as_number(quantity: str) -> float:
    """The plain number: cores, bytes or pieces. Raises ValueError where it is not a quantity."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(m|k|[MGTPE]|[KMGTPE]i)?", quantity.strip())
    if match is None:
        raise ValueError(f"not a quantity: {quantity!r}")
    return float(match[1]) * _SUFFIXES[match[2] or ""]


def as_bytes(quantity: str) -> int:
    """Whole bytes of a quantity of memory."""
    return int(as_number(quantity))


def cores(value: float) -> str:
    """`8`, or `500m` for half a core."""
    return str(int(value)) if value == int(value) else f"{round(value * 1000)}m"
