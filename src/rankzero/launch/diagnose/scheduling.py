"""Pods that no host takes: too large, no such device, labels, taints, spreading, or all taken. Pure.

The scheduler's message says how many hosts fail on what; where the hosts could be read, what they have is held against
what the pod asks for, which also tells what can never fit from what is only taken at the moment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from rankzero.launch.diagnose import autoscaling
from rankzero.launch.diagnose.finding import Finding, span
from rankzero.launch.diagnose.hosts import (
    Host,
    cordoned,
    hosts_of,
    is_passing,
    is_system,
    largest,
    misses,
    readable,
    similar,
    takes,
    untolerated,
)
from rankzero.launch.joined import JoinedEvidence
from rankzero.launch.pods import Pod
from rankzero.launch.refusals import field_of
from rankzero.launch.untyped_json import amount, seconds_between
from rankzero.wording import counted, listed

_NODES = re.compile(r"nodes are (?:un)?available: ")
_PART = re.compile(r"(?P<count>\d+) (?P<why>(?:[^,{.]|\{[^}]*\}|\.(?=\S))+)")
_LACKS = re.compile(r"Insufficient (?P<resource>\S+)")
_TAINT = re.compile(r"had (?:untolerated )?taint \{(?P<taint>[^}]*)\}")
_SOME_TAINT = re.compile(r"had untolerated taint\(s\)")
_GPU_NODES = re.compile(r"(?i)gpu|nvidia|amd\.com|accelerator|cuda|h100|h200|a100|b200|l40|mi300")
"""Taints by whose names alone one sees that they keep others off the hosts with GPUs."""
_CLOSED = "unschedulable-taint"
_CAPACITY = ("unschedulable-resource", "unschedulable-taken")
_ELSEWHERE = (
    *("PersistentVolumeClaim", "persistentvolumeclaim", "storageclass", "volume node affinity"),
    *("PersistentVolume's node affinity", "binding volumes"),
)
"""Reported with the claims."""
_PATIENCE_SECONDS = 180


def find(joined: JoinedEvidence) -> Iterator[Finding]:
    """One finding for all pods that wait for the same."""
    waiting: dict[str, list[Pod]] = {}
    silent: list[Pod] = []
    for pod in joined.newest:
        if pod.host or pod.is_over or pod.deleting_since is not None:
            continue
        line = _said(joined, pod)
        if line:
            waiting.setdefault(f"{pod.role} {line}", []).append(pod)
        elif not pod.waiting:
            silent.append(pod)
    for pods in waiting.values():
        yield from _unplaced(joined, _said(joined, pods[0]), pods)
    yield from _unseen(joined, silent)


def _said(joined: JoinedEvidence, pod: Pod) -> str:
    """Why the scheduler does not place it, in its newest words."""
    condition = pod.conditions.get("PodScheduled")
    told = condition.message if condition is not None and condition.status == "False" else ""
    if told and "pod group" not in told.lower():  # of a gang it says how many of it have a place, and not why
        return told
    reasons = [event.message for event in reversed(joined.events_of(pod)) if event.reason == "FailedScheduling"]
    return next((reason for reason in reasons if _NODES.search(reason)), next(iter(reasons), told))


def _unplaced(joined: JoinedEvidence, line: str, pods: list[Pod]) -> Iterator[Finding]:
    pod = pods[0]
    who = pod.title if len(pods) == 1 else f"each of {len(pods)} pods (first {pod.name})"
    hosts = hosts_of(joined.evidence.nodes) if joined.evidence.nodes is not None else None
    never = _by_nodes(pod, who, hosts, joined) if hosts else None
    scaled = next((found for one in pods if (found := autoscaling.of_pod(joined, one, who)) is not None), None)
    if scaled is not None and not (scaled.code == "no-node-group" and never is not None and never.code == _CLOSED):
        yield replace(scaled, evidence=(*scaled.evidence, line))
        return
    gated = pod.conditions.get("PodScheduled")
    if gated is not None and gated.reason == "SchedulingGated":
        gates = listed(pod.gates) or "a scheduling gate"
        cause = f"{who} is held back by {gates} until its queue lets it go"
        yield Finding(
            "scheduling-gated", "waiting", cause, "wait; `kubectl get workloads` shows the queue", (line,), pod.node
        )
        return
    if any(sign in line for sign in _ELSEWHERE) and _LACKS.search(line) is None:
        return
    found = never or _by_words(line, pod, who, hosts, joined)
    stays = autoscaling.says_no(joined, pod)
    more = (
        f"; the autoscaler adds none ({stays.partition('scale-up: ')[2] or stays})"
        if stays and found.code in _CAPACITY
        else ""
    )
    yield Finding(found.code, found.severity, found.cause + more, found.fix, (line, stays), pod.node)


def _by_nodes(pod: Pod, who: str, hosts: list[Host], joined: JoinedEvidence) -> Finding | None:
    """What can never fit on the hosts that there are."""
    usable = [host for host in hosts if not host.is_system] or hosts
    for resource, quantity in pod.requests.items():
        most, name = largest(usable, resource)
        if (amount(quantity) or 0) > (amount(most) or 0):
            return _too_large(pod, who, resource, quantity, most, name, usable)
    matching = [host for host in usable if not misses(host, pod.selector)]
    if not matching:
        wanted = listed(f"{key}={value}" for key, value in pod.selector.items())
        near = {host.labels[key] for host in usable for key in pod.selector if key in host.labels}
        others = f" ({listed(sorted(near))} there is)" if near else ""
        cause = f"{who} wants hosts with {wanted}, and no host has that{others}"
        fix = f"correct node_selector in cluster.yaml, or `kubectl label node NAME {wanted.replace(', ', ' ')}`"
        return Finding("unschedulable-selector", "broken", cause, fix)
    free = [host for host in matching if not untolerated(host, pod)]
    if not free:
        return _tainted(who, listed(taint for host in matching for taint in untolerated(host, pod)), len(matching))
    for resource, quantity in pod.requests.items():
        most, name = largest(free, resource)
        if (amount(quantity) or 0) > (amount(most) or 0):
            return _too_large(pod, who, resource, quantity, most, name, free)
    if not any(takes(host, pod) for host in free):
        names = listed(host.name for host in free)
        closed = next((host.name for host in free if cordoned(host, pod)), "")
        fix = f"`kubectl uncordon {closed}` once it may be used again, or wait"
        if not closed:
            fix = f"wait, and see why: `kubectl describe node {free[0].name}`"
        return Finding("unschedulable-cordoned", "waiting", f"{who} fits only on {names}, which take no pods now", fix)
    return None


def _too_large(pod: Pod, who: str, resource: str, quantity: str, most: str, name: str, hosts: list[Host]) -> Finding:
    if not name and "/" not in resource:  # Kubernetes' own: no device plugin offers them
        cause = f"{who} asks for {resource}: {quantity}, and no host offers any"
        fix = f"take {resource} out of pod_patch in cluster.yaml, or add hosts that offer it"
        return Finding("no-such-resource", "broken", cause, fix)
    if not name:
        others = similar(hosts, resource)
        offers = f"; they offer {listed(others)}" if others else ""
        field = (
            "gpu_resource"
            if "gpu" in resource
            else "resources.rdma"
            if field_of(resource).startswith("res")
            else "kind"
        )
        return Finding(
            "no-such-resource",
            "broken",
            f"{who} asks for {resource}: {quantity}, and no host has any{offers}",
            f"set {field} in cluster.yaml to what hosts offer ({listed(others)})"
            if others
            else f"install the device plugin that offers {resource}, add hosts that have it, or set gpu: false in"
            " cluster.yaml",
        )
    field = field_of(resource)
    has = readable(resource, most)
    spread = " and num_nodes higher" if field == "nproc_per_node" else ""
    return Finding(
        "unschedulable-too-large",
        "broken",
        f"{who} asks for {resource}: {readable(resource, quantity)}, and the largest host ({name}) has {has}",
        f"set {field} in cluster.yaml to at most {has}{spread}, or add larger hosts",
    )


def _tainted(who: str, taints: str, count: int) -> Finding:
    key, _, rest = taints.split(", ")[0].partition("=")
    value, _, effect = rest.partition(":")
    if not rest:
        key, _, effect = key.partition(":")
    parts = [f"key: {key}", *([f"value: {value}"] if value else []), *([f"effect: {effect}"] if effect else [])]
    return Finding(
        _CLOSED,
        "broken",
        f"{who} is kept off {counted(count, 'host')} by {'taint' if ',' not in taints else 'taints'} {taints}",
        f"add tolerations: [{{{', '.join(parts)}}}] to cluster.yaml if the run may use these hosts",
    )


def _by_words(line: str, pod: Pod, who: str, hosts: list[Host] | None, joined: JoinedEvidence) -> Finding:
    """What the scheduler's message says, where the hosts say nothing or are only taken."""
    parts = [(int(match["count"]), match["why"].strip()) for match in _PART.finditer(_reasons(line))]
    lacks = {m["resource"].rstrip("."): count for count, why in parts if (m := _LACKS.search(why))}
    taints = _taints(parts)
    hidden = hosts is None and _keeps_off_gpus(taints, lacks, line)
    if lacks and not hidden:
        return _taken(pod, who, lacks, hosts, joined)
    return (
        (_by_taints(parts, taints, who) if hidden else None)
        or _by_room(parts, who)
        or _by_spread(parts, who, joined)
        or _by_labels(parts, pod, who)
        or _by_taints(parts, taints, who)
        or _by_state(parts, who)
        or Finding(
            "unschedulable",
            "broken",
            f"no host takes {who}: {line}",
            "change in cluster.yaml what the scheduler names (resources, node_selector, tolerations, spread)",
        )
    )


