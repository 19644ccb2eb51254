"""Warm pods: pods of a cluster.yaml that wait, get this machine's changed files, and run commands together. Talks to a
cluster's API where it is asked to; knows no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rankzero.errors import ConfigError, ServiceError
from rankzero.spec.written import written

if TYPE_CHECKING:
    from rankzero.errors import Problem
    from rankzero.launch.backend import Backend
    from rankzero.launch.backends.kubernetes.backend import KubernetesBackend
    from rankzero.launch.plan import Plan
    from rankzero.launch.warm.commands import Line
    from rankzero.launch.warm.gpus import PodGpus
    from rankzero.launch.warm.jupyter import Jupyter
    from rankzero.launch.warm.pods import WarmPod
    from rankzero.launch.warm.sync import Synced
    from rankzero.spec.cluster_spec import ClusterSpec
    from rankzero.spec.load import Reading
    from rankzero.spec.run_spec import RunSpec
    from rankzero.spec.written import Where

NAME = "dev"
"""Of the pods' objects, unless another is given."""
JUPYTER_KEY = "jupyter"
"""Of its token, in the Secret of a submission."""
LOOK_SECONDS = 2.0
_SETTINGS = ("prepare=never", "max_restarts=0", "min_nodes=null", "timeout_seconds=null")
_LATER = ("ttl_seconds_after_finished=null",)
"""What pods that only wait have no use for, and their kind could not honour."""

Say = Callable[[str], None]


def warm_cluster(cluster: str | None, settings: Sequence[str] = ()) -> tuple[ClusterSpec, Where]:
    """The cluster spec with the kind that keeps pods: a StatefulSet, or this machine's containers; and where its fields
    were written. Raises ConfigError for a place that has no pods, or with what is wrong in the spec; UsageError."""
    from rankzero.api.planning import found_cluster
    from rankzero.spec.kinds import kind_section

    found, where = found_cluster(cluster, settings)
    place = kind_section(found.kind)
    if place.on_hosts:
        hint = "`salloc` and `srun --jobid` keep hosts for you; rankzero submit runs there"
        raise ConfigError("Slurm has no pods that could be kept warm", where=where("kind"), hint=hint)
    kind = "docker" if place.on_this_machine else "statefulset"
    return found_cluster(cluster, [*settings, *_SETTINGS, *_LATER], kind)


def warm_plan(cluster: ClusterSpec, name: str = NAME, *, submitter: str = "", where: Where = str) -> Plan:
    """The plan of pods that wait. `where` are the cluster spec's fields. Raises ConfigError with all problems."""
    from rankzero.launch.plan import make_plan
    from rankzero.spec.resolve import resolve
    from rankzero.spec.run_spec import DataSpec, ModelSpec, RunSpec

    nothing = RunSpec(name=name, model=ModelSpec(name="none"), data=DataSpec(train="none"), output_dir="runs")
    plan = make_plan(resolve(nothing), cluster, submitter=submitter, idle=True, where=written(cluster=where))
    return replace(plan, settings=replace(plan.settings, park=False))


def wait_until_warm(backend: Backend, name: str, say: Say) -> list[WarmPod]:
    """Return when all pods run. Raises ServiceError where they have ended instead."""
    from rankzero.launch.status import run_status
    from rankzero.launch.warm.pods import running

    said = ""
    while True:
        evidence = backend.collect(name)
        try:
            return running(evidence)
        except ServiceError as error:
            seen = run_status(evidence)
            if seen.is_over:
                raise ServiceError(seen.verdict, where=name, hint="`rankzero dev down` removes them") from error
            if seen.verdict != said:
                said = seen.verdict
                say(f"  {said}")
        time.sleep(LOOK_SECONDS)


def warm_pods(backend: Backend, name: str) -> list[WarmPod]:
    """The pods, all of which run. Raises UsageError or ServiceError."""
    from rankzero.launch.warm.pods import running

    return running(backend.collect(name, log_lines=0))


def made_by(backend: Backend, name: str) -> str:
    """Who has made the pods: `user@machine`; nothing where nobody is named. Raises UsageError where there are none."""
    from rankzero.launch.warm.pods import made_by, must_be_warm

    evidence = backend.collect(name, log_lines=0)
    must_be_warm(evidence)
    return made_by(evidence)


def sync(backend: Backend, pods: Sequence[WarmPod], directory: Path, say: Say) -> dict[str, Synced]:
    """Make the pods' working directories hold a directory's files, as git would take them; say what cannot be sent.
    Returns what changed, by the pods' names. Raises ConfigError, UsageError, or ServiceError where a pod cannot."""
    from rankzero.launch.warm.files import own_files
    from rankzero.launch.warm.sync import WORK

    found = own_files(directory)
    for problem in found.left_out:
        say(f"warning: {problem}")
    return _send(backend, pods, WORK, found.files, say)


def run_command(backend: Backend, pods: Sequence[WarmPod], command: Sequence[str], line: Line, say: Say) -> int:
    """Run a command on every node, in the directory of the files that were sent; what ran there is ended first, and who
    ran it told by whom.

    Returns the exit code of the first that failed, 0 where none did, 130 after Ctrl-C, which ends all, and says where
    it cannot. Raises ServiceError where a pod is lost.
    """
    from rankzero.api.clusters import submitter
    from rankzero.launch.node.group import GRACE_SECONDS
    from rankzero.launch.warm.commands import ranks, run_together

    env = {pod.name: ranks(pod, pods) for pod in pods}
    return run_together(backend, pods, command, env, GRACE_SECONDS, line, say, submitter())


