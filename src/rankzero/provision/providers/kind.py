"""kind: a cluster of containers on this machine, for trying out what a cluster does. Has no GPUs, adds no driver."""

from __future__ import annotations

from rankzero.provision.kubernetes import access, nodes_ready, sized
from rankzero.provision.programs import Command, Programs
from rankzero.provision.steps import Facts, Found, Step
from rankzero.spec.infra_spec import InfraSpec


class Kind:
    """The `kind` program, and a docker daemon behind it."""

    programs = ("kind", "kubectl")

    def steps(self, spec: InfraSpec) -> list[Step]:
        """The cluster, access to it, and whether its hosts are ready."""
        return [_cluster(spec), _kubeconfig(spec), nodes_ready(spec.nodes.count)]


PROVIDER = Kind()


def _cluster(spec: InfraSpec) -> Step:
    def find(programs: Programs, _facts: Facts) -> Found | None:
        if spec.name not in programs.ask("kind", "get", "clusters").split():
            return None
        names = programs.ask("kind", "get", "nodes", "--name", spec.name).split()
        workers = sum("-worker" in name.removeprefix(spec.name) for name in names)
        if not names:
            return Found(spec.name)
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


def _kubeconfig(spec: InfraSpec) -> Step:
    def make(_facts: Facts) -> list[Command]:
        return [Command(("kind", "export", "kubeconfig", "--name", spec.name))]

    return access(spec.name, make, f"kind-{spec.name}")
