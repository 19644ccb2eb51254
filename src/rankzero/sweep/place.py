"""Names and places in a sweep's directory. Creates nothing by naming it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SweepDir:
    """`<output_dir>/<name>/`."""

    root: Path

    @property
    def setting(self) -> Path:
        """What is searched, with the run spec that is varied: a sweep that goes on must be the same."""
        return self.root / "sweep.json"

    @property
    def record(self) -> Path:
        """Every trial: its values, evaluations, and how it ended. SQLite, by Optuna."""
        return self.root / "study.db"

    @property
    def trials(self) -> Path:
        """Holds the trials' run directories."""
        return self.root / "trials"

    @property
    def best(self) -> Path:
        """The run spec of the best trial, for `rankzero train`."""
        return self.root / "best.yaml"

    @property
    def page(self) -> Path:
        return self.root / "report.html"
