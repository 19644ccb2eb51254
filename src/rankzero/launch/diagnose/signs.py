"""Signs: phrases that by themselves tell the cause, whoever says them: runtime, driver, NCCL, Python, Hub. Pure.

A sign is looked for in what kept a container from starting and in what it said when it ended; in its log only where
that says nothing of the cause. Patterns are the stable part of a component's message, without numbers and versions.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from rankzero.errors import ExitCode
from rankzero.launch.diagnose.finding import Finding, Severity, hosts_named
from rankzero.launch.diagnose.remedies import remedies, told
from rankzero.launch.joined import JoinedEvidence
from rankzero.launch.log_lines import find_line
from rankzero.launch.pods import Ended, Pod
from rankzero.launch.untyped_json import seconds_between
from rankzero.wording import counted, listed

START_REASONS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
"""Why a container waits that cannot be made."""
START_ENDINGS = ("StartError", "ContainerCannotRun")
"""How a container ends that could not be made."""
RECENT_SECONDS = 900
"""The kubelet repeats what is still true; older events may be cured."""
_LONGEST_LINE = 200
_OWN_AFFAIR = (0, 2, 65, 75, 77, 78)
"""Exit codes with which the run itself says what was wrong."""
_SAYS_LITTLE = re.compile(
    r"process \d+ (?:failed with exit code|was killed by)|another process is gone|did not answer for"
    r"|CUDA error: (?:unknown error|unspecified launch failure)|^\s*$"
)
"""An ending that leaves the cause open, so that the log is asked."""


@dataclass(frozen=True, slots=True)
class Sign:
    """One cause, the phrase that shows it, and what is said of it.

    `cause` and `fix` may name {who} (`node 0 (pod x)`), {hosts}, {host} and {pod} (of the first), {image}, {said} (what
    the run itself said), what helps where the run is (_ADVICE), and the groups of the pattern.
    """

    code: str
    pattern: re.Pattern[str]
    cause: str
    fix: str
    also: re.Pattern[str] | None = None
    """What must stand in the log too, for phrases that alone could mean several things."""
    of_service: bool = False
    """Whether it counts only where the run said that a service failed it: logs hold retries that helped."""


_ADVICE = ("elsewhere", "choose", "processors", "processes", "interfaces", "driver", "locked")
"""Of the remedies of a place."""
_HUB_HINT = "or put the files on a volume (model.local_dir, HF_HUB_OFFLINE)"
_NO_GPU = "no GPU of {hosts} is seen by {who}, though GPUs were asked for: no NVIDIA driver reaches the container"
_GIVE_GPU = (
    "have the administrator look at {host} (driver, container toolkit{driver}); set gpu: false where no GPU is wanted"
)

SIGNS: tuple[Sign, ...] = (
    Sign(
        "driver-too-old",
        re.compile(
            r"requirement error: unsatisfied condition: (?P<want>[^,\n]+)"
            r"|NVIDIA driver on your system is too old(?: \(found version (?P<found>\d+)\))?"
            r"|CUDA driver version is insufficient|cudaErrorInsufficientDriver"
            r"|forward compatibility was attempted on non supported HW|PTX was compiled with an unsupported toolchain"
        ),
        "the NVIDIA driver of {hosts} is too old for image {image} of {who}",
        "have the driver of {hosts} brought up to date, or set image in cluster.yaml to one with an older CUDA, or"
        " {choose}",
    ),
    Sign(
        "gpu-runtime",
        re.compile(
            r"nvidia-container-(?:cli|runtime|toolkit)|nvidia-(?:ctk|cdi-hook)"
            r"|(?:no runtime for|RuntimeHandler|runtime handler|invalid runtime name:?) \"?(?P<handler>nvidia[\w-]*)"
            r"|unresolvable CDI devices (?P<device>[^\s\"]+)|failed to inject CDI devices"
            r"|could not select device driver .*gpu|unsupported display driver / cuda driver combination"
        ),
        "the NVIDIA container runtime of {hosts} cannot give {who} its GPUs: {line}",
        "have the administrator look at {host} (driver loaded? nvidia-container-toolkit and GPU operator well?); until"
        " then {elsewhere}",
    ),
    Sign(
        "gpu-hardware",
        re.compile(
            r"uncorrectable (?:ECC|NVLink) error|GPU is lost|fallen off the bus|hardware stack error|GPU requires reset"
            r"|NVRM: Xid \([^)]*\): (?:48|62|63|64|74|79|94|95|119|120)\b|row.?remap\w* fail"
        ),
        "a GPU of {hosts}, which {who} had, is broken: {line}",
        "{elsewhere} and continues; have the GPU of {host} reset or repaired (`nvidia-smi -q` there)",
    ),
    Sign(
        "gpu-fabric",
        re.compile(r"(?i)system not yet initialized|Error 802\b|CUDA_ERROR_SYSTEM_NOT_READY|fabric ?manager.{0,60}not"),
        "{who} cannot use the GPUs of {hosts}: NVIDIA's fabric manager does not run there, or does not fit the driver",
        "have nvidia-fabricmanager started on {host}, in the driver's own version; until then {elsewhere}",
    ),
    Sign(
        "gpu-unsupported",
        re.compile(
            r"no kernel image is available for execution|is not compatible with the current PyTorch installation"
        ),
        "the PyTorch of image {image} is not made for the GPUs that {who} got on {hosts}",
        "set image in cluster.yaml to one whose PyTorch knows these GPUs, or {choose}",
    ),
    Sign(
        "no-driver",
        re.compile(
            r"Found no NVIDIA driver|no CUDA-capable device is detected|No CUDA GPUs are available"
            r"|libcuda\.so\.1: cannot open shared object|couldn't communicate with the NVIDIA driver"
            r"|Failed to initialize NVML"
        ),
        _NO_GPU,
        _GIVE_GPU,
    ),
    Sign(
        "memlock",
        re.compile(r"ibv_\w+(?:\(\))? failed\b[^\n]*Cannot allocate memory"),
        "{who} may not lock the memory that RDMA needs: {line}",
        "have locked memory unlimited on {hosts} ({locked}); or env: {{NCCL_IB_DISABLE: '1'}} in cluster.yaml",
    ),
    Sign(
        "network-interface",
        re.compile(r"no socket interface found|Unable to find address for:? ?(?P<name>[\w.-]+)"),
        "no network interface of {who} has the name that {variables} asks for: {line}",
        "take {variables} out of env in cluster.yaml (without it the interface of the pod's own address is taken), or"
        " set it to one that {interfaces}",
    ),
    Sign(
        "image-platform",
        re.compile(r"(?i)exec format error"),
        "image {image} of {who} is not made for the processors of {hosts}",
        "build the image for the hosts' processors, or {processors}",
    ),
    Sign(
        "thread-limit",
        re.compile(
            r"can't start new thread|pthread_create failed[^\n]*Resource temporarily unavailable"
            r"|Thread creation failed: Resource temporarily|OMP: Error #34|failed to create new OS thread"
            r"|(?:fork: (?:retry: )?|what\(\): +)Resource temporarily unavailable"
        ),
        "{who} may have no more threads or processes on {hosts}: {line}",
        "have {processes} on {hosts} raised, or start fewer: OMP_NUM_THREADS and OPENBLAS_NUM_THREADS"
        " in env of cluster.yaml",
    ),
    Sign(
        "thread-limit",
        re.compile(r"\[Errno 11\] Resource temporarily unavailable"),
        "{who} may have no more processes on {hosts}: {line}",
        "have {processes} on {hosts} raised, or start fewer processes (nproc_per_node in cluster.yaml)",
        also=re.compile(r"\bfork|_fork_exec|start_new_thread"),
    ),
    Sign(
        "hub-rate-limit",
        re.compile(r"HTTP Error 429|429 Client Error|429 Too Many Requests|you have reached your '\w+' rate limit"),
        "the server limits how often {who} may ask (429): {said}",
        "wait some minutes and submit again; give the pods a token (secrets.HF_TOKEN: its limits are higher) and a"
        " shared"
        f" storage.cache, so that each file is fetched once, {_HUB_HINT}",
        of_service=True,
    ),
    Sign(
        "hub-tls",
        re.compile(r"(?i)CERTIFICATE_VERIFY_FAILED|certificate verify failed|self[- ]signed certificate"),
        "a certificate that {who} was shown is not trusted (of a proxy that opens TLS, or of the site itself): {said}",
        "put the authority's certificate on a volume or into the image, and set env: {{SSL_CERT_FILE: …,"
        f" REQUESTS_CA_BUNDLE: …}}}} in cluster.yaml, {_HUB_HINT}",
        of_service=True,
    ),
)
ON_CPU = (
    Sign("no-driver", re.compile(r"UserWarning: CUDA initialization: "), f"{_NO_GPU}: {{line}}", _GIVE_GPU),
    Sign("no-driver", re.compile(r"\[DDP\] rank \d+ of \d+ on cpu \("), _NO_GPU, _GIVE_GPU),
)
_DEVICE_LINE = re.compile(r"UserWarning: CUDA initialization: [^\n]+|\[DDP\] rank \d+ of \d+ on \w[^\n]*")
"""What PyTorch and the run itself say of the device, before the first step."""
_INTERFACES = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}


@dataclass(frozen=True, slots=True)
class Seen:
    """A sign in what a pod left behind."""

    sign: Sign
    match: re.Match[str]
    line: str


def find(joined: JoinedEvidence) -> Iterator[Finding]:
    """One finding for each cause; the pods that show it are counted."""
    found: dict[tuple[str, Severity], list[tuple[Pod, Seen]]] = {}
    for pod in joined.all_pods:
        told = _of_pod(joined, pod)
        if told is not None:
            seen, severity = told
            found.setdefault((seen.sign.code, severity), []).append((pod, seen))
    for (_, severity), several in found.items():
        yield _finding(joined, several, severity)


def explains(joined: JoinedEvidence, pod: Pod, end: Ended) -> bool:
    """Whether an ending is a matter of this module."""
    return of_end(joined, pod, end) is not None


def leaves_open(end: Ended) -> bool:
    """Whether what a container said when it ended says nothing of the cause, so that its log may."""
    return end.words is None or _SAYS_LITTLE.search(end.words.sentence) is not None


def of_text(text: str, signs: tuple[Sign, ...] = SIGNS) -> Seen | None:
    """The sign in a message."""
    for sign in signs:
        match = sign.pattern.search(text)
        if match is not None:
            return Seen(sign, match, find_line(text, sign.pattern) or match[0])
    return None


def of_end(joined: JoinedEvidence, pod: Pod, end: Ended) -> Seen | None:
    """The sign in how a container ended: in its own words first, in its log only where those leave the cause open."""
    if end.code in _OWN_AFFAIR or end.reason == "OOMKilled":
        return None
    said = end.words.sentence if end.words is not None else end.message
    seen = of_text(said)
    if seen is None and leaves_open(end) and end is pod.endings[0]:
        seen = of_text(joined.trouble_of(pod))
    if seen is None:
        return None
    if seen.sign.of_service and (end.code != ExitCode.SERVICE or (end.words and end.words.outcome == "peer_lost")):
        return None
    if seen.sign.also is not None and seen.sign.also.search(f"{said}\n{joined.log_of(pod)}") is None:
        return None
    return seen


def _of_pod(joined: JoinedEvidence, pod: Pod) -> tuple[Seen, Severity] | None:
    if pod.phase == "Succeeded":
        return None
    past = joined.is_past(pod)
    if not past and not pod.is_running:
        for text in _start_messages(joined, pod):
            seen = of_text(text)
            if seen is not None:
                return seen, "broken"
    for end in pod.endings:
        seen = of_end(joined, pod, end)
        if seen is not None:
            return seen, "info" if past or (end is pod.before and pod.is_running) else "failed"
    if pod.is_running and not past and any("gpu" in resource for resource in pod.requests):
        device = _DEVICE_LINE.search(joined.log_of(pod))
        seen = of_text(device[0], (*SIGNS, *ON_CPU)) if device is not None else None
        return (seen, "broken") if seen is not None else None
    return None


def _start_messages(joined: JoinedEvidence, pod: Pod) -> Iterator[str]:
    """What the kubelet and the runtime say of a container that they cannot start."""
    if pod.waiting in START_REASONS:
        yield pod.waiting_message
    for end in pod.endings:
        if end.reason in START_ENDINGS:
            yield end.message
    if pod.is_over:
        return
    for event in reversed(joined.events_of(pod)):
        recent = (seconds_between(event.at, joined.now) or 0) <= RECENT_SECONDS
        if recent and event.reason in ("Failed", "FailedCreatePodSandBox"):
            yield event.message


def _finding(joined: JoinedEvidence, several: list[tuple[Pod, Seen]], severity: Severity) -> Finding:
    pod, seen = several[0]
    nodes = sorted({one.node for one, _ in several})
    who = f"{pod.title} (pod {pod.name})" if len(several) == 1 else f"{counted(len(nodes), 'node')} of the run"
    if len(several) > 1:
        who += f" ({listed(map(str, nodes), 4)})"
    variable = _INTERFACES["gloo" if "gloo" in seen.line or "find address" in seen.line else "nccl"]
    value, words = pod.interfaces.get(variable), remedies(joined)
    names = {
        **{name: told(joined, getattr(words, name), pod) for name in _ADVICE},
        "who": who,
        "hosts": hosts_named((one.host for one, _ in several), 3),
        "host": pod.host or "the host",
        "pod": pod.name,
        "image": pod.image,
        "line": textwrap.shorten(seen.line, _LONGEST_LINE, placeholder=" …"),
        "said": next((end.words.sentence for end in pod.endings if end.words is not None), seen.line),
        "variables": f"{variable}: {value}" if value else variable,
    }
    line = f"{pod.name}: {seen.line}"
    cause, fix = seen.sign.cause.format(**names), seen.sign.fix.format(**names)
    return Finding(seen.sign.code, severity, cause, fix, (line,), pod.node)
