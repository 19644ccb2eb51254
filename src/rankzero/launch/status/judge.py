"""From evidence to RunStatus: the phase, how far it is, each node's state, and the sentence that says it all. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from rankzero.errors import ExitCode
from rankzero.launch import labels
from rankzero.launch.diagnose import diagnose_joined
from rankzero.launch.diagnose.finding import Finding, span
from rankzero.launch.evidence import Evidence
from rankzero.launch.joined import Finished, JoinedEvidence
from rankzero.launch.kinds import kind_named
from rankzero.launch.last_words import LastWords
from rankzero.launch.log_lines import Progress, awaited_nodes, last_progress
from rankzero.launch.pods import Ended, Pod, conditions_of
from rankzero.launch.status.model import NodeState, Phase, RunRow, RunStatus
from rankzero.launch.untyped_json import at, seconds_between
from rankzero.spec.kinds import KINDS
from rankzero.wording import counted

_STARTED = "[STEP] train"
CLOCK_SLACK = timedelta(minutes=2)
LONGEST_SILENCE = 300
"""Seconds after which the last progress line says nothing of the present."""
APPLY_SECONDS = 60
"""Within which a submit that waited for the preparation applies what trains."""
_ENDED: dict[Finished, Phase] = {"succeeded": "Succeeded", "stopped": "Stopped", "failed": "Failed"}


def run_status(evidence: Evidence) -> RunStatus:
    """Judge one run."""
    return _status(JoinedEvidence(evidence))


def summarise(several: Sequence[Evidence]) -> tuple[RunRow, ...]:
    """One row for each run, the newest first."""
    runs = [JoinedEvidence(evidence) for evidence in several]
    runs.sort(key=lambda joined: joined.run)
    runs.sort(key=lambda joined: joined.created or joined.now, reverse=True)
    return tuple(_row(_status(joined)) for joined in runs)


def _row(status: RunStatus) -> RunRow:
    return RunRow(
        run=status.run,
        kind=status.kind,
        phase=status.phase,
        running=status.running,
        num_nodes=status.num_nodes,
        restarts=status.restarts,
        age_seconds=status.age_seconds,
        verdict=status.verdict,
    )


def _status(joined: JoinedEvidence) -> RunStatus:
    findings = diagnose_joined(joined)
    progress = _progress(joined)
    phase = _phase(joined, progress)
    step, total = _steps(joined, phase, progress)
    exit_code = _exit_code(joined, phase, findings)
    since = seconds_between(progress.at, joined.now) if progress is not None else None
    moving = phase == "Running" and (since is None or since < LONGEST_SILENCE)
    eta = max(0.0, progress.eta_seconds - (since or 0)) if progress is not None and moving else None
    status = RunStatus(
        run=joined.run,
        name=joined.annotation(labels.RUN_NAME) or joined.run,
        kind=joined.kind,
        phase=phase,
        verdict="",
        num_nodes=joined.num_nodes,
        nodes=_nodes(joined, phase),
        step=step,
        total_steps=total,
        loss=progress.loss if progress is not None else None,
        tokens_per_second=progress.tokens_per_second if progress is not None and moving else None,
        eta_seconds=eta,
        restarts=_restarts(joined),
        age_seconds=seconds_between(joined.created, joined.now),
        findings=findings,
        run_dir=_run_dir(joined),
        goodput=next((words.goodput for words in _last_words(joined) if words.goodput), ""),
        exit_code=exit_code,
        scores=next((words.scores for words in _last_words(joined) if words.scores), {}),
        scores_unread=next((words.scores_unread for words in _last_words(joined) if words.scores_unread), ""),
    )
    return _with_verdict(status)


def _phase(joined: JoinedEvidence, progress: Progress | None) -> Phase:
    """In the order of certainty: how it ended, what it was told, then what its pods do."""
    if joined.finished is not None:
        return _ENDED[joined.finished]
    if not joined.trainer and not joined.pods and not joined.is_preparing:
        return _phase_of_nobody(joined)
    alive = [pod for pod in joined.current.values() if not pod.is_over]
    put_aside = at(joined.workload, "spec").get("active") is False
    if joined.is_suspended or put_aside:
        if alive:
            return "Stopping"
        waits = joined.queue and not put_aside and not joined.is_scaled_down
        return "Queued" if waits else "Stopped"
    if alive and all(pod.deleting_since is not None for pod in alive):
        return "Stopping"
    if joined.is_preparing:
        return "Preparing"
    if not joined.current:
        return "Queued" if joined.workload and not _admitted(joined) else "Pending"
    return _phase_of_pods(joined, progress)


def _phase_of_nobody(joined: JoinedEvidence) -> Phase:
    """Neither what trains nor a pod of it is there, and nothing prepares it."""
    is_there = bool(joined.objects.get("ConfigMap") or joined.preparation or joined.prepare_pods)
    if joined.kind in KINDS and not kind_named(joined.kind).controlled:
        if joined.prepare_pods:
            return "Pending"
        return "Stopped" if is_there else "Unknown"  # what its pods would mount is there
    waited = seconds_between(joined.prepared, joined.now)
    if waited is not None and waited < APPLY_SECONDS:
        return "Pending"
    return "Gone" if is_there else "Unknown"


def _phase_of_pods(joined: JoinedEvidence, progress: Progress | None) -> Phase:
    running = [pod for pod in joined.current.values() if pod.is_running]
    done = [pod for pod in joined.current.values() if pod.phase == "Succeeded"]
    if len(running) + len(done) >= joined.min_nodes:
        return "Running" if _trains(joined, running, progress) else "Starting"
    if running or any(pod.host for pod in joined.current.values()):
        return "Starting"
    return "Pending"


def _trains(joined: JoinedEvidence, running: Sequence[Pod], progress: Progress | None) -> bool:
    """Whether steps are made. Logs hold the lines of an earlier start too; without any log, pods that run must do."""
    logs = [log for pod in running if (log := joined.log_of(pod))]
    if any(map(awaited_nodes, logs)):
        return False
    since = min((pod.running_since for pod in running if pod.running_since is not None), default=None)
    if progress is not None:
        return progress.at is None or since is None or progress.at >= since - CLOCK_SLACK
    return not logs or any(_STARTED in log for log in logs)


def _admitted(joined: JoinedEvidence) -> bool:
    admitted = conditions_of(joined.workload).get("Admitted")
    return admitted is not None and admitted.status == "True"


def _progress(joined: JoinedEvidence) -> Progress | None:
    """The farthest of the pods that count; rank 0 alone speaks, and which node it is on is the launcher's affair."""
    found = [
        line for pod in joined.current.values() if (line := last_progress(joined.log_of(pod), joined.now)) is not None
    ]
    return max(found, key=lambda line: line.step, default=None)


