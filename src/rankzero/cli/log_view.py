"""Lines of a run's pods as a person reads them: who speaks, in the colour of its node where there are colours. Pure."""

from __future__ import annotations

from typing import Any

from rankzero.launch.backend import LogLine
from rankzero.launch.labels import NODE_ROLE
from rankzero.wording import printable

_COLOURS = ("36", "32", "33", "35", "34", "96", "92", "93", "95", "94")


def as_line(line: LogLine, *, colour: bool) -> str:
    """`[node 1] step 3/10 …`"""
    speaker = f"[node {line.node}]" if line.role == NODE_ROLE else f"[{line.role}]"
    if colour:
        code = _COLOURS[line.node % len(_COLOURS)] if line.role == NODE_ROLE else "2"
        speaker = f"\x1b[{code}m{speaker}\x1b[0m"
    return f"{speaker} {printable(line.text)}"


def as_json(line: LogLine) -> dict[str, Any]:
    """As plain JSON."""
    time = None if line.time is None else line.time.isoformat()
    return {"node": line.node, "pod": line.pod, "role": line.role, "time": time, "text": line.text}
