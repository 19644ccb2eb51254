"""The volumes of a pod. Pure."""

from __future__ import annotations

from typing import Any

from rankzero.launch.plan import Plan
from rankzero.launch.render.shared import config_items
from rankzero.spec.cluster_spec import VolumeSpec

CONFIG_VOLUME, SHM_VOLUME, TMP_VOLUME = "rankzero-run", "rankzero-shm", "rankzero-tmp"


def volumes(plan: Plan) -> list[dict[str, Any]]:
    """Ours, then the site's; a claim that is mounted at two places is one volume."""
    shm: dict[str, Any] = {"medium": "Memory"}
    if plan.cluster.resources.shm is not None:
        shm["sizeLimit"] = plan.cluster.resources.shm
    found: dict[str, dict[str, Any]] = {
        CONFIG_VOLUME: {"configMap": {"name": plan.name, "items": config_items(plan)}},
        SHM_VOLUME: {"emptyDir": shm},
        TMP_VOLUME: {"emptyDir": {}},
    }
    for name, volume in plan.cluster.storage.items():
        found.setdefault(volume_name(plan, name), _source(volume))
    return [{"name": name, **source} for name, source in found.items()]


def volume_name(plan: Plan, name: str) -> str:
    """Name of the pod's volume for an entry of storage: that of the first entry with the same claim."""
    claim = plan.cluster.storage[name].claim
    if claim is None:
        return name
    return next(other for other, volume in plan.cluster.storage.items() if volume.claim == claim)


def _source(volume: VolumeSpec) -> dict[str, Any]:
    if volume.claim is not None:
        claim: dict[str, Any] = {"claimName": volume.claim}
        if volume.access == "ReadOnlyMany":
            claim["readOnly"] = True
        return {"persistentVolumeClaim": claim}
    if volume.host_path is not None:
        return {"hostPath": {"path": volume.host_path, "type": "Directory"}}
    return {"emptyDir": {} if volume.size is None else {"sizeLimit": volume.size}}
