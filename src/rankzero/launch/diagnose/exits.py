"""What the run itself said when it ended: our exit codes, termination messages, and the tail of the log. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankzero.errors import ExitCode
from rankzero.launch.diagnose.config import explains as is_config
from rankzero.launch.diagnose.finding import Finding, Severity
from rankzero.launch.diagnose.memory import explains as is_memory
from rankzero.launch.diagnose.network import explains as is_network
from rankzero.launch.diagnose.network import follows_another
from rankzero.launch.diagnose.remedies import remedies, told
from rankzero.launch.diagnose.signs import START_ENDINGS, START_REASONS
from rankzero.launch.diagnose.signs import explains as is_sign
from rankzero.launch.diagnose.slurm import ENDED_BY_SLURM
from rankzero.launch.joined import JoinedEvidence
from rankzero.launch.kinds.slurm import NOT_STARTED
from rankzero.launch.log_lines import SaidError, last_error
from rankzero.launch.pods import Ended, Pod
from rankzero.wording import counted

_GATED = re.compile(r"(?i)\bgated\b|\b401\b|\b403\b|awaiting a review|unauthorized|restricted access")
_NO_SPACE = re.compile(r"(?i)no space left|disk quota exceeded|disk is full|ENOSPC")
_READ_ONLY = re.compile(r"(?i)read-only file system|permission denied|\bEACCES\b|not permitted")
_LEASE = re.compile(r"(?i)held by|another run|lease")
_CODES = {
    ExitCode.USAGE: ("usage", "correct the command line that run.yaml was made from, then submit again"),
    ExitCode.DATA: ("bad-data", "correct the data (`rankzero data check` finds every bad row), then submit again"),
    ExitCode.SERVICE: (
        "service-unavailable",
        "see that pods reach the service (proxy and HF_ENDPOINT in env of cluster.yaml)",
    ),
    ExitCode.INTERNAL: (
        "internal-error",
        "`rankzero logs` shows the traceback; submit again to continue from the last checkpoint",
    ),
    ExitCode.STORAGE: (
        "storage-error",
        "see that storage.outputs in cluster.yaml can be written and has room, then submit again",
    ),
    ExitCode.ACCESS: ("access-denied", "give the pods a token that may read it: secrets.HF_TOKEN in cluster.yaml"),
    ExitCode.CONFIG: ("bad-config", "correct run.yaml, then submit again"),
}
_TAKEN = ("Evicted", "NodeLost", "NodeShutdown")
_SIGNALS = {139: "SIGSEGV", 134: "SIGABRT", 132: "SIGILL", 136: "SIGFPE"}


def find(joined: JoinedEvidence) -> Iterator[Finding]:
    """Failures by what was said, each kind once; then pods that stopped after saving."""
    found: dict[tuple[str, str, bool], tuple[Finding, int]] = {}
    for pod in reversed(joined.all_pods):
        if pod.phase == "Succeeded":
            continue
        past = joined.is_past(pod)
        for end in pod.endings:
            again = past or (end is pod.before and pod.is_running)
            finding = _of_end(joined, pod, end, "info" if again else "failed")
            if finding is not None:
                key = (finding.code, finding.fix, again)
                found[key] = (finding, found[key][1] + 1 if key in found else 1)
                break
    yield from _from_outcome(joined)
    for finding, count in found.values():
        more = f" (and {counted(count - 1, 'other pod')})" if count > 1 and finding.code != "stopped" else ""
        yield Finding(finding.code, finding.severity, finding.cause + more, finding.fix, finding.evidence, finding.node)
    yield from _crash_loops(joined)


def _of_end(joined: JoinedEvidence, pod: Pod, end: Ended, severity: Severity) -> Finding | None:
    if end.code in (0, None) or any(explains(joined, pod, end) for explains in (is_memory, is_sign, is_network)):
        return None
    if end.words is not None and follows_another(end):
        return Finding(
            "peer-lost",
            severity,
            f"{pod.title} left because another node was lost: {end.words.what}",
            end.words.hint or "look at the other nodes with `rankzero logs`; submit again to continue",
            (end.words.what,),
            pod.node,
        )
    if pod.reason == NOT_STARTED:
        return None  # slurm.py has it
    said = _said(joined, pod, end)
    if end.code == ExitCode.STOPPED:
        return _stopped(joined, pod, end)
    if end.code in _CODES and (said.text or end.words is not None):
        return _ours(joined, pod, end, said, severity)
    if end.code in _CODES and end.code != ExitCode.USAGE:
        code, fix = _CODES[ExitCode(end.code)]
        cause = f"{pod.title} (pod {pod.name}) left with exit code {end.code} and said nothing more"
        return Finding(code, severity, cause, fix, (f"{pod.name}: exit code {end.code}",), pod.node)
    if end.reason in START_ENDINGS or pod.reason in (*_TAKEN, *ENDED_BY_SLURM):
        return None
    disrupted = pod.conditions.get("DisruptionTarget")
    if (disrupted is not None and disrupted.status == "True") or is_config(end.message or joined.log_of(pod)):
        return None
    return _crash(pod, end, said, severity)


def _said(joined: JoinedEvidence, pod: Pod, end: Ended) -> SaidError:
    """The error in its own words: the termination message, else its tail of the log, else the log."""
    if end.words is not None:
        return SaidError(end.words.sentence, end.words.hint)
    return last_error(end.message) or last_error(joined.log_of(pod)) or SaidError("")


def _ours(joined: JoinedEvidence, pod: Pod, end: Ended, said: SaidError, severity: Severity) -> Finding:
    code = ExitCode(end.code or 0)
    slug, fix = _CODES[code]
    fix = said.hint or fix
    if code is ExitCode.ACCESS and _GATED.search(said.text):
        slug = "gated-model"
        secret = next((full for full, name in pod.secrets.items() if name == "HF_TOKEN" and "/" in full), "")
        place = f"key {secret.partition('/')[2]} of Secret {secret.partition('/')[0]}" if secret else "a Secret"
        token = told(joined, remedies(joined).token, pod, secret=place)
        fix = f"accept the model's terms on its Hub page, then {token}"
    elif code is ExitCode.STORAGE and _NO_SPACE.search(said.text):
        slug = "storage-full"
        fix = f"{remedies(joined).room}, or lower checkpoint.keep in run.yaml"
    elif code is ExitCode.STORAGE and _READ_ONLY.search(said.text):
        slug = "storage-read-only"
        fix = f"make that volume writable (read_only in storage of cluster.yaml), and {remedies(joined).owner}"
    elif code is ExitCode.STORAGE and _LEASE.search(said.text):
        slug = "run-directory-held"
    at = f" after step {end.words.step}" if end.words is not None and end.words.step else ""
    return Finding(
        slug,
        severity,
        f"{pod.title} failed{at}: {said.text}",
        fix,
        (f"{pod.name}: exit code {end.code}", said.text),
        pod.node,
    )


def _stopped(joined: JoinedEvidence, pod: Pod, end: Ended) -> Finding | None:
    """Saved and left. Its new pod continues; only where there is none, somebody must submit again."""
    if joined.finished is None and not joined.is_suspended and joined.trainer:
        return None
    step = end.words.checkpoint if end.words is not None else None
    saved = f" and saved at step {step}" if step is not None else ""
    return Finding(
        "stopped",
        "info",
        f"the run was stopped{saved}",
        "submit it again to continue from there",
        (f"{pod.name}: exit code {int(ExitCode.STOPPED)}",),
    )


def _crash(pod: Pod, end: Ended, said: SaidError, severity: Severity) -> Finding:
    signal = _SIGNALS.get(end.code or 0)
    how = f"was ended by {signal}" if signal else f"left with exit code {end.code}, which is none of rankzero's"
    if end.code == 143:
        how = "was ended by SIGTERM before it could take note of it"
    why = f": {said.text}" if said.text else ""
    return Finding(
        "crash",
        severity,
        f"{pod.title} (pod {pod.name}) {how}{why}",
        said.hint
        or f"`rankzero logs --node {pod.node}` shows what led to it; submit again to continue from the last checkpoint",
        (f"{pod.name}: exit code {end.code} {end.reason}".rstrip(), said.text),
        pod.node,
    )


def _from_outcome(joined: JoinedEvidence) -> Iterator[Finding]:
    """A StatefulSet's pods are gone when it has ended; node 0 noted how."""
    words = joined.outcome
    if words is None or words.outcome == "done" or any(pod.endings for pod in joined.pods):
        return
    code = words.exit_code
    if joined.finished == "stopped":
        saved = f" and saved at step {words.checkpoint}" if words.checkpoint is not None else ""
        yield Finding("stopped", "info", f"the run was stopped{saved}", "submit it again to continue from there")
    elif code in _CODES:
        end = Ended(code, "", None, None, None, "", words)
        pod = next(iter(joined.current.values()), None)
        said = SaidError(words.sentence, words.hint)
        slug, fix = _CODES[ExitCode(code)]
        if pod is not None:
            yield _ours(joined, pod, end, said, "failed")
        else:
            yield Finding(slug, "failed", f"the run failed: {said.text}", said.hint or fix, (said.text,))


def _crash_loops(joined: JoinedEvidence) -> Iterator[Finding]:
    """Only where nothing is known of why."""
    for pod in joined.newest:
        if pod.waiting == "CrashLoopBackOff":
            yield Finding(
                "crash-loop",
                "broken",
                f"{pod.title} (pod {pod.name}) ended {counted(pod.restarts, 'time')} and is started again with"
                " growing delay",
                f"`rankzero logs --node {pod.node}` shows why it ends",
                (pod.waiting_message,),
                pod.node,
            )
        elif pod.waiting in START_REASONS and not pod.waiting_message:
            yield Finding(
                "container-config",
                "broken",
                f"{pod.title} (pod {pod.name}): {pod.waiting}",
                f"`kubectl describe pod {pod.name}` says what is wrong in env, secrets or storage of cluster.yaml",
                (),
                pod.node,
            )
