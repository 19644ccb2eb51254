"""What is kept of a sweep besides its trials: its setting, which must stay the same, and the best spec."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rankzero.errors import ConfigError, ExitCode, Problem, RankzeroError
from rankzero.run_dir.atomic import storage_errors, write_json, write_text
from rankzero.run_dir.setting import has_moved
from rankzero.spec.diff import IDENTITIES, Change, compare, differ, identity_at
from rankzero.spec.resolve import to_yaml
from rankzero.spec.run_spec import EvalFraction, RunSpec
from rankzero.spec.search_space import chosen_values, shown
from rankzero.spec.sweep_load import Sweep, trial_spec
from rankzero.spec.sweep_spec import SweepSpec
from rankzero.sweep.place import SweepDir
from rankzero.sweep.record import Record, Trial
from rankzero.sweep.run import best_of

_MAY_CHANGE = frozenset({"name", "run", "trials", "parallel", "nproc_per_node", "output_dir"})
"""Fields of a sweep that say nothing of what a trial is, or which one comes next."""
_SCORING = frozenset({"checkpoint.best_metric", "checkpoint.final", "eval.every", "eval.early_stopping_patience"})
"""Fields of a run that change none of its steps, but by which trials are compared, pruned or ended."""
_EVAL_FILES = "eval_files"
"""Besides the setting: a digest of what trials were evaluated on."""
_CONTENTS = "contents"
"""Besides the setting: what stands at the places that it names, by its identity."""
_HINT = "give this sweep another name, or set it back; trials and parallel may change"


def setting_of(sweep: Sweep) -> dict[str, Any]:
    """All that the trials follow from."""
    run = sweep.run.model_dump(mode="json", exclude={"name", "output_dir", "tracking"})
    return {"sweep": _of_trials(sweep.spec), "run": run}


def _of_trials(spec: SweepSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", exclude=set(_MAY_CHANGE))


def keep_setting(sweep: Sweep, contents: Callable[[], Mapping[str, str]], record: Callable[[], Record]) -> list[str]:
    """Write it, or raise ConfigError with every field in which the directory's trials follow from something else.

    What a run may change between two starts, a sweep may; and what stands at the run's places may move, as long as it
    is the same: `contents` reads it, of a sweep that begins and where a place differs. `record` opens the record, where
    it is for the trials to say what may change. Returns what is taken for the same without being known to be, in words.
    """
    file, now = SweepDir(sweep.directory).setting, setting_of(sweep)
    before = _kept(file)
    if before is None:
        write_json(file, {**now, _CONTENTS: contents()})  # files that cannot be read begin no sweep
        return []
    try:  # by this version's specs, in which a field that it added has its default
        kept = SweepSpec.model_validate({**before["sweep"], "run": sweep.spec.run})
        run = RunSpec.model_validate(before["run"])
    except ValidationError as error:
        what = "this sweep was begun by a version of rankzero whose specs this one does not read"
        raise ConfigError(what, where=str(file), hint="give this sweep another name, which begins it anew") from error
    problems = list(_changed(kept, sweep, record))
    of_run, unsure = _changed_run(run, sweep, before.get(_CONTENTS, {}), contents)
    problems += of_run
    if problems:
        raise ConfigError(problems)
    return unsure


def _kept(file: Path) -> dict[str, Any] | None:
    """The setting that is there; None where there is none. Raises StorageError where that cannot be seen: another would
    be written over it."""
    with storage_errors(file):
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
    found: dict[str, Any] = json.loads(text)
    return found


def _changed(kept: SweepSpec, sweep: Sweep, record: Callable[[], Record]) -> Iterator[Problem]:
    """Fields of the sweep in which its trials follow from something else."""
    old, new = (dict(_leaves(_of_trials(one))) for one in (kept, sweep.spec))
    for field in dict.fromkeys((*old, *new)):
        was, value = old.get(field), new.get(field)
        what = f"was {shown(was)}, is {shown(value)}"
        if was == value:
            continue
        if field == "pruner" and value == "none":  # until one has ended by it, trials are what they are without it
            ended = next((trial.number for trial in record().trials if trial.state == "pruned"), None)
            if ended is None:
                continue
            what += f", and trial {ended} has ended early by it"
        yield Problem(what, f"{sweep.directory}: sweep: {field}", _HINT)
    first, second = list(kept.parameters), list(sweep.spec.parameters)
    if first != second and sorted(first) == sorted(second):  # a grid goes by it, and so does what samplers draw
        what = f"was {', '.join(first)}, is {', '.join(second)}"
        yield Problem(what, f"{sweep.directory}: sweep: order of parameters", _HINT)


def _changed_run(
    kept: RunSpec, sweep: Sweep, before: Mapping[str, str], contents: Callable[[], Mapping[str, str]]
) -> tuple[list[Problem], list[str]]:
    """Fields of the run in which trials follow from something else; and what is taken for the same, in words."""
    problems, unsure = [], []
    for change in compare(kept, sweep.run):
        if not change.another_setting and change.field not in _SCORING:
            continue
        was, value = shown(change.old), shown(change.new)
        moved = _has_moved(change, before, contents, for_pods=sweep.for_pods)
        if moved is None:
            what = f"{change.field} was {was}, which is gone: {value} is taken for the same"
            unsure.append(f"{what}, which an earlier version did not note")
        elif not moved:
            problems.append(Problem(f"was {was}, is {value}", f"{sweep.directory}: run: {change.field}", _HINT))
    return problems, unsure


def _has_moved(
    change: Change, before: Mapping[str, str], contents: Callable[[], Mapping[str, str]], *, for_pods: bool
) -> bool | None:
    """Whether the same stands at the place that a field names now; None: it may, and what stood there is not known."""
    identity = identity_at(change.field)
    if identity is None:
        return False
    now = contents()
    apart = differ(before[identity], now[identity]) if identity in before and identity in now else None
    if apart is None:
        return None if has_moved(change) and not for_pods else False
    return not apart


def keep_contents(sweep: Sweep, eval_files: str | None, contents: Mapping[str, str], trials: Sequence[Trial]) -> None:
    """Note what trials are evaluated on and made of, or raise ConfigError where others were evaluated on something
    else, or made of it. Until one was scored, files may be mended."""
    file = SweepDir(sweep.directory).setting
    kept = _kept(file) or {}
    scored = [trial.number for trial in trials if trial.evaluations or trial.value is not None]
    known, before = kept.get(_EVAL_FILES), kept.get(_CONTENTS, {})
    changed = [name for name, what in contents.items() if name in before and differ(before[name], what)]
    found = {name: f"{IDENTITIES[name].partition(' (')[0]} changed since trial {{}} was scored" for name in changed}
    if known not in (None, eval_files):
        told = {"eval_data", *(["data"] if isinstance(sweep.run.data.eval, EvalFraction) else [])}
        rest = {name: what for name, what in found.items() if name not in told}
        found = {"data.eval": "the files hold something else than when trial {} was evaluated", **rest}
    if scored and found:
        hint = "set them back, or give this sweep another name, which begins it anew"
        raise ConfigError(
            Problem(f"{what.format(scored[0])}: scores would not compare", f"{file.parent}: {field}", hint)
            for field, what in found.items()
        )
    new = {**kept, **setting_of(sweep), _EVAL_FILES: eval_files, _CONTENTS: contents}
    if new != kept:
        write_json(file, new)


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _leaves(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", inner


def write_best(sweep: Sweep, trials: Sequence[Trial]) -> Trial | None:
    """Write best.yaml: the run spec of the best trial, as a run of its own. Returns the trial, where there is one.

    Raises StorageError."""
    best = best_of(sweep, trials)
    if best is not None:
        values = chosen_values(sweep.space, best.labels)
        spec = trial_spec(sweep, values, f"{sweep.name[:95]}-best", sweep.run.output_dir)
        words = f"# Trial {best.number} of the sweep {sweep.name}: {sweep.metric} {best.value!r}\n"
        write_text(best_file(sweep), words + to_yaml(spec))
    return best


def best_file(sweep: Sweep) -> Path:
    """Where the best spec is; one whose files travel to a cluster stays beside them."""
    return sweep.run_base / f"{sweep.name}-best.yaml" if sweep.for_pods else SweepDir(sweep.directory).best


def require_a_result(sweep: Sweep, trials: Sequence[Trial]) -> None:
    """Raise the failure of the trials where no trial has a result: with each cause once."""
    if any(trial.state == "complete" for trial in trials):
        return
    failed = [trial for trial in trials if trial.state == "failed"]
    causes: dict[str, list[int]] = {}
    for trial in failed:
        causes.setdefault(trial.cause, []).append(trial.number)
    problems = [
        Problem(f"no trial has a result: {cause}", f"trial {', '.join(map(str, numbers[:8]))}")
        for cause, numbers in causes.items()
    ]
    error = RankzeroError(problems or "no trial has a result", where=str(sweep.directory))
    codes = {trial.exit_code for trial in failed}
    if len(codes) == 1 and (code := codes.pop()) is not None:
        error.exit_code = ExitCode(code)
    raise error


def to_json(sweep: Sweep, trials: Sequence[Trial]) -> dict[str, Any]:
    """The sweep as plain JSON."""
    place, best = SweepDir(sweep.directory), best_of(sweep, trials)
    return {
        "name": sweep.name,
        "directory": str(place.root),
        "metric": sweep.metric,
        "direction": "maximize" if sweep.higher_is_better else "minimize",
        "best": None if best is None else best.number,
        "trials": [
            {
                "number": trial.number,
                "state": trial.state,
                "value": trial.value,
                "values": chosen_values(sweep.space, trial.labels),
                "evaluations": list(trial.evaluations),
                "run": f"{sweep.runs}/{trial.run_name(sweep)}",
                "cause": trial.cause,
            }
            for trial in trials
        ],
    }