def _by_room(parts: list[tuple[int, str]], who: str) -> Finding | None:
    count = next((count for count, why in parts if "Too many pods" in why), None)
    if count is None:
        return None
    cause = f"{counted(count, 'host')} have as many pods as they may, so {who} waits"
    return Finding("unschedulable-taken", "waiting", cause, "wait, or choose other hosts with node_selector")


def _by_spread(parts: list[tuple[int, str]], who: str, joined: JoinedEvidence) -> Finding | None:
    for count, why in parts:
        if "anti-affinity" in why:
            return Finding(
                "unschedulable-spread",
                "waiting",
                f"{who} wants a host of its own, and {counted(count, 'host')} already"
                f" {'has' if count == 1 else 'have'} one"
                f" of the run's {joined.num_nodes} pods or another it must keep away from",
                f"add hosts, lower num_nodes from {joined.num_nodes}, or set spread: {{mode: preferred}} in"
                " cluster.yaml",
            )
        if "topology spread" in why:
            return Finding(
                "unschedulable-spread",
                "broken",
                f"{who} would break the spreading rule on {counted(count, 'host')}",
                "set spread: {mode: preferred} in cluster.yaml, or another spread.topology_key",
            )
    return None


def _by_labels(parts: list[tuple[int, str]], pod: Pod, who: str) -> Finding | None:
    if not any("affinity" in why or "selector" in why for _, why in parts):
        return None
    wanted = listed(f"{key}={value}" for key, value in pod.selector.items()) or "another label"
    return Finding(
        "unschedulable-selector",
        "broken",
        f"{who} wants hosts with {wanted}, and those that could take it have not",
        "correct node_selector in cluster.yaml; `kubectl get nodes --show-labels` shows what there is",
    )


