"""Pods that were taken away: preempted, evicted, drained, or their host lost. None of it is the run's fault. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankzero.launch.diagnose.finding import Finding, Severity, span
from rankzero.launch.diagnose.hosts import Host, hosts_of
from rankzero.launch.joined import JoinedEvidence
from rankzero.launch.pods import Condition, Pod
from rankzero.launch.untyped_json import seconds_between
from rankzero.spec.kinds import kind_section
from rankzero.wording import counted, listed

_LOW = re.compile(r"node was low on resource: (?P<what>[\w-]+)")
_OWN_DISK = re.compile(r"(?:ephemeral local storage usage exceeds|local ephemeral storage).*?(?P<limit>\d+\w*)?\.?\s*$")
_VOLUME = re.compile(r'Usage of EmptyDir volume "(?P<name>[^"]+)" exceeds the limit "(?P<limit>[^"]+)"')
_DEVICES = re.compile(
    r"requested number of devices unavailable for (?P<resource>\S+?)\.?"
    r" Requested: (?P<asked>\d+), Available: (?P<left>\d+)"
)
_OUT_OF = re.compile(r"^OutOf(?P<resource>\S+)$")
_RESUMES = "it continues from its newest checkpoint when a new pod has started"
STUCK_SECONDS = 120
_KEPT = ("FailedKillPod", "FailedUnmount", "FailedUnMount", "FailedUnmountDevice", "ExceededGracePeriod")
"""What the kubelet says of a pod that it cannot end."""


def find(joined: JoinedEvidence) -> Iterator[Finding]:
    """Lost hosts first, then what happened to single pods; the same to several pods is one finding."""
    hosts = {host.name: host for host in hosts_of(joined.evidence.nodes or ())}
    found: dict[tuple[str, str], tuple[Finding, int]] = {}
    for pod in reversed(joined.all_pods):
        finding = _of_pod(joined, pod, hosts.get(pod.host))
        if finding is not None:
            key = (finding.code, finding.severity)
            found[key] = (finding, found[key][1] + 1 if key in found else 1)
    for finding, count in found.values():
        more = f" (and {counted(count - 1, 'other pod')})" if count > 1 else ""
        yield Finding(finding.code, finding.severity, finding.cause + more, finding.fix, finding.evidence, finding.node)


def _of_pod(joined: JoinedEvidence, pod: Pod, host: Host | None) -> Finding | None:
    if pod.phase == "Succeeded" or joined.finished is not None and not pod.is_over:
        return None
    gone = _lost(joined, pod, host) or _stuck(joined, pod, host)
    if gone is not None:
        return gone
    severity: Severity = "info" if joined.is_past(pod) else "failed" if joined.finished else "waiting"
    disrupted = pod.conditions.get("DisruptionTarget")
    if disrupted is not None and disrupted.status == "True":
        return _disrupted(joined, pod, disrupted, severity)
    if pod.reason == "Evicted":
        return _evicted(pod, severity)
    if pod.reason in ("NodeShutdown", "Shutdown") or "node shutdown" in pod.message:
        return _finding("node-shutdown", severity, pod, "was stopped because host {host} shuts down", pod.message)
    if pod.reason == "Preempting":
        return _preempted(pod, severity, pod.message)
    return _refused_by_node(pod, severity)


def _lost(joined: JoinedEvidence, pod: Pod, host: Host | None) -> Finding | None:
    """The host does not answer, or is gone."""
    if joined.is_past(pod) or pod.is_over and pod.reason != "NodeLost":
        return None
    unready = host is not None and not host.ready
    absent = bool(pod.host) and joined.evidence.nodes is not None and host is None and len(joined.evidence.nodes) > 0
    told = pod.reason == "NodeLost" or pod.phase == "Unknown"
    event = next((e for e in reversed(joined.events_of(pod)) if e.reason == "NodeNotReady"), None)
    warned = event is not None and host is None and not pod.is_running
    if not (unready or absent or told or warned):
        return None
    state = "no longer exists" if absent else "does not answer (NotReady)"
    line = event.message if event is not None else pod.message or f"host {pod.host}: {state}"
    return Finding(
        "node-lost",
        "waiting" if joined.finished is None else "failed",
        f"host {pod.host or '?'} {state}, and {pod.title} (pod {pod.name}) was on it",
        f"wait about 6 min until the cluster gives the pod up; {_RESUMES}. If the host is gone for good:"
        f" `kubectl delete pod {pod.name} --force`",
        (line,),
        pod.node,
    )


def _disrupted(joined: JoinedEvidence, pod: Pod, condition: Condition, severity: Severity) -> Finding | None:
    line = f"{pod.name}: DisruptionTarget ({condition.reason}): {condition.message}"
    if condition.reason in ("PreemptionByScheduler", "PreemptionByKubeScheduler"):
        return _preempted(pod, severity, line)
    if condition.reason == "DeletionByTaintManager":
        return _finding(
            "node-tainted",
            severity,
            pod,
            "was removed from host {host}, which got a NoExecute taint (often: it was lost)",
            line,
        )
    if condition.reason == "EvictionByEvictionAPI":
        return _finding(
            "evicted-drain",
            severity,
            pod,
            "was evicted from host {host}: it is drained, or the autoscaler removes it",
            line,
        )
    if condition.reason == "DeletionByPodGC":
        return _finding("node-lost", severity, pod, "was given up because host {host} no longer exists", line)
    if pod.reason == "Evicted":
        return _evicted(pod, severity)
    if "shutdown" in condition.message:
        return _finding("node-shutdown", severity, pod, "was stopped because host {host} shuts down", line)
    return _finding("disrupted", severity, pod, f"was taken off host {_HOST} ({condition.reason})", line)


def _preempted(pod: Pod, severity: Severity, line: str) -> Finding:
    return Finding(
        "preempted",
        severity,
        f"{pod.title} (pod {pod.name}) made room on host {pod.host or '?'} for a pod of higher priority",
        f"nothing: {_RESUMES}. Set priority_class in cluster.yaml to be preempted less",
        (line,),
        pod.node,
    )


_HOST = "{host}"
"""Stands for the pod's host in what is said of it. Replaced, not formatted: clusters' own words may hold braces."""


def _finding(code: str, severity: Severity, pod: Pod, what: str, line: str) -> Finding:
    return Finding(
        code,
        severity,
        f"{pod.title} (pod {pod.name}) {what.replace(_HOST, pod.host or '?')}",
        f"nothing: {_RESUMES}; keep away from such hosts with node_selector in cluster.yaml where it happens often",
        (line,),
        pod.node,
    )


def _evicted(pod: Pod, severity: Severity) -> Finding | None:
    volume = _VOLUME.search(pod.message)
    if volume is not None:
        if "shm" in volume["name"]:
            return None  # memory.py has it
        own = volume["name"].removeprefix("rankzero-")
        cause = f"{pod.title} (pod {pod.name}) wrote more than {volume['limit']} to scratch volume {own}"
        fix = f"raise storage.{own}.size in cluster.yaml, or give storage.{own}.claim"
        return Finding("scratch-full", severity, cause, fix, (pod.message,), pod.node)
    if "DiskPressure" in pod.message:
        return Finding(
            "evicted-disk",
            severity,
            f"host {pod.host or '?'} is short of disk (DiskPressure) and turned {pod.title} (pod {pod.name}) away",
            f"have the disk of {pod.host or 'the host'} cleaned, and keep caches and results on claims"
            " (storage.cache.claim, storage.outputs.claim in cluster.yaml)",
            (pod.message,),
            pod.node,
        )
    low = _LOW.search(pod.message)
    if low is not None and low["what"] == "memory":
        return None  # memory.py has it
    if low is not None and low["what"] == "pids":
        return _no_pids(pod, severity)
    if low is None and _OWN_DISK.search(pod.message) is not None:
        cause = f"{pod.title} (pod {pod.name}) wrote more scratch files than it may (ephemeral storage): {pod.message}"
        fix = "keep caches and results on claims: give storage.cache.claim and storage.outputs.claim in cluster.yaml"
        return Finding("scratch-full", severity, cause, fix, (pod.message,), pod.node)
    if low is None:
        return _finding("evicted", severity, pod, f"was evicted from host {_HOST}: {pod.message}", pod.message)
    return Finding(
        "evicted-disk",
        severity,
        f"{pod.title} (pod {pod.name}) was evicted from host {pod.host or '?'}, which ran low on {low['what']}",
        "keep caches and results on claims: give storage.cache.claim and storage.outputs.claim in cluster.yaml",
        (pod.message,),
        pod.node,
    )


def _no_pids(pod: Pod, severity: Severity) -> Finding:
    return Finding(
        "thread-limit",
        severity,
        f"host {pod.host or '?'} ran out of process numbers, and {pod.title} (pod {pod.name}) had to go",
        "see which pods of that host start so many threads (`kubectl top pod`, OMP_NUM_THREADS in env of"
        " cluster.yaml), or have its pid limit raised",
        (pod.message,),
        pod.node,
    )


def _refused_by_node(pod: Pod, severity: Severity) -> Finding | None:
    """The scheduler placed it, and the host's kubelet would not have it."""
    devices = _DEVICES.search(pod.message)
    if pod.reason == "UnexpectedAdmissionError" or devices is not None:
        what = (
            f"has {devices['left']} healthy {devices['resource']} left and {devices['asked']} are asked for"
            if devices
            else f"would not start it: {pod.message}"
        )
        return Finding(
            "device-unhealthy",
            severity,
            f"host {pod.host or '?'} {what}, so {pod.title} (pod {pod.name}) was turned away",
            f"`kubectl cordon {pod.host or 'NODE'}` until its devices are repaired; a new pod then goes elsewhere",
            (f"{pod.reason}: {pod.message}",),
            pod.node,
        )
    if pod.reason == "TopologyAffinityError":
        return Finding(
            "node-topology",
            severity,
            f"host {pod.host or '?'} cannot give {pod.title} (pod {pod.name}) cores and devices that lie together:"
            f" {pod.message}",
            "lower resources.cpu or nproc_per_node in cluster.yaml to what one socket has, ask for whole hosts, or"
            " have the kubelet's topologyManagerPolicy relaxed",
            (f"{pod.reason}: {pod.message}",),
            pod.node,
        )
    out_of = _OUT_OF.match(pod.reason)
    if out_of is None and "rejected" in pod.message:
        return Finding(
            "node-refused",
            severity,
            f"host {pod.host or '?'} turned {pod.title} (pod {pod.name}) away: {pod.reason}: {pod.message}",
            f"nothing, if a new pod starts elsewhere; else `kubectl describe node {pod.host or 'NODE'}`",
            (f"{pod.reason}: {pod.message}",),
            pod.node,
        )
    if out_of is None:
        return None
    return Finding(
        "node-full",
        severity,
        f"host {pod.host or '?'} had no {out_of['resource']} left for {pod.title} (pod {pod.name})",
        f"nothing: another pod took it in the same moment; {_RESUMES}, or lower resources in cluster.yaml",
        (f"{pod.reason}: {pod.message}",),
        pod.node,
    )


