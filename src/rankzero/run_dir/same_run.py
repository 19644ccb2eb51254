"""Whether a run directory holds checkpoints that another spec made, and what may differ. Reads, writes nothing; knows
neither data nor weights."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankzero.errors import ConfigError, Problem
from rankzero.run_dir.known import is_by_hand
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.setting import ALONE, is_of_setting, spec_of_manifest, what_is_held
from rankzero.spec.diff import (
    IDENTITIES,
    LENGTH,
    Change,
    compare,
    differ,
    identity_at,
    is_allowed,
    name_beside,
    other_places,
    perhaps_the_same,
)
from rankzero.spec.local_paths import path_fields, path_read, stands_for
from rankzero.spec.run_spec import RunSpec

_UNREADABLE = "it was made by a version of rankzero whose specs this one does not read"
_READ = ("data", "file")
"""Of the fields that name something here, those whose files may have names that a run gives."""
_MADE_OF = ("model", "tokenizer", "data")
"""Of the identities, those that a result is made of."""


@dataclass(frozen=True, slots=True)
class Differences:
    """How a run differs from what its checkpoint was made by, and may."""

    notices: tuple[str, ...] = ()
    """One for each difference, to be said."""
    accepted: tuple[str, ...] = ()
    """The fields and identities that change the steps to come, and were accepted by --allow-change."""
    unsure: tuple[str, ...] = ()
    """What cannot be told to be the same to the last bit."""


def refuse_foreign_directory(run_dir: RunDir, spec: RunSpec, allowed: Collection[str]) -> None:
    """Raise ConfigError where the run would write over files that somebody has put into its directory, and with every
    harmful difference where that holds another run's checkpoints or result. `allowed`: fields that may have changed."""
    if files := _would_be_replaced(run_dir, spec):
        raise ConfigError(files)
    manifest = what_is_held(run_dir)
    problems = [] if manifest is None else spec_changes(manifest, spec, allowed)[0]
    if manifest is not None and problems:
        raise ConfigError(with_way_out(problems, run_dir, spec, manifest))


def _would_be_replaced(run_dir: RunDir, spec: RunSpec) -> list[Problem]:
    """Somebody's own run.yaml, and what the run reads, where the run writes files of these names."""
    hint = "results have a directory of their own: give another output_dir, or another name"
    read = {field.field: path_read(field, run_dir.root) for field in path_fields(spec) if field.kind in _READ}
    replaced = {field: _written_over(path, run_dir) for field, path in read.items() if path is not None}
    what = f"in its directory, {run_dir.root}, the run would write over"
    found = [Problem(f"{what} {name}", field, hint) for field, name in replaced.items() if name]
    if is_by_hand(run_dir):
        found.append(Problem("no run wrote this run.yaml, and one would write over it", str(run_dir.spec), hint))
    return found


def _written_over(path: str, run_dir: RunDir) -> str:
    """The name of what lies at a path, or of a file that a pattern or a directory stands for, where the run writes over
    it; else ""."""
    if run_dir.writes(path):
        return Path(os.path.realpath(path)).name
    return next((file.name for file in run_dir.not_its_own() if stands_for(path, file)), "")


def others_run(
    there: dict[str, Any], here: dict[str, Any] | None, spec: RunSpec, allowed: Collection[str]
) -> list[Problem]:
    """Why what is elsewhere under this run's name is another run's, by the manifest of its newest checkpoint or of its
    result; [] where it is this run's, or may be by the names of its files alone. `here`: the manifest of the newest
    checkpoint of this run here, which knows more of it than its spec. What only one of them knows by its content is
    compared by its place."""
    problems, _ = spec_changes(there, spec, allowed)
    before = spec_of_manifest(there)
    if before is None:
        return problems
    for name, words in IDENTITIES.items():
        if name in allowed or spec.resume == "continue":
            continue
        apart = None if here is None or name not in there else differ(there[name], here.get(name))
        if apart is None:
            changes = [change for change in other_places(name, before, spec) if change.field not in allowed]
            found = [(_in_words(change), change.field) for change in changes if not perhaps_the_same(change)]
        else:
            differs = apart and not is_allowed(name, allowed)
            found = [(f"{words} there and here are not the same", name)] if differs else []
        problems += [Problem(what, field, f"put it right, or pass --allow-change {name}") for what, field in found]
    return problems


def two_runs(
    ours: RunSpec, theirs: RunSpec, here: Mapping[str, Any], there: Mapping[str, Any], *, begun_alike: bool
) -> list[Problem]:
    """Why results here and there under one name are of two runs, by their specs and the identities that their manifests
    have; [] where they are of one, which may have been continued for longer. `begun_alike`: they have a first step in
    common, so that other data were accepted since."""
    changes = [change for change in compare(theirs, ours) if not change.harmless and change.field not in LENGTH]
    problems = [Problem(_in_words(change), change.field) for change in changes]
    for name in () if begun_alike else _MADE_OF:
        apart = differ(there[name], here[name]) if name in here and name in there else None
        if apart is None:
            problems += [Problem(_in_words(change), change.field) for change in other_places(name, theirs, ours)]
        elif apart:
            problems.append(Problem(f"{IDENTITIES[name]} there and here are not the same", name))
    return problems


def _in_words(change: Change) -> str:
    return f"{json.dumps(change.old)} there, {json.dumps(change.new)} here"


def spec_changes(
    manifest: dict[str, Any], spec: RunSpec, allowed: Collection[str], same: Collection[str] = ()
) -> tuple[list[Problem], Differences]:
    """What of the spec that a checkpoint was made by must not have changed, and what has and may. `same`: identities
    that are known to be the same, of whose places nothing needs to be said."""
    before = spec_of_manifest(manifest)
    if before is None:
        return [Problem(_UNREADABLE, "spec")], Differences()
    problems, notices, accepted = [], [], []
    for change in compare(before, spec):
        if identity_at(change.field) in same:
            continue
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


def with_way_out(
    problems: list[Problem], place: RunDir | str, spec: RunSpec, manifest: Mapping[str, Any]
) -> list[Problem]:
    """What to do about such problems, before them. `place`: the run directory, or the URL of its copy; `manifest`: of
    the checkpoint that is there."""
    where, holder = (place, "object store") if isinstance(place, str) else (str(place.root), "directory")
    if ALONE in manifest and spec.output_url is None and all(problem.where in LENGTH for problem in problems):
        what = f"this {holder} holds the result of a run of another length, and no checkpoint to go on from"
        hint = f"give this run another name, such as name={name_beside(spec)}, to train anew; or undo the changes below"
        problems = [Problem(problem.what, problem.where, "set it back") for problem in problems]
    elif all(problem.where in LENGTH for problem in problems):
        what = f"this {holder} holds a run of another length"
        hint = "to let it go on, with the learning rates of its new length, accept the changes below"
    else:
        what = f"this {holder} holds checkpoints of another run"
        way_out = ", or its copy another URL" if isinstance(place, str) else ""
        if not isinstance(place, str) and not is_of_setting(manifest, spec):
            way_out = " (resume=new does that by itself)"  # by settings alone, whatever content they name
        hint = (
            f"give this run another name, such as name={name_beside(spec)}{way_out}; or undo "
            "the changes below; or accept those that can be one by one, or all with resume=continue"
        )
    return [Problem(what, where, hint), *problems]