def _steps(joined: JoinedEvidence, phase: Phase, progress: Progress | None) -> tuple[int | None, int | None]:
    step, total = (progress.step, progress.total_steps) if progress is not None else (None, None)
    for words in _last_words(joined):
        if words.step is not None and (step is None or words.step > step):
            step = words.step
        total = total or words.total_steps
    if phase == "Succeeded" and total is not None and (step is None or step < total) and not _ended_early(joined):
        step = total
    return step, total


def _ended_early(joined: JoinedEvidence) -> bool:
    """Early stopping, or a node's word that it made fewer steps."""
    return any(words.outcome == "done" and words.step is not None for words in _last_words(joined))


def _last_words(joined: JoinedEvidence) -> list[LastWords]:
    """Everything that pods of the run left behind, the newest first."""
    ends: list[Ended] = [end for pod in reversed(joined.pods) for end in pod.endings]
    words = [end.words for end in ends if end.words is not None]
    return [joined.outcome, *words] if joined.outcome is not None else words


def _run_dir(joined: JoinedEvidence) -> str:
    """First by what its pods said, since `resume: new` is decided there; one that could not read its spec says `.`."""
    told = (words.run_dir for words in _last_words(joined) if words.run_dir.startswith("/"))
    return next(told, "") or joined.annotation(labels.RUN_DIR)


def _restarts(joined: JoinedEvidence) -> int:
    """Pods that were followed by others, and containers that were started again; some controllers count too."""
    seen = len(joined.replaced) + sum(pod.restarts for pod in joined.current.values())
    return max(seen, joined.restarts_counted)


def _nodes(joined: JoinedEvidence, phase: Phase) -> tuple[NodeState, ...]:
    if not joined.current:
        return ()
    before: dict[int, int] = {}
    for pod in joined.replaced:
        before[pod.node] = before.get(pod.node, 0) + 1
    wanted = range(joined.num_nodes) if joined.finished is None and phase not in ("Stopped", "Stopping") else ()
    states = [
        NodeState(
            node=pod.node,
            pod=pod.name,
            state=_state(pod),
            restarts=pod.restarts + before.get(pod.node, 0),
            host=pod.host,
            age_seconds=seconds_between(pod.created, joined.now),
        )
        for pod in joined.current.values()
    ]
    states += [NodeState(node, "", "No pod", 0, "", None) for node in wanted if node not in joined.current]
    return tuple(sorted(states, key=lambda state: state.node))


