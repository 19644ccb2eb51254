"""Which rank is slower than the others: each one's own time for its passes, without waiting. Knows no collective.

A rank's time goes to the others in the reduction of the next step, so that nothing is waited for to know it: on a GPU
it is only known when the device has got there. Under a sharding whose passes gather weights or hand on gradients a pass
ends when the slowest rank's does, so there all would look the same, and nothing is said.

The main rank writes checkpoints beside its passes, which takes processors where these are few. Ranks are compared in
steps without that; where there are too few of them, the main rank is none to be named.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from rankzero.engine.console import logger

WINDOW_STEPS = 20
LEAST_STEPS = 5
"""Fewer say nothing: the first ones warm up."""
SLOW = 1.5
"""Times the others' median from which on a rank is named."""


class PassClock:
    """Times the passes of a step on this rank, on the device's own clock."""

    def __init__(self, device: torch.device) -> None:
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        if device.type == "cuda":
            self._events = _event(), _event()
        self._started = self._ended = 0.0
        self.seconds = 0.0
        """Of the last step that was read."""

    def start(self) -> None:
        """Passes begin."""
        self._started = time.perf_counter()
        if self._events is not None:
            self._events[0].record()

    def stop(self) -> None:
        """They are over, or on a GPU under way."""
        self._ended = time.perf_counter()
        if self._events is not None:
            self._events[1].record()

    def read(self) -> None:
        """Take the time, when the device is known to have got there."""
        if self._events is None:
            self.seconds = self._ended - self._started
        else:
            self.seconds = self._events[0].elapsed_time(self._events[1]) / 1000


@dataclass(frozen=True, slots=True)
class Passes:
    """What one rank did in a step before its reduction: own seconds, and tokens computed, padding included."""

    seconds: float
    tokens: float


class Pace:
    """The ranks of a run beside each other, over the last steps. The main rank keeps one; `hosts` are by rank."""

    def __init__(self, hosts: list[str]) -> None:
        self._hosts = hosts
        self._steps: deque[tuple[bool, tuple[Passes, ...]]] = deque(maxlen=WINDOW_STEPS)
        """Whether a checkpoint was written beside it, and its ranks."""
        self._saving = self._saved = False
        """Beside the step that has begun, and the one before."""
        self._found: dict[int, dict[str, Any]] = {}

    def begin_step(self, *, saving: bool) -> None:
        """A step begins, with a checkpoint being written beside it or not."""
        self._saved, self._saving = self._saving, saving

    def add(self, ranks: tuple[Passes, ...]) -> dict[str, Any]:
        """Take note of the step before the one that has begun. Returns what metrics.jsonl gets of it: the slowest rank
        and how slow it is, from LEAST_STEPS steps on; of one rank, or of times that are not known, nothing."""
        if len(ranks) < 2 or not all(rank.seconds > 0 for rank in ranks):
            return {}
        self._steps.append((self._saved, ranks))
        steps = [ranks for saved, ranks in self._steps if not saved]
        alike = len(steps) >= LEAST_STEPS
        if not alike:
            steps = [ranks for _, ranks in self._steps]
        if len(steps) < LEAST_STEPS:
            return {}
        slowdowns = _slowdowns(steps)
        if not alike:
            slowdowns[0] = min(slowdowns[0], 1.0)
        slowest = max(range(len(slowdowns)), key=slowdowns.__getitem__)
        facts: dict[str, Any] = {"slowest_rank": slowest, "slowest_rank_slowdown": slowdowns[slowest]}
        return facts | ({"straggler": self._name(slowest, slowdowns[slowest])} if slowdowns[slowest] >= SLOW else {})

    def report(self) -> list[dict[str, Any]]:
        """The ranks that were slow in this start: rank, host, the largest slowdown, and for how many steps."""
        return [self._found[rank] for rank in sorted(self._found)]

    def _name(self, rank: int, slowdown: float) -> str:
        known = self._found.get(rank)
        name = f"rank {rank} on {self._hosts[rank]}"
        if known is None:
            words = "[TRAIN] %s takes %.1f times as long for its passes as the others; they wait for it"
            logger.warning(words, name, slowdown)
            known = self._found[rank] = {"rank": rank, "host": self._hosts[rank], "slowdown": slowdown, "steps": 0}
        known["slowdown"] = max(known["slowdown"], slowdown)
        known["steps"] += 1
        return name


def _slowdowns(steps: list[tuple[Passes, ...]]) -> list[float]:
    """Of each rank its time as a multiple of the others'. A rank with more work takes longer, and one with less takes
    longer for each token, since a pass has costs of its own: slow is who is so by both."""
    count = len(steps[0])
    seconds = [sum(step[rank].seconds for step in steps) for rank in range(count)]
    tokens = [max(1.0, sum(step[rank].tokens for step in steps)) for rank in range(count)]
    by_token = [spent / computed for spent, computed in zip(seconds, tokens, strict=True)]

    def beside(values: list[float], rank: int) -> float:
        return values[rank] / median(values[:rank] + values[rank + 1 :])

    return [min(beside(seconds, rank), beside(by_token, rank)) for rank in range(count)]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
