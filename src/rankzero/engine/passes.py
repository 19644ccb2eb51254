"""What becomes of a pass that ran out of memory: the step is made again in smaller ones, and that is remembered.

A step's rows, its loss and what dropout drops do not depend on how it is cut into passes, so this changes the last bits
of a step at most. Where a pass is a collective it cannot be made again by one rank alone: the start ends, and the next
one begins with smaller passes. Knows nothing of models.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rankzero.data.batches.loader import Collated, Work
from rankzero.engine.console import logger
from rankzero.engine.device import Device
from rankzero.engine.distributed import World, gather_objects
from rankzero.errors import ConfigError, RankzeroError, StorageError
from rankzero.model.memory import MemoryPlan
from rankzero.run_dir.atomic import write_json
from rankzero.run_dir.paths import RunDir


@dataclass(frozen=True, slots=True)
class PassMemory:
    """How large passes may be on this rank's device, as the run has found out."""

    run_dir: RunDir
    world: World
    device: Device
    planned: int
    """Tokens of a pass that the plan allows."""
    setting: dict[str, Any]
    """What the plan is for: what was found out holds for the same only."""
    alone: bool
    """Whether a rank can make its passes again without the others."""
    ways: tuple[str, ...]
    """What else takes less memory, the cheapest first."""

    def cut_smaller(self, batches: Collated, work: Work, what: str, *, together: bool = False) -> tuple[Work, int]:
        """The same rows in passes of at most half the tokens of the largest, and how many these are. `what` is made
        again, `together`: ranks meet within it, between its passes.

        Raises RankzeroError where the start has to end for it, and ConfigError where no pass can be smaller.
        """
        limit = batches.half_of_the_largest(work)
        if limit is None:
            raise self.error()
        if not self.alone or (together and self.world.world_size > 1):
            raise self._ended(limit, what)
        logger.warning("[TRAIN] %s: out of memory; made again in passes of up to %d tokens", what, limit)
        batches.limit_passes(limit)
        return batches.cut_again(work), limit

    def remember(self, limit: int, what: str) -> None:
        """Have later starts begin with passes of this many tokens at most. A note: that it fails is said."""
        found = {"micro_batch_tokens": limit, "planned": self.planned, "ran_out_in": what, "setting": self.setting}
        try:
            write_json(self.run_dir.pass_limit, found)
        except StorageError as error:
            logger.warning("[TRAIN] passes of up to %d tokens are not remembered: %s", limit, error)

    def _ended(self, limit: int, what: str) -> RankzeroError:
        """The error that ends a start which could go on with smaller passes, and does when it is started again."""
        self.remember(limit, what)
        hint = f"start it again: it goes on in passes of up to {limit} tokens (--max-restarts does so by itself)"
        return RankzeroError("out of memory", where=self._where, hint=hint)

    def error(self) -> RankzeroError:
        """What to turn where passes cannot be smaller, in the order of what it costs."""
        return ConfigError("out of memory", where=self._where, hint=f"set {', then '.join(self.ways)}")

    @property
    def _where(self) -> str:
        rank = f"rank {self.world.rank}, " if self.world.world_size > 1 else ""
        return f"{rank}{self.device.describe()}"


def remembered(run_dir: RunDir, plan: MemoryPlan, setting: dict[str, Any]) -> MemoryPlan:
    """The plan, with passes as small as an earlier start has found that they must be. A collective."""
    limit = min(gather_objects(_remembered(run_dir, plan.micro_batch_tokens, setting)))
    if limit >= plan.micro_batch_tokens:
        return plan
    words = "[TRAIN] passes of up to %d tokens: with %d an earlier start ran out of memory (%s)"
    logger.info(words, limit, plan.micro_batch_tokens, run_dir.pass_limit.name)
    return replace(plan, micro_batch_tokens=limit)


def _remembered(run_dir: RunDir, planned: int, setting: dict[str, Any]) -> int:
    try:
        found = json.loads(run_dir.pass_limit.read_text(encoding="utf-8"))
        same = found["planned"] == planned and found["setting"] == setting
        return max(1, int(found["micro_batch_tokens"])) if same else planned
    except FileNotFoundError:
        return planned
    except OSError as error:  # what it costs is one step that runs out of memory again
        words = "[TRAIN] whether passes of %d tokens ran out of memory before cannot be read: %s"
        logger.warning(words, planned, error)
        return planned
    except (ValueError, KeyError, TypeError, RecursionError):
        return planned


def ways_to_less(*, recomputing: bool, offloading: bool, divided: bool, packed: bool) -> Sequence[str]:
    """Settings that take less memory, the cheapest first; each argument says that one is taken already."""
    ways = [
        ("train.gradient_checkpointing: true", recomputing),
        ("train.sharding: fsdp", divided),
        ("train.activation_offloading: true", offloading),
        ("model.quantization: nf4", packed),
    ]
    return [*(way for way, taken in ways if not taken), "data.max_length lower"]
