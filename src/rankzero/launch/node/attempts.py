"""How often a node was started, in the run directory: for platforms that restart pods and count nothing."""

from __future__ import annotations

import json
from pathlib import Path

from rankzero.errors import RankzeroError
from rankzero.run_dir.atomic import storage_errors, write_json
from rankzero.run_dir.paths import RunDir


class Attempts:
    """Starts of one node in one submission."""

    def __init__(self, run_dir: RunDir, node: int, submission: str, max_restarts: int) -> None:
        self._path: Path = run_dir.root / "attempts" / f"node-{node}.json"
        self._submission, self._max_restarts = submission, max_restarts
        self._starts = self._free = 0

    def begin(self) -> None:
        """Count this start. Raises RankzeroError where there are no restarts left for it, or StorageError."""
        try:
            before = json.loads(self._path.read_text(encoding="utf-8"))
            if before["submission"] == self._submission:
                self._starts, self._free = int(before["starts"]), int(before["free"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # the first one
        self._starts += 1
        self._write()
        if self._charged > self._max_restarts:
            what = f"started {self._starts} times, and the {self._max_restarts} restarts of max_restarts are used up"
            raise RankzeroError(what, hint="see why it ended before; submit again to continue with new restarts")

    @property
    def may_restart(self) -> bool:
        """Whether a failure now may be tried again."""
        return self._charged < self._max_restarts

    def excuse(self) -> None:
        """This start ended by a stop: its restart is free."""
        self._free += 1
        self._write()

    @property
    def _charged(self) -> int:
        return self._starts - 1 - self._free

    def _write(self) -> None:
        with storage_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._path, {"submission": self._submission, "starts": self._starts, "free": self._free})
