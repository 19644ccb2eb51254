"""The marker that the preparation Job leaves on the cache volume, and the wait of training pods for it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankzero import errors
from rankzero.errors import Problem, RankzeroError, ServiceError, StorageError
from rankzero.launch.node.client import Say, Wait
from rankzero.run_dir.atomic import write_json
from rankzero.spec.resolve import spec_hash
from rankzero.spec.run_spec import RunSpec

LIMIT_SECONDS = 24 * 3600.0
"""Weights of hundreds of gigabytes take hours; a Job that fails says so in the marker at once."""
POLL_SECONDS = 1.0


def write_marker(path: Path, spec: RunSpec, error: RankzeroError | None) -> None:
    """Say that everything of this spec is in the cache, or why it is not. Raises StorageError."""
    problems = [] if error is None else [{"what": p.what, "where": p.where, "hint": p.hint} for p in error.problems]
    kind = None if error is None else type(error).__name__
    write_json(path, {"ok": error is None, "spec": spec_hash(spec), "error": kind, "problems": problems})


def wait_for_marker(path: Path, spec: RunSpec, stopped: Callable[[], bool], say: Say) -> None:
    """Return when the preparation of this spec is done, or `stopped` becomes true.

    Raises the preparation's own error, or ServiceError after LIMIT_SECONDS. A marker of another spec is an older one's.
    """
    wait = Wait(LIMIT_SECONDS, say)
    while not stopped():
        marker = _read(path)
        if marker is not None and marker.get("spec") == spec_hash(spec):
            if marker["ok"]:
                return
            kind = getattr(errors, str(marker["error"]), RankzeroError)
            raise kind([Problem(**problem) for problem in marker["problems"]])
        if wait.over:
            hint = "see `rankzero status`: the preparation Job has not ended"
            raise ServiceError(
                f"model and data were not prepared in {wait.seconds / 3600:.0f} h", where=str(path), hint=hint
            )
        wait.speak("the preparation Job")
        time.sleep(POLL_SECONDS)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        hint = "the cache volume must be readable by this pod's user"
        raise StorageError(f"cannot be read: {error.strerror or error}", where=str(path), hint=hint) from error
    return value if isinstance(value, dict) and "ok" in value else None
