"""SWEEP.yaml and the run.yaml that it names → a Sweep, or every problem of both at once, each with its place.

Reads the two files and nothing else; what run.yaml names is looked at by whoever starts.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankzero.errors import ConfigError, Problem
from rankzero.spec.checks import check
from rankzero.spec.comparable import FIXED, incomparable
from rankzero.spec.fields import field_at, options_at
from rankzero.spec.load import COMMAND_LINE, Loaded, Reading, Setting, in_reading_order, read_run_spec, read_spec
from rankzero.spec.local_paths import absolute
from rankzero.spec.names import slug
from rankzero.spec.renames import RENAMES as RUN_RENAMES
from rankzero.spec.renames import Rename, normalised
from rankzero.spec.resolve import resolve
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.search_space import (
    Space,
    exact,
    grid_size,
    is_whole,
    label,
    meant,
    shown,
    space_of,
    takes_numbers,
    takes_text_alone,
)
from rankzero.spec.sweep_spec import ParameterSpec, SweepSpec
from rankzero.spec.tasks import HIGHER_IS_BETTER
from rankzero.spec.unknown_keys import guess
from rankzero.spec.yaml_tree import KeyPath

_TABLE = {
    "parameters": "search_space space params hyperparameters",
    "trials": "n_trials max_trials maxtrialcount max_trial_count num_samples run_cap count",
    "parallel": "paralleltrialcount parallel_trial_count n_jobs max_concurrent_trials",
    "sampler": "algorithm method algorithmname search_alg",
    "pruner": "early_terminate earlystopping scheduler early_stopping",
    "run": "run_spec base config program",
}
RENAMES = {normalised(name): Rename(field, "") for field, names in _TABLE.items() for name in names.split()}
_MOST_STARTS = 100_000


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep that may start: every path in it is absolute."""

    spec: SweepSpec
    name: str
    run: RunSpec
    """What is varied, not resolved: a learning rate that is left open is decided for each trial."""
    space: Space
    directory: Path
    base: Path
    """What relative paths among the values are relative to: the sweep file's directory."""
    run_file: Path
    run_base: Path
    """The run spec's directory."""
    for_pods: bool = False
    """The run's relative paths are left as they are: files that travel along, and places on volumes."""

    def run_name(self, number: int) -> str:
        """Name of a trial's run; on a cluster it tells the sweep's runs from others."""
        return f"{self.name[:90]}-{number:03}" if self.for_pods else f"trial-{number:03}"

    @property
    def runs(self) -> str:
        """Where the trials' run directories are."""
        return self.run.output_dir if self.for_pods else str(self.directory / "trials")

    @property
    def metric(self) -> str:
        return self.run.checkpoint.best_metric

    @property
    def higher_is_better(self) -> bool:
        return self.metric in HIGHER_IS_BETTER

    @property
    def trials(self) -> int:
        """How many it has in all."""
        if self.spec.sampler != "grid":
            return self.spec.trials
        return min(self.spec.trials, grid_size(self.space))


@dataclass(frozen=True, slots=True)
class SweepReading:
    """What the two files came to. `run` and `sweep` are None where there is not even that."""

    sweep: Sweep | None
    run: Reading[RunSpec] | None
    problems: tuple[Problem, ...]


