"""What is still to be sent of a run: the rows of its files after those that a server has accepted. Knows no server.

The run directory itself is what is sent from, so nothing is written twice and nothing can be lost on the way. Rows are
told apart by their step: a resume takes the steps away that its checkpoint lacks and makes them again, and what was
sent of them stays sent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any
from uuid import uuid4

from rankzero.run_dir.atomic import write_json
from rankzero.run_dir.goodput import Ending, read_starts
from rankzero.run_dir.paths import RunDir
from rankzero.spec.diff import PLACES, identity_at
from rankzero.spec.local_paths import PathField, with_paths
from rankzero.spec.resolve import spec_hash
from rankzero.spec.run_spec import RunSpec
from rankzero.track.server import Kind, Row

KINDS: tuple[Kind, ...] = ("metrics", "samples", "saves", "system")
BATCH_ROWS = 100
EVERY = 2**53
"""As the step up to which rows may have been sent: nobody knows."""
MADE_OF = tuple(PLACES)
"""What a run is known by besides its spec: the content of the files that the spec names."""


def path_of(kind: Kind, run_dir: RunDir) -> Path:
    """The file that has the rows of a kind."""
    files = {"metrics": run_dir.metrics, "samples": run_dir.samples, "saves": run_dir.saves}
    return files.get(kind) or run_dir.tracking / "system.jsonl"


@dataclass(slots=True)
class Sent:
    """What one server has of a run; a file of the tracker's name in tracking/."""

    key: str = field(default_factory=lambda: uuid4().hex)
    """The run's own name for servers that give it another one."""
    spec: str | None = None
    """`setting_hash` of what was trained when the run was begun there; of before it, the hash of the whole spec."""
    made_of: dict[str, Any] | None = None
    """What it was begun with, by MADE_OF, as checkpoints' manifests have it; of before `spec` was a `setting_hash`
    without the data to evaluate on."""
    place: str | None = None
    """Which server has it, and where there: see `Server.place`."""
    directory: str | None = None
    """Which directory this is a note in, by its machine and file system: a copy of it knows less than the server."""
    there: str | None = None
    link: str = ""
    last: dict[str, int] = field(default_factory=dict)
    """The step of the last row of each kind that was accepted."""
    names: list[str] = field(default_factory=list)
    """What that row of metrics had: an evaluation that a stop has cut short follows later, in the same step."""
    unsure: dict[str, int] = field(default_factory=dict)
    """By kind: the step up to which rows were sent without an answer so far, or EVERY."""
    ended: Ending | None = None
    ended_start: float | None = None
    """When the start began that has ended so: a run that is continued may end in the same way again."""
    error: str | None = None
    """Why the last attempt failed; None where it did not."""

    @classmethod
    def read(cls, path: Path) -> Sent:
        """As it was kept; a new one where nothing was. Raises OSError, ValueError or TypeError."""
        if not path.is_file():
            return cls()
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{name: value[name] for name in cls.__dataclass_fields__ if name in value})

    def write(self, path: Path) -> None:
        """Raises StorageError."""
        write_json(path, asdict(self))


def setting_hash(spec: RunSpec) -> str:
    """Hash of what a spec trains, wherever those of its files lie whose content is in `Sent.made_of`: a project may
    have moved. Of others, such as prompts, nothing but the place tells them apart."""

    def name(field: PathField) -> str:
        is_known = identity_at(field.field.partition("[")[0]) is not None and os.path.isabs(field.text)
        return os.path.basename(field.text.rstrip("/")) if is_known else field.text

    return spec_hash(with_paths(spec, name))


class Spool:
    """The rows of one file, read from where the last accepted one ends."""

    def __init__(self, path: Path, *, joined: str | None = None) -> None:
        """`joined`: the lines of a step are one row, which has them under this name. The file is only ever replaced
        then, so that none of them is missing."""
        self._path, self._inode, self._offset = path, 0, 0
        self._joined = joined

    def after(self, step: int, names: frozenset[str] = frozenset()) -> list[Row]:
        """The next rows, at most BATCH_ROWS: those of later steps, and what the row of `step` has besides `names`.

        Raises OSError.
        """
        rows: list[Row] = []
        if not self._path.is_file():
            return rows
        with self._path.open("rb") as file:
            inode = self._path.stat().st_ino
            if inode != self._inode:  # a resume has replaced it
                self._inode, self._offset = inode, 0
            file.seek(self._offset)
            for found, length in self._entries(file):
                row = _beyond(found, step, names)
                if row is not None:
                    rows.append(row)
                elif not rows:
                    self._offset += length
                if len(rows) == BATCH_ROWS:
                    break
        return rows

    def _entries(self, lines: Iterable[bytes]) -> Iterator[tuple[Row | None, int]]:
        """Rows, with how many bytes of the file each is."""
        whole = ((_row(line), len(line)) for line in takewhile(lambda line: line.endswith(b"\n"), lines))
        if self._joined is None:
            yield from whole
            return
        for step, group in groupby(whole, key=lambda entry: entry[0] and entry[0]["step"]):
            entries = list(group)
            rows = [row for row, _ in entries if row is not None]
            joined = {"step": step, "time": rows[-1]["time"], self._joined: rows} if rows else None
            yield joined, sum(length for _, length in entries)


def _beyond(row: Row | None, step: int, names: frozenset[str]) -> Row | None:
    """The row, or what of it is later than `step` with `names`; None where nothing is."""
    if row is None or row["step"] < step or (row["step"] == step and not names):
        return None
    if row["step"] > step:
        return row
    more = {name: value for name, value in row.items() if name not in names}
    return {"step": step, "time": row["time"], **more} if more else None


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
        return {**row, "step": int(row["step"]), "time": float(row.get("time") or 0.0)}
    except (ValueError, KeyError, TypeError):
        return None


def last_end(run_dir: RunDir) -> tuple[Ending | None, float | None]:
    """How the last start ended, and when it had begun (Unix seconds); nothing of one that runs or was killed. Raises
    OSError."""
    starts = read_starts(run_dir.starts)
    return (starts[-1].ended, starts[-1].begun) if starts and starts[-1].ended else (None, None)


def unsent(run_dir: RunDir, sent: Sent) -> int:
    """How many steps of metrics.jsonl a server has not accepted. Raises OSError."""
    count, last = 0, sent.last.get("metrics", -1)
    if run_dir.metrics.is_file():
        with run_dir.metrics.open("rb") as file:
            count = sum(1 for line in file if (row := _row(line)) is not None and row["step"] > last)
    return count
