"""Whether a run is over, from what is on disk alone. Reads, writes nothing."""

from __future__ import annotations

import json

from rankzero.errors import StorageError
from rankzero.run_dir.atomic import read_manifest
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec


def is_finished(run_dir: RunDir, spec: RunSpec) -> bool:
    """Whether this spec's final weights and report are there, and no checkpoint is newer than they are.

    Does not look at data and model, as a start of the engine does.
    """
    try:
        final = read_manifest(run_dir.final)
        report = json.loads(run_dir.report.read_text(encoding="utf-8"))
    except (StorageError, OSError, ValueError):
        return False
    same = final.get("spec") == spec.model_dump(mode="json")
    steps = run_dir.committed_steps()
    return same and isinstance(report, dict) and bool(steps) and report.get("steps") == steps[0]
