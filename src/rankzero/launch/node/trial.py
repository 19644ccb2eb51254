"""`python -m rankzero.launch.node.trial DIRECTORY METRICS COPY [METRIC]`: a Katib trial, its metrics copied as
they come.

Katib's collector follows COPY from its first line on, orders lines by the time that each begins with, and ends a trial
early by SIGTERM to the only child of the shell that it starts: this process, which hands it on. COPY lies on a volume
that only the pod which Katib reads has; in the others nothing is copied. METRIC is what a trial is compared by whose
result is its last evaluation.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

NODE = [sys.executable, "-P", "-m", "rankzero.launch.node"]
LOOK_SECONDS = 1.0
_STORAGE = 74
"""As `errors.ExitCode` has it, which is not read at the start, when a signal would end this process as it is."""


class Follower:
    """The rows of a metrics.jsonl that grows and, where a run goes on from a checkpoint, is cut, each copied once. Not
    that of step 0: Katib would take what an untrained model scored for the trial's."""

    def __init__(self, metrics: Path, copy: Path) -> None:
        self._metrics, self._copy = metrics, copy
        self._at, self._file = 0, -1
        self._step, self._known = 0, 0
        self._size = 0
        self._wanted = copy.parent.is_dir()
        if self._wanted:
            copy.touch()  # who waits for it waits at full speed
            self._size = copy.stat().st_size

    def more(self) -> None:
        """Copy what is whole and new. Raises OSError, and takes it for new at the next look, where that cannot be."""
        if not self._wanted:
            return
        try:
            with self._metrics.open("rb") as file:
                number = os.fstat(file.fileno()).st_ino
                if number != self._file or file.seek(0, 2) < self._at:  # made anew, up to its newest checkpoint
                    self._at, self._file, self._known = 0, number, self._step
                file.seek(self._at)
                raw = file.read()
        except FileNotFoundError:
            return
        whole = raw[: raw.rfind(b"\n") + 1]
        rows = [row for text in whole.decode(errors="replace").split("\n") if (row := self._timed(text)) is not None]
        if rows:
            self._append("".join(f"{line}\n" for _, line in rows).encode())
        self._at += len(whole)
        self._step = max([self._step, *(step for step, _ in rows)])

    def _append(self, rows: bytes) -> None:
        """All of them or nothing: half a row would have another score."""
        try:
            with self._copy.open("ab") as out:
                if out.tell() > self._size:  # a write before this one failed, and was not undone
                    out.truncate(self._size)
                out.write(rows)
        except OSError:
            os.truncate(self._copy, self._size)
            raise
        self._size += len(rows)

    def without_score(self) -> None:
        """Copied is nothing of what there was: of such a trial Katib says that its metrics are not available."""
        if self._wanted:
            self._copy.write_text("", encoding="utf-8")
            self._size = 0

    def _timed(self, text: str) -> tuple[int, str] | None:
        """The row's step, and the row behind its time; None for one that was copied already, or is none."""
        with suppress(ValueError, TypeError, KeyError, OverflowError):
            row = json.loads(text)
            step = int(row["step"])
            if step > self._known:
                at = datetime.fromtimestamp(float(row["time"]), UTC)
                return step, f"{at:%Y-%m-%dT%H:%M:%S.%fZ} {text}"
        return None


def main(directory: str, metrics: str, copy: str, metric: str = "") -> int:
    """The node command's exit code, as a shell says it."""
    node: subprocess.Popen[bytes] | None = None
    asked: list[int] = []

    def hand_on(number: int, _frame: object) -> None:
        asked.append(number)
        if node is not None:
            node.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hand_on)
    follower = Follower(Path(metrics), Path(copy))
    node = subprocess.Popen([*NODE, directory])
    if asked:  # before there was anybody to tell
        node.send_signal(asked[0])
    while True:
        try:
            code = node.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(OSError):  # it is read at the next look
                follower.more()
        else:
            code = code if code >= 0 else 128 - code
            return code if _is_copied(follower, Path(metrics), metric, code) else code or _retried(Path(directory))


def _is_copied(follower: Follower, metrics: Path, metric: str, code: int) -> bool:
    """Whether Katib has what a trial scored that has ended with this code. It would take what was copied before for its
    result; a finished run that is started again ends at once, and is copied."""
    try:
        follower.more()
        if code == 0 and metric and _ends_without_number(metrics, metric):
            follower.without_score()
    except OSError as error:
        sys.stderr.write(f"what the trial scored is not copied: {error}\n")
        return False
    return True


def _retried(directory: Path) -> int:
    """The exit code after which the pod is started again, as the node command would have it: of node.json, since some
    kinds take a code as it is for the end."""
    settings = json.loads((directory / "node.json").read_text(encoding="utf-8"))
    return _STORAGE + int(settings["retry_exit_offset"])


def _ends_without_number(metrics: Path, metric: str) -> bool:
    """Whether the last evaluation was not finite: a null, which Katib passes over for the one before."""
    from rankzero.run_dir.view import measured  # not at the start, when a signal would end this process as it is

    return [value for _, value in measured(metrics, metric)][-1:] == [None]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5]))
