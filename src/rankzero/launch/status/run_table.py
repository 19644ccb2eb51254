"""Runs as a table for a terminal: a name and a phase are never cut, since names are typed again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.text import Text

from rankzero.launch.status.model import RunRow
from rankzero.launch.status.text import DOUBTFUL, STYLES, age_in_words, cut, drawn
from rankzero.wording import printable

_GAP = 2
_INDENT = 4
_IN_ONE_LINE = str.maketrans("\n\t", "  ")
_VERDICT = 24
"""Columns that a verdict has at least: what happened, and the first words of what to do."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    name: str
    phase: str
    style: str
    """Of its phase, as rich has it."""
    facts: tuple[str, ...]
    """As many as the table has columns between phase and verdict."""
    verdict: str


def as_table(rows: Sequence[RunRow], width: int = 80, colour: bool = False) -> str:
    """Runs of a cluster."""

    def row(run: RunRow) -> Row:
        facts = (f"{run.running}/{run.num_nodes}", age_in_words(run.age_seconds))
        return Row(run.run, run.phase, STYLES.get(run.phase, DOUBTFUL), facts, run.verdict)

    return run_table(("NODES", "AGE"), ("AGE",), [row(run) for run in rows], width, colour)


def run_table(columns: Sequence[str], optional: Sequence[str], rows: Sequence[Row], width: int, colour: bool) -> str:
    """A line for each run, its verdict cut where the width ends.

    `optional`: which of the `columns` are left out where there is no room for a verdict, the first one first. Where
    that is not enough, each verdict has a line of its own.
    """
    if not rows:
        return "no runs\n"
    rows = [replace(row, name=printable(row.name).translate(_IN_ONE_LINE)) for row in rows]
    names = max(cell_len(name) for name in ("RUN", *(row.name for row in rows)))
    phases = max(cell_len(phase) for phase in ("PHASE", *(row.phase for row in rows)))
    sizes = {
        column: max(cell_len(text) for text in (column, *(row.facts[number] for row in rows)))
        for number, column in enumerate(columns)
    }

    def room() -> int:
        return width - names - phases - 2 * _GAP - sum(size + _GAP for size in sizes.values())

    for column in optional:
        if room() < _VERDICT:
            del sizes[column]
    beside = room() >= _VERDICT

    def line(name: str, phase: Text, facts: Sequence[str], verdict: str) -> list[Text]:
        kept = [f"{fact:>{sizes[column]}}" for column, fact in zip(columns, facts, strict=True) if column in sizes]
        padded = [Text(name + " " * (names - cell_len(name))), phase, *map(Text, kept)]
        phase.pad_right(phases - phase.cell_len)
        if beside:
            return [_fitting(Text(" " * _GAP).join([*padded, cut(verdict)]), width)]
        below = [_fitting(Text(" " * _INDENT).append_text(cut(verdict)), width)] if verdict else []
        return [Text(" " * _GAP).join(padded), *below]

    lines = line("RUN", Text("PHASE"), columns, "VERDICT" if beside else "")
    for row in rows:
        lines += line(row.name, Text(row.phase, row.style), row.facts, row.verdict)
    return drawn(lines, width, colour)


def _fitting(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line
