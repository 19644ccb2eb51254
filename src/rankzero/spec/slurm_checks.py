"""Rules of a ClusterSpec for Slurm: what it has no place for, and what its script would contradict. Pure."""

from __future__ import annotations

import posixpath

from rankzero.errors import Problem
from rankzero.spec.cluster_spec import ClusterSpec, ResourcesSpec, SlurmSpec, VolumeSpec
from rankzero.spec.kinds import kind_section

_INSTEAD = {
    "context": "Slurm's commands talk to the cluster that this machine belongs to",
    "image_pull_policy": "Slurm pulls no images",
    "image_pull_secrets": "log in with the container runtime on the nodes",
    "gpu_resource": "slurm.gpu_type says which GPUs",
    "node_selector": "slurm.constraint asks for features of nodes",
    "tolerations": "slurm.partition or slurm.options say which nodes are used",
    "spread": "slurm.options has switches and the like",
    "queue": "slurm.partition and slurm.qos are Slurm's queues",
    "priority_class": "slurm.qos sets priorities",
    "scheduler": "Slurm is its own scheduler",
    "service_account": "jobs run as who submits them",
    "network_policy": "Slurm has no such thing",
    "user": "jobs run as who submits them",
    "annotations": "slurm.options has comment",
    "labels": "slurm.options has comment",
    "pod_patch": "slurm.options and slurm.setup take what has no field",
}
"""Fields that only pods have, and what does it with Slurm."""
_OURS = {
    *("job-name", "nodes", "ntasks", "ntasks-per-node", "output", "open-mode", "requeue", "no-requeue", "signal"),
    *("export", "dependency", "array", "wrap", "parsable", "test-only", "wait"),
}
_FIELDS = {
    **{"time": "slurm.time_limit_seconds", "mem": "resources.memory", "cpus-per-task": "resources.cpu"},
    **{"gres": "nproc_per_node and slurm.gpu_type", "partition": "slurm.partition", "account": "slurm.account"},
    **{"qos": "slurm.qos", "constraint": "slurm.constraint", "reservation": "slurm.reservation"},
}
SIGNAL_SECONDS = 60
"""By so much Slurm may be early or late with a signal before the time limit, which it looks at once a minute."""
START_SECONDS = 60
"""The least from an allocation's beginning to the first step: software from a shared directory, nodes that meet."""


def check_slurm(spec: ClusterSpec) -> list[Problem]:
    """What contradicts `kind: slurm`, or what is said for Slurm where the kind is another."""
    if not kind_section(spec.kind).on_hosts:
        if spec.slurm != SlurmSpec():
            return [Problem(f"kind {spec.kind} does not go to Slurm", "slurm", "set kind: slurm, or leave it out")]
        return []
    defaults = ClusterSpec.model_construct()
    strange = [name for name in _INSTEAD if getattr(spec, name) != getattr(defaults, name)]
    problems = [Problem("kind slurm has nothing for it", name, f"leave it out: {_INSTEAD[name]}") for name in strange]
    for name in ("limits", "shm", "rdma"):
        if getattr(spec.resources, name) != getattr(ResourcesSpec(), name):
            hint = "leave it out: the nodes decide about it"
            problems.append(Problem("kind slurm has nothing for it", f"resources.{name}", hint))
    for name, volume in spec.storage.items():
        problems += _directory(spec.slurm, f"storage.{name}", volume)
    outputs = spec.storage.get("outputs")
    if outputs is None:
        hint = "storage: {outputs: {mount: /shared/me/rankzero, host_path: /shared/me/rankzero}}"
        problems.append(Problem("no directory keeps the results", "storage.outputs", hint))
    return [*problems, *_own_fields(spec)]


def _directory(slurm: SlurmSpec, field: str, volume: VolumeSpec) -> list[Problem]:
    problems = []
    if volume.claim is not None or volume.sub_path is not None or volume.size is not None:
        hint = "host_path: a directory that all nodes and this machine have mounted"
        problems.append(Problem("Slurm's nodes have directories, no claims", field, hint))
    elif volume.host_path is None:
        hint = f"add host_path: {volume.mount}, a directory that all nodes and this machine have mounted"
        problems.append(Problem("which directory of the nodes is it?", field, hint))
    elif slurm.runtime == "none" and posixpath.normpath(volume.mount) != posixpath.normpath(volume.host_path):
        hint = f"set mount: {volume.host_path} as well; only containers (slurm.runtime) see it elsewhere"
        problems.append(Problem("without a container it cannot be mounted elsewhere", f"{field}.mount", hint))
    if any(sign in (volume.host_path or "") + volume.mount for sign in ("%", "\n", ",", " ")):
        hint = "another directory: Slurm and container runtimes read these signs"
        problems.append(Problem("no spaces, commas and % may be in it", field, hint))
    return problems


def _own_fields(spec: ClusterSpec) -> list[Problem]:
    slurm, problems = spec.slurm, []
    if slurm.image is not None and slurm.runtime == "none":
        hint = "slurm.runtime: apptainer or pyxis, or leave the image out"
        problems.append(Problem("nothing runs the image", "slurm.image", hint))
    if slurm.runtime != "none" and slurm.image is None and spec.image is None:
        problems.append(Problem(f"{slurm.runtime} needs an image", "slurm.image", "a file or a name in a registry"))
    if slurm.prepare_partition is not None and spec.prepare != "never" and "cache" not in spec.storage:
        hint = "add storage.cache, a directory that all nodes have mounted, or leave it out"
        problems.append(Problem("nothing would keep what is prepared there", "slurm.prepare_partition", hint))
    for name, value in slurm.options.items():
        where = f"slurm.options.{name}"
        if name in _OURS:
            problems.append(Problem("rankzero sets it", where, "leave it out"))
        elif name in _FIELDS:
            problems.append(Problem("there is a field for it", where, f"set {_FIELDS[name]}"))
        elif name == "clusters":
            hint = "leave it out, and set SLURM_CLUSTERS where you type the commands"
            problems.append(Problem("squeue and scancel would ask another cluster than the job's", where, hint))
        elif any(sign in value for sign in "\r\n"):
            problems.append(Problem("a value is one line", where, "leave the line break out"))
    grace, limit = spec.grace_period_seconds, slurm.time_limit_seconds
    least = grace + SIGNAL_SECONDS + START_SECONDS
    if limit is not None and limit < least:
        what = f"in {limit} s the run can start and save, and train nothing: it would be queued again for ever"
        parts = f"{grace} to save (grace_period_seconds), {SIGNAL_SECONDS} that the signal may be early"
        hint = f"at least {least}: {parts}, {START_SECONDS} to start, and more where much is fetched"
        problems.append(Problem(what, "slurm.time_limit_seconds", hint))
    return problems