def read_sweep(
    path: Path, overrides: Sequence[str] = (), *, env: Mapping[str, str], for_pods: bool = False
) -> SweepReading:
    """Both files, with `overrides` of the sweep's on top. Raises ConfigError where one cannot be read at all, and
    UsageError for an override that cannot be read."""
    reading = read_spec(SweepSpec, path, overrides, env=env, renames=RENAMES, check=_no_check, keys=_keys)
    found = reading.found
    if found is None or found.spec.run == "?":
        return SweepReading(None, None, tuple(in_reading_order(reading.problems)))
    spec = found.spec
    problems = list(reading.problems)
    file = _base(found, "run") / Path(os.path.expanduser(spec.run))
    try:
        run = read_run_spec(file, env=env, for_pods=for_pods)
    except ConfigError as error:
        problems += [Problem(one.what, _place(found, ("run",)) + f": {one.where}", one.hint) for one in error.problems]
        return SweepReading(None, None, tuple(in_reading_order(problems)))
    problems += run.problems
    if run.found is None:
        return SweepReading(None, run, tuple(in_reading_order(problems)))
    names = [name for name in spec.parameters if f"parameters.{name}" not in reading.doubtful]
    for name in names if "parameters" not in reading.doubtful else ():
        problems += _of_parameter(name, spec.parameters[name], found, run, file, env)
    space = {} if problems else space_of(spec.parameters)
    problems += _of_whole(spec, space, found, run.found.spec)
    if problems:
        return SweepReading(None, run, tuple(in_reading_order(problems)))
    name = spec.name or slug(path.stem, limit=100)
    directory = _base(found, "output_dir") / Path(os.path.expanduser(spec.output_dir)) / name
    base = run.found.spec if for_pods else absolute(run.found.spec, run.found.base)
    sweep = Sweep(spec, name, base, space, directory, found.base, file, run.found.base, for_pods)
    problems += _of_trials(sweep, found)
    return SweepReading(None if problems else sweep, run, tuple(in_reading_order(problems)))


def _keys(name: str) -> KeyPath:
    """`parameters.lora.r` and `parameters.lora.r.max` as the file has them: what is searched is one key there."""
    section, *field = name.split(".")
    if section != "parameters" or not field:
        return tuple(name.split("."))
    own = field[-1:] if len(field) > 1 and field[-1] in ParameterSpec.model_fields else []
    return (section, ".".join(field[: len(field) - len(own)]), *own)


def _base(found: Loaded[SweepSpec], field: str) -> Path:
    """What a relative path in a field is relative to: the file that has it, or the working directory."""
    return Path.cwd() if found.source(field) == COMMAND_LINE else found.base


def _no_check(_spec: SweepSpec, _doubtful: Collection[str]) -> list[Problem]:
    return []


def trial_spec(sweep: Sweep, values: Mapping[str, Any], name: str, output_dir: str) -> RunSpec:
    """The run spec of a trial: resolved, its paths absolute. Raises ConfigError with every problem of the values."""
    spec = resolve(_varied(sweep, {**values, "name": name, "output_dir": output_dir}).loaded().spec)
    return spec if sweep.for_pods else absolute(spec, sweep.base)


def common_spec(sweep: Sweep) -> RunSpec:
    """The run spec as far as no trial differs from it: with the values that stand alone. Paths as trials have them."""
    found = _varied(sweep, _alone(sweep)).found
    spec = sweep.run if found is None else found.spec
    return spec if sweep.for_pods else absolute(spec, sweep.base)


def specs_of(sweep: Sweep, name: str) -> list[RunSpec]:
    """The run spec with each value of a field, or the ends of its numbers, and what stands alone of the other fields
    where that goes together. Paths as they were written."""
    alone = _alone(sweep)
    tried = _tried(name, sweep.spec.parameters[name])
    found = (_varied(sweep, {**alone, name: value}).found or _varied(sweep, {name: value}).found for value in tried)
    return [one.spec for one in found if one is not None]


def _alone(sweep: Sweep) -> dict[str, Any]:
    return {name: one.values[0] for name, one in sweep.spec.parameters.items() if one.values and len(one.values) == 1}


def _varied(sweep: Sweep, values: Mapping[str, Any]) -> Reading[RunSpec]:
    """The run spec with these values, their paths as they were written."""
    settings = [Setting(key, value, "run") for key, value in sweep.run.model_dump(mode="json").items()]
    settings += [Setting(field, value, "trial") for field, value in values.items()]
    return read_spec(RunSpec, None, settings, env={}, renames=RUN_RENAMES, check=check)


