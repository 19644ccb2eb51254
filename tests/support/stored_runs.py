"""Run directories without training, and their copies in object stores."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from rankzero.engine.checkpoint import prune_checkpoints
from rankzero.persist.run_store import RunStore
from rankzero.run_dir.atomic import commit_directory
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.steps import ONLY_ENDS
from rankzero.spec.run_spec import RunSpec


def spec_of(run: RunDir, **changes: Any) -> RunSpec:
    value = {"name": "r", "model": {"name": "m"}, "data": {"train": "t"}, "output_dir": str(run.root.parent)}
    return RunSpec.model_validate(value | changes)


def store_of(run: RunDir, url: str, allowed: tuple[str, ...] = (), **changes: Any) -> RunStore:
    return RunStore(run, url, spec_of(run, **changes), allowed)


def checkpoint(run: RunDir, step: int, *, data: str = "d", only_ends: bool = False, **changes: Any) -> None:
    """`only_ends`: of weights that are NaN."""
    staged = run.root / "staged"
    (staged / "adapter").mkdir(parents=True)
    (staged / "adapter" / "weights").write_text(f"weights {step}")
    run.checkpoints.mkdir(exist_ok=True)
    spec = spec_of(run, **changes).model_dump(mode="json")
    about = {"step": step, "spec": spec, "data": data, **({ONLY_ENDS: True} if only_ends else {})}
    commit_directory(staged, run.checkpoint(step), about)
    run.set_link("last", step)


def result(run: RunDir, text: str, *, data: str = "d", **identities: str) -> None:
    """`identities`: those that results of earlier versions do not have."""
    staged = run.root / "staged"
    staged.mkdir(parents=True)
    (staged / "config").write_text(f"of {text}")
    (staged / "model.safetensors").write_text(text)
    about = {"step": 9, "spec": spec_of(run).model_dump(mode="json"), "data": data, **identities}
    commit_directory(staged, run.final, about)


def trained(root: Path, step: int) -> RunDir:
    """A run that has logged so many steps."""
    run = RunDir(root / "r")
    run.root.mkdir(parents=True)
    log(run, step)
    return run


def log(run: RunDir, step: int, by: str = "") -> None:
    run.metrics.write_text("".join(json.dumps({"step": number, "by": by}) + "\n" for number in range(1, step + 1)))


def logged(run: RunDir) -> int:
    return len(run.metrics.read_text().splitlines())


def save(run: RunDir, step: int, *, keep: int = 3) -> None:
    """As a run does: its steps are in its records before they are in a checkpoint."""
    log(run, step)
    checkpoint(run, step)
    prune_checkpoints(run, keep=keep, best_step=None)


def end(run: RunDir, text: str, steps: int) -> None:
    shutil.rmtree(run.final, ignore_errors=True)
    result(run, text)
    run.report.write_text(json.dumps({"steps": steps}))


def everything(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
