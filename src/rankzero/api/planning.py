"""Run spec and cluster spec → Plan: which cluster is meant, and the local files that travel along."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rankzero.api.specs import SpecSource
from rankzero.errors import ConfigError, Problem, UsageError
from rankzero.spec.written import CLUSTER_PREFIX, Where, written

if TYPE_CHECKING:
    from rankzero.launch.labels import Manifest
    from rankzero.launch.plan import Plan
    from rankzero.spec.cluster_spec import ClusterSpec
    from rankzero.spec.load import Reading, Setting
    from rankzero.spec.run_spec import RunSpec

CLUSTER_VARIABLE = "RANKZERO_CLUSTER"
CLUSTER_FILE = "cluster.yaml"
COMMAND_LINE = "command line"
"""Where spec.load says that a value came from."""


def cluster_from(
    name_or_path: str | None,
    overrides: Sequence[str | Setting] = (),
    kind: str | None = None,
    *,
    beside: Path | None = None,
) -> ClusterSpec:
    """The cluster spec that --cluster names; without it $RANKZERO_CLUSTER, else the cluster.yaml that is here.

    Here is the working directory, or the run spec's, which is `beside`. `overrides` are `num_nodes=4`, without the
    prefix. Raises UsageError or ConfigError.
    """
    return found_cluster(name_or_path, overrides, kind, beside=beside)[0]


def found_cluster(
    name_or_path: str | None,
    overrides: Sequence[str | Setting] = (),
    kind: str | None = None,
    *,
    beside: Path | None = None,
) -> tuple[ClusterSpec, Where]:
    """As `cluster_from`, with where each of its fields was written."""
    from rankzero.spec.cluster_load import load_cluster, profiles

    chosen = name_or_path or os.environ.get(CLUSTER_VARIABLE) or _cluster_file(beside or Path.cwd())
    if chosen is None:
        hint = f"a path, or one of {', '.join(profiles())}; {CLUSTER_VARIABLE} or ./{CLUSTER_FILE} would do as well"
        raise UsageError("which cluster?", where="--cluster", hint=hint)
    settings = [*overrides, *([f"kind={kind}"] if kind is not None else [])]
    try:
        loaded = load_cluster(chosen, settings, env=os.environ)
    except (ConfigError, UsageError) as error:
        told = (Problem(problem.what, _as_typed(problem.where), problem.hint) for problem in error.problems)
        raise type(error)(told) from error
    return _with_namespace(loaded.spec), lambda field: _as_typed(loaded.where(field))


def cluster_is_chosen() -> bool:
    """Whether commands find a cluster without --cluster."""
    return bool(os.environ.get(CLUSTER_VARIABLE)) or Path(CLUSTER_FILE).is_file()


def chosen_by() -> str:
    """What names the cluster that commands find without --cluster."""
    return f"${CLUSTER_VARIABLE}" if os.environ.get(CLUSTER_VARIABLE) else CLUSTER_FILE


def _with_namespace(spec: ClusterSpec) -> ClusterSpec:
    """Where a spec names none, the one that kubectl would use."""
    from rankzero.spec.kinds import kind_section

    if "namespace" in spec.model_fields_set or not kind_section(spec.kind).in_kubernetes:
        return spec
    from rankzero.launch.backends.kubernetes.kubeconfig import namespace_of

    return spec.model_copy(update={"namespace": namespace_of(spec.context, os.environ) or spec.namespace})


def _as_typed(where: str) -> str:
    """Overrides of a cluster spec are typed with a prefix, which those who read its file do not know."""
    typed = f"{COMMAND_LINE} "
    return f"{typed}{CLUSTER_PREFIX}{where.removeprefix(typed)}" if where.startswith(typed) else where


def _cluster_file(beside: Path) -> str | None:
    """The cluster.yaml of the run spec's or the working directory. Raises UsageError where each has one."""
    from rankzero.spec.nearby import shown

    found = [path for path in dict.fromkeys((beside / CLUSTER_FILE, Path.cwd() / CLUSTER_FILE)) if path.exists()]
    if len(found) > 1:
        hint = f"give --cluster {shown(found[0])} or --cluster {CLUSTER_FILE}"
        raise UsageError("one is beside the run spec and one in the working directory", where=CLUSTER_FILE, hint=hint)
    return shown(found[0]) if found else None


def plan_of(
    spec: SpecSource,
    cluster: str | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    cluster_overrides: Mapping[str, object] | None = None,
    allow_changes: Sequence[str] = (),
    submitter: str = "",
) -> Plan:
    """The plan of a run on a cluster. Raises ConfigError with all problems, or UsageError."""
    from rankzero.api.specs import read
    from rankzero.spec.load import Setting

    given = (cluster_overrides or {}).items()
    settings = [Setting(name, value, "cluster_overrides", has_variables=True) for name, value in given]
    reading = read(spec, overrides, for_pods=True)
    return planned(reading, cluster, settings, allow_changes=allow_changes, submitter=submitter)


def planned(
    reading: Reading[RunSpec],
    cluster: str | None,
    cluster_settings: Sequence[str | Setting] = (),
    kind: str | None = None,
    *,
    allow_changes: Sequence[str] = (),
    submitter: str = "",
) -> Plan:
    """As `plan_of`, of a run spec that was read for pods, and with settings as they are typed, or of another source."""
    from rankzero.launch.plan import make_plan
    from rankzero.launch.ship import local_files
    from rankzero.preflight import look_for_files
    from rankzero.spec.local_paths import at_home
    from rankzero.spec.resolve import resolve
    from rankzero.spec.run_options import RunOptions

    loaded = look_for_files(reading)
    place, of_cluster = found_cluster(cluster, cluster_settings, kind, beside=loaded.base)
    run = at_home(resolve(loaded.spec), shared=place.has_homes)
    options = RunOptions(allow_changes=tuple(allow_changes))
    shipped = local_files(run, loaded.base)
    where = written(loaded.where, of_cluster)
    return make_plan(run, place, files=shipped, options=options, submitter=submitter, where=where)


