"""ClusterSpec: where runs go. Knows nothing of what is trained, nor of any Kubernetes object.

One cluster.yaml serves every run spec, and one run spec every cluster.yaml.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, StringConstraints

from rankzero.spec.fields import OCTAL
from rankzero.spec.kinds import KINDS, kind_section
from rankzero.spec.names import (
    ABSOLUTE_PATH_PATTERN,
    DNS_LABEL_PATTERN,
    DNS_NAME_PATTERN,
    ENV_NAME_PATTERN,
    IMAGE_PATTERN,
    LABEL_KEY_PATTERN,
    LABEL_VALUE_PATTERN,
    ONE_LINE_PATTERN,
    QUANTITY_PATTERN,
    RESOURCE_NAME_PATTERN,
    SLURM_NAME_PATTERN,
    SLURM_OPTION_PATTERN,
    URL_PATTERN,
)
from rankzero.spec.run_spec import PositiveInt, Section

Text = Annotated[str, StringConstraints(min_length=1)]
MountPath = Annotated[str, StringConstraints(pattern=ABSOLUTE_PATH_PATTERN)]
DnsLabel = Annotated[str, StringConstraints(pattern=DNS_LABEL_PATTERN)]
DnsName = Annotated[str, StringConstraints(pattern=DNS_NAME_PATTERN)]
EnvName = Annotated[str, StringConstraints(pattern=ENV_NAME_PATTERN)]
Quantity = Annotated[str, StringConstraints(pattern=QUANTITY_PATTERN)]
LabelKey = Annotated[str, StringConstraints(pattern=LABEL_KEY_PATTERN)]
LabelValue = Annotated[str, StringConstraints(pattern=LABEL_VALUE_PATTERN)]
SlurmName = Annotated[str, StringConstraints(pattern=SLURM_NAME_PATTERN)]
SlurmOption = Annotated[str, StringConstraints(pattern=SLURM_OPTION_PATTERN)]
SlurmText = Annotated[str, StringConstraints(pattern=ONE_LINE_PATTERN)]
Cores = Annotated[float, Field(ge=0.001)]

if TYPE_CHECKING:
    Kind = str
else:  # the names that spec/kinds.py has, for the schema and for suggestions
    Kind = Literal["auto", *KINDS]


class LimitsSpec(Section):
    """What a pod may use at most, where that is more than it asks for."""

    cpu: Cores | None = None
    """CPU cores."""
    memory: Quantity | None = None
    """Memory, such as 64Gi."""


class ResourcesSpec(Section):
    """What one pod asks for besides its GPUs."""

    cpu: Cores | None = None
    """CPU cores."""
    memory: Quantity | None = None
    """Memory, such as 512Gi; shared memory counts against it."""
    limits: LimitsSpec = LimitsSpec()
    """Absent: memory is limited to what is asked for, and CPU is not limited."""
    shm: Quantity | None = None
    """Size of /dev/shm, such as 32Gi; the processes of a node exchange data through it. Absent: as memory allows."""
    rdma: Annotated[str, StringConstraints(pattern=RESOURCE_NAME_PATTERN)] | None = None
    """Name of the site's RDMA device resource, such as rdma/ib. Adds the IPC_LOCK capability."""
    rdma_devices: PositiveInt = 1
    """How many of them a pod asks for."""


class VolumeSpec(Section):
    """A directory of the pods, and what keeps it: a claim, a directory of the host, or nothing."""

    mount: MountPath
    """Absolute path in the pods."""
    claim: DnsName | None = None
    """Name of a persistent volume claim; made where it does not exist and `size` is given."""
    host_path: MountPath | None = None
    """Directory of the host instead: a file system that every host has mounted (not under restricted Pod Security)."""
    size: Quantity | None = None
    """Size of the claim where it has to be made, such as 500Gi; without claim or host_path, the limit of a scratch
    directory that ends with its pod."""
    storage_class: Annotated[DnsName | None, Field(alias="class")] = None
    """Storage class of the claim where it has to be made; absent: the cluster's default."""
    access: Literal["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany"] = "ReadWriteMany"
    """ReadWriteMany where several hosts mount it."""
    read_only: bool = False
    """Mount it so that nothing can be written."""
    sub_path: Text | None = None
    """Mount this directory of the volume instead of its root."""
    url: Annotated[str, StringConstraints(pattern=URL_PATTERN)] | None = None
    """Object store that the directory is filled from before training: what the store has changed since is fetched
    again, and what came from it and is there no more is removed. `outputs` is copied to it as checkpoints are committed
    instead, and filled from it when a run continues. Any fsspec URL: s3://bucket/prefix."""

    @property
    def is_read_only(self) -> bool:
        """Whether nothing can be written through this entry, by its mount or by its claim."""
        return self.read_only or self.access == "ReadOnlyMany"