def _state(pod: Pod) -> str:
    """The word that says best what a pod is in."""
    if pod.phase == "Succeeded":
        return "Completed"
    if pod.phase == "Failed":
        return _how_it_failed(pod)
    if pod.deleting_since is not None:
        return "Terminating"
    if pod.phase == "Unknown":
        return "Unknown"
    if pod.is_running:
        return "Running"
    if pod.waiting:
        return pod.waiting
    if pod.ended is not None:
        return _how_it_failed(pod) if pod.ended.code else "Completed"
    return "Pending" if not pod.host else "Starting" if pod.phase == "Pending" else pod.phase


def _how_it_failed(pod: Pod) -> str:
    if pod.reason:
        return pod.reason
    if pod.ended is None:
        return "Failed"
    if pod.ended.reason and pod.ended.reason not in ("Error", "Completed"):
        return pod.ended.reason
    return "Failed" if pod.ended.code is None else f"Exit {pod.ended.code}"


def _exit_code(joined: JoinedEvidence, phase: Phase, findings: Sequence[Finding]) -> int | None:
    """Of the pod at fault: the first finding's; peers leave with codes that only say that they had to."""
    if phase == "Succeeded":
        return int(ExitCode.DONE)
    if phase not in ("Failed", "Stopped"):
        return None
    if joined.outcome is not None and joined.outcome.exit_code is not None:
        return joined.outcome.exit_code
    ran = joined.pods or joined.prepare_pods[-1:]
    ends = {pod.node: pod.ended for pod in ran if pod.ended is not None and pod.ended.code}
    codes = {node: end.code for node, end in ends.items()}
    rest = {node: code for node, code in codes.items() if code != ExitCode.STOPPED and not _is_peer(ends[node])}
    blamed = [rest[finding.node] for finding in findings if finding.node in rest]
    own = next(iter([*blamed, *rest.values(), *codes.values()]), None)
    return int(ExitCode.STOPPED) if own is None and phase == "Stopped" else own


def _is_peer(end: Ended) -> bool:
    return end.words is not None and end.words.outcome == "peer_lost"


def _with_verdict(status: RunStatus) -> RunStatus:
    trouble = next((finding for finding in status.findings if finding.severity != "info"), None)
    put_aside = status.phase == "Stopped" and trouble is not None and trouble.code.startswith("queue-")
    if trouble is not None and (put_aside or status.phase not in ("Stopped", "Succeeded", "Gone")):
        return replace(status, verdict=_sentence(trouble.cause))
    return replace(status, verdict=_sentence(_healthy(status)))


def _healthy(status: RunStatus) -> str:
    """What there is to say where nothing is wrong."""
    at_step = f"step {status.step:,}" if status.step is not None else ""
    of = f"{at_step} of {status.total_steps:,}" if at_step and status.total_steps else at_step
    if status.phase == "Running":
        loss = f", loss {status.loss:.4f}" if status.loss is not None else ""
        left = f", {span(status.eta_seconds)} left" if status.eta_seconds is not None else ""
        return f"{of}{loss}{left}" if of else f"{counted(status.running, 'node')} running"
    if status.phase == "Succeeded":
        place = f"; the results are in {status.run_dir}" if status.run_dir else ""
        return f"finished{f' after {of}' if of else ''}{place}"
    if status.phase == "Gone":
        place = f"; its results, if any, are in {status.run_dir}" if status.run_dir else ""
        how = "was not begun, was cancelled, or was removed after its end"
        return f"nothing of it is in the cluster that could train: it {how}{place}; submit it again to go on"
    nodes = f"{status.running} of {counted(status.num_nodes, 'node')} running"
    return {
        "Stopped": f"stopped{f' at {of}' if of else ''}; submit it again to continue",
        "Failed": f"failed{f' at {of}' if of else ''}; submit it again to continue from the last checkpoint",
        "Queued": "waiting for its queue to admit it",
        "Preparing": "the model and the data are being prepared; training waits for that",
        "Pending": "waiting for its pods to be placed",
        "Starting": f"{nodes}; pods start, meet and load the model",
        "Stopping": "stopping: pods save and leave",
    }.get(status.phase, f"nothing in the cluster belongs to a run {status.run}")


def _sentence(words: str) -> str:
    return words.rstrip(".")
