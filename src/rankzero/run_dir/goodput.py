"""Where the wall time of a run went, over all of its starts. Standard library only; knows no training.

`starts.jsonl` has a line for each start. The start that runs rewrites its own line in place, at each change from one
kind of work to the next, so that the line of a killed process says how far it was; nothing is synced to disk for that.
`goodput.json` sums them up whenever a start ends by itself:

    wall_seconds   from the beginning of the first start to the end of the last
    seconds        the same by kind, see KINDS; their sum is wall_seconds
    goodput        share of wall_seconds in `step`
    starts         how many there were, and `killed`: how many before the last ended without a word
    steps          the furthest step that any start has reached
"""

from __future__ import annotations

import itertools
import json
import math
import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rankzero.wording import duration

LINE_BYTES = 1024
"""Each line is filled up to this with spaces, so that none crosses a page: a kill leaves the old one or the new one."""

KINDS = {
    "startup": "from the process's start to its first look at the run: imports",
    "model_files": "finding, fetching and checking the model's files and tokenizer",
    "data": "reading and tokenising rows",
    "rendezvous": "waiting for the other processes",
    "resume": "verifying and loading a checkpoint",
    "model": "loading weights, adapters, spreading them over the processes",
    "compile": "the first step of a start with train.torch_compile",
    "step": "steps that nobody had done before",
    "input_wait": "in such steps, waiting for the tensors of a pass; before them, for the rows of a stream",
    "save_wait": "waiting for a checkpoint to be copied, or for the one before it to be written",
    "evaluation": "evaluations, and answers to prompts",
    "logging": "between steps: metrics, trackers, hooks",
    "repeated": "all of this again, for steps that an earlier start had done and lost",
    "final": "loading the best weights, final/, the report and its page",
    "lost": "from the last change of a killed or interrupted start to its end, known to 5 s: a step cut off, or a hang",
    "down": "between a start's end and the next one's beginning",
}
START_UP = ("startup", "model_files", "data", "rendezvous", "resume", "model", "compile")

Ending = Literal["finished", "stopped", "failed", "interrupted"]
"""Interrupted: by a second Ctrl-C, without saving."""


@dataclass(slots=True)
class Start:
    """One start of a run, as its line has it. Times are Unix seconds; `seconds` are by kind and monotonic."""

    begun: float
    updated: float
    from_step: int = 0
    step: int = 0
    """Steps of the run that are done."""
    total_steps: int = 0
    """What the run is to have; 0 until that is known."""
    ended: Ending | None = None
    """None: it runs, or was killed."""
    alive_before: float | None = None
    """When the start before this one last showed a sign of life besides its line."""
    world_size: int = 0
    """How many processes it had; 0 where that was not noted."""
    compared_from: int = 0
    """Evaluations of earlier steps are compared with none: they were of other data, tokens or weights."""
    kind: str = ""
    """What it does since `updated`; "" in lines of before, which do not say."""
    owner: str = ""
    """As which it has the directory, as lease.json has it; "" in lines of before."""
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Goodput:
    """All starts of a run summed up; the fields are those of goodput.json."""

    wall_seconds: float
    goodput: float
    starts: int
    killed: int
    steps: int
    seconds: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """goodput.json."""
        return asdict(self)

    def __str__(self) -> str:
        """`93.2 % of 1:06:35 in new steps; start-up 0:32, repeated 0:12, down 0:08`: what took most of the rest."""
        groups = {"start-up": sum(self.seconds.get(kind, 0.0) for kind in START_UP)}
        rest = (kind for kind in KINDS if kind not in START_UP and kind != "step")
        groups |= {kind.replace("_", " "): self.seconds.get(kind, 0.0) for kind in rest}
        most = sorted((kind for kind in groups if groups[kind] >= 0.5), key=groups.__getitem__, reverse=True)[:3]
        others = ", ".join(f"{kind} {duration(groups[kind])}" for kind in most)
        share = f"{100 * self.goodput:.1f} % of {duration(self.wall_seconds)} in new steps"
        return f"{share}; {others}" if others else share


