"""JSON lines files that appear together when all is written, or not at all. Knows nothing of what the rows say."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import orjson

from rankzero.run_dir.atomic import fsync_path, stage_name, storage_errors


class RowWriter:
    """Files of one directory, by name; each is made when it is first named."""

    def __init__(self, directory: Path) -> None:
        self.counts: Counter[str] = Counter()
        """Rows by file."""
        self._directory = directory
        self._files: dict[str, tuple[Path, BinaryIO]] = {}

    def __enter__(self) -> RowWriter:
        with storage_errors(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """What was not committed is gone."""
        for staged, file in self._files.values():
            file.close()
            staged.unlink(missing_ok=True)

    def open(self, name: str) -> None:
        """A file of this name, even if it will have no rows."""
        if name not in self._files:
            staged = self._directory / stage_name(name)
            with storage_errors(staged):
                self._files[name] = (staged, staged.open("wb"))
            self.counts[name] += 0

    def write(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        """Append rows to a file."""
        self.open(name)
        for row in rows:
            with storage_errors(self._directory / name):
                self._files[name][1].write(orjson.dumps(row) + b"\n")
            self.counts[name] += 1

    def commit(self) -> None:
        """Give the files their names."""
        with storage_errors(self._directory):
            for _staged, file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
                file.close()
            for name, (staged, _file) in self._files.items():
                os.replace(staged, self._directory / name)
            fsync_path(self._directory)
        self._files.clear()
