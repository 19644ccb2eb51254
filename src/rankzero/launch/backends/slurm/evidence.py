"""A job of Slurm in the shapes of the Kubernetes API: a pod for each of its nodes. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from rankzero.errors import ExitCode
from rankzero.launch import labels
from rankzero.launch.backends.slurm.command import Job
from rankzero.launch.backends.slurm.state import Ending, NodeNotes
from rankzero.launch.kinds.slurm import CONDITION, NODE_LABEL, NOT_STARTED, UNKNOWN
from rankzero.launch.labels import Manifest
from rankzero.launch.log_lines import read_stamp
from rankzero.launch.render.sbatch import RETRY_EXIT_OFFSET
from rankzero.launch.render.sbatch_parts import LATE_SECONDS
from rankzero.launch.untyped_json import whole

SIGTERM_CODE, SIGKILL_CODE = 143, 137
_GRACE_SECONDS = 180
"""Of a run whose script was handed to sbatch by hand, which says none."""
_FAILURES = frozenset(ExitCode) - {ExitCode.DONE, ExitCode.STOPPED}
"""What a script says of itself; srun's own codes say less."""
_CLOCKS = timedelta(seconds=60)
"""By so much the clock of a file system may be behind Slurm's."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """What is known of one node of a run."""

    restart: int
    """Which start of the job the notes are of."""
    notes: NodeNotes
    words: str = ""
    own: str = ""
    """The last lines of its log, where what srun starts speaks."""
    written: datetime | None = None
    """When it was written last."""
    batch: str = ""
    """The last lines of the batch script's, where srun speaks."""
    batch_written: datetime | None = None
    """When that was written last."""
    cancelled: bool = False
    """Whether its job was told to stop for good."""
    mute: bool = False
    """Whether it is of a job that ended well, of which nobody noted anything here."""
    left_with: int = 0
    """The exit code of its job, where that is of a part that could not note its end: on a volume that is full."""

    @property
    def tail(self) -> str:
        """What was said of it last."""
        return self.own or self.batch


def num_nodes(about: Mapping[str, Any]) -> int:
    """Of the script's metadata."""
    return whole(about, "annotations", labels.NODES) or 1


def grace_seconds(about: Mapping[str, Any]) -> int:
    """What a stop leaves the run for saving."""
    return whole(about, "spec", "grace") or _GRACE_SECONDS


def pods_of(
    about: Mapping[str, Any], job: Job | None, number: str, nodes: Sequence[NodeSeen], now: datetime
) -> list[Manifest]:
    """A pod for each node. `job` is None where Slurm does not know the job of this number any more."""
    begun = any(seen.notes.began for seen in nodes)
    job = as_heard(job, now, begun=begun)
    if job is not None and job.state == "COMPLETED" and not begun:
        nodes = [replace(seen, mute=True) for seen in nodes]
    nodes = _with_code(job, nodes)
    own = about.get("labels", {})
    name = str(about.get("name", ""))
    left = all(_has_left(_notes(job, seen)) for seen in nodes)
    return [
        _pod(
            about,
            job,
            number,
            (f"{name}-{node}", {**own, labels.ROLE: labels.NODE_ROLE, NODE_LABEL: str(node)}),
            seen,
            all_left=left,
        )
        for node, seen in enumerate(nodes)
    ]


def preparation_pod(about: Mapping[str, Any], job: Job | None, number: str, seen: NodeSeen) -> Manifest:
    """The pod of what goes before the nodes. `job` as in `pods_of`."""
    own = {**about.get("labels", {}), labels.ROLE: labels.PREPARE_ROLE}
    called = (labels.prepare_name(str(about.get("name", ""))), own)
    (seen,) = _with_code(job, [seen])
    pod = _pod(about, job, number, called, seen, all_left=_has_left(_notes(job, seen)))
    if is_done(seen.notes):  # its job may take a moment to end
        pod["metadata"].pop("deletionTimestamp", None)
        pod["status"]["phase"] = "Succeeded"
    return pod


def as_heard(job: Job | None, now: datetime, *, begun: bool) -> Job | None:
    """One that has just ended well and whose nodes noted nothing here is about to end: a network file system may show
    late what is new. Later they are known to have written it elsewhere."""
    if job is None or job.state != "COMPLETED" or job.ended is None or begun:
        return job
    return replace(job, state="COMPLETING") if now - job.ended <= timedelta(seconds=LATE_SECONDS) else job


