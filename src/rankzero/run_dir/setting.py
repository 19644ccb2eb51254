"""What a run directory holds of a setting: whether it is another one, so that the run takes a directory beside it, and
whether that run is finished. Reads, writes nothing."""

from __future__ import annotations

import copy
import glob
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rankzero.errors import StorageError
from rankzero.run_dir.atomic import NewerFormatError, NotReadError, read_manifest
from rankzero.run_dir.intact import not_now, require_whole
from rankzero.run_dir.paths import RunDir
from rankzero.spec.data_paths import parse_data_path
from rankzero.spec.diff import Change, beside_prefix, compare, identity_at, name_beside, perhaps_the_same
from rankzero.spec.local_paths import is_gone, is_there
from rankzero.spec.run_spec import RunSpec

MOVED_OUT = "move this checkpoint out of checkpoints/: the run goes on from the one before"
"""What to do with one that can never be read again."""
ALONE = "alone"
"""In what `result_alone` gives: nothing can be gone on from. On no disk."""
BEGINS_AGAIN = "and the run begins again: it has no checkpoint"


def newest_manifest(run_dir: RunDir) -> dict[str, Any] | None:
    """Of the newest checkpoint whose manifest is not damaged; its files are not verified. Raises NotReadError where it
    cannot be read now, since an older one may say other things."""
    for step in run_dir.committed_steps():
        try:
            return read_manifest(run_dir.checkpoint(step))
        except NotReadError as error:
            raise not_now(error, MOVED_OUT) from error
        except StorageError:
            continue  # spoken of when it is verified
    return None


def what_is_held(run_dir: RunDir) -> dict[str, Any] | None:
    """The manifest of the newest checkpoint or, of a run that has lost them all, of its result, which says by what it
    was made. Raises NotReadError."""
    if (newest := newest_manifest(run_dir)) is not None:
        return newest
    return result_alone(run_dir)


def result_alone(run_dir: RunDir) -> dict[str, Any] | None:
    """The manifest of a result that says by what it was made, as older ones do not, and that it is ALONE. For who has
    found no checkpoint. Raises NotReadError."""
    try:
        about = read_manifest(run_dir.final)
    except NotReadError as error:
        raise not_now(error, f"move {run_dir.final} away, {BEGINS_AGAIN}") from error
    except StorageError:
        return None
    return {**about, ALONE: True} if says_what_it_is(about) else None


def says_what_it_is(about: Mapping[str, Any]) -> bool:
    """Whether the manifest of a result says by what it was made."""
    return {"spec", "model", "tokenizer", "data"} <= about.keys()


def about_result(run_dir: RunDir) -> dict[str, Any]:
    """What the manifest of the result says of the run, of one of before it did that of the newest checkpoint; {} where
    neither does: a run that was brought here has its result alone. Raises NotReadError."""
    try:
        about = read_manifest(run_dir.final)
    except NotReadError:
        raise
    except StorageError:
        about = {}
    return about if "model" in about else newest_manifest(run_dir) or about


def settled(
    spec: RunSpec, elsewhere: Callable[[], Mapping[str, Any] | None] = lambda: None, *, in_pods: bool = False
) -> RunSpec:
    """The spec with the name that it runs under: with `resume: new`, one beside the name that another setting has.

    The new name follows from the setting alone, so the same command finds it again, on every process and after a
    restart; what was begun so is looked for before what may have moved. `in_pods`: nothing is taken for moved, since
    each pod may have other volumes, and all have to find one name. `spec` is resolved. `elsewhere` is asked for the
    newest manifest that a copy has, where nothing is here.
    """
    if spec.resume != "new":
        return spec
    held = _held_by_name(spec)
    if held is not None and _is_of(held, spec, _is_the_same):
        return spec
    begun = _begun_beside(spec)
    if begun is not None:
        return begun
    held = elsewhere() if held is None else held
    if held is None or _is_of(held, spec, _is_the_same if in_pods else is_same_setting):
        return spec
    moved = None if in_pods else _found_beside(spec, is_same_setting)
    return moved or _beside(spec, name_beside(spec))


def _held_by_name(spec: RunSpec) -> Mapping[str, Any] | None:
    """As `what_is_held`, also of another version's run of another setting. Raises NotReadError, also where that is of
    this one."""
    try:
        return what_is_held(_run_dir(spec))
    except NewerFormatError as error:
        if _is_of({"spec": _as_far_as_known(error.manifest.get("spec"))}, spec, is_same_setting):
            raise
        return error.manifest


