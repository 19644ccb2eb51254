"""One finding of the doctor, and what all of them come to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rankzero.errors import ExitCode

State = Literal["ok", "look", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`look`: training would start, and may be slow or end badly. `wrong`: it would not start."""

    name: str
    """What was looked at: devices, /dev/shm, disk …"""
    state: State
    what: str
    fix: str = ""
    """One thing to do, where it is not ok."""
    code: ExitCode = ExitCode.DONE
    """What training would end with, where it is wrong."""


def ok(name: str, what: str) -> Finding:
    """Nothing to do."""
    return Finding(name, "ok", what)


def look(name: str, what: str, fix: str) -> Finding:
    """Something to look at."""
    return Finding(name, "look", what, fix)


def wrong(name: str, what: str, fix: str, code: ExitCode) -> Finding:
    """Something that training cannot do without."""
    return Finding(name, "wrong", what, fix, code)


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """That of the first thing that is wrong; 0 only where training would start."""
    return next((one.code for one in findings if one.state == "wrong"), ExitCode.DONE)


def to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """For programs."""
    code = exit_code(findings)
    checks = [{"name": one.name, "state": one.state, "what": one.what, "fix": one.fix} for one in findings]
    return {"ok": code == ExitCode.DONE, "exit_code": int(code), "checks": checks}
