"""The order of runs, and each of them: models are made, contestants take turns, what fails or is missing is told.

Knows no command line and no markdown.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_cells import (
    TRANSFORMERS,
    TRL,
    UNSLOTH,
    WITH_LIGER,
    Cell,
    PeerTask,
    Sizes,
    draw_images,
    make_rows,
    our_command,
    peer_command,
    peer_task,
    run_spec,
)
from gpu_results import Kept, Turn, turn_name
from gpu_run import (
    RunFailedError,
    RunStoppedError,
    Sample,
    environment,
    read_ours,
    read_peer,
    run_process,
    summarise,
)

HERE = Path(__file__).resolve().parent
USUAL_SECONDS = 60.0
"""What a run is expected to take before one of its kind was seen."""
MOST_SECONDS = 150.0
"""After which a run is stopped: compiling may take long, and others wait."""
SAID = 20_000
"""Characters of what a failed process said that are kept."""


def say(text: str) -> None:
    """Progress, to stderr."""
    print(text, file=sys.stderr, flush=True)


@dataclass
class Bench:
    """One piece of the benchmark: where it works, when it has to be done, what it adds to."""

    kept: Kept
    work: Path
    sizes: Sizes
    cpu: bool
    quick: bool
    peer_python: str
    unsloth: Path | None
    """An environment's python, or a directory for PYTHONPATH, with Unsloth and what that goes together with."""
    ends: float
    peers: dict[str, str] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    broken: dict[str, RunFailedError] = field(default_factory=dict)
    """Why a model could not be made."""

    def left(self) -> float:
        """Seconds until the tests should begin."""
        return self.ends - time.monotonic()

    def patience(self) -> float:
        """Seconds that the next run may take."""
        return min(self.left(), MOST_SECONDS)

    def skip(self, reason: str) -> None:
        """Leave something out, and say why."""
        if reason not in self.skipped:
            say(f"left out: {reason}")
            self.skipped.append(reason)

    def missing(self, cell: Cell) -> str | None:
        """What a cell needs and is not installed."""
        needs = [("bitsandbytes", "nf4" in cell.method), ("PIL", cell.images)]
        absent = [package for package, needed in needs if needed and find_spec(package) is None]
        return f"{cell.name}: {absent[0]} is not installed" if absent else None

    def peer(self, cell: Cell) -> str | None:
        """The name of the cell's peer; None where it has none, or what it needs is not installed."""
        if not cell.peer or "accelerate" not in self.peers or (cell.images and "pillow" not in self.peers):
            return None
        name = TRL if "trl" in self.peers and not cell.images else TRANSFORMERS
        # Of images: liger-kernel 0.8.5 looks for a class that transformers 5.23 no longer has.
        liger = "liger-kernel" in self.peers and not self.cpu and not cell.images
        return name + WITH_LIGER if liger else name

    def prepare(self, cell: Cell) -> Path:
        """The directory of a model with its rows, made when it is first asked for. Raises RunFailedError."""
        directory = self.work / "models" / cell.shape
        if cell.shape in self.broken:
            raise self.broken[cell.shape]
        if cell.shape in self.facts:
            return directory
        shutil.rmtree(directory, ignore_errors=True)  # what a stopped process has left
        directory.mkdir(parents=True)
        say(f"making {cell.shape}")
        command = [sys.executable, str(HERE / "gpu_shapes.py"), cell.shape, str(directory)]
        command += ["--device", "cpu" if self.cpu else "cuda", *(["--quick"] if self.quick else [])]
        try:
            _, printed = run_process(command, environment(self.work, cpu=self.cpu), directory, self.patience())
        except RunFailedError as failure:
            if not isinstance(failure, RunStoppedError):
                self.broken[cell.shape] = failure
            raise
        facts = json.loads(printed.splitlines()[-1])
        images = draw_images(directory / "images", self.sizes, 64) if cell.images else []
        rows = make_rows(self.sizes, facts["words"], images=[f"images/{name}" for name in images])
        (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        self.facts[cell.shape] = facts
        self.kept.parameters[cell.shape] = facts["parameters"]
        return directory

    def measure(self, cell: Cell, entrant: str, number: int) -> Sample:
        """One run of one contestant. Raises RunFailedError."""
        model = self.prepare(cell)
        directory = self.work / f"run-{number}"
        directory.mkdir()
        env, rows, output = environment(directory, cpu=self.cpu), model / "rows.jsonl", directory / "runs"
        before = time.monotonic()
        try:
            if entrant in cell.ours:
                spec = run_spec(cell, entrant, self.sizes, model=model, rows=rows, output=output, cpu=self.cpu)
                started, _ = run_process(our_command(spec, directory), env, directory, self.patience())
                found = read_ours(directory)
            else:
                plan = self.facts[cell.shape]["plans"][cell.method]
                task = peer_task(
                    cell, entrant, self.sizes, plan, model=model, rows=rows, output=directory, cpu=self.cpu
                )
                started = self.start_peer(cell, entrant, task, env | self.apart(entrant))
                found = read_peer(directory)
        finally:
            shutil.rmtree(output, ignore_errors=True)  # checkpoints of a full fine-tune have gigabytes
        return summarise(started, time.monotonic() - before, self.sizes, found)

    def apart(self, entrant: str) -> dict[str, str]:
        """Of the environment, for a peer with packages of its own."""
        if entrant != UNSLOTH or self.unsloth is None:
            return {}
        return {"PYTHONPATH": str(self.unsloth) if self.unsloth.is_dir() else ""}

    def python(self, entrant: str) -> str:
        """What runs a peer."""
        if entrant != UNSLOTH or self.unsloth is None:
            return self.peer_python
        return sys.executable if self.unsloth.is_dir() else str(self.unsloth)

    def start_peer(self, cell: Cell, entrant: str, task: PeerTask, env: dict[str, str]) -> float:
        """Run the peer; once more, recomputing activations, where it runs out of memory. Returns when it started."""
        directory = Path(task.output)
        try:
            command = peer_command(self.python(entrant), task, directory)
            return run_process(command, env, directory, self.patience())[0]
        except RunFailedError as failure:
            if "out of memory" not in str(failure).lower() or task.recompute:
                raise
        say(f"{cell.name}, {entrant}: out of memory; again, recomputing activations")
        (directory / "steps.jsonl").unlink(missing_ok=True)
        return self.start_peer(cell, entrant, replace(task, recompute=True), env)

    def turns(self, cells: Sequence[Cell]) -> Iterator[Turn]:
        """Every contestant of every cell, ours first and the peer first in turn; then those with a peer once more."""
        for number, cell in enumerate(cells):
            yield from self.entrants(cell, reverse=bool(number % 2))
        for number, cell in enumerate(cells):
            if self.peer(cell) is not None and not self.quick:
                yield from self.entrants(cell, reverse=not number % 2)

    def entrants(self, cell: Cell, *, reverse: bool) -> list[Turn]:
        names = [*cell.ours, *([peer] if (peer := self.peer(cell)) is not None else [])]
        names += [UNSLOTH] if cell.unsloth and self.unsloth is not None else []
        return [(cell, name) for name in (names[::-1] if reverse else names)]

    def run(self, cells: Sequence[Cell]) -> None:
        """Measure all that there is time for."""
        usable = []
        for cell in cells:
            if (reason := self.missing(cell)) is not None:
                self.skip(reason)
                continue
            usable.append(cell)
            if cell.peer and self.peer(cell) is None:
                needed = "transformers, accelerate and pillow" if cell.images else "trl, or transformers and accelerate"
                self.skip(f"{cell.name}, peer: needs {needed} beside the benchmark (--peer-python)")
        asked: Counter[Turn] = Counter()
        for number, turn in enumerate(self.turns(usable)):
            asked[turn] += 1
            done = self.kept.samples.get(turn, [])
            if turn not in self.kept.failed and len(done) < asked[turn]:
                self.attempt(turn, number, usual=max((sample.seconds for sample in done), default=USUAL_SECONDS))
        for turn in asked:
            if turn in self.kept.failed:
                self.skip(f"{turn_name(turn)}: {self.kept.failed[turn]}")
            elif turn not in self.kept.samples:
                self.skip(f"{turn_name(turn)}: out of time")

    def attempt(self, turn: Turn, number: int, *, usual: float) -> None:
        """Measure a contestant where the `usual` seconds are left. What it comes to is kept at once."""
        if self.left() < usual:
            return
        allowed = self.patience()
        try:
            sample = self.measure(*turn, number)
        except RunFailedError as failure:
            say(f"{turn_name(turn)}: {failure}")
            self.note(turn, failure)
            if isinstance(failure, RunStoppedError) and allowed < MOST_SECONDS:
                return  # it was this piece's time that was over
            self.kept.failed[turn] = str(failure)
            self.kept.save()
            return
        self.kept.samples.setdefault(turn, []).append(sample)
        self.kept.save()
        say(
            f"{turn_name(turn)}: {sample.tokens_per_second:,.0f} useful tokens/s, "
            f"{sample.peak_bytes / 2**30:.1f} GiB, first step after {sample.first_step_seconds:.1f} s"
        )

    def note(self, turn: Turn, failure: RunFailedError) -> None:
        """All that a failed process said, into a file beside the results."""
        if (path := self.kept.beside(".failures.txt")) is not None:
            with path.open("a", encoding="utf-8") as file:
                file.write(f"== {turn_name(turn)}: {failure}\n{failure.said[-SAID:]}\n")