def _by_taints(parts: list[tuple[int, str]], taints: list[tuple[int, str]], who: str) -> Finding | None:
    closed = [(count, taint) for count, taint in taints if not is_passing(taint)]
    if closed:
        names = listed(taint.replace(": ", "=").rstrip("= ") for _, taint in closed)
        return _tainted(who, names, sum(count for count, _ in closed))
    unnamed = next((count for count, why in parts if _SOME_TAINT.search(why)), None)
    if unnamed is not None:
        return Finding(
            _CLOSED,
            "broken",
            f"{who} is kept off {counted(unnamed, 'host')} by taints that the scheduler does not name",
            "`kubectl get nodes -o custom-columns=NAME:.metadata.name,TAINTS:.spec.taints` shows them; add"
            " tolerations to cluster.yaml for those that the run may put up with",
        )
    if not taints:
        return None
    states = listed(taint.rstrip(": ") for _, taint in taints)
    number = counted(sum(count for count, _ in taints), "host")
    cause = f"{who} finds {number} that take no pods at the moment ({states})"
    return Finding("unschedulable-cordoned", "waiting", cause, "wait until they are ready; `kubectl get nodes`")


def _by_state(parts: list[tuple[int, str]], who: str) -> Finding | None:
    for count, why in parts:
        if "unschedulable" in why:
            cause = f"{who} finds {counted(count, 'host')} closed for new pods (cordoned)"
            return Finding(
                "unschedulable-cordoned", "waiting", cause, "`kubectl uncordon NODE` once it may be used again"
            )
    return None


