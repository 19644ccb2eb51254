"""cluster.yaml, or the name of a shipped profile → a ClusterSpec, or every problem at once."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path

from rankzero.errors import ConfigError
from rankzero.spec.cluster_checks import check_cluster
from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.load import Loaded, Setting, load_spec
from rankzero.spec.nearby import near
from rankzero.spec.renames import Rename, normalised

_TABLE = {
    "num_nodes": "nodes nnodes replicas node_count numnodes",
    "min_nodes": "min_replicas minreplicas",
    "nproc_per_node": "nproc num_proc_per_node gpus gpus_per_node num_gpus processes slots_per_node",
    "grace_period_seconds": "grace_period terminationgraceperiodseconds termination_grace_period_seconds",
    "max_restarts": "backofflimit backoff_limit restarts retries max_retries",
    "image": "container_image docker_image container",
    "secrets": "hf_token huggingface_token hf_secret",
    "storage": "volumes pvc pvcs persistent_volume_claims",
    "timeout_seconds": "active_deadline_seconds activedeadlineseconds timeout",
    "ttl_seconds_after_finished": "ttl ttlsecondsafterfinished",
    "node_selector": "nodeselector",
    "queue": "queue_name local_queue kueue",
    "priority_class": "priority_class_name priorityclassname",
    "env": "environment envs",
}
RENAMES = {normalised(name): Rename(field, "") for field, names in _TABLE.items() for name in names.split()}


def load_cluster_spec(
    path: Path | None, overrides: Sequence[str | Setting] = (), *, env: Mapping[str, str]
) -> Loaded[ClusterSpec]:
    """As load_run_spec, for cluster.yaml."""
    return load_spec(ClusterSpec, path, overrides, env=env, renames=RENAMES, check=check_cluster)


def load_cluster(
    name_or_path: str, overrides: Sequence[str | Setting] = (), *, env: Mapping[str, str]
) -> Loaded[ClusterSpec]:
    """The cluster.yaml at a path, or the shipped profile of that name. Raises ConfigError."""
    name_or_path = os.path.expanduser(name_or_path)
    path = Path(name_or_path)
    if path.is_file():
        return load_cluster_spec(path, overrides, env=env)
    if name_or_path not in profiles():
        raise _no_such(name_or_path)
    with as_file(files("rankzero") / "recipes" / "clusters" / f"{name_or_path}.yaml") as file:
        return load_cluster_spec(file, overrides, env=env)


def _no_such(name: str) -> ConfigError:
    is_path = "/" in name or name.endswith((".yaml", ".yml"))
    close = near(name) or next(iter(difflib.get_close_matches(Path(name).stem, profiles(), n=1, cutoff=0.5)), None)
    meant = f"did you mean {close}? " if close else ""
    hint = f"{meant}A path of a cluster.yaml, or one of: {', '.join(profiles())}"
    if is_path and not close:
        hint += "; `rankzero init --recipe NAME` writes one to start from"
    if Path(name).is_dir():
        return ConfigError("this is a directory", where=f"--cluster {name}", hint=hint)
    what = "no such file" if is_path else "no such file, and no such profile"
    return ConfigError(what, where=f"--cluster {name}", hint=hint)


def profiles() -> list[str]:
    """Names of the shipped profiles."""
    folder = files("rankzero") / "recipes" / "clusters"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))