def without_effect(plan: Plan) -> list[Problem]:
    """What run.yaml and cluster.yaml say in vain where the run goes, each at its line. What would change what runs is
    refused instead."""
    from rankzero.spec.kinds import kind_section
    from rankzero.spec.no_effect import in_vain_on_cpus, unread_of_cluster, unread_of_run
    from rankzero.wording import listed

    cluster = plan.cluster
    found = [*unread_of_run(plan.run), *([] if cluster.gpu else in_vain_on_cpus(plan.run))]
    found += [Problem(one.what, f"{CLUSTER_PREFIX}{one.where}", one.hint) for one in unread_of_cluster(cluster)]
    found += unset_of_trackers(plan)
    found = [Problem(one.what, plan.where(one.where), one.hint) for one in found]
    if not kind_section(cluster.kind).on_this_machine:
        return found
    from rankzero.launch.backends.docker.left_out import left_out

    if fields := left_out(cluster):
        hint = "it is for clusters; a run there has it"
        found.append(Problem(f"kind {cluster.kind} does without {listed(fields, 8)}", CLUSTER_FILE, hint))
    return found


_HIDDEN = "?write_token=hidden"
"""What a secret holds is not known here; it may be an address with its token."""


def unset_of_trackers(plan: Plan) -> list[Problem]:
    """What trackers need and cluster.yaml does not pass on. Only doubtful: an image may set variables itself, and a pod
    that lacks them after all refuses the run before GPUs compute. To hosts the shell's own variables travel too, and
    where they see this home, `wandb login` has left a key for them. And Trackio's files where they are gone with the
    pod."""
    from rankzero.spec.cluster_checks import env_name_of
    from rankzero.spec.kinds import kind_section
    from rankzero.track import trackio, wandb
    from rankzero.track.send import server_modules

    cluster = plan.cluster
    here = os.environ if kind_section(cluster.kind).on_hosts else {}
    given = {**here, **dict.fromkeys(map(env_name_of, cluster.secrets), _HIDDEN), **cluster.env}
    if cluster.has_homes and wandb.logged_in(given):
        given.setdefault(wandb.API_KEY, _HIDDEN)
    found = [
        Problem(
            f"as {CLUSTER_FILE} has it, {problem.what}: a new run may be refused",
            f"tracking.{name}",
            f"a key goes into `secrets` of {CLUSTER_FILE}, all else into `env`, where the image does not set it",
        )
        for name, module in server_modules(plan.run.tracking).items()
        for problem in module.unset(given)
    ]
    cache = cluster.storage.get("cache")
    is_kept = cluster.has_homes or (cache is not None and bool(cache.claim or cache.host_path))
    if plan.run.tracking.trackio and not is_kept and not trackio.has_place(given):
        hint = f"set {trackio.URL}, or {trackio.DIRECTORY} to a directory on a volume, in `env` of {CLUSTER_FILE}"
        what = f"as {CLUSTER_FILE} has it, Trackio's files are the container's own, and gone with it"
        found.append(Problem(what, "tracking.trackio", hint))
    return found


def serving_objects(
    run: str,
    cluster: str,
    *,
    name: str | None = None,
    image: str | None = None,
    engine: str = "auto",
    port: int = 8000,
    gpus: int = 1,
    more: Sequence[str] = (),
) -> list[Manifest]:
    """What serves the result of a run on a cluster. `run` is its run.yaml, as it was submitted.

    Raises ConfigError with all problems of both files, or UsageError.
    """
    from rankzero.api.specs import read
    from rankzero.launch.render.serving import ServingWishes
    from rankzero.launch.render.serving import serving_objects as render
    from rankzero.launch.server_arguments import KEY_VARIABLE, require_no_secrets
    from rankzero.launch.serving import require_servable
    from rankzero.spec.kinds import kind_section

    if not run.endswith((".yaml", ".yml")):
        hint = "rankzero serve RUN.yaml --cluster …: the spec says where on the cluster's volumes the result lies"
        raise UsageError("a cluster serves the run of a run.yaml", where=run, hint=hint)
    require_servable(name or None, engine)  # a run's own name is always one
    require_no_secrets(more)
    if gpus > 1 and engine != "vllm":
        raise UsageError("several GPUs are for vLLM", where="--gpus", hint="--engine vllm, in an image that has it")
    settings = ["num_nodes=1", "min_nodes=null", f"nproc_per_node={gpus}", "resources.rdma=null"]
    plan = planned(read(run, for_pods=True), cluster, settings)
    if not kind_section(plan.kind).in_kubernetes:
        hint = "rankzero serve RUN serves on this machine"
        raise UsageError("this is no Kubernetes", where="--cluster", hint=hint)
    if plan.run.task_section.uses != "writes":
        raise ConfigError(f"this run {plan.run.task_section.result}", where=run, hint="only what writes text is served")
    if engine == "transformers" and KEY_VARIABLE in plan.cluster.secrets:
        hint = "--engine vllm, in an image that has it; or leave the secret out, and put something that asks before it"
        raise ConfigError("transformers serve asks for no key", where=f"secrets.{KEY_VARIABLE}", hint=hint)
    told = ["--tensor-parallel-size", str(gpus)] if gpus > 1 else []
    wishes = ServingWishes(name or str(plan.run.name), port, engine, image, (*told, *more))
    return render(plan, wishes)
