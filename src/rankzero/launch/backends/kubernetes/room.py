"""Which of a cluster's nodes a run's pods could be on, whoever else is there, and whether that is room enough. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from rankzero.launch.backends.kubernetes.needs import amounts_of, shown
from rankzero.launch.diagnose.hosts import (
    Host,
    cordoned,
    holds,
    hosts_of,
    largest,
    misses,
    outside,
    passing,
    readable,
    similar,
    untolerated,
)
from rankzero.launch.labels import Manifest
from rankzero.launch.pods import Pod, parse_pod
from rankzero.launch.refusals import field_of
from rankzero.launch.survey import Doubt
from rankzero.launch.untyped_json import amount, at, exact_amount, maps, text, whole, words
from rankzero.wording import counted, listed

PRODUCT, MEMORY = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
"""What NVIDIA's feature discovery says of a node's GPUs; the memory in MiB."""
_EVERYWHERE = ("cpu", "memory", "ephemeral-storage")
"""Every kubelet counts them: where a node says nothing of one, it is not known. Of anything else it then has none."""


@dataclass(frozen=True, slots=True)
class Room:
    """What the nodes come to."""

    nodes: tuple[Manifest, ...]
    """Those that a pod could be on."""
    says: str
    doubt: Doubt | None


class _Obstacle(NamedTuple):
    """What keeps every pod of a spec off a node, of whatever size."""

    one: str
    several: str
    fix: str


def room_for(
    pod: Mapping[str, Any], labels: Mapping[str, str], count: int, fewest: int, nodes: Sequence[Manifest]
) -> Room:
    """For `count` pods of a spec and with these labels, of which `fewest` are enough to train."""
    asked, plain, hosts = amounts_of(pod, "requests"), parse_pod({"spec": pod}), hosts_of(nodes)
    kept_off = [_obstacle(host, plain) for host in hosts]
    open_ = [host for host, obstacle in zip(hosts, kept_off, strict=True) if obstacle is None]
    fitting = [host for host in open_ if not any(_lacks(host, name, many) for name, many in asked.items())]
    own = {host.name for host in fitting}
    having = tuple(node for node in nodes if text(node, "metadata", "name") in own)
    head = f"{len(having)} of {counted(len(nodes), 'node')} {_wanted(asked)}"
    whys, fixes = _reasons(asked, kept_off, open_)
    pods, room = counted(count, "pod"), min(count, _places(_apart(pod, labels), asked, fitting, count))
    short, doubt = "", None
    if room < count:
        short = f"; {count - room} of {pods} would wait"
        if not having and whys:
            short = f"; pods would wait: {'; '.join(whys)}"
        more = "" if having or not whys else f": {'; '.join(whys)}"
        what = f"{head}, and room for {room} of the {pods} of a run at once{more}"
        fix = f"{'; '.join(fixes)}; or wait: for nodes to come free, or an autoscaler"
        doubt = Doubt("nodes", what, fix, waits=room < fewest)
    elif len(having) < count:
        short = f"; {pods} would share {'it' if len(having) == 1 else 'them'}"
    first = ", ".join(f"{text(node, 'metadata', 'name')} {_in_words(node, asked)}" for node in having[:6])
    known = f": {first}{f' and {len(having) - 6} more' if len(having) > 6 else ''}" if having and _gpu(asked) else ""
    return Room(having, f"{head}{known}{short}", doubt)


def _obstacle(host: Host, pod: Pod) -> _Obstacle | None:
    see = "`kubectl describe node NODE` says why"
    wanted = listed(f"{key}={value}" for key, value in pod.selector.items())
    if misses(host, pod.selector):
        return _Obstacle(f"lacks {wanted}", f"lack {wanted}", "correct node_selector")
    if outside(host, pod):
        return _Obstacle("is outside of its node affinity", "are outside of its node affinity", "correct pod_patch")
    if taints := listed(untolerated(host, pod)):
        return _Obstacle(f"has taint {taints}", f"have taint {taints}", "add tolerations, if the run may use it")
    if cordoned(host, pod):
        return _Obstacle("is cordoned", "are cordoned", "`kubectl uncordon NODE` once it may be used again")
    if not host.ready:
        return _Obstacle("is not ready", "are not ready", see)
    if taints := listed(passing(host, pod)):
        return _Obstacle(f"comes, goes or is sick ({taints})", f"come, go or are sick ({taints})", see)
    return None


def _lacks(host: Host, name: str, asked: Fraction) -> bool:
    has = exact_amount(host.allocatable.get(name))
    return asked > (has or 0) and not (has is None and name in _EVERYWHERE)


def _reasons(
    asked: Mapping[str, Fraction], kept_off: Sequence[_Obstacle | None], open_: Sequence[Host]
) -> tuple[list[str], list[str]]:
    """Why nodes take no pod, and what could be done about each."""
    whys, fixes = [], []
    for obstacle, number in Counter(one for one in kept_off if one is not None).most_common(6):
        whys.append(f"{counted(number, 'node')} {obstacle.one if number == 1 else obstacle.several}")
        fixes.append(obstacle.fix)
    for name, many in asked.items():
        if open_ and all(_lacks(host, name, many) for host in open_):
            most = readable(name, largest(open_, name)[0])
            whys.append(f"a node that may be used has {most} {name} at most, of {shown(name, many)}")
            fixes.append(_instead(name, open_))
    return whys, list(dict.fromkeys(fixes)) or ["ask for less (nproc_per_node, num_nodes)"]


def _instead(name: str, hosts: Sequence[Host]) -> str:
    """What to ask for where no host has as much of a resource."""
    others = similar(hosts, name)
    if others and not largest(hosts, name)[1] and field_of(name) == "nproc_per_node":
        return f"set gpu_resource to what nodes offer ({listed(others)})"
    return f"ask for less ({field_of(name)})"


def _apart(pod: Mapping[str, Any], labels: Mapping[str, str]) -> list[str]:
    """The topology keys by which the pods keep off each other; of whom else they keep off nothing is known."""
    required = maps(at(pod, "affinity", "podAntiAffinity"), "requiredDuringSchedulingIgnoredDuringExecution")
    return [text(one, "topologyKey") for one in required if _is_about(one, labels)]


def _is_about(term: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    selector = term.get("labelSelector")
    if selector is None or term.get("namespaces") or term.get("namespaceSelector"):
        return False
    return all(labels.get(key) == value for key, value in words(at(selector, "matchLabels")).items()) and all(
        holds(one, labels.get(text(one, "key"))) for one in maps(selector, "matchExpressions")
    )


def _places(apart: Sequence[str], asked: Mapping[str, Fraction], hosts: Sequence[Host], count: int) -> int:
    """How many of the pods have room at once, several on a node where they may be."""
    if apart:
        return min(len({host.labels.get(key, host.name) for host in hosts}) for key in apart)
    return sum(_beside_each_other(host, asked, count) for host in hosts)


def _beside_each_other(host: Host, asked: Mapping[str, Fraction], count: int) -> int:
    known = ((exact_amount(host.allocatable.get(name)), many) for name, many in asked.items() if many)
    return min((int(has // many) for has, many in known if has is not None), default=count)


def _wanted(asked: Mapping[str, Fraction]) -> str:
    devices = listed(f"{float(many):g} {name}" for name, many in asked.items() if "/" in name)
    return f"with {devices}" if devices else "may be used, no GPU is needed"


def _gpu(asked: Mapping[str, Fraction]) -> str:
    """The name of the devices that train, whatever the site calls them; empty where none are asked for."""
    return next((name for name in asked if "/" in name and field_of(name) == "nproc_per_node"), "")


def _in_words(node: Manifest, asked: Mapping[str, Fraction]) -> str:
    size = whole(node, "metadata", "labels", MEMORY)
    memory = f" of {(size << 20) / 1e9:.0f} GB" if size else ""
    has = amount(at(node, "status", "allocatable").get(_gpu(asked))) or 0
    return f"{has:g} × {text(node, 'metadata', 'labels', PRODUCT) or 'GPU'}{memory}"
