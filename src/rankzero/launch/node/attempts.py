"""How often a node was started, in the run directory: for platforms that restart pods and count nothing."""

from __future__ import annotations

import json
from pathlib import Path

from rankzero.errors import RankzeroError, StorageError
from rankzero.launch.restarts import Restarts
from rankzero.run_dir.atomic import storage_errors, write_json
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.steps import newest_step


class Attempts:
    """Starts of one node in one submission. `allocation` tells one turn in a queue from the next, where there is one:
    a start in a new one is no failure of the run, whose host may be lost, or taken away before it could say so."""

    def __init__(self, run_dir: RunDir, node: int, submission: str, max_restarts: int, allocation: str = "") -> None:
        self._run_dir = run_dir
        self._path: Path = run_dir.root / "attempts" / f"node-{node}.json"
        self._submission, self._allocation = submission, allocation
        self._restarts = Restarts(max_restarts)
        self._starts = 0
        self._free = False

    def begin(self) -> None:
        """Count this start. Raises RankzeroError where there are no restarts left for it, or StorageError, also where
        it cannot be seen how many there were."""
        charged = True
        try:
            before = json.loads(self._noted())
            if before["submission"] == self._submission:
                self._starts, self._free = int(before["starts"]), bool(before["free"])
                state = {name: before[name] for name in ("made", "idle", "saved")}
                self._restarts = Restarts(self._restarts.most, **state)
                charged = before.get("allocation", self._allocation) == self._allocation
        except (ValueError, KeyError, TypeError):
            pass  # the first one
        refused = ""
        if self._starts and not self._free:
            refused = self._restarts.refused(self._saved, charged=charged)
            self._restarts.make(self._saved, charged=charged)
        self._starts, self._free = self._starts + 1, False
        self._write()
        if refused:
            what = f"started {self._starts} times, and {refused}"
            raise RankzeroError(what, hint="see why it ended before; submit again to continue with new restarts")

    @property
    def may_restart(self) -> bool:
        """Whether a failure now may be tried again. Where it cannot be seen whether the run got on, the next start sees
        it, and is not made where no restart is left."""
        try:
            return not self._restarts.refused(self._saved)
        except StorageError:
            return self._restarts.made < self._restarts.most

    def excuse(self) -> None:
        """This start ended by a stop: its restart is free."""
        self._free = True
        self._write()

    def _noted(self) -> bytes:
        """By the start before; nothing where there was none."""
        with storage_errors(self._path):
            try:
                return self._path.read_bytes()
            except FileNotFoundError:
                return b""

    @property
    def _saved(self) -> int | None:
        return newest_step(self._run_dir, self._restarts.saved)

    def _write(self) -> None:
        with storage_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        restarts = {"made": self._restarts.made, "idle": self._restarts.idle, "saved": self._restarts.saved}
        where = {"submission": self._submission, "allocation": self._allocation}
        write_json(self._path, {**where, "starts": self._starts, "free": self._free, **restarts})