def _taints(parts: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Taints that the scheduler names, with the number of hosts; those of the system's hosts are no matter of ours."""
    found = [(count, match["taint"]) for count, why in parts if (match := _TAINT.search(why)) is not None]
    return [(count, taint) for count, taint in found if not is_system(taint)]


def _keeps_off_gpus(taints: list[tuple[int, str]], lacks: dict[str, int], line: str) -> bool:
    """Whether the hosts that lack devices never had any, and those with GPUs are behind these taints."""
    closed = [taint for _, taint in taints if not is_passing(taint)]
    if not closed or not any("/" in resource for resource in lacks):
        return False
    preemption = line.partition("preemption: ")[2]
    never = bool(preemption) and "No preemption victims" not in preemption
    return never or any(_GPU_NODES.search(taint) for taint in closed)


def _reasons(line: str) -> str:
    """The part of the message about the pod itself; what follows is about preemption."""
    body = _NODES.split(line, maxsplit=1)[-1]
    return re.split(r"\.? (?:preemption: |no new claims)", body)[0]


def _taken(pod: Pod, who: str, lacks: dict[str, int], hosts: list[Host] | None, joined: JoinedEvidence) -> Finding:
    """Enough in principle, or nothing known of the nodes. Devices are scarcer than cores and memory."""
    resource = max(lacks, key=lambda name: ("/" in name, lacks[name]))
    quantity = readable(resource, pod.requests.get(resource, "?"))
    short = f"{counted(lacks[resource], 'host')} {'has' if lacks[resource] == 1 else 'have'} less free"
    field = field_of(resource)
    if hosts:
        most, name = largest([host for host in hosts if not host.is_system] or hosts, resource)
        if name:
            return Finding(
                "unschedulable-taken",
                "waiting",
                f"{who} asks for {resource}: {quantity}; the largest host ({name}) has {readable(resource, most)}, but"
                f" {short}: others use it",
                f"wait until others end, lower {field} or num_nodes in cluster.yaml, or set priority_class",
            )
    fields = listed(field_of(name) for name in lacks)
    return Finding(
        "unschedulable-resource",
        "broken" if joined.evidence.nodes is not None else "waiting",
        f"{who} asks for {resource}: {quantity}, and {short}",
        f"lower {fields} in cluster.yaml to what one host has free, or wait until others end",
    )


def _unseen(joined: JoinedEvidence, pods: list[Pod]) -> Iterator[Finding]:
    """Pods that the scheduler has not said a word about."""
    waits = [(pod, seconds_between(pod.created, joined.now) or 0) for pod in pods]
    waits = [(pod, seconds) for pod, seconds in waits if seconds > _PATIENCE_SECONDS]
    if waits:
        pod, seconds = max(waits, key=lambda one: one[1])
        yield Finding(
            "pod-pending",
            "waiting",
            f"{counted(len(waits), 'pod')} Pending for {span(seconds)} without a word of the scheduler ({pod.name})",
            "set scheduler in cluster.yaml to one that runs, or leave it out; `kubectl describe pod` says more",
            (),
            pod.node,
        )
