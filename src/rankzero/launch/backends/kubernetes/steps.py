"""What submitting has to do with each object, given what is there already. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import yaml

from rankzero.errors import Problem
from rankzero.launch import labels
from rankzero.launch.backends.kubernetes.resources import (
    CLAIM,
    annotation,
    ended,
    is_preparation,
    is_suspended,
    is_template,
    is_training,
    label,
    name_of,
)
from rankzero.launch.labels import Manifest
from rankzero.launch.node.settings import NodeSettings
from rankzero.launch.untyped_json import at, text
from rankzero.spec.diff import compare, name_beside
from rankzero.spec.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class Step:
    """One object, and what becomes of it."""

    do: Literal["create", "update", "replace", "resume", "keep"]
    manifest: Manifest
    existing: Manifest | None = None
    note: str = ""
    """Why, where that is worth a word."""


@dataclass(frozen=True, slots=True)
class Steps:
    """All of them in the order of the objects, and what stands in the way."""

    steps: tuple[Step, ...]
    problems: tuple[Problem, ...]

    @property
    def training(self) -> Step:
        """The step of the object that trains."""
        return next(step for step in reversed(self.steps) if is_training(step.manifest))


def decide(objects: Sequence[Manifest], existing: Mapping[str, Manifest], going: Sequence[str] = ()) -> Steps:
    """`existing` are the objects that are there, by name_of; `going` those that go with what is removed first."""
    strangers = [one for one in objects if name_of(one) not in going]
    problems = [problem for one in strangers if (problem := foreign(one, existing.get(name_of(one)))) is not None]
    if any(is_training(one) and ended(existing.get(name_of(one), one)) == "complete" for one in objects):
        problems += [
            problem for one in objects for problem in another_setting(one, existing.get(name_of(one))) if not problems
        ]
    trained = [_training(one, existing.get(name_of(one))) for one in objects if is_training(one)]
    run = trained[-1].do if trained else "create"
    same_config = all(_same_data(one, existing.get(name_of(one))) for one in objects if one["kind"] == "ConfigMap")
    steps: list[Step] = []
    for one in objects:
        there = existing.get(name_of(one))
        if is_training(one):
            steps.append(_training(one, there))
        elif is_preparation(one):
            steps.append(_preparation(one, there, run=run, same_config=same_config))
        elif one["kind"] == CLAIM.kind and there is not None:
            steps.append(Step("keep", one, there, _claim_note(one, there)))
        elif there is not None and run in ("create", "replace") and is_template(one):
            steps.append(Step("replace", one, there))  # parts of it stay as they were made
        elif name_of(one) in going:
            steps.append(Step("create", one))
        else:
            steps.append(Step("create" if there is None else "update", one, there))
    return Steps(tuple(steps), tuple(problems))


def _training(manifest: Manifest, there: Manifest | None) -> Step:
    if there is None:
        return Step("create", manifest)
    if there["metadata"].get("deletionTimestamp"):
        return Step("replace", manifest, there, "is being deleted")
    outcome = ended(there)
    if outcome is not None:
        return Step("replace", manifest, there, f"has ended ({outcome}); the run continues from what it saved")
    digest = annotation(manifest, labels.SPEC_HASH)
    if digest is None or annotation(there, labels.SPEC_HASH) != digest:
        return Step("replace", manifest, there, "has changed; the run continues from what it saved")
    if is_suspended(there) and not is_suspended(manifest):
        return Step("resume", manifest, there, "was stopped")
    return Step("keep", manifest, there, "runs already, with this very spec; left as it is")


def _preparation(manifest: Manifest, there: Manifest | None, *, run: str, same_config: bool) -> Step:
    if there is None:
        note = "is not needed any more: the run is under way"
        return Step("keep", manifest, None, note) if run == "keep" else Step("create", manifest)
    outcome = ended(there)
    goes_on = run in ("keep", "resume") or (same_config and outcome is None and _is_same(manifest, there))
    if outcome == "failed" or not goes_on or there["metadata"].get("deletionTimestamp"):
        return Step("replace", manifest, there)
    if is_suspended(there):
        return Step("resume", manifest, there, "was stopped")
    return Step("keep", manifest, there)


def _is_same(manifest: Manifest, there: Manifest) -> bool:
    """Whether it is the Job that would be made now. One of a version that noted no hash is taken for it."""
    digest = annotation(there, labels.OWN_HASH)
    return digest is None or digest == annotation(manifest, labels.OWN_HASH)


def foreign(manifest: Manifest, there: Manifest | None) -> Problem | None:
    """An object of another run, or of nobody's we know, is not touched."""
    if there is None or manifest["kind"] == CLAIM.kind or label(there, labels.RUN) == label(manifest, labels.RUN):
        return None
    other = label(there, labels.RUN)
    return taken(manifest, f"the run {other}" if other else "somebody else")


def taken(manifest: Manifest, whose: str = "somebody else") -> Problem:
    """That an object cannot be made, since one of its name is another's."""
    what = f"it exists already and belongs to {whose}"
    return Problem(what, name_of(manifest), "choose another name in run.yaml, or remove the object")


def _same_data(manifest: Manifest, there: Manifest | None) -> bool:
    return there is not None and all(
        (manifest.get(part) or {}) == (there.get(part) or {}) for part in ("data", "binaryData")
    )


def _claim_note(manifest: Manifest, there: Manifest) -> str:
    wanted, has = (set(one["spec"].get("accessModes") or ()) for one in (manifest, there))
    if wanted <= has:
        return ""
    return (
        f"exists with {', '.join(sorted(has)) or 'no access mode'} where cluster.yaml says {', '.join(sorted(wanted))}"
    )


def another_setting(config: Manifest, there: Manifest | None) -> list[Problem]:
    """Why the directory of the run that `there` describes cannot take the one that `config` describes.

    Both are ConfigMaps. A run that finished has left checkpoints, so its pods would refuse with exit code 78. Where one
    with `resume: new` left them is not known here.
    """
    if config["kind"] != "ConfigMap" or there is None:
        return []
    old, new = _spec(there), _spec(config)
    if old is None or new is None or old.resume == "new" or new.resume != "refuse":
        return []
    if (old.name, old.output_dir) != (new.name, new.output_dir):
        return []
    allowed = NodeSettings.from_json(text(config, "data", "node.json")).options.allow_changes
    changes = [
        Problem(
            f"{json.dumps(change.old)} in the finished run, {json.dumps(change.new)} now",
            change.field,
            f"set it back, or pass --allow-change {change.field}",
        )
        for change in compare(old, new)
        if not change.harmless and change.field not in allowed
    ]
    if not changes:
        return []
    head = Problem(
        f"the run {new.name} has finished, and this is another setting of it",
        f"{new.output_dir}/{new.name}",
        f"give this run another name, such as name={name_beside(new)} (resume=new does that by itself); or undo the "
        "changes below; or accept them one by one, or all with resume=continue",
    )
    return [head, *changes]


def _spec(config: Manifest) -> RunSpec | None:
    """None where it was written by another version, whose spec says things that this one does not know."""
    try:
        return RunSpec.model_validate(yaml.safe_load(str(at(config, "data").get("run.yaml", ""))))
    except (ValueError, yaml.YAMLError):
        return None
