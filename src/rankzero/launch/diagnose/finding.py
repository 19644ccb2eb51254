"""Finding: one cause and one thing to do about it. Nothing in it looks like a secret. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from rankzero.wording import listed, printable

Severity = Literal["waiting", "broken", "failed", "info"]
"""waiting: passes by itself, perhaps. broken: stays so until something is changed. failed: ended a pod or the run.
info: good to know; nothing is wrong now."""

LONGEST_TEXT = 400
LONGEST_EVIDENCE = 300
MOST_EVIDENCE = 4
_HIDDEN = "[hidden]"
_SECRETS = (
    re.compile(r"\bhf_[A-Za-z0-9]{6,}"),
    re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{8,}"),
    re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|npm_|xox[abprs]-)[A-Za-z0-9_-]{8,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+){0,2}"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(r"(?i)(?<=\bbearer )[A-Za-z0-9._~+/=-]{6,}"),
    re.compile(r"(?i)(?<=\bbasic )[A-Za-z0-9+/=]{12,}"),
    re.compile(r"(?i)(?:(?<=signature=)|(?<=security-token=)|(?<=credential=)|(?<=[?&]sig=))[^&\s\"']{6,}"),
    re.compile(
        r"(?i)(?<![A-Za-z])((?:[A-Z0-9]+_)*(?:token|password|passwd|secret|secret_access_key|api_?key|apikey)"
        r"(?:[\"']?\s*=\s*[\"']?|[\"']\s*:\s*[\"']))(?!\[hidden\])[^\s\"',;&]{6,}"
    ),
    re.compile(
        r"(?i)(?<![A-Za-z])((?:[A-Z0-9]+_)*(?:token|password|passwd|secret|secret_access_key|api_?key|apikey)\s*:\s*)"
        r"(?=[a-z_./+-]*[0-9])[\w./+=-]{12,}"
    ),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a run is not healthy, and what to type or change."""

    code: str
    """Short name of the kind of cause."""
    severity: Severity
    cause: str
    """One sentence with the names and numbers."""
    fix: str
    """One concrete thing to do."""
    evidence: tuple[str, ...] = ()
    """The lines it rests on."""
    node: int | None = None
    """Which node of the run it is about, where it is about one."""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "code": self.code,
            "severity": self.severity,
            "cause": self.cause,
            "fix": self.fix,
            "evidence": list(self.evidence),
            "node": self.node,
        }


def redact(words: str) -> str:
    """Hide whatever looks like a token, key or password, and leave out what would drive a terminal."""
    words = printable(words)
    for pattern in _SECRETS:
        words = pattern.sub(rf"\g<1>{_HIDDEN}" if pattern.groups else _HIDDEN, words)
    return words


def clean(finding: Finding) -> Finding:
    """Without secrets, of bearable length, each line of evidence once."""
    seen = dict.fromkeys(_short(redact(line), LONGEST_EVIDENCE) for line in finding.evidence if line.strip())
    return replace(
        finding,
        cause=_short(redact(finding.cause), LONGEST_TEXT),
        fix=_short(redact(finding.fix), LONGEST_TEXT),
        evidence=tuple(seen)[:MOST_EVIDENCE],
    )


def _short(words: str, longest: int) -> str:
    """The start and the end: messages wrap each other, and the innermost, which says most, comes last."""
    words = " ".join(words.split())
    if len(words) <= longest:
        return words
    head = longest // 3
    return f"{words[:head]} … {words[len(words) - (longest - head - 3) :]}"


def hosts_named(names: Iterable[str], most: int = 4) -> str:
    """`node a`, or `nodes a, b`."""
    every = list(dict.fromkeys(name or "?" for name in names))
    return f"{'host' if len(every) == 1 else 'hosts'} {listed(every, most)}"


def span(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 5 min`, `2 d 4 h`."""
    whole = int(seconds)
    if whole < 90:
        return f"{whole} s"
    if whole < 5400 and whole != 3600:
        return f"{round(whole / 60)} min"
    hours, minutes = divmod(whole // 60, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d {hours % 24} h" if hours % 24 else f"{hours // 24} d"
