"""What Slurm says of a job: why it waits, and how it ended where it did not end by itself. Pure.

A job is one thing, so its pods say the same and make one finding. The words are those of squeue(1), which has what each
means; of limits there are hundreds, named by one scheme: whose, which way, of what, for whom.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rankzero.errors import ExitCode
from rankzero.launch.diagnose.finding import Finding, Severity, span
from rankzero.launch.diagnose.network import follows_another, waited_in_vain
from rankzero.launch.joined import JoinedEvidence
from rankzero.launch.kinds.slurm import CONDITION, NOT_STARTED, SUBMITTING, UNKNOWN
from rankzero.launch.labels import PREPARE_ROLE
from rankzero.launch.pods import Pod
from rankzero.launch.untyped_json import seconds_between
from rankzero.wording import listed

_RESUMES = "submit again to continue from the newest checkpoint"
ENDED_BY_SLURM = ("TIMEOUT", "PREEMPTED", "NODE_FAIL", "CANCELLED", "BOOT_FAIL", "DEADLINE", "REVOKED")
"""States of jobs whose nodes need not have said anything."""


@dataclass(frozen=True, slots=True)
class _Reason:
    pattern: re.Pattern[str]
    code: str
    severity: Severity
    cause: str
    """May name {job} and {reason}."""
    fix: str


def _reason(pattern: str, code: str, severity: Severity, cause: str, fix: str) -> _Reason:
    return _Reason(re.compile(pattern), code, severity, cause, fix)


_SHOW_LIMITS = "`sacctmgr show qos format=name,maxtresperuser,maxtresperjob,maxwall` shows the limits"
_WAITING = (
    _reason(
        rf"^{SUBMITTING}\b",
        "slurm-submitting",
        "waiting",
        "it is being handed to sbatch, which has not said the number of its job",
        "wait; where no `rankzero submit` is at it any more, submit it again, or `rankzero cancel` it",
    ),
    _reason(
        r"^(Resources|Priority)\b",
        "slurm-waiting",
        "waiting",
        "job {job} waits for free nodes ({reason})",
        "wait: `squeue --start --jobs={job}` says from when on; a lower num_nodes or slurm.time_limit_seconds starts"
        " sooner",
    ),
    _reason(
        r"^(BeginTime|Cleaning|None)\b",
        "slurm-requeued",
        "waiting",
        "job {job} is about to start (again): Slurm lets some minutes pass after a job was queued again ({reason})",
        "wait: it continues from its newest checkpoint",
    ),
    _reason(
        r"^Dependency\b",
        "slurm-singleton",
        "waiting",
        "job {job} waits until the job before it of the same run has ended",
        "wait, or `rankzero cancel` the run and submit it again",
    ),
    _reason(
        r"^DependencyNeverSatisfied\b",
        "slurm-dependency",
        "broken",
        "job {job} waits for a job that has failed",
        "`rankzero cancel` takes the run out of the queue; submit it again, with what goes before it",
    ),
    _reason(
        r"^(ReqNodeNotAvail|NodeDown|Nodes required for job are DOWN)",
        "slurm-nodes-down",
        "waiting",
        "job {job} waits for nodes that are down, drained or reserved ({reason})",
        "`sinfo --list-reasons` says why they are; wait for them, or choose others with slurm.partition,"
        " slurm.constraint or num_nodes",
    ),
    _reason(
        r"^(Reservation|ReservationDeleted)\b",
        "slurm-reservation",
        "waiting",
        "job {job} waits for its reservation ({reason})",
        "`scontrol show reservation` says when it begins, and whether there is one; else leave slurm.reservation out",
    ),
    _reason(
        r"^(PartitionDown|PartitionInactive)\b",
        "slurm-partition-down",
        "waiting",
        "job {job} waits because its partition takes no jobs now ({reason})",
        "set slurm.partition to one that `sinfo --summarize` shows as up, or wait",
    ),
    _reason(
        r"^PartitionTimeLimit\b",
        "slurm-time-limit-too-long",
        "broken",
        "job {job} asks for more time than its partition ever gives",
        "set slurm.time_limit_seconds to what `sinfo --format='%P %l'` shows, or less: the run goes on in the next"
        " allocation",
    ),
    _reason(
        r"^(PartitionNodeLimit|PartitionConfig|BadConstraints|NodeNotAvail)\b",
        "slurm-impossible",
        "broken",
        "job {job} asks for what the nodes of its partition never have ({reason})",
        "lower num_nodes, nproc_per_node or resources in cluster.yaml, or correct slurm.partition and slurm.constraint;"
        " `sinfo --format='%P %D %c %m %G %f'` shows what there is",
    ),
    _reason(
        r"^JobHeldUser\b",
        "slurm-held",
        "broken",
        "job {job} is held back by its user",
        "`scontrol release {job}`",
    ),
    _reason(
        r"^JobHeldAdmin\b",
        "slurm-held",
        "broken",
        "job {job} is held back by an administrator",
        "ask the administrators why; `scontrol show job {job}` may have a comment",
    ),
    _reason(
        r"^(JobHoldMaxRequeue|launch failed|JobLaunchFailure|BatchHold)",
        "slurm-launch-failed",
        "broken",
        "Slurm could not start job {job} on its nodes and holds it back ({reason})",
        "have the administrators look at the slurmd logs of its nodes (`scontrol show job {job}`), then"
        " `scontrol release {job}`",
    ),
    _reason(
        r"^(AccountNotAllowed|InvalidAccount|AssociationNotFound|InvalidAssociation)",
        "slurm-account",
        "broken",
        "job {job} may not use the account that it names here ({reason})",
        "set slurm.account to one of `sacctmgr show assoc user=$USER format=account,partition`",
    ),
    _reason(
        r"^(QOSNotAllowed|InvalidQOS)",
        "slurm-qos",
        "broken",
        "job {job} may not use its quality of service here ({reason})",
        "set slurm.qos to one of `sacctmgr show assoc user=$USER format=qos`",
    ),
    _reason(
        r"^Licenses\b",
        "slurm-licenses",
        "waiting",
        "job {job} waits for licenses",
        "wait, or leave licenses out of slurm.options; `scontrol show licenses` shows them",
    ),
    _reason(
        r"^(Prolog|NodesNotReady|FrontEndDown|BootFail)",
        "slurm-nodes-starting",
        "waiting",
        "the nodes of job {job} are made ready ({reason})",
        "wait; `sinfo` shows their state",
    ),
)
_LIMIT = re.compile(r"^(?P<whose>QOS|Assoc|Max)(?P<what>\w*)")
_FOR_ONE_JOB = re.compile(r"PerJob|PerNode|MaxWall|WallDuration")
_LEAST = re.compile(r"^QOSMin")
_SHOW_LEAST = "`sacctmgr show qos format=name,mintresperjob` shows the least of each"
_FIELDS = (
    (re.compile(r"GRES|Gres|GPU"), "num_nodes or nproc_per_node"),
    (re.compile(r"Node"), "num_nodes"),
    (re.compile(r"Cpu|CPU"), "resources.cpu"),
    (re.compile(r"Mem"), "resources.memory"),
    (re.compile(r"Wall|Time"), "slurm.time_limit_seconds"),
)
_ENDINGS: dict[str, tuple[str, str, str]] = {
    "TIMEOUT": (
        "slurm-timeout",
        "the time limit of job {job} was over before the run had saved",
        "set grace_period_seconds in cluster.yaml to what saving takes (Slurm asks the run to stop so long before), and"
        f" {_RESUMES}",
    ),
    "PREEMPTED": (
        "slurm-preempted",
        "job {job} was ended for one of higher priority, and its partition does not queue it again",
        f"{_RESUMES}; slurm.qos or slurm.partition decide who is preempted",
    ),
    "NODE_FAIL": (
        "slurm-node-fail",
        "a node of job {job} failed",
        f"{_RESUMES}; `sinfo --list-reasons` shows the node, slurm.options: {{exclude: NODE}} leaves it out",
    ),
    "BOOT_FAIL": ("slurm-boot-fail", "the nodes of job {job} did not boot", "submit again; tell the administrators"),
    "DEADLINE": ("slurm-deadline", "the deadline of job {job} has passed", "leave deadline out of slurm.options"),
    "CANCELLED": (
        "slurm-cancelled",
        "job {job} was ended by scancel ({reason}) before the run had saved",
        f"{_RESUMES}; `rankzero cancel` lets it save first",
    ),
    UNKNOWN: (
        "slurm-forgotten",
        "Slurm does not know job {job} any more, and not all of its nodes have noted how they ended",
        f"{_RESUMES}; its logs are kept: `rankzero logs`",
    ),
}
_NOT_STARTED = (
    "`rankzero logs` shows what srun said; correct slurm.runtime, slurm.image or slurm.options in cluster.yaml"
    " where it is about them, and submit again"
)
_SHARED = "see that storage.outputs in cluster.yaml is a directory that all nodes share with this machine"
_SAID_BY_ITS_CODE = {
    int(ExitCode.STORAGE): (
        "its script could not write to storage.outputs, nor into its log there",
        "see that storage.outputs in cluster.yaml can be written and has room, then submit again",
    ),
    int(ExitCode.CONFIG): ("a node has another storage.outputs than this machine", f"{_SHARED}, then submit again"),
}
"""Of a script whose words are not here: with which codes it ends before anything starts."""
_LATE_SECONDS = 120
"""How long after its last node a job may take to end, or to be queued again."""
_SPEAKER = re.compile(r"^(?:srun|slurmstepd(?:-\S+)?|slurmd): (?:error: |fatal: )*(?:pyxis: )?")
_SIGTERM_CODE = 143
"""Also of a node that has noted no end."""
_MOST_WORDS = 6
"""Lines of the batch script's log in a verdict."""
_HELD = ("REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")