def trial_run(sweep: Sweep, values: Mapping[str, Any], number: int) -> RunSpec:
    """As `trial_spec`, under the trial's own name. On this machine every sweep has the same names, so its copies in an
    object store lie below the sweep's."""
    spec = trial_spec(sweep, values, sweep.run_name(number), sweep.runs)
    if sweep.for_pods or spec.output_url is None:
        return spec
    return spec.model_copy(update={"output_url": posixpath.join(spec.output_url, sweep.name)})


def _place(found: Loaded[SweepSpec], path: KeyPath) -> str:
    """`sweep.yaml:7 parameters.lora.r`."""
    return found.place(path)


def _of_parameter(
    name: str,
    parameter: ParameterSpec,
    found: Loaded[SweepSpec],
    run: Reading[RunSpec],
    file: Path,
    env: Mapping[str, str],
) -> list[Problem]:
    """What is wrong with one field and its values, by themselves and put into the run spec one at a time."""
    at: KeyPath = ("parameters", name)
    where = _place(found, at)
    if "[" in name:
        return [Problem("entries of lists are not searched", where, "search the whole list: values: [[…], […]]")]
    path = tuple(name.split("."))
    if not options_at(RunSpec, path):
        return [Problem("the run spec has no such field", where, guess(RunSpec, path, RUN_RENAMES).hint)]
    inside = next((field for field in FIXED if name == field or name.startswith(f"{field}.")), None)
    if inside is not None:
        return [Problem(f"{inside} is the same for all trials", where, FIXED[inside])]
    shape = list(_of_shape(name, parameter, where))
    if shape:
        return shape
    problems: dict[tuple[str, str], Problem] = {}
    source = where.removesuffix(f" parameters.{name}")
    for value in _tried(name, parameter):
        again = read_run_spec(file, [Setting(name, value, source)], env=env)
        new = _new(again, run)
        if new and name not in again.doubtful and _fits_with_another(name, value, found.spec, run, file, env):
            continue  # a rule between fields, which another value of another field keeps: trials will tell
        for one in new:
            place = one.where if one.where.startswith(source) else f"{where} = {shown(value)}, {one.where}"
            problems.setdefault((one.what, place), Problem(one.what, place, one.hint))
    return list(problems.values())


def _new(again: Reading[RunSpec], run: Reading[RunSpec]) -> list[Problem]:
    """What is wrong with a spec that is not wrong with the one that is varied."""
    known = {(one.what, one.where) for one in run.problems}
    return [one for one in again.problems if (one.what, one.where) not in known]


def _fits_with_another(
    name: str, value: Any, spec: SweepSpec, run: Reading[RunSpec], file: Path, env: Mapping[str, str]
) -> bool:
    """Whether a value is right together with some value of one other field that is searched."""
    others = (
        Setting(other, its, "sweep")
        for other, parameter in spec.parameters.items()
        if other != name and options_at(RunSpec, tuple(other.split("."))) and not list(_of_shape(other, parameter, ""))
        for its in _tried(other, parameter)
    )
    return any(not _new(read_run_spec(file, [other, Setting(name, value, "sweep")], env=env), run) for other in others)


def _tried(name: str, parameter: ParameterSpec) -> Sequence[Any]:
    """The values, or the ends of the numbers."""
    return parameter.values if parameter.values is not None else _ends(name, parameter)


def _ends(name: str, parameter: ParameterSpec) -> list[float | int]:
    ends = (parameter.min or 0, parameter.max or 0)
    return [int(end) if is_whole(name) else end for end in ends]


