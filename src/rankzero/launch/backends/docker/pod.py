"""A Pod as the arguments of one `docker create`. Pure: says what is to be done, and does none of it.

What has no meaning on one machine (placement, service accounts, pull secrets) is left out, which left_out.py says; what
would change what runs (other containers, volumes that docker does not have) is refused by name.
"""

from __future__ import annotations

import csv
import io
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rankzero.errors import ConfigError, Problem
from rankzero.launch.backends.docker.command import Host
from rankzero.launch.labels import Manifest
from rankzero.spec.quantity import as_bytes, as_number

GPU = "nvidia.com/gpu"
SHM = "/dev/shm"
REFUSED_FIELDS = ("initContainers", "hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "resourceClaims")
REFUSED_OF_CONTAINER = ("envFrom", "volumeDevices", "lifecycle", "livenessProbe", "startupProbe")


@dataclass(frozen=True, slots=True)
class Mount:
    """One volume at one place of a container."""

    kind: Literal["config", "claim", "scratch", "directory"]
    source: str
    """Name of the pod's volume (config, scratch), of the claim, or the directory itself."""
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Container:
    """What a pod needs from docker, without the values of secrets."""

    pod: Manifest
    """As it was asked for, with the node's name."""
    name: str
    image: str
    options: tuple[str, ...]
    """Of `docker create`, except environment, mounts, network and labels."""
    command: tuple[str, ...]
    env: Mapping[str, str]
    secrets: Mapping[str, bool] = field(default_factory=dict)
    """Variables whose values this machine's environment has, and whether one may be missing."""
    mounts: tuple[Mount, ...] = ()
    owner: tuple[int, int] = (0, 0)
    """User and group that writes to the volumes."""
    gpus: tuple[str, ...] = ()


def network_name(run: str) -> str:
    """The network that a run's containers find each other on."""
    return f"rankzero-{run}"


def volume_name(claim: str) -> str:
    """The docker volume that stands for a claim."""
    return f"rankzero-{claim}"


def user_name(volume: str, run: str) -> str:
    """The empty docker volume which says that a run uses a volume, whose own labels are fixed."""
    return f"{volume}.used-by.{run}"


def scratch_name(pod: str, volume: str) -> str:
    """The docker volume that stands for an emptyDir."""
    return f"rankzero-{pod}.{volume}"


def container_name(pod: str) -> str:
    """The container that stands for a pod."""
    return f"rankzero-{pod}"


def container_of(pod: Manifest, host: Host, gpus: tuple[str, ...] = ()) -> Container:
    """`gpus` are the devices that this pod gets. Raises ConfigError with everything that docker cannot play."""
    spec = pod["spec"]
    problems = _unplayable(pod)
    if problems:
        raise ConfigError(problems)
    (only,) = spec["containers"]
    pod = {**pod, "spec": {**spec, "nodeName": host.name}}
    env, secrets = _environment(pod, only)
    mounts, shm, memory_mounts = _mounts(pod, only)
    limits = (only.get("resources") or {}).get("limits") or {}
    security = {**(spec.get("securityContext") or {}), **(only.get("securityContext") or {})}
    hostname = spec.get("hostname") or pod["metadata"]["name"]
    options = [
        *("--hostname", hostname, "--network-alias", hostname),
        *("--stop-timeout", str(spec.get("terminationGracePeriodSeconds", 30))),
        *("--shm-size", str(shm or _default_shm(limits, host))),
        *_user(security),
        *unlabelled(host),
        *_resources(limits, host),
        *(("--gpus", '"device={}"'.format(",".join(gpus))) if gpus else ()),
        *(("--workdir", only["workingDir"]) if "workingDir" in only else ()),
        *memory_mounts,
    ]
    command = [*only.get("command", ()), *only.get("args", ())]
    if only.get("command"):  # it replaces the image's entry point, arguments alone do not
        options += ["--entrypoint", command.pop(0)]
    return Container(
        pod=pod,
        name=container_name(pod["metadata"]["name"]),
        image=only["image"],
        options=tuple(options),
        command=tuple(command),
        env=env,
        secrets=secrets,
        mounts=mounts,
        owner=(int(security.get("runAsUser", 0)), int(security.get("fsGroup", security.get("runAsGroup", 0)))),
        gpus=gpus,
    )


def unlabelled(host: Host) -> tuple[str, ...]:
    """Under SELinux a container reads no directory of its machine that is not labelled for it, not even its own spec.
    To label them (`:z`) would change files that are others' too."""
    return ("--security-opt", "label=disable") if host.has_selinux else ()


def mount_option(kind: str, source: str, target: str, *, read_only: bool = False) -> str:
    """Value of `--mount`; it is a line of CSV, so that paths may hold commas."""
    line = io.StringIO()
    fields = [f"type={kind}", f"source={source}", f"target={target}", *(["readonly"] if read_only else [])]
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def _unplayable(pod: Manifest) -> list[Problem]:
    name, spec = pod["metadata"]["name"], pod["spec"]
    found = [f"spec.{key}" for key in REFUSED_FIELDS if spec.get(key)]
    if len(spec["containers"]) != 1:
        found.append("spec.containers: more than one")
    found += [f"spec.containers.{key}" for one in spec["containers"] for key in REFUSED_OF_CONTAINER if key in one]
    kinds = ("name", "configMap", "persistentVolumeClaim", "emptyDir", "hostPath")
    found += [f"spec.volumes: {key}" for volume in spec.get("volumes", ()) for key in volume if key not in kinds]
    claims = {volume["name"] for volume in spec.get("volumes", ()) if "hostPath" not in volume}
    found += [
        f"spec.volumeMounts: subPath of {mount['name']}"
        for mount in spec["containers"][0].get("volumeMounts", ())
        if mount.get("subPath") and mount["name"] in claims
    ]
    limits = (spec["containers"][0].get("resources") or {}).get("limits") or {}
    found += [f"limits: {key}" for key in limits if key not in ("cpu", "memory", GPU)]
    hint = "leave it out of this cluster's pod_patch or storage; host_path with sub_path works"
    return [Problem(f"docker containers have no {what}", f"Pod/{name}", hint) for what in found]


def _environment(pod: Manifest, only: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, bool]]:
    env: dict[str, str] = {}
    secrets: dict[str, bool] = {}
    problems = []
    for entry in only.get("env", ()):
        source = entry.get("valueFrom") or {}
        if "secretKeyRef" in source:
            secrets[entry["name"]] = bool(source["secretKeyRef"].get("optional"))
        elif "fieldRef" in source:
            value = _field(pod, source["fieldRef"]["fieldPath"])
            if value is None:
                what = f"docker has no {source['fieldRef']['fieldPath']}"
                problems.append(Problem(what, f"Pod/{pod['metadata']['name']} env {entry['name']}"))
            env[entry["name"]] = value or ""
        elif source:
            what = f"docker has no {', '.join(source)}"
            problems.append(Problem(what, f"Pod/{pod['metadata']['name']} env {entry['name']}"))
        else:
            env[entry["name"]] = str(entry.get("value", ""))
    if problems:
        raise ConfigError(problems)
    return env, secrets


