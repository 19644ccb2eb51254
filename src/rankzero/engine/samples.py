"""Answers of the model that is trained, while it is trained. Knows when they are due; writes no file.

They are greedy and computed in evaluation mode, so no stream of random numbers moves and no weight does: a run with
prompts ends in the same bits as one without. A process answers one prompt at a time, and all processes together answer
as many at once as they are; where weights lie in parts, each computes as long as any of them does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from rankzero.data.prompts import Prompt
from rankzero.engine.console import logger
from rankzero.engine.distributed import World, any_rank, gather_objects
from rankzero.engine.parallel.base import Parallel
from rankzero.engine.text_scores import without_reasoning
from rankzero.model.generate import Reply, Speaker, reply
from rankzero.model.out_of_memory import free_what_is_left, suppress_out_of_memory
from rankzero.spec.run_spec import EvalSpec
from rankzero.spec.schedule import Schedule, is_due

_SHOWN, _SHOWN_LETTERS = 3, 60
"""Of each time: answers in the log, and of each prompt and answer so much."""

Row = dict[str, Any]
"""An object of samples.jsonl."""


@dataclass(frozen=True, slots=True)
class Samples:
    """The prompts of a run and who answers them."""

    prompts: tuple[Prompt, ...]
    speaker: Speaker
    stop_ids: tuple[int, ...]
    spec: EvalSpec
    schedule: Schedule
    parallel: Parallel
    world: World
    device: torch.device
    autocast: Callable[[], AbstractContextManager[None]]

    def due(self, step: int) -> bool:
        """Before the first step, and whenever the run is evaluated, or would be if it had what to evaluate on."""
        return step == 0 or is_due(self.spec.every, step, self.schedule)

    def take(self, step: int, *, stop_wanted: Callable[[], bool], tick: Callable[[int], None]) -> list[Row] | None:
        """The rows of this step, on every rank; `tick` hears how many prompts are answered. None, on every rank, where
        `stop_wanted` came true on one of them, which is asked with each token. A collective."""
        together = self.parallel.same_passes and self.world.world_size > 1
        mine: dict[int, Row] = {}
        done = 0

        def cut_short() -> bool:
            return any_rank(stop_wanted(), self.device) if together else stop_wanted()

        self.parallel.model.eval()
        try:
            for indices in self._rounds():
                if any_rank(stop_wanted(), self.device):
                    return None
                own = self.world.rank < len(indices)
                index = indices[self.world.rank if own else 0]
                if own or together:
                    row = self._answered(step, index, cut_short, together=together)
                    mine |= {index: row} if own and row is not None else {}
                done += len(indices)
                tick(done)
            if any_rank(stop_wanted(), self.device):
                return None
        finally:
            self.parallel.model.train()
        found = {index: row for rows in gather_objects(mine) for index, row in rows.items()}
        return [found[index] for index in sorted(found)]

    def _rounds(self) -> Iterator[Sequence[int]]:
        """Which prompts are answered at the same time: with images or without, since those run other parts of a
        model."""
        for sighted in (False, True):
            alike = [index for index, prompt in enumerate(self.prompts) if bool(prompt.images) is sighted]
            for first in range(0, len(alike), self.world.world_size):
                yield alike[first : first + self.world.world_size]

    def _answered(self, step: int, index: int, cut_short: Callable[[], bool], *, together: bool) -> Row | None:
        """None where there is no memory for it: an answer is not worth a run. Of processes that compute together none
        can go on alone, so there that is the run's error."""
        prompt, longest = self.prompts[index], self.spec.max_new_tokens
        begun = time.monotonic()

        def ask() -> Reply:
            with self.autocast():
                return reply(self.speaker, prompt, self.stop_ids, longest, cut_short=cut_short, together=together)

        found = None
        if together:
            found = ask()
        else:
            with suppress_out_of_memory():
                found = ask()
        if found is None:
            free_what_is_left()
            logger.warning("[SAMPLE] step %d: no memory is left to answer %s", step, _short(prompt.text))
            return None
        row: Row = {"step": step, "prompt": prompt.text, "text": found.text}
        row |= {"tokens": found.tokens, "ended": found.ended}
        if prompt.reference is not None:
            said = without_reasoning(found.text)
            row |= {"reference": prompt.reference, "exact_match": said == prompt.reference}
        return row | {"seconds": round(time.monotonic() - begun, 3), "time": time.time()}


def log_samples(rows: Sequence[Row]) -> None:
    """The first few, short."""
    for row in rows[:_SHOWN]:
        logger.info("[SAMPLE] step %d: %s -> %s", row["step"], _short(row["prompt"]), _short(row["text"]))
    matches = [row["exact_match"] for row in rows if "exact_match" in row]
    if matches:
        words = "[SAMPLE] step %d: %d of %d answers are those of their rows, letter by letter"
        logger.info(words, rows[0]["step"], sum(matches), len(matches))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= _SHOWN_LETTERS else f"{line[: _SHOWN_LETTERS - 1]}…")
