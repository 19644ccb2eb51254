"""Rules between fields of a ClusterSpec: places whose values are each fine but contradict each other. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection

from rankzero.errors import Problem
from rankzero.spec.cluster_spec import ClusterSpec, VolumeSpec
from rankzero.spec.kinds import kind_section, kinds_that_honour
from rankzero.spec.quantity import as_bytes
from rankzero.spec.slurm_checks import check_slurm
from rankzero.spec.written_secrets import is_secret, way_in

RESERVED_MOUNTS = ("/etc/rankzero", "/dev/shm", "/dev", "/tmp", "/proc", "/sys", "/")
_RESERVED_TREES = ("/etc/rankzero/", "/dev/", "/proc/", "/sys/")
_OURS = {"POD_NAME", "NODE_NAME", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"}
_OUR_PREFIXES = ("RANKZERO_", "PET_", "MASTER_", "JOB_COMPLETION_")


def check_cluster(spec: ClusterSpec, doubtful: Collection[str] = ()) -> list[Problem]:
    """All contradictions, each at the field to change. Rules about a section in `doubtful` are left out."""
    sections = {field.split(".")[0] for field in doubtful}
    return [problem for fields, rule in _RULES if not sections.intersection(fields) for problem in rule(spec)]


def _elastic(spec: ClusterSpec) -> list[Problem]:
    if spec.min_nodes is None:
        return []
    problems = []
    if spec.min_nodes > spec.num_nodes:
        hint = "num_nodes is the most, min_nodes the least"
        problems.append(Problem(f"{spec.min_nodes} is more than num_nodes ({spec.num_nodes})", "min_nodes", hint))
    if "min_nodes" in kind_section(spec.kind).cannot:
        able = " or ".join(kinds_that_honour("min_nodes"))
        hint = f"set kind: {able}, or leave min_nodes out: pods that are lost are replaced and waited for anyway"
        problems.append(Problem(f"kind {spec.kind} always has all its pods", "min_nodes", hint))
    return problems


def _volumes(spec: ClusterSpec) -> list[Problem]:
    problems = []
    for name, volume in spec.storage.items():
        field = f"storage.{name}"
        problems += [Problem(p.what, f"{field}.{p.where}".rstrip("."), p.hint) for p in _volume(name, volume)]
        mount = posixpath.normpath(volume.mount)
        if ":" in volume.mount or ".." in volume.mount.split("/"):
            hint = "a plain absolute path without ':' and '..'"
            problems.append(Problem(f"{volume.mount} is not a place to mount at", f"{field}.mount", hint))
        if mount in RESERVED_MOUNTS or mount.startswith(_RESERVED_TREES):
            problems.append(Problem(f"{mount} is not free", f"{field}.mount", f"such as /{name}"))
        for other, theirs in spec.storage.items():
            if other < name and posixpath.normpath(theirs.mount) == mount:
                problems.append(Problem(f"storage.{other} is mounted there too", f"{field}.mount"))
    return problems


def _volume(name: str, volume: VolumeSpec) -> list[Problem]:
    problems = []
    if volume.claim is not None and volume.host_path is not None:
        problems.append(Problem("a volume is a claim or a directory of the host, not both", "host_path"))
    if volume.sub_path is not None and (volume.sub_path.startswith("/") or ".." in volume.sub_path.split("/")):
        hint = "such as team/runs, without '..'"
        problems.append(Problem(f"{volume.sub_path} is not a path inside of the volume", "sub_path", hint))
    if volume.claim is None and volume.storage_class is not None:
        problems.append(Problem("only a claim has a storage class", "class", "name the claim"))
    if volume.claim is not None and volume.size is None and volume.storage_class is not None:
        hint = "give the size too, or leave out both where the claim exists already"
        problems.append(Problem("a claim that is to be made needs a size", "size", hint))
    if name == "outputs" and volume.claim is None and volume.host_path is None and volume.url is None:
        hint = "give it a claim, a host_path, or a url to copy checkpoints to"
        problems.append(Problem("checkpoints would end with the pod", "", hint))
    if name == "outputs" and volume.is_read_only:
        problems.append(Problem("run directories are written here", "read_only", "make it writable"))
    elif volume.url is not None and volume.is_read_only:
        field = "read_only" if volume.read_only else "access"
        hint = "make it writable, or leave url out where the files are on the volume already"
        problems.append(Problem("the volume is filled from its url, and cannot be written", field, hint))
    return problems


def _environment(spec: ClusterSpec) -> list[Problem]:
    problems = []
    for name, value in spec.env.items():
        if is_secret(name, value):
            what = "this looks like a secret, and env is written into manifests"
            problems.append(Problem(what, f"env.{name}", way_in(name, "; `rankzero secret set` creates it")))
        if name in _OURS or name.startswith(_OUR_PREFIXES):
            hint = "leave it out: ranks and addresses follow from num_nodes and nproc_per_node"
            problems.append(Problem("rankzero or the platform sets it", f"env.{name}", hint))
        if env_name_of(name) in {env_name_of(secret) for secret in spec.secrets}:
            problems.append(Problem("set twice: it is also a secret", f"env.{name}", "leave one out"))
    for name in spec.secrets:
        if name != env_name_of(name) and env_name_of(name) in spec.secrets:
            what = f"set twice: {env_name_of(name)} is the same variable"
            problems.append(Problem(what, f"secrets.{name}", "leave one out"))
    return problems


def env_name_of(name: str) -> str:
    """Variables are in capitals; `hf_token` is the usual way to name HF_TOKEN in a spec."""
    return name.upper() if name.islower() else name


def _memory(spec: ClusterSpec) -> list[Problem]:
    problems = []
    resources = spec.resources
    limit = resources.limits.memory or resources.memory
    if resources.shm and limit and as_bytes(resources.shm) > as_bytes(limit):
        hint = f"shared memory counts as memory; raise it above {resources.shm}, or lower resources.shm"
        problems.append(
            Problem(f"/dev/shm ({resources.shm}) is larger than all memory ({limit})", "resources.shm", hint)
        )
    if resources.memory and resources.limits.memory and as_bytes(resources.memory) > as_bytes(resources.limits.memory):
        problems.append(Problem("the limit is below what is asked for", "resources.limits.memory"))
    if resources.cpu and resources.limits.cpu and resources.cpu > resources.limits.cpu:
        problems.append(Problem("the limit is below what is asked for", "resources.limits.cpu"))
    return problems


def _ttl(spec: ClusterSpec) -> list[Problem]:
    if spec.ttl_seconds_after_finished is None or "ttl_seconds_after_finished" not in kind_section(spec.kind).cannot:
        return []
    able = ", ".join(kinds_that_honour("ttl_seconds_after_finished"))
    hint = f"leave it out and remove the run with `rankzero delete`, or choose a kind that has one: {able}"
    return [Problem(f"kind {spec.kind} has no such time", "ttl_seconds_after_finished", hint)]


def _timeout(spec: ClusterSpec) -> list[Problem]:
    if spec.timeout_seconds is None or "timeout_seconds" not in kind_section(spec.kind).cannot:
        return []
    able = ", ".join(kinds_that_honour("timeout_seconds"))
    hint = f"leave it out and end the run with `rankzero cancel`, or choose a kind that has one: {able}"
    return [Problem(f"nothing ends a {spec.kind} after a time", "timeout_seconds", hint)]


def _taints(spec: ClusterSpec) -> list[Problem]:
    return [
        Problem("a toleration needs a key, a value or an effect", f"tolerations.{index}")
        for index, toleration in enumerate(spec.tolerations)
        if toleration.key is None and toleration.value is not None
    ]


def _image(spec: ClusterSpec) -> list[Problem]:
    if spec.image is not None or kind_section(spec.kind).on_hosts:
        return []
    hint = "such as registry.example/team/rankzero:1.0, built from docker/Dockerfile"
    return [Problem("required, but not set", "image", hint)]


_RULES: tuple[tuple[tuple[str, ...], Callable[[ClusterSpec], list[Problem]]], ...] = (
    (("min_nodes", "num_nodes", "kind"), _elastic),
    (("storage", "num_nodes"), _volumes),
    (("env", "secrets"), _environment),
    (("resources",), _memory),
    (("ttl_seconds_after_finished", "kind"), _ttl),
    (("timeout_seconds", "kind"), _timeout),
    (("tolerations",), _taints),
    (("image", "kind"), _image),
    (("kind", "slurm", "storage", "env"), check_slurm),
)