def find(joined: JoinedEvidence) -> Iterator[Finding]:
    """At most one finding: of the job as a whole."""
    for pod in joined.newest:
        condition = pod.conditions.get(CONDITION)
        if condition is None:
            continue
        job, _, reason = condition.message.partition(": ")
        line = f"job {job}: {condition.reason}{f' ({reason})' if reason else ''}"
        found = _of_job(joined, condition.reason, reason or "no reason given", job)
        if found is not None:
            code, severity, cause, fix = found
            facts = {"{job}": job, "{reason}": reason or condition.reason}
            yield Finding(code, severity, _filled(cause, facts), _filled(fix, facts), (line,))
        return


def _filled(words: str, facts: dict[str, str]) -> str:
    """Replaced, not formatted: Slurm's own words may hold braces."""
    for name, value in facts.items():
        words = words.replace(name, value)
    return words


def _of_job(joined: JoinedEvidence, state: str, reason: str, job: str) -> tuple[str, Severity, str, str] | None:
    if state in _HELD:
        return ("slurm-held", "broken", "job {job} is held back ({reason})", "`scontrol release {job}`")
    if state == "SUSPENDED":
        cause = "job {job} is suspended: by an administrator, or because others have its nodes in turn"
        return ("slurm-suspended", "waiting", cause, "wait; `scontrol resume {job}` where you may")
    if state in ("PENDING", "REQUEUED", "REQUEUE_FED"):
        return _of_waiting(reason)
    if state == "FAILED" and reason.startswith("BadConstraints"):
        return _of_waiting(reason)
    kept = [pod for pod in joined.newest if pod.reason == NOT_STARTED]
    if kept and not any(_failed_by_itself(joined, pod) for pod in joined.newest):
        whose, said = _parts(joined, kept), _last_words(kept[0])
        if state == "COMPLETED":
            return "slurm-not-started", "failed", f"job {{job}} is completed, and {whose} noted nothing here", _SHARED
        if state == UNKNOWN and not said:
            code, _, fix = _ENDINGS[state]
            return code, "failed", f"Slurm does not know job {{job}} any more, and {whose} noted nothing here", fix
        left_with = kept[0].ended.code if kept[0].ended is not None else 0
        if state == "FAILED" and not said and left_with in _SAID_BY_ITS_CODE:
            why, fix = _SAID_BY_ITS_CODE[left_with]
            return "slurm-not-started", "failed", f"job {{job}} ended before {whose} began: {why}", fix
        cause = f"job {{job}} ended before {whose} began: {said or f'{reason}, and no word of it is here'}"
        return "slurm-not-started", "failed", cause, _NOT_STARTED if said else f"{_NOT_STARTED}; or {_SHARED}"
    if (late := _late(joined)) is not None:
        cause = f"all nodes of job {{job}} have ended {span(late)} ago, and Slurm has not ended the job"
        fix = "`scontrol show job {job}`; where it stays so, tell the administrators: an epilog or a process may hang"
        return "slurm-completing", "waiting", cause, fix
    noted = all(pod.ended is not None and pod.ended.words is not None for pod in joined.newest)
    if state in _ENDINGS and not noted and joined.finished != "stopped":
        code, cause, fix = _ENDINGS[state]
        return code, "failed", cause, fix
    return None


