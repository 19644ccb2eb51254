"""`RUN.yaml key=value … cluster.key=value` → Plan: which words are the cluster's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankzero.launch.plan import Plan
    from rankzero.spec.load import Reading
    from rankzero.spec.run_spec import RunSpec


def plan_from(
    arguments: Sequence[str],
    cluster: str | None,
    kind: str | None,
    *,
    allow_changes: Sequence[str] = (),
    submitter: str = "",
) -> Plan:
    """The plan of `RUN.yaml key=value … cluster.key=value`; warns of what has no effect there. Raises ConfigError with
    all problems, or UsageError."""
    from rankzero.api.planning import planned

    reading, for_cluster = read_arguments(arguments)
    plan = planned(reading, cluster, for_cluster, kind, allow_changes=allow_changes, submitter=submitter)
    warn_of_what_has_no_effect(plan)
    return plan


def warn_of_what_has_no_effect(plan: Plan) -> None:
    """Of fields of run.yaml and cluster.yaml."""
    from rankzero.api.planning import without_effect
    from rankzero.cli.output import print_warning

    for problem in without_effect(plan):
        print_warning(problem)


def local_run(arguments: Sequence[str]) -> RunSpec:
    """The run of such arguments as this machine sees it: resolved, its paths absolute here. Raises as `plan_from`."""
    from rankzero.preflight import look_for_files
    from rankzero.spec.local_paths import absolute
    from rankzero.spec.resolve import resolve

    loaded = look_for_files(read_arguments(arguments)[0])
    return absolute(resolve(loaded.spec), loaded.base)


def read_arguments(arguments: Sequence[str]) -> tuple[Reading[RunSpec], list[str]]:
    """The run spec as it was read, and the overrides of the cluster spec. Raises UsageError."""
    from rankzero.cli.argv import no_spec, spec_arguments
    from rankzero.spec.load import read_run_spec
    from rankzero.spec.written import CLUSTER_PREFIX

    given = spec_arguments(arguments)
    if given.file is None:
        raise no_spec("one run spec is needed")
    for_cluster = [text.removeprefix(CLUSTER_PREFIX) for text in given.overrides if text.startswith(CLUSTER_PREFIX)]
    for_run = [text for text in given.overrides if not text.startswith(CLUSTER_PREFIX)]
    return read_run_spec(given.file, for_run, env=os.environ, for_pods=True), for_cluster
