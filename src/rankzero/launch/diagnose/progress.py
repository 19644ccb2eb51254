"""Runs that do not get on: no pods, a rank that is silent while others speak, no step for long. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from rankzero.launch.diagnose.finding import Finding, span
from rankzero.launch.diagnose.remedies import remedies, told
from rankzero.launch.evidence import ABOUT_TO_START
from rankzero.launch.joined import JoinedEvidence
from rankzero.launch.log_lines import awaited_nodes, last_progress, last_spoken, progress_gap
from rankzero.launch.node.settings import CONTROL_PORT, MASTER_PORT
from rankzero.launch.pods import Pod
from rankzero.launch.untyped_json import seconds_between, text
from rankzero.spec.kinds import kind_section
from rankzero.wording import counted, listed

PATIENCE_SECONDS = 120
_PARTING_SECONDS = 60
"""What a sidecar may take to leave after the container it stands beside."""
SILENT = timedelta(minutes=5)
STALLED = timedelta(minutes=15)
USUAL_TIMES = 8
"""How many times the longest gap between two progress lines is still nothing unusual."""


def find(joined: JoinedEvidence) -> Iterator[Finding]:
    """Only of runs that have not ended."""
    if joined.finished is not None or joined.is_suspended:
        return
    yield from _no_pods(joined)
    yield from _held(joined)
    yield from _partly(joined)
    yield from _still(joined)


def _no_pods(joined: JoinedEvidence) -> Iterator[Finding]:
    if not joined.trainer or joined.pods or joined.is_preparing:
        return
    waited = seconds_between(joined.created, joined.now) or 0
    if waited > PATIENCE_SECONDS and not joined.workload:
        kind = text(joined.trainer, "kind")
        yield Finding(
            "no-pods",
            "broken",
            f"{kind} {joined.run} has made no pods in {span(waited)}: its controller may not run",
            f"have the administrator see that the controller of {kind} runs, or set kind: job in cluster.yaml",
        )


def _held(joined: JoinedEvidence) -> Iterator[Finding]:
    """Pods whose own container has ended, and which another one keeps from ending."""
    held = [
        (pod, pod.ended)
        for pod in joined.newest
        if pod.ended is not None and pod.beside and not pod.is_over and pod.deleting_since is None
    ]
    held = [(pod, end) for pod, end in held if (seconds_between(end.finished, joined.now) or 0) > _PARTING_SECONDS]
    if not held:
        return
    pod, end = held[0]
    others = listed(pod.beside)
    more = f" (and {counted(len(held) - 1, 'other pod')})" if len(held) > 1 else ""
    yield Finding(
        "sidecar-running",
        "broken",
        f"{pod.title} has ended with exit code {end.code}, but {others} runs on in pod {pod.name}{more}, which so never"
        " ends and keeps its GPUs",
        f"keep {others} out of the pods (labels and annotations in cluster.yaml, such as sidecar.istio.io/inject:"
        f" 'false') or have it made a native sidecar; `kubectl delete pod {pod.name}` frees the GPUs",
        (f"{pod.name}: {others} running since after {end.reason}",),
        pod.node,
    )


def _partly(joined: JoinedEvidence) -> Iterator[Finding]:
    """Some pods run, others are only on their way, and nothing else says why."""
    running = [pod for pod in joined.current.values() if pod.is_running]
    late = [
        (seconds_between(pod.created, joined.now) or 0, pod)
        for pod in joined.newest
        if pod.host
        and not pod.is_running
        and not pod.is_over
        and pod.ended is None
        and pod.waiting in ("", "ContainerCreating", "PodInitializing")
        and pod.deleting_since is None
    ]
    if late and kind_section(joined.kind).on_this_machine:
        newest = [joined.prepared, *(pod.created for _, pod in late)]
        since = max((at for at in newest if at is not None), default=joined.now)
        if joined.now - since < ABOUT_TO_START:
            return
        waited, pod = max(late, key=lambda one: one[0])
        yield Finding(
            "pod-pending",
            "broken",
            f"{pod.title} (pod {pod.name}) was made {span(waited)} ago and has not been started: its submit was ended"
            " before that",
            "give the same `rankzero submit` again",
            (f"{pod.name}: {pod.waiting or pod.phase}",),
            pod.node,
        )
        return
    late = [(waited, pod) for waited, pod in late if waited > STALLED.total_seconds() / 3]
    if late:
        waited, pod = max(late, key=lambda one: one[0])
        others = f" while {len(running)} of {joined.num_nodes} nodes run and wait for it" if running else ""
        yield Finding(
            "pod-pending",
            "waiting",
            f"{pod.title} (pod {pod.name}) has been starting on host {pod.host} for {span(waited)}{others}",
            f"`kubectl describe pod {pod.name}` says what it waits for; cordon host {pod.host} if others start at once",
            (f"{pod.name}: {pod.waiting or pod.phase}",),
            pod.node,
        )


def _still(joined: JoinedEvidence) -> Iterator[Finding]:
    """All ranks step together: while steps are reported, nobody is stuck."""
    running = [pod for pod in joined.current.values() if pod.is_running and joined.log_of(pod)]
    if not running:
        return
    yield from _awaited(joined, running)
    steps = [
        (found.at, pod) for pod in running if (found := last_progress(joined.log_of(pod), joined.now)) and found.at
    ]
    stepped = max((moment for moment, _ in steps), default=None)
    gaps = [gap for pod in running if (gap := progress_gap(joined.log_of(pod), joined.now)) is not None]
    usual = max(gaps, default=timedelta()) * USUAL_TIMES
    if stepped is not None and joined.now - stepped < max(SILENT, usual):
        return
    spoken = {pod.name: moment for pod in running if (moment := _spoken(joined, pod)) is not None}
    newest = max(spoken.values(), default=None)
    silent = [
        pod for pod in running if pod.name in spoken and newest is not None and newest - spoken[pod.name] > SILENT
    ]
    if awaited_nodes(joined.log_of(running[0])):
        return
    if silent and newest is not None and joined.now - newest < SILENT:
        pod = min(silent, key=lambda one: spoken[one.name])
        quiet = span((joined.now - spoken[pod.name]).total_seconds())
        names = listed((f"node {one.node}" for one in silent), 4)
        yield Finding(
            "node-silent",
            "waiting",
            f"{names} {'has' if len(silent) == 1 else 'have'} said nothing for {quiet} while others speak and no"
            " step is"
            f" made (pod {pod.name} on host {pod.host or '?'})",
            f"`rankzero logs --node {pod.node}`; if it hangs, {told(joined, remedies(joined).anew, pod)}",
            (f"last line of {pod.name} at {spoken[pod.name]:%H:%M:%S}, of the others at {newest:%H:%M:%S}",),
            pod.node,
        )
    elif stepped is not None and joined.now - stepped > max(STALLED, usual):
        pod = next(pod for moment, pod in steps if moment == stepped)
        yield Finding(
            "stalled",
            "waiting",
            f"no step for {span((joined.now - stepped).total_seconds())} (the last at {stepped:%H:%M:%S})",
            "wait if a long evaluation or checkpoint is due; `rankzero logs` shows who hangs, and after `rankzero"
            " cancel`"
            " and submitting again it continues from the last checkpoint",
            (f"last progress line of {pod.name} at {stepped:%H:%M:%S}",),
        )


def _awaited(joined: JoinedEvidence, running: list[Pod]) -> Iterator[Finding]:
    """Nodes that node 0 says it waits for, although their pods have been running for long."""
    first = running[0]
    missing = [joined.current[node] for node in awaited_nodes(joined.log_of(first)) if node in joined.current]
    late = [pod for pod in missing if pod.is_running and pod is not first and _runs_for(joined, pod) > SILENT]
    if late:
        pod = late[0]
        names = listed((f"node {one.node}" for one in late), 4)
        verb, words = "runs and has" if len(late) == 1 else "run and have", remedies(joined)
        reach = told(joined, words.reach, pod, ports=f"ports {CONTROL_PORT} and {MASTER_PORT}")
        yield Finding(
            "node-silent",
            "waiting",
            f"{names} {verb} not joined for {span(_runs_for(joined, pod).total_seconds())}: node {first.node} waits"
            f" (pod {pod.name} on host {pod.host or '?'})",
            f"`rankzero logs --node {pod.node}`; see that {reach}; if it hangs, {told(joined, words.anew, pod)}",
            (f"{first.name} waits for {names}",),
            pod.node,
        )


def _runs_for(joined: JoinedEvidence, pod: Pod) -> timedelta:
    return joined.now - pod.running_since if pod.running_since is not None else timedelta()


def _spoken(joined: JoinedEvidence, pod: Pod) -> datetime | None:
    """When a pod last spoke; None where its clock cannot be ours, since it spoke before it ran."""
    found = last_spoken(joined.log_of(pod), joined.now)
    if found is None or pod.running_since is None or found < pod.running_since - timedelta(minutes=5):
        return None
    return found
