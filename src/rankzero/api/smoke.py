"""The smoke test: a run's processes, started as a run's are, that test their place instead of training. Here, or on a
cluster as the same objects that a run would be."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rankzero.spec.run_options import RunOptions, SmokeSettings

if TYPE_CHECKING:
    from rankzero.launch.plan import Plan
    from rankzero.spec.run_spec import RunSpec

NAME = "rankzero-smoke"
"""Of its objects on a cluster, and of the directory that would keep the evidence of a hang."""
WAIT_SECONDS = 120
"""How long a process waits for the others in one collective."""


def smoke(
    settings: SmokeSettings | None = None,
    *,
    nproc_per_node: int | None = None,
    output_dir: str | os.PathLike[str] = "runs",
    in_process: bool = False,
) -> dict[str, Any]:
    """Test devices, processes, links, clocks and the volume of `output_dir` on this machine. Returns what was measured.

    `nproc_per_node` is how many processes; None: one for each GPU, or one. Raises ServiceError where processes cannot
    talk or tell each other what is wrong, StorageError for the volume, RankzeroError where the devices compute wrongly.
    """
    from rankzero.api.training import start
    from rankzero.machine import local_gpu_count

    nproc = max(1, local_gpu_count(os.environ)) if nproc_per_node is None else nproc_per_node
    options = RunOptions(smoke=settings or SmokeSettings())
    return start(smoke_carrier(os.path.abspath(output_dir)), options, nproc, in_process=in_process)


def smoke_plan(
    settings: SmokeSettings,
    cluster: str | None,
    cluster_settings: Sequence[str] = (),
    kind: str | None = None,
    *,
    submitter: str = "",
    name: str = NAME,
) -> Plan:
    """The plan of a smoke test on a cluster: everything as a run has it there, but nothing is prepared or downloaded,
    and a failure is not tried again. Raises ConfigError with all problems, or UsageError."""
    from rankzero.api.planning import found_cluster
    from rankzero.launch.plan import make_plan
    from rankzero.spec.written import written

    place, of_cluster = found_cluster(cluster, [*cluster_settings, "prepare=never", "max_restarts=0"], kind)
    options, where = RunOptions(smoke=settings), written(cluster=of_cluster)
    return make_plan(smoke_carrier("runs", name), place, options=options, submitter=submitter, where=where)


def smoke_carrier(output_dir: str, name: str = NAME) -> RunSpec:
    """What launchers need of a run: its name, its place, its time limits. Model and rows are never looked at."""
    from rankzero.spec.resolve import resolve
    from rankzero.spec.run_spec import DataSpec, ModelSpec, RunSpec, TrainSpec

    return resolve(
        RunSpec(
            name=name,
            model=ModelSpec(name="a small classifier"),
            data=DataSpec(train="made-up rows"),
            train=TrainSpec(collective_timeout_seconds=WAIT_SECONDS),
            output_dir=output_dir,
        )
    )
