"""Whether a run directory holds checkpoints that another spec made, and what may differ. Reads, writes nothing; knows
neither data nor weights."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from rankzero.errors import ConfigError, Problem
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.setting import newest_manifest
from rankzero.spec.diff import LENGTH, compare, name_beside
from rankzero.spec.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class Differences:
    """How a run differs from what its checkpoint was made by, and may."""

    notices: tuple[str, ...] = ()
    """One for each difference, to be said."""
    accepted: tuple[str, ...] = ()
    """The fields and identities that change the steps to come, and were accepted by --allow-change."""


def refuse_foreign_directory(run_dir: RunDir, spec: RunSpec, allowed: Collection[str]) -> None:
    """Raise ConfigError with every harmful difference where the directory holds another run's checkpoints. `allowed`:
    fields that may have changed."""
    manifest = newest_manifest(run_dir)
    problems = [] if manifest is None else spec_changes(manifest, spec, allowed)[0]
    if problems:
        raise ConfigError(with_way_out(problems, run_dir, spec))


def spec_changes(
    manifest: dict[str, Any], spec: RunSpec, allowed: Collection[str]
) -> tuple[list[Problem], Differences]:
    """What of the spec that a checkpoint was made by must not have changed, and what has and may."""
    problems, notices, accepted = [], [], []
    for change in compare(RunSpec.model_validate(manifest["spec"]), spec):
        words = f"{json.dumps(change.old)} in the checkpoint, {json.dumps(change.new)} now"
        if change.fixed:
            problems.append(Problem(words, change.field, "set it back: what is saved would not fit"))
        elif change.harmless or change.field in allowed or spec.resume == "continue":
            notices.append(f"{change.field}: {words}")
            accepted += [] if change.harmless else [change.field]
        else:
            hint = f"set it back, or pass --allow-change {change.field}"
            problems.append(Problem(words, change.field, hint))
    return problems, Differences(tuple(notices), tuple(accepted))


def with_way_out(problems: list[Problem], run_dir: RunDir, spec: RunSpec) -> list[Problem]:
    """What to do about such problems, before them."""
    if all(problem.where in LENGTH for problem in problems):
        what = "this directory holds a run of another length"
        hint = "to let it go on, with the learning rates of its new length, accept the changes below"
    else:
        what = "this directory holds checkpoints of another run"
        hint = (
            f"give this run another name, such as name={name_beside(spec)} (resume=new does that by itself); or undo "
            "the changes below; or accept those that can be one by one, or all with resume=continue"
        )
    return [Problem(what, str(run_dir.root), hint), *problems]
