"""A random order of rows that stays the same for ever. Pure: numbers in, an index array out.

Written out here because a library's generator may change its stream between versions, and a resumed run must see the
order it began with.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea and Flood, 2014): the same on every platform and numpy version, for ever."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def permutation(n: int, *, seed: int, stream: int) -> Indices:
    """A random order of 0…n-1 that depends on (n, seed, stream) only. `stream` is the epoch, or -1 for hold-outs."""
    return np.argsort(_keys(0, n, seed, stream), kind="stable").astype(np.int64)


def uniform(number: int, *, seed: int, stream: int) -> float:
    """A random number of [0, 1) that depends on (number, seed, stream) only."""
    return int(_keys(number, 1, seed, stream)[0]) / 2.0**64


def _keys(first: int, n: int, seed: int, stream: int) -> npt.NDArray[np.uint64]:
    """Random numbers for first, first + 1, …, n of them."""
    with np.errstate(over="ignore"):
        gamma = np.uint64(0x9E3779B97F4A7C15)
        key = _mix(np.array([seed % 2**64], dtype=np.uint64) + gamma)
        key = _mix(key ^ _mix(np.array([stream % 2**64], dtype=np.uint64) + gamma))
        return _mix(key + gamma * np.arange(first + 1, first + n + 1, dtype=np.uint64))
