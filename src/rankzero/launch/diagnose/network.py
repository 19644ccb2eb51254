"""Ranks that do not find each other, or stop hearing from each other: DNS, rendezvous, NCCL, gloo. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rankzero.errors import ExitCode
from rankzero.launch.diagnose.finding import Finding, Severity
from rankzero.launch.diagnose.remedies import remedies, told
from rankzero.launch.diagnose.signs import explains as is_sign
from rankzero.launch.diagnose.signs import leaves_open
from rankzero.launch.joined import JoinedEvidence
from rankzero.launch.log_lines import find_line
from rankzero.launch.node.settings import CONTROL_PORT, MASTER_PORT
from rankzero.launch.pods import Ended, Pod
from rankzero.wording import counted, listed

_TIMEOUT = re.compile(
    r"Watchdog caught collective operation timeout: \w+\((?P<facts>[^\n]*?)\)"
    r"(?: ran for (?P<ms>\d+) milliseconds|\s*$)",
    re.MULTILINE,
)
_NCCL = re.compile(
    r"NCCL error|ncclSystemError|ncclRemoteError|ncclInternalError|ncclUnhandledCudaError|ncclInvalidUsage"
    r"|NCCL WARN (?!.*(?:NET/Plugin|MNNVL))|NCCL communicator was aborted|Some NCCL operations have failed or timed out"
)
_LAST_ERROR = re.compile(r"Last error:\s*(?P<line>[^\n]+)")
"""What NCCL itself says, behind what PyTorch says of it."""
_DNS = re.compile(
    r"(?i)(?:name or service not known|temporary failure in name resolution|could not resolve|nodename nor servname"
    r"|getaddrinfo failed|name does not resolve|cannot be resolved|no such host|does not resolve)"
)
_JOIN = re.compile(
    r"(?i)(?:timed? ?out.{0,80}(?:waiting for clients|rendezvous|joined|the store|other nodes|other pods|master)"
    r"|(?P<joined>\d+)/(?P<all>\d+) (?:clients|nodes|workers) joined|rendezvous\w*(?:timeout|closed)"
    r"|(?:nodes?|pods?)[ \d,…]* (?:has|have|did) not (?:join|come)|node \d+ was not reached in"
    r"|client socket has timed out"
    r"|waited .{0,60}for (?:the )?(?:other )?(?:node|pod|master))"
)
_LOST = re.compile(
    r"(?i)connection (?:reset|closed) by peer|broken pipe|connection refused|socket timeout"
    r"|gloo.{0,80}(?:timed out|connection)"
    r"|Connect(?:ion)? (?:timeout|timed out)"
)
_HOST = re.compile(
    r"(?:host=|https?://|hostname |resolve (?:host(?:name)?:? )?|lookup "
    r"|the name )['\"]?(?P<named>[a-z0-9][a-z0-9-]*(?:\.[a-z0-9-]+)*)"
    r"|(?P<pod>\b[a-z0-9][a-z0-9-]*-\d+\.[a-z0-9][\w.-]*)"
)
_PEER = re.compile(r"node \d+ (?:failed|was lost|is gone|was stopped|was started again)")
"""A node that only follows another one leaves with that one's exit code."""


@dataclass(frozen=True, slots=True)
class _Sign:
    code: str
    line: str
    match: re.Match[str]


def explains(joined: JoinedEvidence, pod: Pod, end: Ended) -> bool:
    """Whether an ending is a matter of this module."""
    return _sign(joined, pod, end) is not None


def waited_in_vain(joined: JoinedEvidence, pod: Pod, end: Ended) -> bool:
    """Whether it ended because other nodes did not come."""
    sign = _sign(joined, pod, end)
    return sign is not None and sign.code == "rendezvous-timeout"


def follows_another(end: Ended) -> bool:
    """Whether it left because another node did."""
    return end.words is not None and (end.words.outcome == "peer_lost" or bool(_PEER.match(end.words.what)))


def find(joined: JoinedEvidence) -> Iterator[Finding]:
    """One finding of each kind: all ranks of a run see the same trouble."""
    found: dict[tuple[str, bool], list[tuple[Pod, _Sign]]] = {}
    for pod in reversed(joined.all_pods):
        if pod.phase == "Succeeded":
            continue
        for end in pod.endings:
            sign = _sign(joined, pod, end)
            if sign is not None:
                past = joined.is_past(pod) or (end is pod.before and pod.is_running)
                found.setdefault((sign.code, past), []).append((pod, sign))
                break
    for (code, past), several in found.items():
        several.sort(key=lambda one: one[0].node)
        yield _MAKERS[code](joined, several, "info" if past else "failed")


def _sign(joined: JoinedEvidence, pod: Pod, end: Ended) -> _Sign | None:
    """Our own words are believed first; a log's line only where the ending itself says nothing better."""
    if end.code in (0, 2, 65, 75, 77, 78) or end.reason == "OOMKilled" or is_sign(joined, pod, end):
        return None
    said = end.words.sentence if end.words is not None else end.message
    texts = [said]
    if leaves_open(end):
        texts.append(joined.trouble_of(pod) if end is pod.endings[0] else "")
    for text in texts:
        for code, pattern in _PATTERNS:
            if code == "connection-lost" and end.code == ExitCode.SERVICE:
                continue  # a service, not a peer
            match = pattern.search(text)
            if match is not None:
                last = _LAST_ERROR.search(text, match.start()) if code == "nccl-error" else None
                line = last["line"].strip() if last is not None else find_line(text, pattern)
                return _Sign(code, line or match[0], match)
    return None


