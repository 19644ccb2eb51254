"""Claims and volumes: what cannot be made, bound, attached or mounted. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rankzero.launch.diagnose.finding import Finding, span
from rankzero.launch.joined import Event, JoinedEvidence
from rankzero.launch.pods import Pod
from rankzero.launch.untyped_json import at, moment, seconds_between, text
from rankzero.wording import listed

_NO_CLAIM = re.compile(r'persistentvolumeclaims? "(?P<name>[^"]+)" not found')
_NO_CLASS = re.compile(r'storageclass(?:es)?\.storage\.k8s\.io "(?P<name>[^"]+)" not found')
_MULTI = re.compile(r'Multi-Attach error for volume "(?P<volume>[^"]+)"(?P<why>.*)', re.DOTALL)
_NOT_SHARED = re.compile(
    r"(?i)multi.?node.?(?:multi|reader|single|access).?\w*|multi.?writer.{0,40}(?:mount|filesystem|not supported)"
    r"|ReadWriteMany.{0,40}not supported|access ?modes?.{0,40}(?:not supported|unsupported|invalid)"
    r"|only supports? .{0,40}ReadWriteOnce|volume capabilit(?:y|ies).{0,60}not supported"
)
_MOUNT = re.compile(
    r'(?:MountVolume\.\w+|AttachVolume\.Attach) failed for volume "(?P<volume>[^"]+)" : (?P<why>.+)', re.DOTALL
)
_NO_DRIVER = re.compile(r"driver name (?P<driver>\S+) not found in the list of registered CSI drivers")
_HOST_PATH = re.compile(r"hostPath type check failed: (?P<path>\S+) is not (?P<what>.+?)\s*$")
_ZONE = re.compile(r"volume node affinity conflict|PersistentVolume's node affinity")
_PROVISIONER = re.compile(r"external provisioner ['\"](?P<name>[^'\"]+)['\"]")
_PATIENCE_SECONDS = 120


def find(joined: JoinedEvidence) -> Iterator[Finding]:
    """Claims first: pods wait for them."""
    if joined.finished is not None:
        return
    stuck = [pod for pod in joined.newest if not pod.is_running and not pod.is_over]
    if not stuck:
        return
    claims = {text(claim, "metadata", "name"): claim for claim in joined.objects.get("PersistentVolumeClaim", ())}
    mounted: dict[str, str] = {}
    for pod in stuck:
        mounted |= pod.claims
    found: list[Finding] = []
    for name, volume in mounted.items():
        if name in claims:
            found += _from_claim(joined, name, volume, claims[name])
    yield from found
    seen: set[str] = set()
    for pod in stuck:
        yield from _from_pod(joined, pod, claims, seen)


def _from_claim(joined: JoinedEvidence, name: str, volume: str, claim: Mapping[str, Any]) -> list[Finding]:
    phase = text(claim, "status", "phase")
    if phase == "Lost":
        cause = f"claim {name} has lost its volume {text(claim, 'spec', 'volumeName')}: what was on it is gone"
        fix = f"delete claim {name} and submit again, or set storage.{volume}.claim in cluster.yaml to another"
        return [Finding("claim-lost", "broken", cause, fix)]
    if phase != "Pending":
        return []
    events = joined.events.get(("PersistentVolumeClaim", name), ())
    storage_class = text(claim, "spec", "storageClassName")
    size = text(claim, "spec", "resources", "requests", "storage")
    waited = span(seconds_between(moment(at(claim, "metadata").get("creationTimestamp")), joined.now) or 0)
    for event in reversed(events):
        missing = _NO_CLASS.search(event.message)
        if missing is not None:
            return [_no_class(joined, name, volume, missing["name"], (event.message,))]
        if event.reason == "ProvisioningFailed":
            return [_not_made(name, volume, size, storage_class, event, claim)]
    if (
        storage_class
        and joined.evidence.storage_classes is not None
        and storage_class not in joined.evidence.storage_classes
    ):
        return [_no_class(joined, name, volume, storage_class, (f"claim {name}: Pending",))]
    for event in reversed(events):
        if event.reason == "WaitForFirstConsumer":
            return []  # as it should be: the volume is made where the first pod is placed
        if event.reason == "FailedBinding":
            cause = f"claim {name} ({size}) is not bound: {event.message}"
            fix = f"set storage.{volume}.class in cluster.yaml to one of: {_classes(joined)}"
            return [Finding("claim-pending", "broken", cause, fix, (event.message,))]
        provisioner = _PROVISIONER.search(event.message)
        if event.reason == "ExternalProvisioning" and provisioner is not None:
            cause = f"claim {name} ({size}, class {storage_class}) waits for {provisioner['name']} since {waited}"
            fix = (
                f"have the administrator look at provisioner {provisioner['name']}, or set storage.{volume}.class"
                " to another"
            )
            return [Finding("claim-waiting", "waiting", cause, fix, (event.message,))]
    if (seconds_between(moment(at(claim, "metadata").get("creationTimestamp")), joined.now) or 0) < _PATIENCE_SECONDS:
        return []
    cause = f"claim {name} ({size or 'no size'}, class {storage_class or 'none'}) is Pending since {waited}"
    fix = (
        f"`kubectl describe pvc {name}` says more; set storage.{volume}.class in cluster.yaml to one of:"
        f" {_classes(joined)}"
    )
    return [Finding("claim-pending", "waiting", cause, fix)]


def _not_made(name: str, volume: str, size: str, storage_class: str, event: Event, claim: Mapping[str, Any]) -> Finding:
    access = listed(str(mode) for mode in claim_modes(claim))
    if _NOT_SHARED.search(event.message):
        return Finding(
            "access-mode",
            "broken",
            f"storage class {storage_class} cannot make claim {name} with access {access}: {_tail(event.message)}",
            f"set storage.{volume}.class in cluster.yaml to a shared file system, or storage.{volume}.access:"
            " ReadWriteOnce"
            " with num_nodes: 1",
            (event.message,),
        )
    return Finding(
        "claim-failed",
        "broken",
        f"storage class {storage_class} cannot make claim {name} ({size}, {access}): {_tail(event.message)}",
        f"change storage.{volume}.size or storage.{volume}.class in cluster.yaml, then delete claim {name} and"
        " submit again",
        (event.message,),
    )


def _no_class(joined: JoinedEvidence, name: str, volume: str, storage_class: str, lines: tuple[str, ...]) -> Finding:
    return Finding(
        "storage-class-missing",
        "broken",
        f"claim {name} asks for storage class {storage_class}, which does not exist",
        f"set storage.{volume}.class in cluster.yaml to one of: {_classes(joined)}; then"
        f" `kubectl delete pvc {name}` and submit again",
        lines,
    )


def _classes(joined: JoinedEvidence) -> str:
    classes = joined.evidence.storage_classes
    if classes is None:
        return "what `kubectl get storageclass` lists"
    return listed(classes) if classes else "none exists, so set storage.<name>.claim to an existing claim"


def claim_modes(claim: Mapping[str, Any]) -> tuple[str, ...]:
    """Access modes of a claim."""
    modes = at(claim, "spec").get("accessModes")
    return tuple(str(mode) for mode in modes) if isinstance(modes, list | tuple) else ()


def _from_pod(
    joined: JoinedEvidence, pod: Pod, claims: Mapping[str, Mapping[str, Any]], seen: set[str]
) -> Iterator[Finding]:
    """What keeps a pod from its volumes; `seen` are messages that other pods have brought already."""
    scheduled = pod.conditions.get("PodScheduled")
    lines = [event.message for event in reversed(joined.events_of(pod)) if event.reason in _REASONS]
    if scheduled is not None and scheduled.status == "False":
        lines.insert(0, scheduled.message)
    for line in lines:
        if pod.host and "nodes are available" in line:
            continue  # it has been placed since
        if line in seen:
            return
        finding = _classify(line, pod, joined, claims)
        if finding is not None:
            seen.add(line)
            yield Finding(finding.code, finding.severity, finding.cause, finding.fix, (line,), pod.node)
            return


_REASONS = ("FailedScheduling", "FailedMount", "FailedAttachVolume", "FailedMapVolume")


def _classify(line: str, pod: Pod, joined: JoinedEvidence, claims: Mapping[str, Mapping[str, Any]]) -> Finding | None:
    match = _NO_CLAIM.search(line)
    if match is not None:
        name = match["name"]
        volume = pod.claims.get(name, "<name>")
        cause = f"there is no claim {name} in the namespace"
        fix = (
            f"set storage.{volume}.claim in cluster.yaml to an existing claim, or give storage.{volume}.size to"
            " have it made"
        )
        return Finding("claim-missing", "broken", cause, fix)
    match = _NO_CLASS.search(line)
    if match is not None:
        name = next(
            (n for n, c in claims.items() if text(c, "spec", "storageClassName") == match["name"]), "of the pod"
        )
        return _no_class(joined, name, pod.claims.get(name, "<name>"), match["name"], ())
    match = _MULTI.search(line)
    if match is not None:
        return _multi_attach(match["volume"], match["why"], pod, joined, claims)
    if _ZONE.search(line):
        return _other_zone(pod, claims)
    match = _NO_DRIVER.search(line)
    if match is not None:
        cause = f"host {pod.host or '?'} has no CSI driver {match['driver']}, so {pod.title} cannot mount its volume"
        fix = (
            f"keep pods off it with node_selector, or have {match['driver']} started there (its DaemonSet, its"
            " tolerations)"
        )
        return Finding("csi-driver-missing", "broken", cause, fix)
    match = _HOST_PATH.search(line)
    if match is not None:
        cause = f"host {pod.host or '?'} has no {match['path']} ({match['what']} is wanted)"
        fix = "correct storage.<name>.host_path, or choose hosts that have it mounted with node_selector"
        return Finding("host-path-missing", "broken", cause, fix)
    match = _MOUNT.search(line)
    if match is not None and "configmap" not in line and "secret" not in line:
        claim = _claim_of(match["volume"], claims) or match["volume"]
        cause = f"{pod.title} cannot mount {claim} on host {pod.host or '?'}: {_tail(match['why'])}"
        fix = (
            f"`kubectl describe pvc {claim}`; see that the host reaches the storage, or set"
            f" storage.{_name(pod, claim)}.claim"
        )
        return Finding("mount-failed", "broken", cause, fix)
    return None


def _multi_attach(
    volume: str, why: str, pod: Pod, joined: JoinedEvidence, claims: Mapping[str, Mapping[str, Any]]
) -> Finding:
    claim = _claim_of(volume, claims) or next(iter(pod.claims), volume)
    modes = listed(claim_modes(claims.get(claim, {}))) or "ReadWriteOnce"
    users = re.search(r"used by pod\(s\) (?P<pods>.+)", why)
    holder = users["pods"].strip() if users else _other_user(claim, pod, joined)
    name = _name(pod, claim)
    return Finding(
        "multi-attach",
        "broken",
        f"claim {claim} ({modes}) is attached to another host{f' for {holder}' if holder else ''},"
        f" so pod {pod.name} on {pod.host or 'its host'} cannot have it",
        f"use a shared class for storage.{name} (access: ReadWriteMany), or keep the run on one node (num_nodes: 1);"
        " after a host was lost, wait about 6 min for the volume to come free",
    )


def _other_user(claim: str, pod: Pod, joined: JoinedEvidence) -> str:
    return listed(other.name for other in joined.all_pods if claim in other.claims and other.host not in ("", pod.host))


def _other_zone(pod: Pod, claims: Mapping[str, Mapping[str, Any]]) -> Finding:
    own = [name for name in pod.claims if claim_modes(claims.get(name, {})) in ((), ("ReadWriteOnce",))]
    claim = listed(own or pod.claims)
    name = _name(pod, (own or [*pod.claims] or [""])[0])
    return Finding(
        "volume-elsewhere",
        "broken",
        f"the volume of claim {claim} can only be used on hosts where {pod.title} does not fit",
        f"use a shared class for storage.{name} (access: ReadWriteMany), or a new storage.{name}.claim that is"
        " made where"
        " the GPUs are",
    )


def _claim_of(volume: str, claims: Mapping[str, Mapping[str, Any]]) -> str | None:
    return next((name for name, claim in claims.items() if text(claim, "spec", "volumeName") == volume), None)


def _name(pod: Pod, claim: str) -> str:
    return pod.claims.get(claim, "<name>")


def _tail(message: str) -> str:
    """What the driver itself says, behind the wrappings."""
    return message.rpartition(" desc = ")[2].strip() or message
