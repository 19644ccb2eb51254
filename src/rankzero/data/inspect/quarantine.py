"""Bad rows set aside: one file with their lines as they stand, one beside it that says what is wrong with each.

Knows bytes and problems; nothing of why a row is bad.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO

from rankzero.data.rows.problems import RowProblem
from rankzero.errors import StorageError
from rankzero.run_dir.atomic import storage_errors, whole_file


class Quarantine:
    """Both files appear together when the block ends well, and not at all otherwise. Without bad rows both are empty,
    so that those of an earlier check do not stay."""

    def __init__(self, path: Path) -> None:
        self.path, self.reasons_path = path, reasons_path(path)
        self.rows = 0
        self._files: list[IO[bytes]] = []
        self._open = ExitStack()

    def __enter__(self) -> Quarantine:
        for file in (self.path, self.reasons_path):
            self._files.append(self._open.enter_context(whole_file(file)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def add(self, path: str, rows: Iterable[tuple[int, bytes]], problems: Sequence[RowProblem]) -> None:
        """These lines of a file, which are all that the problems speak of."""
        by_line = grouped(problems)
        lines, reasons = self._files
        with storage_errors(self.path):
            for number, line in rows:
                if found := by_line.get(number):
                    self.rows += 1
                    lines.write(line + b"\n")
                    reasons.write(self._reason(path, number, found))

    def _reason(self, path: str, number: int, found: Sequence[RowProblem]) -> bytes:
        problems = [{"reason": p.reason, "what": p.what, "hint": p.hint or None} for p in found]
        row = {"row": self.rows, "file": path, "line": number, "problems": problems}
        return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def reasons_path(path: Path) -> Path:
    """Beside `bad.jsonl`: `bad.reasons.jsonl`."""
    return path.with_name(f"{path.stem}.reasons.jsonl")


def grouped(problems: Iterable[RowProblem]) -> Mapping[int, list[RowProblem]]:
    """Problems by line."""
    by_line: dict[int, list[RowProblem]] = {}
    for problem in problems:
        by_line.setdefault(problem.line, []).append(problem)
    return by_line


def require_new(path: Path, read: Sequence[str]) -> None:
    """Raise StorageError where writing would destroy what is read."""
    taken = set(map(os.path.realpath, read))
    for file in (path, reasons_path(path)):
        if os.path.realpath(file) in taken:
            raise StorageError("is one of the files that are read", where=str(file), hint="give another name")
