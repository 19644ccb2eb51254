"""A container that is there for a while, so that commands in it can read a run's volumes, and another one where it ends
too early. Knows no run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rankzero.errors import ConfigError, ServiceError
from rankzero.launch.backend import Execute, Say
from rankzero.launch.backends.docker.command import Docker
from rankzero.launch.backends.docker.evidence import is_active
from rankzero.launch.backends.docker.pod import container_name, mount_option, unlabelled, volume_name
from rankzero.launch.labels import Manifest


@contextmanager
def reading(docker: Docker, pod: Manifest, say: Say) -> Iterator[Execute]:
    """Start what a pod says, yield what runs commands in it, and remove it. Raises ConfigError where a volume is not
    there: docker would make an empty one."""
    (only,) = pod["spec"]["containers"]
    security = {**pod["spec"]["securityContext"], **only["securityContext"]}
    base, user = container_name(pod["metadata"]["name"]), security["runAsUser"]
    wanted = [mount for mount in only["volumeMounts"] if mount["name"] == "outputs"]  # pod_patch may add others
    mounts = [_mount(docker, pod, mount) for mount in wanted]
    label = unlabelled(docker.host()) if any(mount.startswith("type=bind,") for mount in mounts) else ()
    entry, *rest = only["command"]
    names: list[str] = []

    def start() -> None:
        name = f"{base}-{len(names) + 1}" if names else base  # docker may still be removing the one before, by its name
        docker.call(
            *("run", "--detach", "--rm", "--name", name, "--network", "none", "--user", f"{user}:{user}", *label),
            *(part for mount in mounts for part in ("--mount", mount)),
            *("--entrypoint", entry, only["image"], *rest),
        )
        names.append(name)

    def run(command: Sequence[str]) -> str:
        name = names[-1]
        try:
            return docker.call("exec", name, *command)
        except ServiceError:
            there = docker.inspect(name)
            if there and is_active(there[0]):
                raise
        say(f"the container {name} has ended; another one reads on")
        start()
        return docker.call("exec", names[-1], *command)

    start()
    try:
        yield run
    finally:
        for name in names:
            docker.try_call("rm", "--force", name)


def _mount(docker: Docker, pod: Manifest, mount: Manifest) -> str:
    volume = next(one for one in pod["spec"]["volumes"] if one["name"] == mount["name"])
    if "hostPath" in volume:
        return mount_option("bind", volume["hostPath"]["path"], mount["mountPath"], read_only=True)
    claim = volume["persistentVolumeClaim"]["claimName"]
    source = volume_name(claim)
    if docker.look_up("volume", source) is None:
        hint = "no run has used it on this machine, or `rankzero delete --claims` has removed it"
        raise ConfigError(f"there is no docker volume {source} for the claim {claim}", where="storage", hint=hint)
    return mount_option("volume", source, mount["mountPath"], read_only=True)
