"""What several commands on one kind of machine have measured, in one file. Knows no process and no markdown."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpu_cells import CELLS, PEERS, UNSLOTH, Cell
from gpu_run import Sample

Turn = tuple[Cell, str]
"""A cell and one of its contestants."""

SAME = ("device", "torch", "cuda", "rankzero", "sizes")
"""What all figures of one table have in common."""


class OtherMachineError(Exception):
    """The file has figures that would not belong into one table with new ones."""


@dataclass
class Kept:
    """Everything that is known so far; `save` writes it, whole or not at all."""

    path: Path | None = None
    """None: kept in memory only."""
    machine: dict[str, Any] = field(default_factory=dict)
    """SAME, and what else is told of it."""
    peers: dict[str, str] = field(default_factory=dict)
    """Versions beside the peer."""
    samples: dict[Turn, list[Sample]] = field(default_factory=dict)
    failed: dict[Turn, str] = field(default_factory=dict)
    """Why a contestant did not come through. What there was no time for is not in it."""
    parameters: dict[str, int] = field(default_factory=dict)
    """Of each shape."""
    tests: dict[str, str] = field(default_factory=dict)
    """Of tests/gpu, as gpu_tests.Outcome has them."""
    tests_left: int | None = None
    """How many were not begun yet; None before the first time."""
    pieces: list[dict[str, str]] = field(default_factory=list)
    """When, and with which command, something was added."""

    def save(self) -> None:
        """Replace the file. Nothing where there is none."""
        if self.path is None:
            return
        told = {
            "machine": self.machine,
            "peers": self.peers,
            "parameters": self.parameters,
            "pieces": self.pieces,
            "samples": [
                {"cell": cell.name, "contestant": name, "runs": [asdict(sample) for sample in runs]}
                for (cell, name), runs in self.samples.items()
            ],
            "failed": [
                {"cell": cell.name, "contestant": name, "why": why} for (cell, name), why in self.failed.items()
            ],
            "tests": self.tests,
            "tests_left": self.tests_left,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(self.path.name + ".new")
        beside.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        os.replace(beside, self.path)

    def forget(self, texts: Iterable[str]) -> None:
        """Drop what is known of the cells, contestants and tests that have one of these texts in their name."""
        wanted = tuple(texts)

        def named(name: str) -> bool:
            return any(text in name for text in wanted)

        self.samples = {turn: runs for turn, runs in self.samples.items() if not named(turn_name(turn))}
        self.failed = {turn: why for turn, why in self.failed.items() if not named(turn_name(turn))}
        kept = {test: outcome for test, outcome in self.tests.items() if not named(test)}
        if len(kept) < len(self.tests):
            self.tests, self.tests_left = kept, (self.tests_left or 0) + len(self.tests) - len(kept)

    def beside(self, ending: str) -> Path | None:
        """A file next to the results: `run.json` has `run.tests.txt`."""
        return None if self.path is None else self.path.with_suffix(ending)


def turn_name(turn: Turn) -> str:
    """As it is told."""
    return f"{turn[0].name}, {turn[1]}"


def load(path: Path | None, machine: Mapping[str, Any], peers: Mapping[str, str]) -> Kept:
    """What earlier commands have found, to be added to on `machine`.

    Raises OtherMachineError where the file is of another device or of other versions, and names what differs.
    """
    fresh = Kept(path, dict(machine), dict(peers))
    if path is None or not path.is_file():
        return fresh
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        differences = [
            f"{name}: {told['machine'].get(name)!r} there, {machine.get(name)!r} here"
            for name in SAME
            if told["machine"].get(name) != machine.get(name)
        ]
        found = Kept(path, dict(machine), told["peers"] | dict(peers))
        found.parameters, found.pieces = told["parameters"], told["pieces"]
        found.tests, found.tests_left = told["tests"], told["tests_left"]
        for one in told["samples"]:
            turn = find_turn(one["cell"], one["contestant"])
            found.samples[turn] = [Sample(**sample) for sample in one["runs"]]
        found.failed = {find_turn(one["cell"], one["contestant"]): one["why"] for one in told["failed"]}
    except (ValueError, KeyError, TypeError) as error:
        raise OtherMachineError(f"{path} is no file of results ({error!r}); give another name") from error
    differences += [
        f"{name}: {told['peers'][name]} there, {value} here, beside the peer"
        for name, value in peers.items()
        if told["peers"].get(name, value) != value
    ]
    if differences:
        hint = "one table has figures of one kind of machine: give another file, or move this one away"
        raise OtherMachineError(f"{path} has results of something else ({'; '.join(differences)}); {hint}")
    return found


def find_turn(cell_name: str, contestant: str) -> Turn:
    """The cell that has this contestant. Raises ValueError where there is none (any more)."""
    for cell in CELLS:
        peer = cell.unsloth if contestant == UNSLOTH else cell.peer and contestant in PEERS
        if cell.name == cell_name and (contestant in cell.ours or peer):
            return cell, contestant
    raise ValueError(f"no cell {cell_name!r} has a contestant {contestant!r}")