def summed_up(starts: Sequence[Start]) -> Goodput:
    """Every second from the first start's beginning to the last one's end, by kind."""
    seconds = dict.fromkeys(KINDS, 0.0)
    for number, start in enumerate(starts):
        for kind, spent in start.seconds.items():
            seconds[kind] = seconds.get(kind, 0.0) + spent
        if number + 1 < len(starts):
            after = starts[number + 1]
            lost, down = _between(start, after)
            seconds["lost"] += lost
            seconds["down"] += down
    wall = sum(seconds.values())
    return Goodput(
        wall_seconds=round(wall, 3),
        goodput=round(seconds["step"] / wall, 4) if wall else 0.0,
        starts=len(starts),
        killed=sum(start.ended is None for start in starts[:-1]),
        steps=max((start.step for start in starts), default=0),
        seconds={kind: round(spent, 3) for kind, spent in seconds.items()},
    )


def held_seconds(starts: Sequence[Start]) -> list[float]:
    """How long each start has held its devices: until it ended, or last showed that it lived."""
    lost = [_between(start, after)[0] for start, after in itertools.pairwise(starts)]
    return [sum(start.seconds.values()) + more for start, more in zip(starts, [*lost, 0.0], strict=False)]


def _between(start: Start, after: Start) -> tuple[float, float]:
    """The seconds from the line of a start to the next one's beginning: lost to a kill, and down."""
    gap = max(0.0, after.begun - start.updated)  # a clock that was set back has no time between
    if start.ended is not None or after.alive_before is None:
        return 0.0, gap
    lost = min(max(0.0, after.alive_before - start.updated), gap)
    return lost, gap - lost


def read_starts(path: Path) -> list[Start]:
    """The starts of a run in their order; what is no line of one is passed over. Raises OSError."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return []
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [start for line in lines if (start := _start(line)) is not None]


def _start(line: str) -> Start | None:
    try:
        value = json.loads(line)
        seconds = {str(kind): float(spent) for kind, spent in value["seconds"].items()}
        alive = value["alive_before"]
        start = Start(
            begun=float(value["begun"]),
            updated=float(value["updated"]),
            from_step=int(value["from_step"]),
            step=int(value["step"]),
            total_steps=int(value.get("total_steps", 0)),
            ended=value["ended"],
            alive_before=None if alive is None else float(alive),
            world_size=int(value.get("world_size", 0)),
            compared_from=int(value.get("compared_from", 0)),
            kind=str(value.get("kind", "")),
            owner=str(value.get("owner", "")),
            seconds=seconds,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    numbers = (start.begun, start.updated, start.alive_before or 0.0, *seconds.values())
    return start if all(math.isfinite(number) and number >= 0 for number in numbers) else None


class StartLine:
    """The line of the start that runs. Raises OSError."""

    def __init__(self, path: Path, start: Start) -> None:
        self.start = start
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        size = os.fstat(self._file).st_size
        self._at = -(-size // LINE_BYTES) * LINE_BYTES
        if self._at > size:  # of a copy that was cut off
            os.pwrite(self._file, b"\n".rjust(self._at - size), size)

    def write(self, seconds: Mapping[str, float]) -> None:
        """Replace the line, in a call of some microseconds: of a step it is less than nothing."""
        start = self.start
        start.updated = time.time()
        spent = ", ".join([f'"{kind}": {value:.3f}' for kind, value in seconds.items()])
        alive = "null" if start.alive_before is None else f"{start.alive_before:.3f}"
        ended = "null" if start.ended is None else f'"{start.ended}"'
        text = (
            f'{{"begun": {start.begun:.3f}, "updated": {start.updated:.3f}, "from_step": {start.from_step}, '
            f'"step": {start.step}, "total_steps": {start.total_steps}, "ended": {ended}, '
            f'"alive_before": {alive}, "world_size": {start.world_size}, '
            f'"compared_from": {start.compared_from}, "kind": "{start.kind}", '
            f'"owner": "{start.owner}", "seconds": {{{spent}}}}}'
        )
        os.pwrite(self._file, text.ljust(LINE_BYTES - 1).encode() + b"\n", self._at)

    def close(self) -> None:
        os.close(self._file)