class SecretRef(Section):
    """One key of a Kubernetes secret. The value itself is never in a spec."""

    name: DnsName
    """Name of the secret."""
    key: Text = "token"
    """Key in the secret."""
    optional: bool = False
    """Go on without it where it does not exist."""


class TolerationSpec(Section):
    """A taint that pods put up with."""

    key: Text | None = None
    """Key of the taint; absent: any."""
    value: str | None = None
    """Value of the taint; absent: any."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; absent: any."""


class SpreadSpec(Section):
    """How the pods of a run are spread over the cluster."""

    mode: Literal["auto", "required", "preferred", "none"] = "auto"
    """One pod to a host: required, preferred, or of no interest. auto: preferred where there are several."""
    topology_key: Text = "kubernetes.io/hostname"
    """Node label whose values are the places to spread over."""
    together: Text | None = None
    """Node label, such as a rack or an InfiniBand block, of which all pods prefer the same value."""


class QueueSpec(Section):
    """Kueue."""

    name: DnsName
    """LocalQueue in the namespace."""
    priority: DnsName | None = None
    """WorkloadPriorityClass."""


class ServiceAccountSpec(Section):
    """Who the pods are to the cluster's API. By default nobody: they get no token."""

    name: DnsName | None = None
    """An existing service account; absent: the namespace's default, or one of the run's own where the kind needs it."""
    token: bool = False
    """Mount its token."""


class SlurmSpec(Section):
    """What only Slurm asks for (kind slurm)."""

    partition: SlurmName | None = None
    """Partition, or several by commas; absent: the cluster's default."""
    prepare_partition: SlurmName | None = None
    """Partition, best without GPUs, for the job that fetches the model and tokenises before the run's own is started.
    Absent: nodes do it when they start, or with `prepare: always` a job in `partition`."""
    account: SlurmName | None = None
    """Account that the time is charged to."""
    qos: SlurmName | None = None
    """Quality of service."""
    constraint: SlurmText | None = None
    """Features that nodes must have, such as h100&ib."""
    reservation: SlurmName | None = None
    """Reservation to use."""
    gpu_type: SlurmName | None = None
    """Type of the GPUs where the site tells several apart, as `sinfo -o %G` has it: h100."""
    time_limit_seconds: Annotated[int, Field(ge=60)] | None = None
    """Time limit of one allocation. Before it is over the run saves, goes back into the queue and continues. Absent:
    the partition's."""
    runtime: Literal["none", "apptainer", "pyxis"] = "none"
    """What runs the processes: nothing but the hosts' own software, Apptainer, or the Pyxis plugin of srun."""
    image: SlurmText | None = None
    """Image as that runtime names it: a .sif or .sqsh file, docker://…, registry#team/image:tag. Absent: `image`."""
    python: SlurmText = "python3"
    """Python that has rankzero[train]: a path that all nodes have, or a name in PATH (the submitter's PATH travels)."""
    setup: tuple[SlurmText, ...] = ()
    """Lines of shell that each node runs first, such as `module load cuda`. One that fails ends the run."""
    options: dict[SlurmOption, str] = {}
    """More options of sbatch, by their long names: {exclude: node7, mail-type: FAIL}. An empty value is a flag."""


