"""What is asked and seen with each token that transformers' `generate` writes. Knows nothing of prompts or answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import LogitsProcessor, StoppingCriteria

from rankzero.errors import NonFiniteError

NO_NUMBERS_HINT = "the weights may be damaged, or too large for the precision: is it another than they were trained in?"
"""Where what a model computes is NaN or Inf."""


class Poll(StoppingCriteria):  # type: ignore[misc]  # transformers' classes are not typed
    """Asks a question with each token that is computed, also with those that only other processes need."""

    def __init__(self, ask: Callable[[], bool]) -> None:
        self._ask, self._wanted = ask, False

    @contextmanager
    def asked_by(self, model: torch.nn.Module) -> Iterator[None]:
        """Ask before each forward pass of `model`."""

        def ask(*_arguments: object) -> None:
            self._wanted = self._ask() or self._wanted

        hook = model.register_forward_pre_hook(ask)
        try:
            yield
        finally:
            hook.remove()

    def __call__(self, input_ids: torch.Tensor, _scores: Any, **_others: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), self._wanted, dtype=torch.bool, device=input_ids.device)


class Numbers(LogitsProcessor):  # type: ignore[misc]  # transformers' classes are not typed
    """Raises NonFiniteError where a model's scores are NaN, before a token is chosen of them: none can be drawn."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __call__(self, _input_ids: torch.Tensor, scores_BV: torch.Tensor) -> torch.Tensor:
        if scores_BV.amax(dim=-1).isnan().any():
            raise NonFiniteError("its answer is NaN", where=self._where, hint=NO_NUMBERS_HINT)
        return scores_BV


class NotNumbers(LogitsProcessor):  # type: ignore[misc]  # transformers' classes are not typed
    """Sees where a model's scores are NaN. Waits for no device until it is asked."""

    def __init__(self) -> None:
        self._steps: list[torch.Tensor] = []

    def __call__(self, _input_ids: torch.Tensor, scores_BV: torch.Tensor) -> torch.Tensor:
        self._steps.append(scores_BV.amax(dim=-1).isnan())
        return scores_BV

    def within(self, row: int, length: int) -> bool:
        """Whether a row had such a score among its first tokens, as many as its answer has."""
        return bool(torch.stack(self._steps[:length])[:, row].any()) if length else False
