"""Whether a directory is a run's: by what lies in it, and in doubt by its run.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rankzero.run_dir.paths import RunDir
from rankzero.spec.nearby import near

DEFAULT_OUTPUT = "runs"
_TO_START_WITH = ("cluster.yaml", "infra.yaml")
"""What lies beside the run.yaml of who trains; no run writes it."""


def is_run(directory: Path) -> bool:
    """Whether a run has been here, or a part of one was copied here, if only its run.yaml.

    A directory with the run.yaml that somebody trains with, and nothing that a run writes, is none."""
    run_dir = RunDir(directory)
    return run_dir.spec.is_file() and (run_dir.has_more_than_spec or not _is_to_train_with(run_dir))


def run_meant(target: str) -> str | None:
    """The run in ./runs whose name a single word is nearly."""
    close = None if "/" in target else near(Path(DEFAULT_OUTPUT) / target)
    return close if close and is_run(Path(close)) else None


def is_by_hand(run_dir: RunDir) -> bool:
    """Whether there is a run.yaml that no run wrote: what a run writes has its name, an absolute place, and lies beside
    what it runs on."""
    if run_dir.environment.is_file():
        return False
    try:
        spec: Any = yaml.safe_load(run_dir.spec.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):  # who reads it as a run's says what is wrong with it
        return False
    if not isinstance(spec, dict) or not spec:
        return False
    return spec.get("name") is None or not Path(str(spec.get("output_dir") or DEFAULT_OUTPUT)).is_absolute()


def _is_to_train_with(run_dir: RunDir) -> bool:
    """Whether the run.yaml is surely none that a run wrote."""
    return any((run_dir.root / name).is_file() for name in _TO_START_WITH) or is_by_hand(run_dir)
