"""Which GPUs the containers of a run get: no two of it the same, and of the machine's first those that no other run
has. Docker keeps no account of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rankzero.errors import ConfigError
from rankzero.launch.backends.docker.evidence import HASH, asked_for, is_active, is_under_way, label_of, run_of
from rankzero.launch.backends.docker.pod import Container, gpus_of
from rankzero.launch.labels import Manifest
from rankzero.launch.untyped_json import maps
from rankzero.wording import listed

Inspected = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Had:
    """Devices that containers have at this moment."""

    own: Mapping[str, tuple[str, ...]]
    """By pod, of containers that stay."""
    others: Mapping[str, tuple[str, ...]]
    """By device, the other runs that have it."""


def had(containers: Sequence[Inspected], run: str, digest: str, now: datetime) -> Had:
    """What containers of all runs have: those that run, or are about to while their run is prepared."""
    by_run: dict[str, list[Inspected]] = {}
    for one in containers:
        by_run.setdefault(run_of(one), []).append(one)
    own = {
        asked_for(one)["metadata"]["name"]: _devices(one)
        for one in by_run.pop(run, ())
        if is_active(one) and label_of(one, HASH) == digest
    }
    others: dict[str, tuple[str, ...]] = {}
    for name, ones in sorted(by_run.items()):
        going = ones if is_under_way(ones, now) else [one for one in ones if is_active(one)]
        for device in {device for one in going for device in _devices(one)}:
            others[device] = (*others.get(device, ()), name)
    return Had(own, others)


def _devices(inspected: Inspected) -> tuple[str, ...]:
    requests = maps(inspected, "HostConfig", "DeviceRequests")
    return tuple(str(device) for one in requests for device in one.get("DeviceIDs") or ())


def share_gpus(pods: Sequence[Manifest], available: Sequence[str], there: Had) -> list[tuple[str, ...]]:
    """Devices of each pod: no device is in two. Raises ConfigError where this machine has not enough."""
    wanted = sum(map(gpus_of, pods))
    if wanted > len(available):
        what = f"{len(pods)} containers ask for {wanted} GPUs; this machine has {len(available)} to use"
        hint = "lower num_nodes or nproc_per_node, or set `gpu: false`"
        raise ConfigError(what, where="cluster.yaml nproc_per_node", hint=hint)
    kept = {device for devices in there.own.values() for device in devices}
    free = sorted((one for one in available if one not in kept), key=lambda one: len(there.others.get(one, ())))
    given, at = [], 0
    for pod in pods:
        own = there.own.get(pod["metadata"]["name"])
        given.append(tuple(free[at : at + gpus_of(pod)]) if own is None else own)
        at += 0 if own is not None else gpus_of(pod)
    return given


def told_shared(containers: Sequence[Container], there: Had) -> str:
    """Which GPUs these have together with other runs; nothing where each has its own."""
    devices = [device for one in containers for device in one.gpus if there.others.get(device)]
    if not devices:
        return ""
    names = sorted({run for device in devices for run in there.others[device]})
    runs = f"the run{'' if len(names) == 1 else 's'} {listed(names)}"
    return f"GPU {', '.join(devices)} of this machine is shared with {runs}: no other is free"