_PATTERNS = (
    ("nccl-timeout", _TIMEOUT),
    ("dns", _DNS),
    ("rendezvous-timeout", _JOIN),
    ("nccl-error", _NCCL),
    ("connection-lost", _LOST),
)


def _timeout(joined: JoinedEvidence, several: list[tuple[Pod, _Sign]], severity: Severity) -> Finding:
    pod, sign = several[0]
    facts = dict(part.strip().partition("=")[::2] for part in sign.match["facts"].split(",") if "=" in part)
    operation = facts.get("OpType", "a collective operation")
    after = f" after {int(sign.match['ms'][:12]) // 1000} s" if sign.match["ms"] else ""
    reported = {one.node for one, _ in several}
    absent = [node for node, one in joined.current.items() if node not in reported and not one.is_over]
    missing = (
        f"; node {listed(map(str, absent))} did not report it, so look there" if absent and len(several) > 0 else ""
    )
    return Finding(
        "nccl-timeout",
        severity,
        f"{operation} (sequence number {facts.get('SeqNum', '?')}) of {_who(several)} got no answer{after}{missing}",
        f"`rankzero logs{f' --node {absent[0]}' if absent else ''}` shows the silent rank; if all wait, set env:"
        " {NCCL_DEBUG: INFO} in cluster.yaml to see which network NCCL takes (NCCL_SOCKET_IFNAME only for one that pods"
        " have)",
        (sign.line,),
        absent[0] if absent else pod.node,
    )


def _nccl(joined: JoinedEvidence, several: list[tuple[Pod, _Sign]], severity: Severity) -> Finding:
    pod, sign = several[0]
    remote = "ncclRemoteError" in sign.line
    fix = (
        "set env: {NCCL_DEBUG: INFO} in cluster.yaml to see which network NCCL takes, and that"
        f" {_reach(joined, pod, 'all ports')}"
    )
    if "NET/OFI" in sign.line:
        fix = (
            f"{told(joined, remedies(joined).rdma, pod, device='vpc.amazonaws.com/efa')}, the EFA device, and see that"
            " the security group passes all traffic within itself"
        )
    elif re.search(r"(?i)\bib\b|ibv_|mlx5|NET/IB|infiniband|rdma", sign.line):
        device = told(joined, remedies(joined).rdma, pod, device="the site's device (rdma/ib …)")
        fix = f"{device}, or env: {{NCCL_IB_DISABLE: '1'}} to do without"
    elif remote:
        fix = "look for the first error of another node (`rankzero logs`); this one is only told that a peer has gone"
    return Finding("nccl-error", severity, f"NCCL failed on {_who(several)}: {sign.line}", fix, (sign.line,), pod.node)


def _dns(joined: JoinedEvidence, several: list[tuple[Pod, _Sign]], severity: Severity) -> Finding:
    pod, sign = several[0]
    host = _HOST.search(sign.line)
    name = (host["named"] or host["pod"]) if host else "a name"
    own = name.startswith(joined.run)
    fix = (
        told(joined, remedies(joined).names, pod)
        if own
        else "see that pods may reach the network (proxy in env of cluster.yaml), or set HF_HUB_OFFLINE and local paths"
    )
    return Finding("dns", severity, f"{_who(several)} cannot resolve {name}", fix, (sign.line,), pod.node)


def _join(joined: JoinedEvidence, several: list[tuple[Pod, _Sign]], severity: Severity) -> Finding:
    pod, sign = several[0]
    groups = sign.match.groupdict()
    came = f" ({groups['joined']} of {groups['all']} came)" if groups.get("joined") else ""
    absent = [p for p in joined.current.values() if not p.is_running and not p.is_over]
    missing = f"; not running: {listed(p.name for p in absent)}" if absent else ""
    return Finding(
        "rendezvous-timeout",
        severity,
        f"{_who(several)} waited for the other nodes in vain{came}{missing}: {sign.line}",
        "see why they started late (`rankzero status`), set rendezvous_timeout_seconds higher, and see that"
        f" {_reach(joined, pod, f'ports {CONTROL_PORT} and {MASTER_PORT}')}",
        (sign.line,),
        pod.node,
    )


def _lost(joined: JoinedEvidence, several: list[tuple[Pod, _Sign]], severity: Severity) -> Finding:
    pod, sign = several[0]
    return Finding(
        "connection-lost",
        severity,
        f"{_who(several)} lost the connection to another node: {sign.line}",
        "look for the first error of the other nodes (`rankzero logs`); if there is none, see that"
        f" {_reach(joined, pod, 'traffic')}",
        (sign.line,),
        pod.node,
    )


def _reach(joined: JoinedEvidence, pod: Pod, ports: str) -> str:
    return told(joined, remedies(joined).reach, pod, ports=ports)


_MAKERS = {
    "nccl-timeout": _timeout,
    "nccl-error": _nccl,
    "dns": _dns,
    "rendezvous-timeout": _join,
    "connection-lost": _lost,
}


def _who(several: list[tuple[Pod, _Sign]]) -> str:
    nodes = sorted({pod.node for pod, _ in several})
    if several[0][0].role == "prepare":
        return "the preparation pod"
    return f"node {nodes[0]}" if len(nodes) == 1 else f"{counted(len(nodes), 'node')} ({listed(map(str, nodes), 4)})"
