"""Waiting for Kueue: quota, a queue that is not there, evictions, admission checks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from rankzero.launch.diagnose.finding import Finding, span
from rankzero.launch.joined import JoinedEvidence
from rankzero.launch.pods import Condition, conditions_of
from rankzero.launch.refusals import field_of
from rankzero.launch.untyped_json import at, maps, moment, seconds_between, text, whole
from rankzero.wording import listed

_MISSING = re.compile(r"(?P<kind>LocalQueue|ClusterQueue) (?P<name>\S+) doesn't exist")
_INACTIVE = re.compile(r"(?P<kind>LocalQueue|ClusterQueue) (?P<name>\S+) is (?P<why>inactive|stopped)")
_UNUSED = re.compile(
    r"insufficient unused quota(?: in cohort)? for (?P<resource>\S+) in flavor (?P<flavor>[^,\s]+)"
    r", (?P<more>\S+) more needed"
)
_NEVER = re.compile(
    r"insufficient quota for (?P<resource>\S+) in flavor (?P<flavor>[^,\s]+)[^()]*\((?P<asked>\S+) > (?P<most>\S+?)\)"
)
_UNCOVERED = re.compile(r"resource (?P<resource>\S+) unavailable in ClusterQueue")
_FLAVOR_TAINT = re.compile(
    r"untolerated taint \{?(?P<key>[^\s{}=:]+)[ =]?(?P<value>[^\s{}:]*?)[ :]+(?P<effect>NoSchedule|NoExecute)[^{}]*?\}?"
    r" in flavor (?P<flavor>[^,\s]+)"
)
_FLAVOR_LABELS = re.compile(r"flavor (?P<flavor>\S+) doesn't match node affinity")
_TOPOLOGY = re.compile(
    r"topology \"?(?P<name>[\w.-]+)\"? (?:doesn't allow to fit any of (?P<all>\d+)"
    r"|allows to fit only (?P<fit>\d+) out of (?P<of>\d+))"
)
_OVERTIME = re.compile(r"MaximumExecutionTime|maximum execution time")
_PATIENCE_SECONDS = 120


def find(joined: JoinedEvidence) -> Iterator[Finding]:
    """One finding at most: a run that is admitted has none."""
    if joined.is_scaled_down or joined.finished is not None or any(pod.is_running for pod in joined.current.values()):
        return
    if joined.workload:
        yield from _from_workload(joined)
    elif (
        joined.queue
        and joined.is_suspended
        and not any(r.verb.startswith("list workloads") for r in joined.evidence.refused)
    ):
        waited = seconds_between(joined.created, joined.now) or 0
        if waited > _PATIENCE_SECONDS:
            yield Finding(
                "queue-ignored",
                "broken",
                f"the run has waited {span(waited)} for queue {joined.queue}, and Kueue has not taken note of it",
                "see that Kueue runs and handles this kind (`kubectl get pods -n kueue-system`), or set kind: job",
            )


def _from_workload(joined: JoinedEvidence) -> Iterator[Finding]:
    conditions = conditions_of(joined.workload)
    finished, admitted = conditions.get("Finished"), conditions.get("Admitted")
    if finished is not None and finished.status == "True":
        return
    if at(joined.workload, "spec").get("active") is False:
        evicted = conditions.get("Evicted")
        if evicted is not None and _OVERTIME.search(f"{evicted.reason} {evicted.message}"):
            yield _overtime(joined, evicted)
            return
        yield Finding(
            "queue-deactivated",
            "broken",
            f"Kueue has put the run aside: {evicted.message if evicted else 'its Workload is not active'}",
            "submit it again; raise the queue's requeuing limit where it was put aside for starting too slowly",
            _lines(evicted),
        )
        return
    if admitted is not None and admitted.status == "True":
        return
    queue = text(joined.workload, "spec", "queueName") or joined.queue
    yield from _by_check(joined, queue)
    reserved = conditions.get("QuotaReserved")
    if reserved is not None and reserved.status == "True":
        return
    evicted = conditions.get("Evicted")
    if evicted is not None and evicted.status == "True":
        yield _evicted(evicted, queue)
    waited = seconds_between(_created(joined), joined.now) or 0
    yield _waiting(reserved, queue, waited)


def _by_check(joined: JoinedEvidence, queue: str) -> Iterator[Finding]:
    for check in maps(joined.workload, "status", "admissionChecks"):
        state, name = text(check, "state"), text(check, "name")
        if state in ("Pending", "Retry", "Rejected"):
            message = text(check, "message")
            yield Finding(
                "queue-check",
                "broken" if state == "Rejected" else "waiting",
                f"queue {queue} waits for admission check {name} ({state}){': ' + message if message else ''}",
                f"`kubectl get provisioningrequests` shows what {name} waits for"
                if state != "Rejected"
                else f"change what {name} refuses in cluster.yaml, or use another queue (queue.name)",
                (f"admissionCheck {name}: {state}: {message}",),
            )


def _waiting(reserved: Condition | None, queue: str, waited: float) -> Finding:
    message = reserved.message if reserved else ""
    reason = reserved.reason if reserved else ""
    lines = _lines(reserved)
    missing, inactive = _MISSING.search(message), _INACTIVE.search(message)
    if missing is not None:
        fix = "set queue.name in cluster.yaml to one that `kubectl get localqueues` lists"
        if missing["kind"] == "ClusterQueue":
            fix = (
                f"ask the cluster's administrator for ClusterQueue {missing['name']}, or set queue.name to another"
                " queue"
            )
        cause = f"{missing['kind']} {missing['name']} does not exist, so nothing will ever admit the run"
        return Finding("queue-missing", "broken", cause, fix, lines)
    if inactive is not None:
        fix = (
            f"ask the cluster's administrator why {inactive['name']} is {inactive['why']}, or set queue.name to"
            " another queue"
        )
        cause = f"{inactive['kind']} {inactive['name']} is {inactive['why']}, so it admits nothing"
        return Finding("queue-inactive", "broken", cause, fix, lines)
    never, unused = _NEVER.search(message), _UNUSED.search(message)
    other_flavor = never is not None and unused is not None and never["resource"] == unused["resource"]
    uncovered = _UNCOVERED.search(message)
    if uncovered is not None:
        cause = f"queue {queue} gives out no {uncovered['resource']} at all, so it never admits the run"
        fix = (
            f"leave out {field_of(uncovered['resource'])} in cluster.yaml, or set queue.name to a queue that covers it"
        )
        return Finding("quota-too-small", "broken", cause, fix, lines)
    flavor = _by_flavor(message, queue, lines)
    tainted = (
        flavor is not None and flavor.code == "flavor-taint"
    )  # then what the other flavors never have is no matter
    if (never is not None or reason == "ExceedsMaxQuota") and not other_flavor and not tainted:
        return _too_much(never, message, queue, lines)
    topology = _TOPOLOGY.search(message)
    if topology is not None or reason == "TopologyPlacementFailed":
        fit = (
            f"{topology['fit'] or 0} of {topology['of'] or topology['all']} pods fit into topology {topology['name']}"
            if topology
            else message
        )
        cause = f"queue {queue} finds no place close enough together: {fit}"
        fix = "wait, lower num_nodes, or take the topology annotation out of annotations in cluster.yaml"
        return Finding("queue-topology", "waiting", cause, fix, lines)
    if unused is not None:
        cause = (
            f"queue {queue} has no free quota: {unused['more']} more {unused['resource']} needed"
            f" in flavor {unused['flavor']}; waiting {span(waited)}"
        )
        fix = (
            f"wait until other runs of the queue end (`kubectl get workloads`), lower {field_of(unused['resource'])}"
            " or num_nodes, or set queue.priority"
        )
        return Finding("quota-waiting", "waiting", cause, fix, lines)
    if flavor is not None:
        return flavor
    cause = f"queue {queue} has not admitted the run after {span(waited)}{': ' + message if message else ''}"
    fix = "wait until other runs of the queue end (`kubectl get workloads` shows them), or set queue.priority"
    return Finding("queue-waiting", "waiting", cause, fix, lines)


def _by_flavor(message: str, queue: str, lines: tuple[str, ...]) -> Finding | None:
    """Quota that is there, of machines that the pods are not for."""
    taints = list(_FLAVOR_TAINT.finditer(message))
    if taints:
        first = taints[0]
        value = f", value: {first['value']}" if first["value"] else ""
        names = listed(f"{m['flavor']} ({m['key']}{'=' + m['value'] if m['value'] else ''})" for m in taints)
        return Finding(
            "flavor-taint",
            "broken",
            f"queue {queue} could admit the run to machines of flavor {names}, whose taint its pods do not tolerate",
            f"add tolerations: [{{key: {first['key']}{value}, effect: {first['effect']}}}] to cluster.yaml if the run"
            " may use these machines, or set queue.name to another queue",
            lines,
        )
    labels = [m["flavor"] for m in _FLAVOR_LABELS.finditer(message)]
    if labels:
        return Finding(
            "flavor-selector",
            "broken",
            f"queue {queue} has quota of flavor {listed(labels)} only, whose machines node_selector leaves out",
            "correct node_selector in cluster.yaml (`kubectl get resourceflavors -o yaml` shows their labels), or set"
            " queue.name to another queue",
            lines,
        )
    return None


def _overtime(joined: JoinedEvidence, evicted: Condition) -> Finding:
    seconds = whole(joined.workload, "spec", "maximumExecutionTimeSeconds")
    limit = f" of {span(seconds)}" if seconds else ""
    return Finding(
        "queue-time-limit",
        "failed",
        f"Kueue ended the run after its maximum execution time{limit}: {evicted.message}",
        "raise label kueue.x-k8s.io/max-exec-time-seconds (labels in cluster.yaml) or leave it out, and submit again to"
        " continue",
        _lines(evicted),
    )


def _too_much(never: re.Match[str] | None, message: str, queue: str, lines: tuple[str, ...]) -> Finding:
    if never is None:
        cause = f"the run asks for more than queue {queue} may ever use: {message}"
        fix = "lower num_nodes or nproc_per_node in cluster.yaml, or set queue.name to a larger queue"
        return Finding("quota-too-small", "broken", cause, fix, lines)
    cause = (
        f"the run asks for {never['asked']} {never['resource']} and queue {queue} never has more than {never['most']}"
        f" in flavor {never['flavor']}"
    )
    fix = f"lower num_nodes or {field_of(never['resource'])} in cluster.yaml, or set queue.name to a larger queue"
    return Finding("quota-too-small", "broken", cause, fix, lines)


def _evicted(evicted: Condition, queue: str) -> Finding:
    lines = _lines(evicted)
    if evicted.reason == "PodsReadyTimeout":
        return Finding(
            "queue-pods-ready",
            "waiting",
            f"Kueue took the run's quota back because its pods were not ready in time: {evicted.message}",
            "look at why pods start slowly (image, volumes), or ask for a longer waitForPodsReady timeout in Kueue",
            lines,
        )
    if evicted.reason == "Preempted":
        return Finding(
            "queue-preempted",
            "waiting",
            f"Kueue gave the run's quota in queue {queue} to another workload: {evicted.message}",
            "wait: it continues from its checkpoint once admitted again; set queue.priority to be preempted less",
            lines,
        )
    return Finding(
        "queue-evicted",
        "waiting",
        f"Kueue took the run out of queue {queue} ({evicted.reason}): {evicted.message}",
        "wait: it continues from its checkpoint once admitted again",
        lines,
    )


def _created(joined: JoinedEvidence) -> datetime | None:
    return moment(at(joined.workload, "metadata").get("creationTimestamp"))


def _lines(condition: Condition | None) -> tuple[str, ...]:
    if condition is None:
        return ()
    return (f"Workload {condition.type}={condition.status} ({condition.reason}): {condition.message}",)
