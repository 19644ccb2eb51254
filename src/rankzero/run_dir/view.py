"""A run directory as somebody sees it who was not there: how far it is, and how it ended. Writes nothing."""

from __future__ import annotations

import json
import math
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

from rankzero.directories import there
from rankzero.errors import StorageError
from rankzero.run_dir.atomic import MANIFEST, NotReadError, read_manifest
from rankzero.run_dir.goodput import Goodput, Start, read_starts, summed_up
from rankzero.run_dir.handover import read_error
from rankzero.run_dir.intact import require_whole
from rankzero.run_dir.lease import BEAT_SECONDS, MISSED_BEATS, Lease, holder, starts_again
from rankzero.run_dir.paths import RunDir

Phase = Literal["Running", "Succeeded", "Stopped", "Interrupted", "Failed", "Killed", "Unknown"]
"""Interrupted: by a second Ctrl-C, without saving. Killed: its process is gone and has said nothing. Unknown: a process
of another host, or of a container, has the directory, or it is a copy of one that a process has or had, or it cannot
be read."""
_T = TypeVar("_T")

_OF_STEPS = ("step", "input_wait", "evaluation", "save_wait", "logging", "repeated")
"""Kinds of time that come with steps."""
_GONE = "final/ is gone"
_TAIL_BYTES = 1 << 16
"""Of metrics.jsonl: some hundred steps. Evaluations further back are looked for in all of it."""


@dataclass(frozen=True, slots=True)
class RunView:
    """One run at one moment."""

    root: Path
    phase: Phase
    step: int
    total_steps: int | None
    """None: it has not begun to train, or is of a version that did not say."""
    loss: float | None
    """Of the newest step; nan where it was not finite."""
    eval_loss: float | None
    """Of the result where there is one, else of the newest evaluation; nan where it was not finite."""
    tokens_per_second: float | None
    begun: float | None
    """Of the first start: Unix seconds."""
    updated: float | None
    """When the run last said anything."""
    resumable: int | None
    """The newest step with a checkpoint."""
    error: str
    """Why the last start failed."""
    starts: Sequence[Start]
    """All of them; the one under way up to now."""
    under_way: Start | None
    """The last of `starts`, where it goes on. None as well where one has the directory, and not yet a line."""
    may_go_on: bool
    """Whether the last of `starts` goes on, or may: of one elsewhere, or of an older version, nobody can tell."""
    goodput: Goodput | None
    starts_again: bool = False
    """Whether its launcher, which lives, may start it again."""
    has_result: bool = True
    """Whether the result of a run that succeeded is here: a copy may be of its reports alone."""
    result_fault: str = ""
    """Why the result of a run that succeeded is of no use, as far as names and sizes of files say: `final/ is gone`."""
    unread: list[str] = field(default_factory=list)
    """What of the directory could not be read, and why: `report.json: Permission denied`. The phase is Unknown then,
    unless a process here has it."""

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self.phase not in ("Running", "Unknown") and not self.starts_again

    @property
    def eta_seconds(self) -> float | None:
        """At the pace of the present start, made again or not. None where none runs, or it has made no step yet."""
        start = self.under_way
        if start is None or not self.total_steps or start.step <= start.from_step:
            return None
        spent = sum(start.seconds.get(kind, 0.0) for kind in _OF_STEPS)
        return spent / (start.step - start.from_step) * max(0, self.total_steps - start.step)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "run": str(self.root),
            "phase": self.phase,
            "step": self.step,
            "total_steps": self.total_steps,
            "loss": _finite(self.loss),
            "eval_loss": _finite(self.eval_loss),
            "tokens_per_second": _finite(self.tokens_per_second),
            "eta_seconds": self.eta_seconds,
            "begun": self.begun,
            "updated": self.updated,
            "newest_checkpoint": self.resumable,
            "error": self.error,
            "goodput": None if self.goodput is None else self.goodput.to_json(),
            "starts_again": self.starts_again,
            "has_result": self.has_result,
            "result_fault": self.result_fault,
            "unread": self.unread,
        }


