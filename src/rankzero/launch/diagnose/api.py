"""What the API refused: to us while submitting or looking, or to a controller that makes the pods. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rankzero.launch.diagnose.finding import Finding, Severity
from rankzero.launch.evidence import Refusal
from rankzero.launch.joined import JoinedEvidence
from rankzero.launch.kinds import controlled
from rankzero.launch.refusals import Asked, Reason, reason_in, reason_of, tells_unserved
from rankzero.launch.untyped_json import text

_WORKLOAD = "Workload"
_CHANGING = ("create", "patch", "update", "apply", "delete")
_OPTIONAL = ("nodes", "storageclasses", "workloads", "localqueues", "clusterqueues")
"""Kinds that many users may not read; the rest is judged without them."""


def find(joined: JoinedEvidence) -> Iterator[Finding]:
    """Refused calls of ours, then refused pods."""
    for refusal in joined.evidence.refused:
        yield from _from_refusal(refusal, joined)
    if joined.finished is not None or len(joined.current) >= joined.num_nodes or not joined.evidence.objects:
        return
    controllers = {_WORKLOAD, *(kind.resource.kind for kind in controlled().values())}
    for (kind, name), events in joined.events.items():
        last = next((e for e in reversed(events) if e.reason in ("FailedCreate", "FailedCreatePod")), None)
        if kind in controllers and last is not None:
            cannot = f"{kind} {name} cannot make its pods"
            found = reason_in(last.message, _asked(cannot, joined))
            if found is not None:
                yield _finding(found, "broken", last.message)
                continue
            cause, fix = f"{cannot}: {last.message}", "change in cluster.yaml what the message names, then submit again"
            yield Finding("pods-refused", "broken", cause, fix, (f"{last.reason}: {last.message}",))


def _from_refusal(refusal: Refusal, joined: JoinedEvidence) -> Iterator[Finding]:
    verb, _, what = refusal.verb.partition(" ")
    changing = verb in _CHANGING
    if refusal.status == 404 and not changing and not tells_unserved(refusal.message):
        return
    if not changing and what.split(".")[0] in _OPTIONAL:
        if refusal.status >= 500:
            cause = f"{what} could not be looked at ({refusal.status} {refusal.reason}): {refusal.message}"
            fix = "look again; the run is judged without them, and the cluster's administrator knows more"
            yield Finding("not-seen", "info", cause, fix)
        return
    found = reason_of(refusal, _asked(f"the cluster refused to {refusal.verb}", joined))
    if found.code == "refused" and (not changing or refusal.status == 409):
        return
    line = f"{refusal.verb}: {refusal.status} {refusal.reason}: {refusal.message}"
    yield _finding(found, "broken" if changing else "info", line)


def _asked(subject: str, joined: JoinedEvidence) -> Asked:
    return Asked(subject, joined.run, text(joined.trainer, "kind"))


def _finding(reason: Reason, severity: Severity, line: str) -> Finding:
    """`severity` is that of what was asked for, where the reason says none."""
    return Finding(reason.code, reason.severity or severity, reason.cause, reason.fix, (line,))
