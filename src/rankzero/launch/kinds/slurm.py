"""Slurm: a run is one batch script, whose nodes each run the node command under srun. Pure."""

from __future__ import annotations

import posixpath
from typing import Any

from rankzero.launch import labels
from rankzero.launch.kinds.kind import Kind, by_mark
from rankzero.launch.labels import Manifest, prepare_name
from rankzero.launch.plan import Plan
from rankzero.launch.render.sbatch import RETRY_EXIT_OFFSET, batch_script
from rankzero.launch.render.sbatch_preparation import preparation_script
from rankzero.launch.render.shared import metadata, run_labels
from rankzero.launch.resource import Resource
from rankzero.spec.cluster_checks import env_name_of
from rankzero.spec.cluster_spec import ClusterSpec

BATCH_SCRIPT = Resource("slurm.rankzero.dev", "v1", "batchscripts", "BatchScript")
"""No API knows it: the form in which a script goes from here to the backend."""
NODE_LABEL = "rankzero.dev/node"
CONDITION = "SlurmJob"
"""Condition of a node's pod: the job's state as its reason, and `JOB: why` in Slurm's words as its message."""
UNKNOWN = "UNKNOWN"
"""State of a job that Slurm does not know any more."""
SUBMITTING = "Submitting"
"""Why a run waits that Slurm has given no number yet."""
NOT_STARTED = "NotStarted"
"""Why a node's pod failed on which nothing of the run ever began: srun, or its image, kept it from that."""
STATE_DIR = "slurm"
"""Directory of the outputs volume that has what is known of the runs, one directory each."""


def objects(plan: Plan) -> list[Manifest]:
    """The script; before it that of the preparation, where the run has one."""
    own = metadata(plan)
    state = posixpath.join(state_directory(plan.cluster), plan.name)
    run = _manifest(plan, own, state, batch_script(plan, own, state))
    if not plan.prepare:
        return [run]
    first = {**metadata(plan, prepare_name(plan.name)), "labels": run_labels(plan, labels.PREPARE_ROLE)}
    return [_manifest(plan, first, state, preparation_script(plan, own, state)), run]


def _manifest(plan: Plan, own: dict[str, Any], state: str, script: str) -> Manifest:
    variables = [
        {"name": env_name_of(name), "optional": ref.optional} for name, ref in sorted(plan.cluster.secrets.items())
    ]
    spec = {"script": script, "state": state, "secrets": variables, "grace": plan.cluster.grace_period_seconds}
    return {"apiVersion": BATCH_SCRIPT.api_version, "kind": BATCH_SCRIPT.kind, "metadata": own, "spec": spec}


def state_directory(cluster: ClusterSpec) -> str:
    """Where what is known of the runs lies, as hosts see it."""
    outputs = cluster.storage["outputs"]  # spec/slurm_checks.py asks for it
    return posixpath.join(outputs.host_path or outputs.mount, STATE_DIR)


def _config_dir(cluster: ClusterSpec, name: str) -> str:
    """On the outputs volume: the processes of hosts have no files of their own."""
    outputs = cluster.storage["outputs"]
    return posixpath.join(outputs.mount, STATE_DIR, name, "config")


KIND = Kind(
    resource=BATCH_SCRIPT,
    objects=objects,
    pod_specs=lambda _manifest: iter(()),
    node_index=by_mark(NODE_LABEL),
    end=lambda _manifest: None,
    controlled=False,
    retry_exit_offset=RETRY_EXIT_OFFSET,
    whole=True,
    config_dir=_config_dir,
)
