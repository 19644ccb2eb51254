"""What is done about a host or a pod, in the words of the place that it is in: what helps on Kubernetes may not be
there on docker or on Slurm. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rankzero.launch.joined import JoinedEvidence
from rankzero.launch.pods import Pod
from rankzero.spec.kinds import Place, kind_section


@dataclass(frozen=True, slots=True)
class Remedies:
    """Parts of what a finding advises. They may name {run}, {pod}, {node} and {host}."""

    elsewhere: str
    """The run goes on without that host."""
    choose: str
    """Other hosts are chosen beforehand."""
    processors: str
    """The same, by what their processors are."""
    anew: str
    """A node that hangs is ended, so that the run goes on."""
    memory: str
    """Where it is seen what took a host's memory."""
    processes: str
    """A host may start more of them."""
    interfaces: str
    """Where the names of a node's network interfaces are seen."""
    reach: str
    """Nodes reach each other on {ports}."""
    names: str
    """Nodes find each other by name."""
    fields: str
    """Of cluster.yaml, about how a container is started."""
    driver: str
    """More that gives a container its GPUs."""
    token: str
    """How the run gets the token of an account; {secret} is where it comes from."""
    shared: str
    """/dev/shm gets room; {size} would be enough."""
    room: str
    """So does the volume of the results."""
    owner: str
    """The run may write to a volume."""
    rdma: str
    """Nodes have the device {device}."""
    locked: str
    """Who limits the memory that a process may lock."""


_CANCEL = "`rankzero cancel {run}` and submitting again continue from the last checkpoint"
_NAMES = "see that the other nodes run (`rankzero status {run}`) and reach each other by that name"
_TOKEN = "`export HF_TOKEN=…` of that account before submitting, which secrets.HF_TOKEN in cluster.yaml passes on"
_SHARED = "set resources.shm: {size} in cluster.yaml (within resources.memory, against which it counts)"
_OWNER = "set user to one that may write it"
_RDMA = "set resources.rdma in cluster.yaml to {device}"
_OF: dict[Place, Remedies] = {
    "kubernetes": Remedies(
        elsewhere="`kubectl cordon {host}`, and delete pod {pod}: a new one starts elsewhere",
        choose="choose hosts with node_selector",
        processors="choose hosts with node_selector: {{kubernetes.io/arch: …}}",
        anew="`kubectl delete pod {pod}`: a new one continues from the last checkpoint",
        memory="`kubectl describe node` of that host",
        processes="podPidsLimit of the kubelet",
        interfaces="`kubectl exec {pod} -- ls /sys/class/net` shows",
        reach="network policies and meshes pass {ports} between the pods",
        names=(
            "`kubectl get endpoints {run}`: the headless Service must list the pods; if it does, the cluster's DNS is"
            " at fault"
        ),
        fields="env, secrets, storage, pod_patch",
        driver="; some sites want pod_patch: {{runtimeClassName: nvidia}} in cluster.yaml",
        token=(
            "put a token of that account into {secret} (`rankzero secret set --from-env-file .env`), which"
            " secrets.HF_TOKEN in cluster.yaml names"
        ),
        shared=_SHARED,
        room="free some of the volume or make its claim larger (storage.outputs.size)",
        owner=_OWNER,
        rdma=_RDMA,
        locked=(
            "LimitMEMLOCK=infinity of containerd or CRI-O; IPC_LOCK, which resources.rdma adds, helps a process of"
            " root alone"
        ),
    ),
    "docker": Remedies(
        elsewhere="submit it on another machine: it starts there",
        choose="take another machine",
        processors="take another machine",
        anew=_CANCEL,
        memory="what else uses memory on this machine (`docker stats`)",
        processes="the limit of processes of containers",
        interfaces="`ls /sys/class/net` in a container of the run shows",
        reach="the containers reach each other over the run's network",
        names=_NAMES,
        fields="env, secrets, storage",
        driver="",
        token=_TOKEN,
        shared=_SHARED,
        room="free some of the disk that the volume is on",
        owner=_OWNER,
        rdma=_RDMA,
        locked="default-ulimits of the docker daemon: memlock",
    ),
    "slurm": Remedies(
        elsewhere="leave {host} out (slurm.options: {{exclude: {host}}}) and submit again: it starts elsewhere",
        choose="choose nodes with slurm.constraint",
        processors="choose nodes with slurm.constraint",
        anew=_CANCEL,
        memory="what else uses memory on that host",
        processes="the limit of processes (`ulimit -u`)",
        interfaces="`srun --nodelist={host} ls /sys/class/net` shows",
        reach="the nodes reach each other over the network",
        names=_NAMES,
        fields="env, secrets, storage",
        driver="",
        token=_TOKEN,
        shared="see what fills /dev/shm there (`srun --nodelist={host} df /dev/shm`), and have it made larger",
        room="free some of the directory's file system, or have its quota raised",
        owner="see that whoever submits may write it",
        rdma="see that {host} has {device}",
        locked="LimitMEMLOCK=infinity of slurmd",
    ),
}


def remedies(joined: JoinedEvidence) -> Remedies:
    """Those of the place that the run is in."""
    return _OF[kind_section(joined.kind).place]


def told(joined: JoinedEvidence, words: str, pod: Pod, **more: str) -> str:
    """One of them, about a pod."""
    return words.format(run=joined.run, pod=pod.name, node=pod.node, host=pod.host or "the host", **more)
