"""What is kept of a sweep besides its trials: its setting, which must stay the same, and the best spec."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankzero.errors import ConfigError, ExitCode, Problem, RankzeroError
from rankzero.run_dir.atomic import write_json, write_text
from rankzero.spec.resolve import to_yaml
from rankzero.spec.search_space import chosen_values, shown
from rankzero.spec.sweep_load import Sweep, trial_spec
from rankzero.sweep.place import SweepDir
from rankzero.sweep.record import Trial
from rankzero.sweep.run import best_of

_MAY_CHANGE = frozenset({"name", "run", "trials", "parallel", "nproc_per_node", "output_dir"})
"""Fields of a sweep that say nothing of what a trial is, or which one comes next."""
_EVAL_FILES = "eval_files"
"""Besides the setting: a digest of what trials were evaluated on."""


def setting_of(sweep: Sweep) -> dict[str, Any]:
    """All that the trials follow from."""
    spec = sweep.spec.model_dump(mode="json", exclude=set(_MAY_CHANGE))
    return {"sweep": spec, "run": sweep.run.model_dump(mode="json", exclude={"name", "output_dir", "tracking"})}


def keep_setting(sweep: Sweep) -> None:
    """Write it, or raise ConfigError with every field in which it is not the one that the sweep's directory has."""
    file, now = SweepDir(sweep.directory).setting, json.loads(json.dumps(setting_of(sweep)))
    if not file.is_file():
        write_json(file, now)
        return
    before = json.loads(file.read_text(encoding="utf-8"))
    before.pop(_EVAL_FILES, None)
    old, new = dict(_leaves(before, ())), dict(_leaves(now, ()))
    hint = "give this sweep another name, or set it back; trials and parallel may change"
    problems = [
        Problem(f"was {shown(old.get(field))}, is {shown(new.get(field))}", f"{file.parent}: {field}", hint)
        for field in dict.fromkeys((*old, *new))
        if old.get(field) != new.get(field)
    ]
    first, second = (list(setting["sweep"]["parameters"]) for setting in (before, now))
    if first != second and sorted(first) == sorted(second):  # a grid goes by it, and so does what samplers draw
        what = f"was {', '.join(first)}, is {', '.join(second)}"
        problems.append(Problem(what, f"{file.parent}: sweep: order of parameters", hint))
    if problems:
        raise ConfigError(problems)


def keep_eval_files(sweep: Sweep, digest: str | None, trials: Sequence[Trial]) -> None:
    """Note what trials are evaluated on, or raise ConfigError where others were evaluated on something else. Until one
    was, files may be mended."""
    file = SweepDir(sweep.directory).setting
    kept = json.loads(file.read_text(encoding="utf-8"))
    known = kept.get(_EVAL_FILES)
    if known == digest:
        return
    scored = [trial.number for trial in trials if trial.evaluations or trial.value is not None]
    if scored and known is not None:
        what = f"the files hold something else than when trial {scored[0]} was evaluated: scores would not compare"
        hint = "set them back, or give this sweep another name, which begins it anew"
        raise ConfigError(what, where=f"{file.parent}: data.eval", hint=hint)
    write_json(file, {**kept, _EVAL_FILES: digest})


def _leaves(value: object, path: tuple[str, ...]) -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        return [(": ".join((path[0], ".".join(path[1:]))), value)]
    return [leaf for key, inner in value.items() for leaf in _leaves(inner, (*path, str(key)))]


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
                "run": f"{sweep.runs}/{sweep.run_name(trial.number)}",
                "cause": trial.cause,
            }
            for trial in trials
        ],
    }