def _late(joined: JoinedEvidence) -> float | None:
    """For how many seconds nothing but the job itself has been there, where that is long."""
    since = [seconds_between(pod.deleting_since, joined.now) for pod in joined.newest]
    waited = min((one for one in since if one is not None), default=None)
    return waited if None not in since and waited is not None and waited > _LATE_SECONDS else None


def _failed_by_itself(joined: JoinedEvidence, pod: Pod) -> bool:
    """Whether it failed for what others are then ended for, before they begin or after. Not so a node that waited for
    one that never came, and one that was ended before it could say how."""
    end = pod.ended
    if pod.reason == NOT_STARTED or end is None or end.code in (0, ExitCode.STOPPED, _SIGTERM_CODE):
        return False
    return not follows_another(end) and not waited_in_vain(joined, pod, end)


def _parts(joined: JoinedEvidence, pods: list[Pod]) -> str:
    if pods[0].role == PREPARE_ROLE:
        return "its preparation"
    return "its nodes" if len(pods) == len(joined.newest) > 1 else listed((pod.title for pod in pods), 4)


def _last_words(pod: Pod) -> str:
    """What srun and what starts the nodes said at the end, without who said it."""
    lines = pod.ended.message.splitlines() if pod.ended is not None else []
    plain = (_SPEAKER.sub("", line).strip() for line in lines[-_MOST_WORDS:])
    return "; ".join(dict.fromkeys(line for line in plain if line))