def run_spec(
    backend: Backend,
    pods: Sequence[WarmPod],
    reading: Reading[RunSpec],
    cluster: ClusterSpec,
    line: Line,
    say: Say,
) -> int:
    """Train a run.yaml, read for pods, in the pods as its own pods would: small local files travel along, nothing is
    prepared. As `run_command` otherwise. Raises ConfigError with all problems."""
    from rankzero.api.clusters import submitter
    from rankzero.launch.warm.commands import run_together
    from rankzero.launch.warm.sync import RUN

    made = {"num_nodes": len(pods), "nproc_per_node": pods[0].nproc}  # what `up` was told besides is in no file
    plan = _plan_in(reading, cluster.model_copy(update=made))
    _send(backend, pods, RUN, _files_of(plan), lambda _line: None)  # only small ones travel along
    command = ["python", "-P", "-m", "rankzero.launch.node", plan.config_dir]  # not the files that were sent
    env = {pod.name: {"RANKZERO_NODE": str(pod.node)} for pod in pods}
    grace = float(cluster.grace_period_seconds)
    return run_together(backend, pods, command, env, grace, line, say, submitter())


def other_code(backend: Backend, pods: Sequence[WarmPod]) -> list[Problem]:
    """What there is to say of pods whose image has another rankzero than this machine. Raises ServiceError."""
    from rankzero.launch.warm.code import other_code

    return other_code(backend, pods)


def gpus(backend: Backend, name: str) -> list[PodGpus]:
    """What the GPUs of all pods of a name do, warm pods' or a run's. Raises UsageError where there are none."""
    from rankzero.errors import UsageError
    from rankzero.launch import labels
    from rankzero.launch.pods import parse_pod
    from rankzero.launch.warm.each import each
    from rankzero.launch.warm.gpus import look

    pods = [pod for pod in backend.collect(name, log_lines=0).pods if parse_pod(pod).is_running]
    names = [str(pod["metadata"]["name"]) for pod in pods if labels.role_of(pod) == labels.NODE_ROLE]
    if not names:
        raise UsageError("no pods of this name run", where=name, hint="`rankzero list` shows runs, `dev up` makes pods")
    return each(names, lambda pod: look(backend, pod))


def jupyter(backend: Backend, pod: WarmPod, cluster: ClusterSpec, name: str) -> Jupyter:
    """Jupyter in a warm pod, started where it does not run. Its token is made here, and stays the same until `down`: in
    the Secret of what `up` has submitted, or, where there are no Secrets, in the container. Raises as
    `warm.jupyter.start`, and AccessError."""
    from rankzero.launch.backends.kubernetes.backend import KubernetesBackend
    from rankzero.launch.warm.jupyter import start

    keeper = _TokenInSecret(backend, cluster.namespace, name) if isinstance(backend, KubernetesBackend) else None
    return start(backend, pod, keeper)


def down(backend: Backend, name: str, say: Say) -> list[str]:
    """Remove what `up` made; claims stay. Returns what was removed. Raises UsageError where it is a run that trains."""
    from rankzero.launch.warm.pods import must_be_warm

    must_be_warm(backend.collect(name, log_lines=0))
    return backend.delete(name, claims=False, say=say)


@dataclass(frozen=True, slots=True)
class _TokenInSecret:
    """Beside the pods' own token, so that both go with the pods."""

    backend: KubernetesBackend
    namespace: str
    run: str

    def read(self) -> str:
        """The token; nothing where there is none."""
        from rankzero.launch.labels import submission_name

        return self.backend.secret_value(submission_name(self.run), JUPYTER_KEY)

    def write(self, token: str) -> None:
        """Keep it instead of any other."""
        from pydantic import SecretStr

        from rankzero.launch import labels
        from rankzero.launch.secrets import secret_manifest

        manifest = secret_manifest(labels.submission_name(self.run), self.namespace, {JUPYTER_KEY: SecretStr(token)})
        manifest["metadata"]["labels"] |= {labels.RUN: self.run}
        self.backend.put_secret(manifest)


def _send(
    backend: Backend, pods: Sequence[WarmPod], place: str, files: Mapping[str, Path | bytes], say: Say
) -> dict[str, Synced]:
    from rankzero.launch.warm.sync import sync as sync_pods

    names = [pod.name for pod in pods]
    return dict(zip(names, sync_pods(backend, names, place, files, say), strict=True))


def _plan_in(reading: Reading[RunSpec], cluster: ClusterSpec) -> Plan:
    from rankzero.launch.node.settings import WARM_DIR
    from rankzero.launch.plan import make_plan
    from rankzero.launch.ship import local_files
    from rankzero.launch.warm.sync import RUN
    from rankzero.preflight import look_for_files
    from rankzero.spec.local_paths import at_home
    from rankzero.spec.resolve import resolve

    loaded = look_for_files(reading)
    run = at_home(resolve(loaded.spec), shared=False)
    shipped = local_files(run, loaded.base)
    plan = make_plan(run, cluster, files=shipped, where=written(loaded.where), config_dir=f"{WARM_DIR}/{RUN}")
    return replace(plan, settings=replace(plan.settings, park=False))


def _files_of(plan: Plan) -> dict[str, Path | bytes]:
    from rankzero.spec.resolve import to_yaml

    texts = {"run.yaml": to_yaml(plan.run), "node.json": plan.settings.to_json()}
    return {
        **{name: text.encode() for name, text in texts.items()},
        **{f"files/{name}": content for name, content in plan.files.items()},
    }
