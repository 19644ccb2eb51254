"""Command line → Plan: the run spec, the cluster spec, overrides of both, and the local files that travel along."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rankzero.errors import ConfigError, Problem, UsageError

if TYPE_CHECKING:
    from rankzero.launch.plan import Plan
    from rankzero.spec.cluster_spec import ClusterSpec
    from rankzero.spec.load import Loaded
    from rankzero.spec.run_spec import RunSpec

CLUSTER_VARIABLE = "RANKZERO_CLUSTER"
CLUSTER_FILE = "cluster.yaml"
CLUSTER_PREFIX = "cluster."
COMMAND_LINE = "command line"
"""Where spec.load says that a value came from."""


def cluster_from(
    name_or_path: str | None, overrides: Sequence[str] = (), kind: str | None = None, *, beside: Path | None = None
) -> ClusterSpec:
    """The cluster spec that --cluster names; without it $RANKZERO_CLUSTER, else the cluster.yaml that is here.

    Here is the working directory, or the run spec's, which is `beside`. `overrides` are `num_nodes=4`, without the
    prefix. Raises UsageError or ConfigError.
    """
    from rankzero.spec.cluster_load import load_cluster, profiles

    chosen = name_or_path or os.environ.get(CLUSTER_VARIABLE) or _cluster_file(beside or Path.cwd())
    if chosen is None:
        hint = f"a path, or one of {', '.join(profiles())}; {CLUSTER_VARIABLE} or ./{CLUSTER_FILE} would do as well"
        raise UsageError("which cluster?", where="--cluster", hint=hint)
    settings = [*overrides, *([f"kind={kind}"] if kind is not None else [])]
    try:
        return _with_namespace(load_cluster(chosen, settings, env=os.environ).spec)
    except (ConfigError, UsageError) as error:
        raise type(error)(_as_typed(problem) for problem in error.problems) from error


def _with_namespace(spec: ClusterSpec) -> ClusterSpec:
    """Where a spec names none, the one that kubectl would use."""
    from rankzero.spec.kinds import kind_section

    if "namespace" in spec.model_fields_set or kind_section(spec.kind).on_this_machine:
        return spec
    from rankzero.launch.backends.kubernetes.auth import namespace_of

    return spec.model_copy(update={"namespace": namespace_of(spec.context, os.environ) or spec.namespace})


def _as_typed(problem: Problem) -> Problem:
    """Overrides of a cluster spec are typed with a prefix, which those who read its file do not know."""
    typed = f"{COMMAND_LINE} "
    if not problem.where.startswith(typed):
        return problem
    return Problem(problem.what, f"{typed}{CLUSTER_PREFIX}{problem.where.removeprefix(typed)}", problem.hint)


def _cluster_file(beside: Path) -> str | None:
    """The cluster.yaml of the run spec's or the working directory. Raises UsageError where each has one."""
    from rankzero.spec.nearby import shown

    found = [path for path in dict.fromkeys((beside / CLUSTER_FILE, Path.cwd() / CLUSTER_FILE)) if path.exists()]
    if len(found) > 1:
        hint = f"give --cluster {shown(found[0])} or --cluster {CLUSTER_FILE}"
        raise UsageError("one is beside the run spec and one in the working directory", where=CLUSTER_FILE, hint=hint)
    return shown(found[0]) if found else None


def plan_from(
    arguments: Sequence[str],
    cluster: str | None,
    kind: str | None,
    *,
    allow_changes: Sequence[str] = (),
    submitter: str = "",
) -> Plan:
    """The plan of `RUN.yaml key=value … cluster.key=value`. Raises ConfigError with all problems, or UsageError."""
    from rankzero.launch.plan import make_plan
    from rankzero.launch.ship import local_files
    from rankzero.spec.resolve import resolve
    from rankzero.spec.run_options import RunOptions

    loaded, for_cluster = _read(arguments)
    run = resolve(loaded.spec)
    place = cluster_from(cluster, for_cluster, kind, beside=loaded.base)
    options = RunOptions(allow_changes=tuple(allow_changes))
    shipped = local_files(run, loaded.base)
    return make_plan(run, place, files=shipped, options=options, submitter=submitter, where=loaded.where)


def local_run(arguments: Sequence[str]) -> RunSpec:
    """The run of such arguments as this machine sees it: resolved, its paths absolute here. Raises as `plan_from`."""
    from rankzero.spec.local_paths import absolute
    from rankzero.spec.resolve import resolve

    loaded, _ = _read(arguments)
    return absolute(resolve(loaded.spec), loaded.base)


def _read(arguments: Sequence[str]) -> tuple[Loaded[RunSpec], list[str]]:
    """The run spec, looked at as far as that is possible here, and the overrides of the cluster spec."""
    from rankzero.cli.argv import spec_arguments
    from rankzero.preflight import look_for_files
    from rankzero.spec.load import read_run_spec

    given = spec_arguments(arguments)
    if given.file is None:
        hint = "rankzero render RUN.yaml --cluster CLUSTER.yaml; `rankzero init` writes a run spec to start from"
        raise UsageError("one run spec is needed", hint=hint)
    for_cluster = [text.removeprefix(CLUSTER_PREFIX) for text in given.overrides if text.startswith(CLUSTER_PREFIX)]
    for_run = [text for text in given.overrides if not text.startswith(CLUSTER_PREFIX)]
    return look_for_files(read_run_spec(given.file, for_run, env=os.environ, for_pods=True)), for_cluster
