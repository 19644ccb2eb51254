"""The cluster's hosts, and what of a pod's wishes each of them meets, whoever else is on them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankzero.launch.pods import Pod, conditions_of
from rankzero.launch.untyped_json import amount, at, maps, text, words

_SYSTEM = re.compile(r"node-role\.kubernetes\.io/|CriticalAddonsOnly|components\.gke\.io/|virtual-kubelet\.io/")
"""Taints of hosts that are for the cluster's own services."""
_PASSING = re.compile(
    r"(?i)^(?:node\.kubernetes\.io/|node\.cloudprovider|karpenter\.sh/(?:unregistered|disrupt)|ToBeDeleted|DeletionCandidate"
    r"|\S*agent-not-ready|\S*startup)"
)
"""Taints of hosts that are just coming, going or sick: not for runs to tolerate."""
_KEEP_OFF = ("NoSchedule", "NoExecute")
_CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
"""What a cordoned host has, and a pod may tolerate."""


@dataclass(frozen=True, slots=True)
class Host:
    """One host of the cluster."""

    name: str
    labels: Mapping[str, str]
    allocatable: Mapping[str, str]
    taints: tuple[Mapping[str, Any], ...]
    """Those that keep pods off. Others, PreferNoSchedule, only make hosts the last that are taken."""
    cordoned: bool
    ready: bool

    @property
    def is_system(self) -> bool:
        """Whether it is for the cluster's own services, and for nobody's pods."""
        return any(is_system(text(taint, "key")) for taint in self.taints)


def hosts_of(manifests: Sequence[Mapping[str, Any]]) -> list[Host]:
    """All nodes."""
    found = []
    for manifest in manifests:
        ready = conditions_of(manifest).get("Ready")
        found.append(
            Host(
                name=text(manifest, "metadata", "name"),
                labels=words(at(manifest, "metadata", "labels")),
                allocatable=words(at(manifest, "status", "allocatable")),
                taints=tuple(one for one in maps(manifest, "spec", "taints") if text(one, "effect") in _KEEP_OFF),
                cordoned=at(manifest, "spec").get("unschedulable") is True,
                ready=ready is None or ready.status == "True",
            )
        )
    return found


def misses(host: Host, selector: Mapping[str, str]) -> bool:
    """Whether it lacks a label of the selector."""
    return any(host.labels.get(key) != value for key, value in selector.items())


def outside(host: Host, pod: Pod) -> bool:
    """Whether the pod's required node affinity keeps it off."""
    return bool(pod.terms) and not any(_meets(host, term) for term in pod.terms)


def _meets(host: Host, term: Mapping[str, Any]) -> bool:
    labels, fields = list(maps(term, "matchExpressions")), list(maps(term, "matchFields"))
    return bool(labels or fields) and all(
        [
            *(holds(one, host.labels.get(text(one, "key"))) for one in labels),
            *(holds(one, host.name) for one in fields),  # a node's name is the only field
        ]
    )


def holds(expression: Mapping[str, Any], value: str | None) -> bool:
    """Whether a label's value, or its absence, is as one of a selector's matchExpressions has it."""
    operator, wanted = text(expression, "operator"), [str(one) for one in expression.get("values") or ()]
    if operator in ("Gt", "Lt"):
        has, bound = amount(value), amount(wanted[0] if wanted else None)
        return has is not None and bound is not None and (has > bound if operator == "Gt" else has < bound)
    there = value is not None if operator in ("Exists", "DoesNotExist") else value in wanted
    return there if operator in ("Exists", "In") else not there


def untolerated(host: Host, pod: Pod) -> list[str]:
    """Taints that keep the pod off as long as nobody changes them, as `key=value:effect`."""
    return [taint_text(one) for one in _walls(host, pod) if not is_passing(text(one, "key"))]


def passing(host: Host, pod: Pod) -> list[str]:
    """Taints that keep the pod off while the host is coming, going or sick."""
    return [taint_text(one) for one in _walls(host, pod) if is_passing(text(one, "key"))]


def _walls(host: Host, pod: Pod) -> list[Mapping[str, Any]]:
    return [one for one in host.taints if not _tolerated(one, pod)]


def cordoned(host: Host, pod: Pod) -> bool:
    """Whether somebody has closed it for pods like this."""
    return host.cordoned and not _tolerated(_CORDON, pod)


def takes(host: Host, pod: Pod) -> bool:
    """Whether it is open for such new pods now, as far as that passes."""
    return host.ready and not cordoned(host, pod) and not passing(host, pod)


def is_system(taint: str) -> bool:
    """Whether a taint keeps hosts for the cluster's own services."""
    return _SYSTEM.match(taint) is not None


def is_passing(taint: str) -> bool:
    """Whether a taint only says that a host is coming, going or sick."""
    return _PASSING.match(taint) is not None


def taint_text(taint: Mapping[str, Any]) -> str:
    """`key=value:effect`."""
    value = text(taint, "value")
    return f"{text(taint, 'key')}{'=' + value if value else ''}:{text(taint, 'effect')}"


def _tolerated(taint: Mapping[str, Any], pod: Pod) -> bool:
    return any(_tolerates(one, taint) for one in pod.tolerations)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    key, effect = text(toleration, "key"), text(toleration, "effect")
    if effect and effect != text(taint, "effect"):
        return False
    if not key:
        return text(toleration, "operator") == "Exists"
    if key != text(taint, "key"):
        return False
    return text(toleration, "operator") == "Exists" or text(toleration, "value") == text(taint, "value")


def largest(hosts: Sequence[Host], resource: str) -> tuple[str, str]:
    """Quantity and name of the host that has most of a resource; ("0", "") where none has it."""
    best = max(hosts, key=lambda host: amount(host.allocatable.get(resource)) or 0.0, default=None)
    if best is None or not amount(best.allocatable.get(resource)):
        return "0", ""
    return best.allocatable[resource], best.name


def similar(hosts: Sequence[Host], resource: str) -> list[str]:
    """Device resources that hosts do offer."""
    offered = {name for host in hosts for name, value in host.allocatable.items() if "/" in name and amount(value)}
    return sorted(offered - {resource})


def readable(resource: str, quantity: str) -> str:
    """A quantity for people: memory in Gi, all else as it is."""
    number = amount(quantity)
    if number is None or not (resource == "memory" or "storage" in resource):
        return quantity
    gibibytes = number / 2**30
    return f"{gibibytes:.0f}Gi" if gibibytes >= 10 else f"{gibibytes:.1f}Gi"
