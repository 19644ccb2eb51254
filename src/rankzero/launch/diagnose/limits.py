"""Limits that ended a run: restarts, time, a policy. They say that it ended, and seldom why. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rankzero.errors import ExitCode
from rankzero.launch import labels
from rankzero.launch.diagnose.finding import Finding, span
from rankzero.launch.joined import JoinedEvidence
from rankzero.launch.kinds import kind_of
from rankzero.launch.untyped_json import text, whole

_MATCHED = re.compile(
    r"Container (?P<container>\S+) for pod (?:\S+/)?(?P<pod>\S+) failed with exit code (?P<code>\d+) matching"
)
_BACKOFF = re.compile(r"(?i)backoff ?limit|max number of restarts|maxRestarts")
_DEADLINE = re.compile(r"(?i)deadline|active longer")


def find(joined: JoinedEvidence) -> Iterator[Finding]:
    """The condition that the run failed with; and a run of which nothing is left."""
    if not joined.trainer and not joined.pods and not joined.prepare_pods:
        yield from _gone(joined)
        return
    for failed, condition in joined.failures:
        if _DEADLINE.search(f"{condition.reason} {condition.message}"):
            yield _deadline(joined, failed, f"{text(failed, 'kind')} Failed ({condition.reason}): {condition.message}")
            return
    if not joined.failures:
        return
    failure = joined.failures[0][1]
    line = f"{text(joined.trainer, 'kind')} Failed ({failure.reason}): {failure.message}"
    said = f"{failure.reason} {failure.message}"
    if _BACKOFF.search(said):
        allowed = _allowed(joined)
        yield Finding(
            "limit-restarts",
            "failed",
            _used_up(allowed),
            "cure the cause, then submit again to continue; raise max_restarts in cluster.yaml where failures"
            " come from outside",
            (line,),
        )
    elif "PodFailurePolicy" in said or _MATCHED.search(said):
        match = _MATCHED.search(said)
        code = int(match["code"][:6]) if match else None
        if code == ExitCode.STOPPED:
            return
        what = f"pod {match['pod']} left with exit code {code}" if match else failure.message
        yield Finding(
            "limit-policy",
            "failed",
            f"the run was ended at once, since trying again cannot cure it: {what}",
            f"{_MEANING.get(code or 0, 'see `rankzero logs`')}, then submit again",
            (line,),
        )
    else:
        yield Finding(
            "limit-failed",
            "failed",
            f"{text(joined.trainer, 'kind') or 'the run'} has failed ({failure.reason}): {failure.message}",
            "`rankzero logs` shows the last lines of every node; submit again to continue from the last checkpoint",
            (line,),
        )


_MEANING = {
    2: "correct the command line",
    65: "correct the data (`rankzero data check`)",
    77: "give the pods a token that may read the model (secrets.HF_TOKEN in cluster.yaml)",
    78: "correct run.yaml",
}


def _deadline(joined: JoinedEvidence, failed: Mapping[str, Any], line: str) -> Finding:
    """`failed` is the object that had the time limit: a JobSet leaves it to its Jobs."""
    limits = [(one, kind.time_limit) for one in (joined.trainer, failed) if (kind := kind_of(one)) is not None]
    seconds = next((found for one, path in limits if path and (found := whole(one, *path))), None)
    limit = f" of {span(seconds)}" if seconds else ""
    return Finding(
        "limit-deadline",
        "failed",
        f"the run was ended after its time limit{limit} (timeout_seconds)",
        f"raise timeout_seconds in cluster.yaml{f' above {seconds}' if seconds else ''}, or leave it out, and"
        " submit again to"
        " continue",
        (line,),
    )


def _used_up(allowed: int | None) -> str:
    if allowed == 0:
        return "max_restarts is 0, so the first failure ended the run"
    if allowed == 1:
        return "the one restart that max_restarts allows is used up"
    return f"all {'' if allowed is None else f'{allowed} '}restarts that max_restarts allows are used up"


def _allowed(joined: JoinedEvidence) -> int | None:
    noted = whole(joined.trainer, "metadata", "annotations", labels.MAX_RESTARTS)
    if noted is not None:
        return noted
    kind = joined.trained_by
    return whole(joined.trainer, *kind.restarts_allowed) if kind is not None and kind.restarts_allowed else None


def _gone(joined: JoinedEvidence) -> Iterator[Finding]:
    """Nothing of it is in the cluster, though events may be."""
    ended = next((e for (_, name), events in joined.events.items() if name == joined.run for e in events), None)
    if ended is None:
        return
    yield Finding(
        "removed",
        "info",
        f"run {joined.run} is no longer in the cluster: it was deleted, or removed after ttl_seconds_after_finished",
        "its results are in its run directory; submit again to continue or to see that it is finished",
        (f"{ended.reason}: {ended.message}",),
    )
