"""What an autoscaler says of a pod that no host takes: on its way, out of stock, over quota, or never. Pure.

Knows the words of the cluster-autoscaler (also as GKE, EKS and AKS run it) and of Karpenter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta

from rankzero.launch.diagnose.finding import Finding, span
from rankzero.launch.joined import Event, JoinedEvidence
from rankzero.launch.pods import Pod
from rankzero.wording import listed

_REASONS = ("TriggeredScaleUp", "NotTriggerScaleUp", "FailedScaleUp", "Nominated")
_KARPENTERS = ("Failed to schedule pod", "Could not schedule pod")
_RECENT = timedelta(hours=1)
"""Autoscalers repeat what is still true every few minutes."""
_IN_VAIN = 3
"""So many machines chosen one after the other, and none has joined."""
_STOCK = re.compile(
    r"(?i)out of (?:resources|stock|capacity)|stock ?out|RESOURCE_POOL_EXHAUSTED|Insufficient\w*Capacity"
    r"|SkuNotAvailable|(?:not|n't) have (?:sufficient|enough) (?:\S+ )?(?:capacity|resources)|\bAllocationFailed"
    r"|ZonalAllocation|Overconstrained\w*Allocation|capacity (?:is )?(?:not available|unavailable)"
)
_QUOTA = re.compile(
    r"(?i)quota|(?:vcpu|instance)\w*limit ?exceeded|limit exceeded|IP space exhausted|InsufficientFreeAddresses"
)
_ZONES = re.compile(r"in zones? (?P<zones>[\w/,-]+)(?: associated| failed|:|$)")
_FAILED = re.compile(r"failed: (?P<why>[^.]+)")
_GROUPS = re.compile(r"\{(?:\S*/)?(?P<name>[^\s/{}]+) (?P<from>\d+)->(?P<to>\d+)")
_CLAIM = re.compile(r"nodeclaim/(?P<name>[\w.-]+)")
_CAPPED = re.compile(r"max (?:node group|nodepool|cluster)[^,]*(?:reached|limit)[^,]*|max cluster \S+ limit reached")
_BACKOFF = re.compile(r"in backoff after failed scale-up")
_POOL = re.compile(r'(?i)(?:nodepool|provisioner)(?::? "|="?)(?P<name>[\w.-]+)')
_POOL_TAINT = re.compile(r"did not tolerate (?:taint )?\(?(?:taint=)?(?P<taint>[^\s),;]+)")
_POOL_LIMITS = re.compile(r"exceed limits")
_NO_MACHINE = re.compile(r"no instance type")
_POOL_LABEL = re.compile(r"incompatible requirements,? (?P<why>[^;]+)")
_ASKED = re.compile(r'"(?P<name>[\w.-]+/[\w.-]+)":"(?P<count>\d+)"')


def of_pod(joined: JoinedEvidence, pod: Pod, who: str) -> Finding | None:
    """What the newest word of an autoscaler on this pod means; None where the scheduler's own words say more."""
    events = [event for event in joined.events_of(pod) if joined.now - event.at <= _RECENT]
    event = next((event for event in reversed(events) if _is_autoscalers(event)), None)
    found = _of_event(event, events, joined, who) if event is not None else None
    if event is None or found is None:
        return None
    return Finding(found.code, found.severity, found.cause, found.fix, (event.message,), pod.node)


def says_no(joined: JoinedEvidence, pod: Pod) -> str:
    """The autoscaler's reasons for not adding a host; empty where it has not spoken."""
    events = reversed(joined.events_of(pod))
    return next((event.message for event in events if event.reason == "NotTriggerScaleUp"), "")


def _is_autoscalers(event: Event) -> bool:
    """Karpenter uses the scheduler's reason, in words of its own."""
    return event.reason in _REASONS or event.reason == "FailedScheduling" and event.message.startswith(_KARPENTERS)


def _of_event(event: Event, events: Sequence[Event], joined: JoinedEvidence, who: str) -> Finding | None:
    if event.reason == "TriggeredScaleUp":
        names = listed(f"{m['name']} from {m['from']} to {m['to']} hosts" for m in _GROUPS.finditer(event.message))
        return _coming(who, f"the autoscaler is adding one ({names})" if names else "the autoscaler is adding one")
    if event.reason == "FailedScaleUp":
        return _failed(event.message, who)
    if event.reason == "NotTriggerScaleUp":
        return _not_triggered(event.message, events, who)
    if event.reason == "Nominated":
        claims = list(dict.fromkeys(m["name"] for one in events for m in _CLAIM.finditer(one.message)))
        if len(claims) >= _IN_VAIN:
            return _in_vain(who, claims, span((joined.now - events[0].at).total_seconds()))
        return _coming(who, f"Karpenter has chosen {event.message.rpartition(': ')[2]}")
    return _by_pools(event.message, who)


