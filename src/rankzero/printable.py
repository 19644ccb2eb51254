"""Text of somebody else's as a terminal may have it. Pure."""

from __future__ import annotations

import re

_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor, screen
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # titles, links, the clipboard (OSC 52), device strings
    r"|\x1b[ -/]*[0-~]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""All but tab and line feed; also what turns the direction of writing."""


def printable(text: str) -> str:
    """Without escape sequences and control characters: a pod's words must not drive the reader's terminal."""
    return _CONTROLS.sub("", _SEQUENCES.sub("", text))