def _field(pod: Manifest, path: str) -> str | None:
    fields = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": pod["metadata"].get("namespace", "default"),
        "spec.nodeName": pod["spec"]["nodeName"],
    }
    return fields.get(path)


def _mounts(pod: Manifest, only: Mapping[str, Any]) -> tuple[tuple[Mount, ...], int | None, list[str]]:
    """Mounts, the size asked for /dev/shm, and options for other memory-backed directories."""
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
    mounts: list[Mount] = []
    shm: int | None = None
    memory: list[str] = []
    for mount in only.get("volumeMounts", ()):
        volume, target = volumes[mount["name"]], mount["mountPath"]
        empty = volume.get("emptyDir")
        size = as_bytes(empty["sizeLimit"]) if empty and "sizeLimit" in empty else None
        if empty is not None and target == SHM:
            shm = size
        elif empty is not None and empty.get("medium") == "Memory":
            memory += ["--tmpfs", f"{target}:mode=1777,exec" + (f",size={size}" if size else "")]
        else:
            mounts.append(_mount(volume, mount))
    return tuple(mounts), shm, memory


def _mount(volume: Mapping[str, Any], mount: Mapping[str, Any]) -> Mount:
    target, read_only = mount["mountPath"], bool(mount.get("readOnly"))
    if "configMap" in volume:
        return Mount("config", volume["name"], target, read_only=True)
    if "persistentVolumeClaim" in volume:
        claim = volume["persistentVolumeClaim"]
        return Mount("claim", claim["claimName"], target, read_only or bool(claim.get("readOnly")))
    if "hostPath" in volume:
        path = posixpath.join(volume["hostPath"]["path"], mount.get("subPath", ""))
        return Mount("directory", path.rstrip("/") or "/", target, read_only)
    return Mount("scratch", volume["name"], target, read_only)


def _default_shm(limits: Mapping[str, str], host: Host) -> int:
    """As on a cluster: what is kept in memory may take as much as the container may, else half of the machine's."""
    return min(as_bytes(limits["memory"]), host.memory) if "memory" in limits else host.memory // 2


def _user(security: Mapping[str, Any]) -> list[str]:
    options: list[str] = []
    if "runAsUser" in security:
        group = f":{security['runAsGroup']}" if "runAsGroup" in security else ""
        options += ["--user", f"{security['runAsUser']}{group}"]
    if "fsGroup" in security:
        options += ["--group-add", str(security["fsGroup"])]
    if security.get("allowPrivilegeEscalation") is False:
        options += ["--security-opt", "no-new-privileges"]
    capabilities = security.get("capabilities") or {}
    for option, key in (("--cap-drop", "drop"), ("--cap-add", "add")):
        for name in capabilities.get(key) or ():
            options += [option, name]
    return options


def _resources(limits: Mapping[str, str], host: Host) -> list[str]:
    options: list[str] = []
    if "memory" in limits and host.limits_memory:
        memory = str(as_bytes(limits["memory"]))
        options += ["--memory", memory, *(("--memory-swap", memory) if host.limits_swap else ())]
    if "cpu" in limits and host.limits_cpu:  # docker refuses more than there are
        options += ["--cpus", f"{min(as_number(limits['cpu']), host.cpus):g}"]
    return options


def gpus_of(pod: Manifest) -> int:
    """How many devices a pod asks for."""
    limits = (pod["spec"]["containers"][0].get("resources") or {}).get("limits") or {}
    return int(limits.get(GPU, 0))