def view_run(root: Path) -> RunView:
    """Look at a run directory. What is cut off is left out: it may be written at this moment."""
    run_dir, unread = RunDir(root), list[str]()
    lease = _read(Lease(root).read, "lease.json", unread) or {}
    starts = _read(lambda: read_starts(run_dir.starts), "starts.jsonl", unread) or []
    report = _read(lambda: _read_json(run_dir.report), "report.json", unread)
    steps = _read(run_dir.committed_steps, "checkpoints", unread) or []
    rows = list(rows_from_end(run_dir.metrics))
    newest = next((row for row in rows if _has(row, "loss") and isinstance(row.get("step"), int)), {})
    phase = _phase(root, lease, starts, report, unread)
    fault = _read(lambda: _fault(run_dir.final), "final", unread) if phase == "Succeeded" else None
    is_copied_without = fault == _GONE and not Lease(root).path.exists()  # whoever trains leaves a lease
    phase = "Unknown" if phase == "Succeeded" and unread else phase
    may_go_on = _may_be_under_way(phase, lease, starts)
    goes_on = may_go_on and phase == "Running" and _is_of_now(Lease(root).path, lease, starts)
    under_way = _up_to_now(starts[-1]) if goes_on else None
    starts = starts if under_way is None else [*starts[:-1], under_way]
    done = report is not None and phase == "Succeeded"
    return RunView(
        root=root,
        phase=phase,
        step=int(newest.get("step", steps[0] if steps else 0)),
        total_steps=(starts[-1].total_steps or None) if starts else None,
        loss=value_of(newest, "loss"),
        eval_loss=_number(report.get("eval_loss")) if done and report else _newest_evaluation(run_dir.metrics, rows),
        tokens_per_second=_number(newest.get("tokens_per_second")),
        begun=starts[0].begun if starts else None,
        updated=starts[-1].updated if starts else _number(newest.get("time")),
        resumable=steps[0] if steps else None,
        error=_error(run_dir) if phase == "Failed" else "",
        starts=starts,
        under_way=under_way,
        may_go_on=may_go_on,
        goodput=summed_up(starts) if starts else None,
        starts_again=phase in ("Failed", "Stopped", "Killed") and starts_again(lease),
        has_result=not is_copied_without,
        result_fault="" if is_copied_without else fault or "",
        unread=unread,
    )


def _fault(final: Path) -> str:
    """What is wrong with a result, as far as who uses it minds: people edit templates and cards. "": nothing. Raises
    OSError, and NotReadError where nobody can tell."""
    if not there(final) or not any(final.iterdir()):
        return _GONE
    if not there(final / MANIFEST):  # somebody has taken it as it is
        return ""
    try:
        require_whole(final, read_manifest(final))
    except NotReadError:
        raise
    except StorageError as error:
        problem = error.problems[0]
        return f"final/ is damaged: {Path(problem.where).name}: {problem.what}"
    return ""


def rows_from_end(metrics: Path, most_bytes: int = _TAIL_BYTES, having: str = "") -> Iterator[dict[str, Any]]:
    """The rows of metrics.jsonl, the newest first, as far as they lie in the last bytes of it, and as somebody wants
    them. `having`: only those that have something of this name. None where it cannot be read."""
    with suppress(OSError):
        yield from _rows(metrics, most_bytes, having)


def _rows(metrics: Path, most_bytes: int, having: str) -> Iterator[dict[str, Any]]:
    """As `rows_from_end`. Raises OSError."""
    try:
        if not stat.S_ISREG(metrics.stat().st_mode):  # a device or a pipe may never end
            return
        file = metrics.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        return
    wanted = json.dumps(having).encode() if having else b""
    with file:
        for line in _lines_from_end(file, most_bytes, wanted):
            if (row := row_of(line)) is not None:
                yield row


def _lines_from_end(file: IO[bytes], most_bytes: int, wanted: bytes) -> Iterator[bytes]:
    """Those with `wanted` in them, the last one first. The first one of the last bytes may be cut, and the last one
    be half written."""
    at, rest = file.seek(0, 2), b""
    end = max(0, at - most_bytes)
    while at > end:
        size = min(max(_TAIL_BYTES, len(rest)), at - end)
        at -= size
        file.seek(at)
        rest, *lines = (file.read(size) + rest).split(b"\n")
        yield from reversed([line for line in lines if wanted in line])
    if wanted in rest:
        yield rest


