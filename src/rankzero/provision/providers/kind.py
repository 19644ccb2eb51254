"""kind: a cluster of containers on this machine, for trying out what a cluster does. Has no GPUs, adds no driver."""

from __future__ import annotations

from collections.abc import Sequence

from rankzero.errors import ServiceError
from rankzero.provision.kubernetes import Labels, access, nodes_ready, sized
from rankzero.provision.programs import Command, Programs
from rankzero.provision.steps import Facts, Found, Step
from rankzero.spec.infra_spec import InfraSpec


class Kind:
    """The `kind` program, and a docker daemon behind it."""

    programs = ("kind", "kubectl")

    def steps(self, spec: InfraSpec) -> list[Step]:
        """The cluster, access to it, and whether its hosts are ready."""
        return [_cluster(spec), _kubeconfig(spec), nodes_ready(spec.nodes.count, _workers, made_with="cluster")]


PROVIDER = Kind()
_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
_NO_CONTROL_PLANE = ("failed to get cluster internal kubeconfig", "could not locate any control plane")


def _cluster(spec: InfraSpec) -> Step:
    def find(programs: Programs, _facts: Facts) -> Found | None:
        if spec.name not in programs.ask("kind", "get", "clusters").split():
            return None
        names = programs.ask("kind", "get", "nodes", "--name", spec.name).split()
        workers = sum("-worker" in name.removeprefix(spec.name) for name in names)
        if not names:
            return Found(spec.name)
        if (trouble := _half_made(programs, spec.name)) is not None:
            return Found(spec.name, trouble=trouble)
        # one host alone is the control plane, which otherwise is none
        more = f"kind adds none: `kind delete cluster --name {spec.name}`, and create it again"
        return sized(Found(spec.name), f"cluster {spec.name}", workers or 1, spec.nodes.count, more)

    def make(_facts: Facts) -> list[Command]:
        image = () if spec.kubernetes_version is None else ("--image", f"kindest/node:v{spec.kubernetes_version}")
        words = ("kind", "create", "cluster", "--name", spec.name, *image)
        if spec.nodes.count == 1:
            return [Command(words)]
        roles = "".join(f"  - role: {role}\n" for role in ("control-plane", *["worker"] * spec.nodes.count))
        config = f"kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes:\n{roles}"
        return [Command((*words, "--config", "-"), config)]

    def remove(_facts: Facts) -> list[Command]:
        return [Command(("kind", "delete", "cluster", "--name", spec.name))]

    return Step("cluster", spec.name, find, make, remove)


def _half_made(programs: Programs, name: str) -> ServiceError | None:
    """kind that is killed leaves containers in which no Kubernetes was set up yet, and takes them for a cluster."""
    command = Command(("kind", "get", "kubeconfig", "--name", name))
    answer = programs.run(command)
    if answer.says(_NO_CONTROL_PLANE):
        hint = (
            "`rankzero cluster delete` takes down what was made from this file, "
            f"`kind delete cluster --name {name}` any; then create it again"
        )
        return ServiceError(f"cluster {name} was left half made, or does not run", where="cluster", hint=hint)
    if answer.code != 0:
        raise programs.failure(command.words, answer)
    return None


def _workers(labels: Sequence[Labels], _facts: Facts) -> list[bool]:
    """Where there is none, the control plane does the work."""
    workers = [_CONTROL_PLANE not in one for one in labels]
    return workers if any(workers) else [True for _ in labels]


def _kubeconfig(spec: InfraSpec) -> Step:
    def make(_facts: Facts) -> list[Command]:
        return [Command(("kind", "export", "kubeconfig", "--name", spec.name))]

    return access(spec.name, make, f"kind-{spec.name}")
