"""SweepSpec: which fields of a run spec are searched, over what, by which method. Knows no method and no machine."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from rankzero.spec.names import RUN_NAME_PATTERN
from rankzero.spec.run_spec import PositiveInt, Section

Sampler = Literal["tpe", "random", "grid", "cmaes"]
Pruner = Literal["none", "median", "hyperband"]


class ParameterSpec(Section):
    """What one field of the run spec may be: some values, or all between two ends."""

    values: Annotated[tuple[Any, ...], Field(min_length=1)] | None = None
    """The values to choose from; each is what would stand in run.yaml. One value alone is simply set."""
    min: float | None = None
    """Smallest number. Whether numbers are whole follows from the field."""
    max: float | None = None
    """Largest number, itself included."""
    step: Annotated[float, Field(gt=0)] | None = None
    """Distance between two numbers, from min on. Absent: 1 for whole numbers, else every number."""
    log: bool = False
    """Equal factors are equally likely, as suits learning rates."""


class SweepSpec(Section):
    """A search over fields of one run spec; every trial is a run."""

    name: Annotated[str, StringConstraints(pattern=RUN_NAME_PATTERN)] | None = None
    """Name of the sweep and of its directory. Absent: that of its file, without the ending."""
    run: Annotated[str, StringConstraints(min_length=1)]
    """The run.yaml that is varied. Its checkpoint.best_metric is what trials are compared by."""
    parameters: Annotated[dict[str, ParameterSpec], Field(min_length=1)]
    """Fields of the run spec by their dotted names, and what they may be:
    {train.learning_rate: {min: 1e-5, max: 1e-3, log: true}, lora.r: {values: [4, 8, 16]}}."""
    trials: PositiveInt = 20
    """How many. A grid has at most as many as it has points."""
    sampler: Sampler = "tpe"
    """How trials are chosen. tpe: by what earlier ones showed; cmaes: the same for numbers alone; random; grid: every
    combination, in order."""
    pruner: Pruner = "none"
    """Which trials end early, by their evaluations so far. median: those that are worse than the median of others at
    the same evaluation; hyperband: all but the best third at each of several evaluations."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    """Decides what is tried. Each trial's choice follows from it and the trials before, however often the sweep was
    started."""
    parallel: Literal["auto"] | PositiveInt = "auto"
    """Trials at a time. auto: as many as there are GPUs for; 1 on a CPU, and on a cluster."""
    nproc_per_node: PositiveInt = 1
    """Processes of a trial on this machine, and so its GPUs; on a cluster cluster.yaml says it."""
    output_dir: Annotated[str, StringConstraints(min_length=1)] = "sweeps"
    """The sweep's directory is <output_dir>/<name>, and its trials' run directories are in trials/ there."""
