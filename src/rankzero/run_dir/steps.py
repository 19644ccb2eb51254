"""How far a run is, by what its directory has. Knows no training."""

from __future__ import annotations

import json
from collections.abc import Iterable

from rankzero.run_dir.atomic import NotReadError
from rankzero.run_dir.paths import RunDir

ONLY_ENDS = "only_ends"
"""In the manifest of a checkpoint whose weights are NaN: it says that the run is over, and how it went."""


def furthest(steps: Iterable[int], report: str | bytes) -> int:
    """The last step that checkpoints or report.json tell of; 0 where none does."""
    try:
        told = json.loads(report)["steps"]
    except (ValueError, KeyError, TypeError):
        told = 0
    return max(0, *steps, told if isinstance(told, int) else 0)


def newest_step(run_dir: RunDir, otherwise: int | None) -> int | None:
    """Of the newest checkpoint; None: there is none. `otherwise`: what was known before, where none can be seen now."""
    try:
        return next(iter(run_dir.committed_steps()), None)
    except NotReadError:
        return otherwise
