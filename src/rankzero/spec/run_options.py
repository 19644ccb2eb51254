"""RunOptions: how one invocation talks and where it copies its report. Never changes the maths, never stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
LogBatches = Literal["all", "first-last", "none"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the command line says besides the spec.

    `allow_changes` names spec fields that may differ from the checkpoint a run is resumed from.
    """

    log_level: LogLevel = "INFO"
    log_batches: LogBatches = "first-last"
    report_json: str | None = None
    allow_changes: tuple[str, ...] = ()