def is_done(notes: NodeNotes) -> bool:
    """Whether the preparation noted a good end."""
    return bool(notes.endings) and not notes.runs and notes.endings[-1].code == 0


def config_map(about: Mapping[str, Any], job: Job | None) -> Manifest:
    """What stands for the run beside its pods."""
    metadata = {**_created(job), **_metadata(about)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def _metadata(about: Mapping[str, Any]) -> Manifest:
    return {name: value for name, value in about.items() if name != "spec"}


def _restart(job: Job | None, seen: NodeSeen) -> int:
    """Which start of the job counts."""
    if job is None:
        return seen.restart
    if job.restarts is not None:
        return job.restarts
    last = seen.notes.endings[-1].at if _has_left(seen.notes) else seen.notes.began
    return seen.restart + (last is not None and job.started is not None and last < job.started - _CLOCKS)


def _notes(job: Job | None, seen: NodeSeen) -> NodeNotes:
    """Those that count: none of a start that is over."""
    return seen.notes if seen.restart == _restart(job, seen) else NodeNotes()


def _with_code(job: Job | None, parts: Sequence[NodeSeen]) -> list[NodeSeen]:
    """Told the exit code of a failed job, which is that of one of its parts. Where one has noted it, or has not begun,
    it says nothing of the others; with that of a stop the job leaves only where all have stopped."""
    if job is None or job.state != "FAILED":
        return list(parts)
    known = [_notes(job, seen) for seen in parts]
    noted = {end.code for notes in known for end in notes.endings}
    absent = any(notes.began is None and not notes.endings for notes in known)
    is_of_others = absent or (job.code in noted and job.code != ExitCode.STOPPED)
    return [replace(seen, left_with=0 if is_of_others else job.code) for seen in parts]


def _has_left(notes: NodeNotes) -> bool:
    return bool(notes.endings) and not notes.runs


def _pod(
    about: Mapping[str, Any],
    job: Job | None,
    number: str,
    called: tuple[str, Mapping[str, str]],
    seen: NodeSeen,
    *,
    all_left: bool,
) -> Manifest:
    """`called` is its name and its labels; `all_left`: nothing of the run is on any node any more."""
    name, own = called
    restart, notes = _restart(job, seen), _notes(job, seen)
    metadata: Manifest = {**_created(job), **_metadata(about), "name": name, "labels": dict(own)}
    status = _status(job, notes, seen, all_left=all_left)
    again = restart + max(0, len(notes.endings) - (not notes.runs))
    status["containerStatuses"] = [{"name": "node", "restartCount": again, **status.pop("container")}]
    state, reason = (UNKNOWN, "") if job is None else (job.state, job.reason)
    condition = {"type": CONDITION, "status": "True", "reason": state, "message": f"{number}: {reason}"}
    status["conditions"] = [condition]
    spec: Manifest = {"containers": [{"name": "node"}], "terminationGracePeriodSeconds": grace_seconds(about)}
    host = notes.host or ("" if job is None or job.is_waiting else job.nodes)
    if host:
        spec["nodeName"] = host
    if job is not None and not job.is_waiting and not job.is_over and all_left:
        metadata["deletionTimestamp"] = _text(notes.endings[-1].at)  # the job is about to end, or to be queued again
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def _status(job: Job | None, notes: NodeNotes, seen: NodeSeen, *, all_left: bool) -> Manifest:
    """Phase, and under `container` the state of the container."""
    before = {"lastState": _terminated(notes.endings[-1], "")} if notes.runs and notes.endings else {}
    if job is None or job.is_over:
        return _over(job, notes, seen)
    if notes.runs and not job.is_waiting:
        running = {"running": {"startedAt": _text(notes.began)}}
        return {"phase": "Running", "container": {"state": running, **before}}
    if notes.endings and not job.is_waiting:
        return _left(notes.endings[-1], seen, all_left=all_left)
    waits = job.reason.partition(",")[0].partition(" ")[0] or job.state.capitalize()
    return {"phase": "Pending", "container": {"state": {"waiting": {"reason": waits}}}}


def _left(end: Ending, seen: NodeSeen, *, all_left: bool) -> Manifest:
    """Of a node that has ended in a job that has not: because others are still there, or it is to be queued again."""
    if end.code == ExitCode.STOPPED or (all_left and end.code == 0):
        return {"phase": "Running", "container": {"state": {"waiting": {"reason": "Completing"}}}}
    ended = _terminated(end, seen.words or (seen.tail if end.code else ""))
    phase = "Running" if all_left else "Failed" if end.code else "Succeeded"
    return {"phase": phase, "container": {"state": ended}}


def _over(job: Job | None, notes: NodeNotes, seen: NodeSeen) -> Manifest:
    state = UNKNOWN if job is None else job.state
    ended = notes.endings[-1] if notes.endings and not notes.runs else None
    code = ended.code if ended is not None else _code_without_words(job, notes, seen)
    begun = notes.began is not None  # else words and log are of a start before
    at = ended.at if ended is not None else None if job is None else job.ended
    end = Ending(code, notes.began, at) if at is not None else None
    message = _in_the_end(seen.words, code) if begun else ""
    message = message or ((seen.tail if begun else _of_a_start(job, seen)) if code else "")
    value = _terminated(end, message) if end is not None else {"terminated": {"exitCode": code, "message": message}}
    if state == "OUT_OF_MEMORY" and code not in (0, *ExitCode):
        value["terminated"]["reason"] = "OOMKilled"
    status: Manifest = {"phase": "Failed" if code else "Succeeded", "container": {"state": value}}
    if (state in ("FAILED", UNKNOWN) or seen.mute) and not begun and ended is None and code != ExitCode.STOPPED:
        status["reason"] = NOT_STARTED
    elif state not in ("COMPLETED", "FAILED", UNKNOWN):
        status["reason"] = state
    return status


def _of_a_start(job: Job | None, seen: NodeSeen) -> str:
    """What srun and what it starts said of a node before that could note that it began. Logs go on from one start to
    the next: they count where they were written in this one, and its own behind the last line that a run has printed.
    """

    def counts(written: datetime | None) -> bool:
        if job is not None and job.started is not None and written is not None:
            return written >= job.started - _CLOCKS
        return _restart(job, seen) == 0

    lines = seen.own.splitlines() if counts(seen.written) else []
    stamped = [at for at, line in enumerate(lines) if read_stamp(line).time is not None]
    since = lines[stamped[-1] + 1 :] if stamped else lines
    return "\n".join(line for line in (seen.batch if counts(seen.batch_written) else "", *since) if line)


def _in_the_end(words: str, code: int) -> str:
    """A node that lost its peers while all were asked to stop has stopped: its script notes that, whatever it said."""
    if code != ExitCode.STOPPED or not words:
        return words
    try:
        said = json.loads(words)
    except ValueError:
        return words
    return json.dumps({**said, "exit_code": code, "outcome": "stopped"}) if isinstance(said, dict) else words


def _code_without_words(job: Job | None, notes: NodeNotes, seen: NodeSeen) -> int:
    """Of a node that has noted no end."""
    state = UNKNOWN if job is None else job.state
    if state == "COMPLETED":
        return int(ExitCode.CONFIG) if seen.mute else 0
    if (state == "CANCELLED" or seen.cancelled) and not notes.runs:
        return int(ExitCode.STOPPED)  # nothing had begun
    if state in ("FAILED", UNKNOWN) and notes.began is None:
        return job.code if job is not None and job.code in _FAILURES else int(ExitCode.INTERNAL)
    if seen.left_with:
        own = seen.left_with - RETRY_EXIT_OFFSET
        return own if own in _FAILURES else seen.left_with
    return SIGKILL_CODE if state in ("OUT_OF_MEMORY", UNKNOWN) else SIGTERM_CODE


def _terminated(ending: Ending, message: str) -> Manifest:
    ended: Manifest = {"exitCode": ending.code, "reason": "Error" if ending.code else "Completed"}
    ended["finishedAt"] = _text(ending.at)
    if ending.began is not None:
        ended["startedAt"] = _text(ending.began)
    if message:
        ended["message"] = message
    return {"terminated": ended}


def _created(job: Job | None) -> Manifest:
    return {} if job is None or job.submitted is None else {"creationTimestamp": _text(job.submitted)}


def _text(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%dT%H:%M:%SZ}"
