"""ClusterSpec: where runs go. Knows nothing of what is trained, nor of any Kubernetes object.

One cluster.yaml serves every run spec, and one run spec every cluster.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rankzero.spec.load import Loaded, Setting, load_spec
from rankzero.spec.names import ABSOLUTE_PATH_PATTERN
from rankzero.spec.renames import Rename, normalised
from rankzero.spec.run_spec import PositiveInt, Section

Text = Annotated[str, StringConstraints(min_length=1)]
MountPath = Annotated[str, StringConstraints(pattern=ABSOLUTE_PATH_PATTERN)]


class ResourcesSpec(Section):
    """What one pod asks for besides its GPUs; requests and limits are the same."""

    cpu: Annotated[float, Field(gt=0)] | None = None
    """CPU cores."""
    memory: Text | None = None
    """Memory, such as 512Gi; shared memory counts against it."""
    shm: Text | None = None
    """Size of /dev/shm, such as 32Gi; the processes of a node exchange data through it."""
    rdma: Text | None = None
    """Name of the site's RDMA device resource, such as rdma/ib; one is asked for."""


class VolumeSpec(Section):
    """A persistent volume claim, and where it is mounted."""

    mount: MountPath
    """Absolute path in the pods."""
    claim: Text
    """Name of the claim."""
    size: Text | None = None
    """Size of the claim where it has to be made, such as 500Gi."""
    storage_class: Annotated[Text | None, Field(alias="class")] = None
    """Storage class of the claim where it has to be made; absent: the cluster's default."""
    access: Literal["ReadWriteOnce", "ReadWriteMany"] = "ReadWriteMany"
    """ReadWriteMany where several nodes mount it."""


class SecretRef(Section):
    """One key of a Kubernetes secret. The value itself is never in a spec."""

    name: Text
    """Name of the secret."""
    key: Text = "token"
    """Key in the secret."""


class StorageSpec(Section):
    """The two volumes of a run."""

    cache: VolumeSpec | None = None
    """Downloaded models and prepared data; many small files."""
    outputs: VolumeSpec | None = None
    """Run directories; few large files."""


class SecretsSpec(Section):
    """Secrets that pods get as environment variables."""

    hf_token: SecretRef | None = None
    """Token for gated models on the Hugging Face Hub."""


class ClusterSpec(Section):
    """One place that runs are sent to."""

    namespace: Text = "default"
    """Kubernetes namespace."""
    image: Text
    """Image of the workers; it holds rankzero[train]."""
    kind: Literal["auto", "job", "jobset", "trainjob", "pytorchjob", "statefulset", "docker"] = "auto"
    """Kind of object that a run becomes. auto: what the cluster has."""
    num_nodes: PositiveInt = 1
    """Pods of a run."""
    nproc_per_node: PositiveInt = 1
    """Processes per pod; each has one GPU, or none with `gpu: false`."""
    gpu: bool = True
    """false: the processes compute on CPUs."""
    resources: ResourcesSpec = ResourcesSpec()
    storage: StorageSpec = StorageSpec()
    secrets: SecretsSpec = SecretsSpec()
    grace_period_seconds: PositiveInt = 180
    """Time a pod has for saving when it is asked to stop."""
    max_restarts: Annotated[int, Field(ge=0)] = 3
    """Restarts after failures that trying again may cure."""


_TABLE = {
    "num_nodes": "nodes nnodes replicas node_count numnodes",
    "nproc_per_node": "nproc num_proc_per_node gpus gpus_per_node num_gpus processes slots_per_node",
    "grace_period_seconds": "grace_period terminationgraceperiodseconds termination_grace_period_seconds",
    "max_restarts": "backofflimit backoff_limit restarts retries max_retries",
    "image": "container_image docker_image container",
    "secrets.hf_token": "hf_token huggingface_token hf_secret",
    "storage": "volumes pvc pvcs persistent_volume_claims",
}
RENAMES = {normalised(name): Rename(field, "") for field, names in _TABLE.items() for name in names.split()}


def load_cluster_spec(
    path: Path | None, overrides: Sequence[str | Setting] = (), *, env: Mapping[str, str]
) -> Loaded[ClusterSpec]:
    """As load_run_spec, for cluster.yaml."""
    return load_spec(ClusterSpec, path, overrides, env=env, renames=RENAMES)