def _of_shape(name: str, parameter: ParameterSpec, where: str) -> Iterator[Problem]:
    """What is wrong with a range or a list, whatever the field is."""
    numbers = {key: getattr(parameter, key) for key in ("min", "max", "step")}
    given = [key for key, value in numbers.items() if value is not None] + (["log"] if parameter.log else [])
    if parameter.values is not None:
        if given:
            yield Problem(f"values and {', '.join(given)} do not go together", where, "write values, or min and max")
        if takes_text_alone(name) and (found := [one for one in parameter.values if isinstance(one, float)]):
            what = f"{', '.join(map(exact, found))}: this field takes text, and how this number was written is lost"
            yield Problem(what, where, 'put it in quotes: values: ["…"]')
            return
        values = [meant(name, value) for value in parameter.values]
        texts = [exact(value) for value in values]
        labels = [label(value) for value in values]  # true is 1 to a sampler
        if twice := sorted({text for at, text in enumerate(texts) if text in texts[:at] or labels[at] in labels[:at]}):
            yield Problem(f"given twice: {', '.join(twice)}", where)
        return
    low, high = parameter.min, parameter.max
    if low is None or high is None:
        yield Problem("it needs values, or min and max", where, f"{name}: {{values: […]}} or {{min: …, max: …}}")
        return
    if not takes_numbers(name):
        field = field_at(RunSpec, tuple(name.split(".")))
        about = f"; {field.description}" if field is not None and field.description else ""
        yield Problem("this field takes no numbers", where, f"write values: […]{about}".replace("\n", " "))
        return
    if low >= high:
        yield Problem(f"min ({shown(low)}) is not below max ({shown(high)})", where)
    if parameter.log and low <= 0:
        yield Problem(f"log needs a min above 0, not {shown(low)}", where)
    if parameter.log and parameter.step is not None:
        yield Problem("log and step do not go together", where, "leave step out, or write values: […]")
    if is_whole(name):
        broken = [key for key, value in numbers.items() if value is not None and value != int(value)]
        if broken:
            yield Problem(f"this field takes whole numbers, and {' and '.join(broken)} is none", where)


def _of_trials(sweep: Sweep, found: Loaded[SweepSpec]) -> Iterator[Problem]:
    """What makes trials incomparable, field by field."""
    root = sweep.run_base if sweep.for_pods else sweep.base
    for name in sweep.spec.parameters:
        specs = [absolute(spec, root) for spec in specs_of(sweep, name)]
        where = _place(found, ("parameters", name))
        yield from incomparable(absolute(sweep.run, root), name, specs, where, sweep.spec.pruner)


def _of_whole(spec: SweepSpec, space: Space, found: Loaded[SweepSpec], run: RunSpec) -> Iterator[Problem]:
    """What is wrong between the sweep's fields. `space` is empty where one of its fields is wrong already."""
    if run.data.eval is None:
        hint = "set data.eval in the run spec: a file, or {fraction: 0.1}"
        yield Problem("trials are compared by their evaluations, and the run has none", _place(found, ("run",)), hint)
    names = list(spec.parameters)
    for inner in names:
        for outer in names:
            if inner.startswith(f"{outer}."):
                what = f"{inner} is a field of {outer}, which is searched too"
                yield Problem(what, _place(found, ("parameters", inner)), "search one of them")
    if spec.sampler == "grid" and space:
        endless = [name for name, dimension in space.items() if dimension.points is None]
        for name in endless:
            hint = "give it values, or a step"
            yield Problem("a grid needs fields with an end of values", _place(found, ("parameters", name)), hint)
        if not endless and grid_size(space) > _MOST_STARTS:
            yield Problem(f"a grid of {grid_size(space):,} points", _place(found, ("sampler",)), "choose tpe or random")
    if spec.sampler == "cmaes" and space:
        lists = [name for name, parameter in spec.parameters.items() if len(parameter.values or ()) > 1]
        for name in lists:
            hint = "give it min and max, or choose sampler: tpe"
            yield Problem("cmaes searches numbers between two ends only", _place(found, ("parameters", name)), hint)
        if not lists and sum(parameter.values is None for parameter in spec.parameters.values()) < 2:
            yield Problem("cmaes needs two fields or more", _place(found, ("sampler",)), "choose tpe, random or grid")