def _stuck(joined: JoinedEvidence, pod: Pod, host: Host | None) -> Finding | None:
    """Asked to stop, and still there long after its grace period."""
    waited = seconds_between(pod.deleting_since, joined.now)
    if waited is None or waited < STUCK_SECONDS:  # the time of deletion includes the grace period
        return None
    if kind_section(joined.kind).on_hosts:
        return None  # slurm.py has it
    lines = [event.message for event in reversed(joined.events_of(pod)) if event.reason in _KEPT]
    well = host is not None and host.ready
    if pod.finalizers:
        why = f"finalizer {listed(pod.finalizers)} keeps it"
        fix = f"have what sets {pod.finalizers[0]} remove it, or `kubectl edit pod {pod.name}` and take it out"
    elif pod.is_over:
        return None
    elif lines:
        why = f"host {pod.host or '?'} cannot end it: {lines[0]}"
        fix = f"restart host {pod.host or 'HOST'} (a process or mount of the pod hangs there), then {_force(pod)}"
    else:
        why = f"host {pod.host or '?'} {'is well, but does not end it' if well else 'may not answer'}"
        fix = (
            f"`kubectl get node {pod.host or 'NODE'}`; if it is gone, {_force(pod)}"
            if not well
            else f"have the administrator look at the kubelet and runtime of {pod.host}; then {_force(pod)}"
        )
    return Finding(
        "stuck-terminating",
        "broken",
        f"pod {pod.name} should have ended {span(waited)} ago and is still there: {why}",
        fix,
        (f"deletionTimestamp is {span(waited)} ago", *lines[:1]),
        pod.node,
    )


def _force(pod: Pod) -> str:
    return f"`kubectl delete pod {pod.name} --force` (only once nothing of it runs there)"