def _as_far_as_known(spec: object) -> object:
    """A newer version's spec without the fields that it has more: a run is of the same setting by what is known."""
    known = copy.deepcopy(spec)
    try:
        RunSpec.model_validate(known)
    except ValidationError as error:
        for place in (one["loc"] for one in error.errors() if one["type"] == "extra_forbidden"):
            with suppress(LookupError, TypeError):  # a place that is not by keys alone: it stays, and is not known
                holder: Any = known
                for key in place[:-1]:
                    holder = holder[key]
                del holder[place[-1]]
    return known


def _begun_beside(spec: RunSpec) -> RunSpec | None:
    """The spec under the name beside its own that its run was begun under, which another version may have chosen."""
    named = _beside(spec, name_beside(spec))
    return named if what_is_held(_run_dir(named)) is not None else _found_beside(spec, _is_the_same)


def _found_beside(spec: RunSpec, is_same: Callable[[RunSpec, RunSpec], bool]) -> RunSpec | None:
    pattern = f"{glob.escape(beside_prefix(spec))}{'[0-9a-f]' * 6}"
    for place in sorted(Path(spec.output_dir).glob(pattern)):
        try:
            held = what_is_held(RunDir(place))
        except NewerFormatError:  # another version's is no setting that this one has begun
            continue
        except NotReadError as error:
            raise not_now(error, f"move {place} away, whole: it may be this run's, or be of other settings") from error
        if held is not None and _is_of(held, spec, is_same):
            return _beside(spec, place.name)
    return None


def _beside(spec: RunSpec, name: str) -> RunSpec:
    return spec.model_copy(update={"name": name})


def _is_of(manifest: Mapping[str, Any], spec: RunSpec, is_same: Callable[[RunSpec, RunSpec], bool]) -> bool:
    """Whether a checkpoint is of this setting."""
    before = spec_of_manifest(manifest)
    return before is not None and is_same(before, spec)  # what cannot be read is another setting, whatever it is


def is_of_setting(manifest: Mapping[str, Any], spec: RunSpec) -> bool:
    """Whether a checkpoint is of this setting, whatever has moved since."""
    return _is_of(manifest, spec, is_same_setting)


def spec_of_manifest(manifest: Mapping[str, Any]) -> RunSpec | None:
    """What a checkpoint or a result was made by; None where that is nothing that this version reads."""
    try:
        return RunSpec.model_validate(manifest.get("spec"))
    except ValidationError:
        return None


def _is_the_same(old: RunSpec, new: RunSpec) -> bool:
    return not any(change.another_setting for change in compare(old, new))


def is_same_setting(old: RunSpec, new: RunSpec) -> bool:
    """Whether both say the same of what is trained, on what and how. Other data at another place is another setting;
    what has moved is the same, until its content is compared."""
    return not any(change.another_setting and not has_moved(change) for change in compare(old, new))


def has_moved(change: Change) -> bool:
    """Whether what stood at a path may stand at another one now: all that differs are absolute paths of the same name,
    nothing is at the old ones any more, and something is at the new ones. Ids and URLs do not move."""
    if identity_at(change.field) is None or not perhaps_the_same(change):
        return False
    return all(
        isinstance(old, str)
        and isinstance(new, str)
        and old.startswith("/")
        and new.startswith("/")
        and is_gone(_path(old))
        and is_there(_path(new))
        for old, new in _differing(change.old, change.new)
    )


def _differing(old: Any, new: Any) -> Iterator[tuple[Any, Any]]:
    """The innermost values that differ, in pairs, of two that have the same form."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() | new.keys():
            yield from _differing(old.get(key), new.get(key))
    elif isinstance(old, list) and isinstance(new, list):
        for one, other in zip_longest(old, new):
            yield from _differing(one, other)
    elif old != new:
        yield old, new


def _path(text: str) -> str:
    """Without a number of rows behind it."""
    return parse_data_path(text, os.path.exists).path


def _run_dir(spec: RunSpec) -> RunDir:
    return RunDir(Path(spec.output_dir) / str(spec.name))


def is_finished(run_dir: RunDir, spec: RunSpec) -> bool:
    """Whether this spec's final weights and report are there, with the sizes that they had, and no checkpoint is newer
    or older than they are, where one is there.

    Does not look at data and model, nor at every byte, as a start of the engine does.
    """
    try:
        final = read_manifest(run_dir.final)
        require_whole(run_dir.final, final)
        report = json.loads(run_dir.report.read_text(encoding="utf-8"))
        same = RunSpec.model_validate(final.get("spec")) == spec
    except (StorageError, OSError, ValueError):  # a ValidationError among them: of a version with other fields
        return False
    if not same or not isinstance(report, dict):
        return False
    steps = run_dir.committed_steps()
    return report.get("steps") == steps[0] if steps else says_what_it_is(final)