class ClusterSpec(Section):
    """One place that runs are sent to."""

    context: Text | None = None
    """Context of the kubeconfig; absent: its current one."""
    namespace: DnsLabel = "default"
    """Kubernetes namespace; absent: that of the kubeconfig's context, else `default`."""
    image: Annotated[str, StringConstraints(pattern=IMAGE_PATTERN)] | None = None
    """Image of the workers; it holds rankzero[train]. Every kind needs one but slurm, which runs it with
    slurm.runtime alone."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When hosts ask the registry for the image."""
    image_pull_secrets: tuple[DnsName, ...] = ()
    """Secrets with the registry's credentials."""
    kind: Kind = "auto"
    """Kind of object that a run becomes. auto: an Indexed Job, which every cluster has."""
    num_nodes: PositiveInt = 1
    """Pods of a run."""
    min_nodes: PositiveInt | None = None
    """Elastic: train with as few pods as this while the others are missing (kind pytorchjob)."""
    nproc_per_node: PositiveInt = 1
    """Processes per pod; each has one GPU, or none with `gpu: false`."""
    gpu: bool = True
    """false: the processes compute on CPUs."""
    gpu_resource: Annotated[str, StringConstraints(pattern=RESOURCE_NAME_PATTERN)] = "nvidia.com/gpu"
    """Name of the GPU device resource."""
    resources: ResourcesSpec = ResourcesSpec()
    storage: dict[DnsLabel, VolumeSpec] = {}
    """Volumes by name. `outputs` keeps run directories (few large files), `cache` models and prepared data (many small
    files); any number more."""
    prepare: Literal["auto", "always", "never"] = "auto"
    """Fetch the model and tokenise in a Job without GPUs first. auto: where a cache volume keeps the result, and for
    Slurm slurm.prepare_partition says where."""
    secrets: dict[EnvName, SecretRef] = {}
    """Secrets that pods get as variables, by the variable's name: {HF_TOKEN: {name: hf-token, key: token}}."""
    env: dict[EnvName, str] = {}
    """Environment variables of the pods, such as NCCL_SOCKET_IFNAME. No secrets."""
    node_selector: dict[LabelKey, LabelValue] = {}
    """Labels that a host must have."""
    tolerations: tuple[TolerationSpec, ...] = ()
    """Taints that pods put up with, besides the one of hosts with GPUs."""
    spread: SpreadSpec = SpreadSpec()
    queue: QueueSpec | None = None
    """Kueue queue that admits the run."""
    priority_class: DnsName | None = None
    """PriorityClass of the pods."""
    scheduler: DnsName | None = None
    """Scheduler of the pods; absent: the cluster's default."""
    service_account: ServiceAccountSpec = ServiceAccountSpec()
    network_policy: bool = False
    """Make a NetworkPolicy that lets nobody but the run's own pods reach its pods."""
    user: Annotated[int, Field(ge=0)] = 1000
    """User and group that the processes run as; 0 is root, which restricted Pod Security refuses."""
    grace_period_seconds: Annotated[int, Field(ge=15)] = 180
    """Time a pod has for saving when it is asked to stop."""
    max_restarts: Annotated[int, Field(ge=0)] = 3
    """Restarts after failures that trying again may cure. Stopped, evicted and preempted pods do not count."""
    timeout_seconds: PositiveInt | None = None
    """End the run after this time, whatever it is doing. A kind that does not count it over restarts refuses it: all
    but job and pytorchjob, whose operator looks at it only when a pod changes."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0)] | None = None
    """Remove the finished run's object, and its pods and logs with it, after this time; absent: keep it."""
    rendezvous_timeout_seconds: PositiveInt = 1800
    """Longest wait of a pod for the run's other pods."""
    labels: dict[LabelKey, LabelValue] = {}
    """Labels of every object and pod."""
    annotations: dict[LabelKey, str] = {}
    """Annotations of every object and pod."""
    slurm: SlurmSpec = SlurmSpec()
    pod_patch: dict[str, Annotated[Any, OCTAL]] = {}
    """Merged into the pods' spec: what has no field here. Maps merge, lists of named things by name, others replace.
    Command, arguments, probes, hooks and ports of the container that trains are for training: pods that prepare, serve
    or wait take its environment, image, mounts, working directory and securityContext.
    Pods that pull results or show TensorBoard take of it only what places them and lets them in, which includes the
    securityContext of the container that trains, without its privileges and capabilities."""

    @property
    def has_homes(self) -> bool:
        """Whether what it runs has the home of who sends it, which hosts share. Pyxis is told to mount none."""
        return kind_section(self.kind).on_hosts and self.slurm.runtime != "pyxis"
