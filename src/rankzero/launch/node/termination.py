"""The termination message: what the pod's status says of a run's end, as one line of JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from rankzero.errors import ExitCode, PeerLostError, RankzeroError, StoppedError
from rankzero.launch.node.settings import TERMINATION_LOG
from rankzero.run_dir.paths import RunDir

Outcome = Literal["done", "stopped", "failed", "peer_lost"]
MOST_BYTES = 4096
"""What the kubelet keeps."""
_MOST_WORDS = 1200
PATH_VARIABLE = "RANKZERO_TERMINATION_LOG"


def message(node: int, run_dir: RunDir, error: RankzeroError | None, redact: Callable[[str], str]) -> dict[str, Any]:
    """What happened, how far the run was, and what is saved."""
    problem = error.problems[0] if error is not None and error.problems else None
    step, total = progress(run_dir)
    checkpoints = run_dir.committed_steps()
    return {
        "rankzero": 1,
        "outcome": _outcome(error),
        "exit_code": int(ExitCode.DONE if error is None else error.exit_code),
        "node": node,
        "what": redact(problem.what)[:_MOST_WORDS] if problem else "",
        "where": redact(problem.where)[:300] if problem else "",
        "hint": redact(problem.hint)[:600] if problem else "",
        "step": step,
        "total_steps": total,
        "checkpoint": checkpoints[0] if checkpoints else None,
        "run_dir": str(run_dir.root),
    }


def _outcome(error: RankzeroError | None) -> Outcome:
    if error is None:
        return "done"
    if isinstance(error, StoppedError):
        return "stopped"
    return "peer_lost" if isinstance(error, PeerLostError) else "failed"


def progress(run_dir: RunDir) -> tuple[int | None, int | None]:
    """The last step that was logged, and how many there are; None where nothing says so."""
    step = total = None
    with suppress(OSError, ValueError, KeyError, IndexError), run_dir.metrics.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
        step = int(json.loads(file.read().splitlines()[-1])["step"])
    with suppress(OSError, ValueError, KeyError, TypeError):
        total = int(json.loads(run_dir.report.read_text(encoding="utf-8"))["steps"])
    return step, total


def write(value: Mapping[str, Any], env: Mapping[str, str]) -> None:
    """Put the message where the platform looks for it; elsewhere there is nobody to read it."""
    path = Path(env.get(PATH_VARIABLE, TERMINATION_LOG))
    if not path.exists() and PATH_VARIABLE not in env:
        return
    text = json.dumps(value, ensure_ascii=False)
    if len(text.encode()) > MOST_BYTES:
        text = json.dumps({**value, "what": value["what"][:300], "hint": value["hint"][:200]}, ensure_ascii=True)
    with suppress(OSError):  # the exit code says the same in one number
        path.write_text(text[:MOST_BYTES], encoding="utf-8")