def row_of(line: bytes) -> dict[str, Any] | None:
    """A line of metrics.jsonl; None where it is cut, or nothing of ours."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def curve(metrics: Path, name: str) -> list[tuple[int, float]]:
    """A metric by step, where it was a finite number. None where it cannot be read."""
    with suppress(OSError):
        return [(step, value) for step, value in measured(metrics, name) if value is not None]
    return []


def measured(metrics: Path, name: str) -> list[tuple[int, float | None]]:
    """A metric by step; None where it was not finite. A step that was made again counts as it was made last.
    Raises OSError: what was measured cannot be seen then, and is not nothing."""
    points: dict[int, float | None] = {}
    for row in _rows(metrics, 1 << 62, name):
        if _has(row, name) and isinstance(row.get("step"), int):
            points.setdefault(row["step"], _number(row[name]))
    return sorted(points.items())


def _phase(
    root: Path,
    lease: dict[str, Any],
    starts: Sequence[Start],
    report: Mapping[str, Any] | None,
    unread: Sequence[str],
) -> Phase:
    said = _has_a_line(lease, starts) and starts[-1].ended  # this process writes its page when its start has ended
    if lease and holder(root, perhaps=True) is not None and not (said and lease.get("pid") == os.getpid()):
        return "Running"
    if unread:
        return "Unknown"
    if not starts:
        return "Succeeded" if report is not None else "Stopped"
    ended = starts[-1].ended
    if ended is None:
        return "Killed" if lease and not Lease(root).is_held(lease) else "Unknown"  # whoever trains here leaves a lease
    phases: dict[str, Phase] = {
        "finished": "Succeeded",
        "stopped": "Stopped",
        "interrupted": "Interrupted",
        "failed": "Failed",
    }
    return phases.get(ended, "Unknown")


def _has_a_line(lease: Mapping[str, Any], starts: Sequence[Start]) -> bool:
    """Whether the last line is of the start that took the lease: it takes that first, and reads its data, before it has
    a line."""
    return bool(starts) and bool(starts[-1].owner) and starts[-1].owner == lease.get("owner")


def _is_of_now(lease_file: Path, lease: Mapping[str, Any], starts: Sequence[Start]) -> bool:
    """As `_has_a_line`, where one holds the directory. One of an older version names no owner: its line is of now where
    that is as new as the lease."""
    if "owner" in lease or not starts or starts[-1].owner:
        return _has_a_line(lease, starts)
    with suppress(OSError):
        return abs(lease_file.stat().st_mtime - starts[-1].updated) < MISSED_BEATS * BEAT_SECONDS
    return False


def _may_be_under_way(phase: Phase, lease: Mapping[str, Any], starts: Sequence[Start]) -> bool:
    if phase not in ("Running", "Unknown") or not starts or starts[-1].ended is not None:
        return False
    return lease.get("owner") in (None, starts[-1].owner)


def _up_to_now(start: Start) -> Start:
    """The start under way with the time since its line was written, which is of one kind; of a line of before, which
    does not say of which, as it is."""
    if not start.kind:
        return start
    now = time.time()
    more = start.seconds.get(start.kind, 0.0) + max(0.0, now - start.updated)
    return replace(start, updated=now, seconds=start.seconds | {start.kind: more})


def _newest_evaluation(metrics: Path, rows: list[dict[str, Any]]) -> float | None:
    for row in rows:
        if _has(row, "eval_loss"):
            return value_of(row, "eval_loss")
    older = rows_from_end(metrics, most_bytes=1 << 62, having="eval_loss")
    return next((value_of(row, "eval_loss") for row in older if _has(row, "eval_loss")), None)


def _has(row: Mapping[str, Any], name: str) -> bool:
    """Whether a row says what this was; null is what was not finite."""
    return name in row and (row[name] is None or _number(row[name]) is not None)


def value_of(row: Mapping[str, Any], name: str) -> float | None:
    """What a row says of a metric: nan for null, which was not finite; None where it says nothing."""
    if not _has(row, name):
        return None
    return math.nan if row[name] is None else _number(row[name])


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, float | int) else None
    except OverflowError:
        return None


def _finite(value: float | None) -> float | None:
    """As JSON has it."""
    return value if value is None or math.isfinite(value) else None


def _error(run_dir: RunDir) -> str:
    error = read_error(run_dir.error) if run_dir.error.is_file() else None
    if error is None or not error.problems:
        return ""
    problem = error.problems[0]
    first, _, others = str(problem.where).partition(", ")
    return f"{problem.what} ({first}{' and more' if others else ''})" if first else str(problem.what)


def _read(look: Callable[[], _T], name: str, unread: list[str]) -> _T | None:
    """What a look finds; where it may not look, that is noted. What has gone meanwhile is nothing."""
    try:
        return look()
    except FileNotFoundError:
        return None
    except OSError as error:
        unread.append(f"{name}: {error.strerror or error}")
    except StorageError as error:
        why = error.__cause__.strerror if isinstance(error.__cause__, OSError) else error.problems[0].what
        unread.append(f"{name}: {why}")
    return None


def _read_json(path: Path) -> dict[str, Any] | None:
    """Raises OSError."""
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
