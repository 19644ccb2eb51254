"""The termination message: what the pod's status says of a run's end, as one line of JSON."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rankzero.errors import ExitCode, PeerLostError, RankzeroError, StoppedError, StorageError
from rankzero.launch.log_lines import last_progress
from rankzero.launch.node.settings import TERMINATION_LOG
from rankzero.run_dir.goodput import read_starts, summed_up
from rankzero.run_dir.paths import RunDir
from rankzero.spec.tasks import MEASURES

Outcome = Literal["done", "stopped", "failed", "peer_lost"]
MOST_BYTES = 4096
"""What the kubelet keeps."""
_MOST_WORDS = 1200
PATH_VARIABLE = "RANKZERO_TERMINATION_LOG"


def message(node: int, run_dir: RunDir, error: RankzeroError | None, redact: Callable[[str], str]) -> dict[str, Any]:
    """What happened, how far the run was, and what is saved."""
    problem = error.problems[0] if error is not None and error.problems else None
    more = f" (and {len(error.problems) - 1} more in the log)" if error is not None and len(error.problems) > 1 else ""
    step, total = progress(run_dir)
    checkpoints = _checkpoints(run_dir)
    return {
        "rankzero": 1,
        "outcome": _outcome(error),
        "exit_code": int(ExitCode.DONE if error is None else error.exit_code),
        "node": node,
        "what": redact(problem.what)[:_MOST_WORDS] + more if problem else "",
        "where": redact(problem.where)[:300] if problem else "",
        "hint": redact(problem.hint)[:600] if problem else "",
        "step": step,
        "total_steps": total,
        "checkpoint": checkpoints[0] if checkpoints else None,
        "run_dir": redact(str(run_dir.root)),
        "goodput": goodput(run_dir),
        **(scores(run_dir) if error is None else {"scores": {}}),
    }


def internal(error: Exception) -> RankzeroError:
    """What nobody expected, with its traceback as a note: printed like any error, so without secrets."""
    known = RankzeroError(f"internal error: {type(error).__name__}: {error}")
    known.add_note("".join(traceback.format_exception(error)))
    return known


def _outcome(error: RankzeroError | None) -> Outcome:
    if error is None:
        return "done"
    if isinstance(error, StoppedError):
        return "stopped"
    return "peer_lost" if isinstance(error, PeerLostError) else "failed"


def _checkpoints(run_dir: RunDir) -> list[int]:
    """None where they cannot be seen: the volume may be what the run ended by, and the rest is to be said all the
    same."""
    with suppress(StorageError):
        return run_dir.committed_steps()
    return []


def progress(run_dir: RunDir) -> tuple[int | None, int | None]:
    """The last step that was logged, and how many there are; None where nothing says so."""
    step = total = None
    with suppress(OSError, ValueError, KeyError, IndexError):
        whole = [line for line in _tail(run_dir.metrics).split("\n") if line.endswith("}")]  # a kill may cut the last
        step = int(json.loads(whole[-1])["step"])
    with suppress(OSError):  # rank 0's log, which every node of a shared volume sees
        shown = last_progress(_tail(run_dir.log(0)), datetime.now(UTC))
        total = None if shown is None else shown.total_steps
    with suppress(OSError, ValueError, KeyError, TypeError):
        total = int(json.loads(run_dir.report.read_text(encoding="utf-8"))["steps"])
    return step, total


def scores(run_dir: RunDir) -> dict[str, Any]:
    """What the result's evaluation measured, and why that could not be read where it could not."""
    try:
        report = json.loads(run_dir.report.read_text(encoding="utf-8"))
        return {"scores": {name: report[name] for name in MEASURES if isinstance(report.get(name), int | float)}}
    except (FileNotFoundError, ValueError, AttributeError):
        return {"scores": {}}
    except OSError as error:
        return {"scores": {}, "scores_unread": error.strerror or str(error)}


def goodput(run_dir: RunDir) -> str:
    """Where the time of all starts went, in one line; empty where nothing says so."""
    with suppress(OSError):
        if starts := read_starts(run_dir.starts):
            return str(summed_up(starts))
    return ""


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 65536))
        return file.read().decode("utf-8", errors="replace")


def write(value: Mapping[str, Any], env: Mapping[str, str]) -> None:
    """Put the message where the platform looks for it; elsewhere there is nobody to read it."""
    path = Path(env.get(PATH_VARIABLE, TERMINATION_LOG))
    if not path.exists() and PATH_VARIABLE not in env:
        return
    most = _MOST_WORDS
    text = json.dumps(value, ensure_ascii=False)
    while len(text.encode(errors="replace")) > MOST_BYTES and most > 1:
        most //= 2
        cut = {key: part[:most] if isinstance(part, str) else part for key, part in value.items()}
        text = json.dumps(cut, ensure_ascii=False)
    with suppress(OSError):  # the exit code says the same in one number
        path.write_text(text, encoding="utf-8", errors="replace")
