"""Sampling: how a model's tokens are chosen, and how many. Knows no model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rankzero.errors import Problem, UsageError

_SEEDS = range(-(2**63), 2**64)
"""What torch takes."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Temperature 0 takes the likeliest token each time."""

    max_new_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    """Only the likeliest tokens that together have this probability."""
    top_k: int = 0
    """Only so many of the likeliest; 0: of all."""
    seed: int | None = None
    """Draws that are the same each time; None: others."""

    def __post_init__(self) -> None:
        """Raise UsageError with every value that there is no such draw for."""
        wrong = [
            ("max_new_tokens", self.max_new_tokens, self.max_new_tokens >= 1, "at least 1"),
            ("temperature", self.temperature, 0 <= self.temperature < math.inf, "0 or more, and finite"),
            ("top_p", self.top_p, 0 <= self.top_p <= 1, "from 0 to 1"),
            ("top_k", self.top_k, self.top_k >= 0, "0 or more"),
            ("seed", self.seed, self.seed is None or self.seed in _SEEDS, "from -2^63 to 2^64 - 1"),
        ]
        problems = [
            Problem(f"it is {value}", name, f"it is to be {wanted}") for name, value, good, wanted in wrong if not good
        ]
        drawn = [("top_p", self.top_p != 1), ("top_k", self.top_k != 0), ("seed", self.seed is not None)]
        if not problems and self.temperature == 0:
            hint = "choose a temperature, such as 0.7, or leave it out"
            problems = [Problem("nothing is drawn at temperature 0", name, hint) for name, given in drawn if given]
        if problems:
            raise UsageError(problems)
