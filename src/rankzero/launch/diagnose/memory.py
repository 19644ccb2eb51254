"""Too little memory: of the pod's limit, of the host, of /dev/shm, of the GPU. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

from rankzero.launch.diagnose.finding import Finding, Severity
from rankzero.launch.diagnose.hosts import readable
from rankzero.launch.diagnose.remedies import remedies, told
from rankzero.launch.joined import JoinedEvidence
from rankzero.launch.log_lines import find_line
from rankzero.launch.pods import Ended, Pod
from rankzero.launch.untyped_json import amount
from rankzero.wording import counted

SIGKILL_CODE, SIGBUS_CODE = 137, 135
_OWN_AFFAIR = (0, 2, 65, 75, 77, 78)
"""Exit codes by which a process says that it was not killed by anything."""
_SHM = re.compile(
    r"(?i)(?:insufficient shared memory|unable to open shared memory|killed by (?:signal: )?(?:SIGBUS|bus error)"
    r"|error while creating shared memory segment|/dev/shm\S*.{0,80}no space left"
    r"|no space left on device.{0,80}/dev/shm"
    r"|unable to (?:write to|allocate|mmap).{0,60}(?:/dev/shm|shared memory)|unexpected bus error)"
)
_SHM_VOLUME = re.compile(r'Usage of EmptyDir volume "(?P<name>[^"]*shm[^"]*)" exceeds the limit "(?P<limit>[^"]+)"')
_CUDA = re.compile(
    r"(?:CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA error: out of memory|HIP out of memory"
    r"|CUBLAS_STATUS_ALLOC_FAILED|Cuda failure (?:\d+ )?'out of memory'"
    r"|error: [^:]*(?:GPU|NVIDIA|cuda)[^:]*: out of memory)"
)
_KILLED = re.compile(r"process (?P<process>\d+) was killed by SIGKILL")
_GPU_NAME = re.compile(r"(?i)gpu|nvidia|cuda|amd|gib|gb")
_NODE_LOW = re.compile(r"node was low on resource: memory")
_NEAR = timedelta(minutes=2)


def find(joined: JoinedEvidence) -> Iterator[Finding]:
    """Endings of pods, the newest attempts first; several pods of one cause make one finding."""
    found: dict[tuple[str, bool], tuple[Finding, int]] = {}
    for pod in reversed(joined.all_pods):
        past = joined.is_past(pod)
        finding = _of_pod(joined, pod, past)
        if finding is not None:
            first, count = found.get((finding.code, past), (finding, 0))
            found[finding.code, past] = (finding if finding.node == 0 else first, count + 1)
    for finding, count in found.values():
        more = f" (and {counted(count - 1, 'other pod')})" if count > 1 else ""
        yield Finding(finding.code, finding.severity, finding.cause + more, finding.fix, finding.evidence, finding.node)


def explains(joined: JoinedEvidence, pod: Pod, end: Ended) -> bool:
    """Whether an ending is a matter of this module."""
    return _of_end(joined, pod, end, "info") is not None


def _of_pod(joined: JoinedEvidence, pod: Pod, past: bool) -> Finding | None:
    if pod.phase == "Succeeded":
        return None
    severity: Severity = "info" if past else "failed"
    shm = _SHM_VOLUME.search(pod.message)
    if shm is not None:
        return _shm(joined, pod, shm["limit"], severity, pod.message)
    if pod.reason == "Evicted" and _NODE_LOW.search(pod.message):
        return _node(pod, severity, pod.message)
    for end in pod.endings:
        started_again = end is pod.before and pod.is_running
        finding = _of_end(joined, pod, end, "info" if started_again else severity)
        if finding is not None:
            return finding
    return None


def _of_end(joined: JoinedEvidence, pod: Pod, end: Ended, severity: Severity) -> Finding | None:
    said = end.words.sentence if end.words is not None else end.message
    if end.code in _OWN_AFFAIR:
        return None
    log = joined.trouble_of(pod)
    if end.reason == "OOMKilled":
        return _limit(pod, severity, f"{pod.name}: OOMKilled, exit code {end.code}")
    line = find_line(said, _SHM) or find_line(log, _SHM)
    if line is not None or end.code == SIGBUS_CODE or end.signal == 7:
        return _shm(joined, pod, pod.shm, severity, line or f"{pod.name}: exit code {end.code} (SIGBUS)")
    line = find_line(said, _CUDA) or find_line(log, _CUDA)
    ours = end.words is not None and end.words.what == "out of memory"
    if line is not None or ours:
        return _cuda(pod, end, severity, line or said.strip())
    if end.code == SIGKILL_CODE and not pod.conditions.get("DisruptionTarget"):
        return _killed(joined, pod, end, severity)
    killed = _KILLED.search(said)
    if killed is not None:
        return _child(pod, killed["process"], severity, said.strip())
    return None


def _limit(pod: Pod, severity: Severity, line: str) -> Finding:
    limit = pod.limits.get("memory", "")
    preparing = pod.role == "prepare"
    asked = f"its memory limit of {limit}" if limit else "all memory that it may have"
    number = amount(limit)
    more = f" to more than {limit}" if limit and number else ""
    fix = (
        f"set resources.memory in cluster.yaml{more} (/dev/shm counts against it), or lower"
        " train.micro_batch_tokens in run.yaml"
        if not preparing
        else "raise resources.memory in cluster.yaml: preparation asks for as much, up to 8Gi; or set prepare: never"
    )
    return Finding(
        "oom-limit",
        severity,
        f"{pod.title} (pod {pod.name}) used {asked} and was killed (OOMKilled)",
        fix,
        (line,),
        pod.node,
    )


def _node(pod: Pod, severity: Severity, line: str) -> Finding:
    request = pod.requests.get("memory")
    asks = f"it asks for {readable('memory', request)}" if request else "it asks for none"
    return Finding(
        "oom-node",
        severity,
        f"host {pod.host or '?'} ran out of memory and {pod.title} (pod {pod.name}) had to go ({asks})",
        "set resources.memory in cluster.yaml to what the run really uses, so that the scheduler keeps it free",
        (line,),
        pod.node,
    )


def _shm(joined: JoinedEvidence, pod: Pod, size: str, severity: Severity, line: str) -> Finding:
    number = amount(size)
    larger = f"{max(1, round(number / 2**30 * 2))}Gi" if number else "16Gi"
    return Finding(
        "shm-too-small",
        severity,
        f"/dev/shm of {pod.title} (pod {pod.name}) is full: it has {size or 'no size of its own'}",
        told(joined, remedies(joined).shared, pod, size=larger),
        (line,),
        pod.node,
    )


def _cuda(pod: Pod, end: Ended, severity: Severity, line: str) -> Finding:
    device = end.words.where if end.words is not None and _GPU_NAME.search(end.words.where) else ""
    hint = end.words.hint if end.words is not None else ""
    return Finding(
        "cuda-oom",
        severity,
        f"the GPU of {pod.title} (pod {pod.name}) ran out of memory{f': {device}' if device else ''}",
        hint
        or "set train.micro_batch_tokens lower in run.yaml, then train.gradient_checkpointing: true, then"
        " data.max_length lower",
        (line,),
        pod.node,
    )


def _killed(joined: JoinedEvidence, pod: Pod, end: Ended, severity: Severity) -> Finding | None:
    """SIGKILL without a word: the host's own out-of-memory killer, or the end of the grace period."""
    for event in reversed(joined.events.get(("Node", pod.host), ())):
        if event.reason in ("SystemOOM", "OOMKilling") and (
            end.finished is None or abs(event.at - end.finished) <= _NEAR
        ):
            return _node(pod, severity, event.message)
    if pod.deleting_since is not None:
        return Finding(
            "grace-too-short",
            severity,
            f"{pod.title} (pod {pod.name}) had not finished saving when its grace period of {pod.grace} s was over",
            f"set grace_period_seconds in cluster.yaml to more than {pod.grace}, or checkpoint.every lower in run.yaml",
            (f"{pod.name}: exit code 137 (SIGKILL)",),
            pod.node,
        )
    if pod.reason == "Evicted":
        return None
    return Finding(
        "killed",
        severity,
        f"{pod.title} (pod {pod.name}) was killed with SIGKILL, most likely for lack of memory on host"
        f" {pod.host or '?'}",
        f"set resources.memory in cluster.yaml higher, or see {remedies(joined).memory}",
        (f"{pod.name}: exit code 137 ({end.reason or 'no reason'})",),
        pod.node,
    )


def _child(pod: Pod, process: str, severity: Severity, line: str) -> Finding:
    limit = pod.limits.get("memory")
    beyond = f" beyond {limit}" if limit else ""
    return Finding(
        "oom-limit",
        severity,
        f"process {process} of {pod.title} (pod {pod.name}) was killed by SIGKILL, most likely for using"
        f" memory{beyond}",
        "set resources.memory in cluster.yaml higher (/dev/shm counts against it), or train.micro_batch_tokens"
        " lower in run.yaml",
        (line,),
        pod.node,
    )