def _of_waiting(reason: str) -> tuple[str, Severity, str, str]:
    for one in _WAITING:
        if one.pattern.search(reason):
            return one.code, one.severity, one.cause, one.fix
    limit = _LIMIT.match(reason)
    if limit is None:
        fix = "`scontrol show job {job}` says more, squeue(1) what the reason means"
        return "slurm-held-back", "waiting", "job {job} waits ({reason})", fix
    field = next((field for pattern, field in _FIELDS if pattern.search(limit["what"])), "")
    whose = "of its quality of service" if limit["whose"] == "QOS" else "of its account or user"
    if _LEAST.search(reason):
        cause = "job {job} asks for less than its quality of service takes of any job ({reason})"
        more = f"raise {field or 'num_nodes, nproc_per_node or resources'} in cluster.yaml, or set another slurm.qos"
        return "slurm-below-limit", "broken", cause, f"{more}; {_SHOW_LEAST}"
    if _FOR_ONE_JOB.search(reason):
        cause = f"job {{job}} asks for more than a limit {whose} allows any job ({{reason}})"
        return "slurm-limit", "broken", cause, f"lower {field or 'num_nodes'} in cluster.yaml; {_SHOW_LIMITS}"
    cause = f"job {{job}} waits at a limit {whose} ({{reason}}), which counts other jobs too"
    lower = f", or lower {field} in cluster.yaml where the limit is below what it asks for" if field else ""
    return "slurm-limit-shared", "waiting", cause, f"wait until others of them end{lower}; {_SHOW_LIMITS}"