def _coming(who: str, how: str) -> Finding:
    fix = "wait; `kubectl get nodes` shows it when it has joined"
    return Finding("scale-up", "waiting", f"{who} waits for a new host: {how}", fix)


def _failed(message: str, who: str) -> Finding:
    zones = _ZONES.search(message)
    where = f" in {zones['zones']}" if zones is not None else ""
    why = _FAILED.search(message)
    reason = why["why"].strip() if why is not None else message
    if _STOCK.search(message):
        return Finding(
            "no-capacity",
            "waiting",
            f"{who} waits for a new host, and the cloud has none to give at the moment{where}: {reason}",
            "wait (it is tried again), or let the run go to other machines or zones (node_selector), to reserved or"
            " queued capacity (queue), or lower num_nodes",
        )
    if _QUOTA.search(message):
        return Finding(
            "cloud-quota",
            "broken",
            f"{who} waits for a new host, and the account's limit does not allow one{where}: {reason}",
            "ask for more quota at the cloud (GPUs, machines or addresses, as it names them), end other machines, or"
            " choose other machines with node_selector",
        )
    return Finding(
        "scale-up-failed",
        "waiting",
        f"{who} waits for a new host, and the autoscaler could not add one{where}: {reason}",
        "it is tried again; the autoscaler's own log (`kubectl -n kube-system describe configmap"
        " cluster-autoscaler-status`) and the cloud's console say why",
    )


def _not_triggered(message: str, events: Sequence[Event], who: str) -> Finding | None:
    if _BACKOFF.search(message):
        failed = next((one for one in reversed(events) if one.reason == "FailedScaleUp"), None)
        return _failed(failed.message if failed is not None else "in backoff after failed scale-up", who)
    capped = _CAPPED.search(message)
    if capped is not None:
        return Finding(
            "no-node-group",
            "broken",
            f"{who} waits for a host, and the autoscaler may add none: {capped[0].strip()}",
            "have the node group's maximum raised, or wait until other runs end",
        )
    return None


def _in_vain(who: str, claims: Sequence[str], waited: str) -> Finding:
    return Finding(
        "scale-up-failed",
        "waiting",
        f"{who} waits for a new host: Karpenter has chosen {len(claims)} one after the other in {waited}, and none has"
        f" joined (last {claims[-1]})",
        f"`kubectl describe nodeclaim {claims[-1]}` says why it does not start (out of stock, quota, image, network)",
    )


def _by_pools(message: str, who: str) -> Finding | None:
    """Karpenter gives a reason for each of its pools."""
    reasons = [part for part in re.split(r"; (?=incompatible|all available)", message.partition(", ")[2]) if part]
    taints = [m["taint"] for part in reasons if (m := _POOL_TAINT.search(part))]
    if taints and len(taints) == len(reasons):
        key, _, rest = taints[0].partition("=")
        return Finding(
            "unschedulable-taint",
            "broken",
            f"{who} is kept off every pool that Karpenter could add hosts to, by {listed(taints)}",
            f"add tolerations: [{{key: {key.partition(':')[0]}, operator: Exists}}] to cluster.yaml if the run may use"
            " these hosts",
        )
    labels = [m["why"].strip() for part in reasons if (m := _POOL_LABEL.search(part))]
    if labels and len(labels) == len(reasons):
        return Finding(
            "unschedulable-selector",
            "broken",
            f"{who} wants labels that no pool of Karpenter gives its hosts: {listed(labels)}",
            "correct node_selector in cluster.yaml; `kubectl get nodepools -o yaml` shows what there is",
        )
    told = [_pool_reason(part) for part in reasons]
    if not any(told):
        return None
    asked = listed(f"{m['name']}: {m['count']}" for m in _ASKED.finditer(message))
    return Finding(
        "no-node-group",
        "broken",
        f"{who} fits on no host that Karpenter may add{f' ({asked})' if asked else ''}: {listed(told, 3)}",
        "lower nproc_per_node or resources in cluster.yaml, correct node_selector, or have a NodePool allow such"
        " machines (instance types, zones, capacity type, limits)",
    )


def _pool_reason(part: str) -> str:
    pool = _POOL.search(part)
    name = f"pool {pool['name']}" if pool is not None else "a pool"
    taint = _POOL_TAINT.search(part)
    if taint is not None:
        return f"{name} has taint {taint['taint']}"
    if _POOL_LIMITS.search(part):
        return f"{name} is at its limits"
    if _NO_MACHINE.search(part):
        return f"{name} has no instance type that fits"
    return f"{name}: {part.strip()[:80]}"
