"""Sampling: how a model's tokens are chosen, and how many. Knows no model."""

from __future__ import annotations

from dataclasses import dataclass


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
