"""Small pieces of sentences that many messages share, and others' text made fit for a terminal. Pure; knows nothing of
what they speak of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from signal import Signals


def first_line(error: BaseException) -> str:
    """What an error says first, or its type where it says nothing: libraries' messages go on for pages. A line that
    ends in a colon says something only with the next one."""
    first, *rest = (str(error).strip() or type(error).__name__).splitlines()
    return f"{first} {rest[0].strip()}" if rest and first.endswith(":") else first


def listed(names: Iterable[str], most: int = 6) -> str:
    """`a, b and 3 more`, each name once."""
    every = list(dict.fromkeys(names))
    shown = ", ".join(every[:most])
    return f"{shown} and {len(every) - most} more" if len(every) > most else shown


def counted(count: int, one: str, several: str | None = None) -> str:
    """`1 pod`, `3 pods` or `1,200 rows`."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def signal_name(code: int) -> str:
    """SIGKILL, of the exit code that says so: a program's that it ended, or a shell's that ran one. Of another: ""."""
    number = -code if code < 0 else code - 128
    return Signals(number).name if number in set(Signals) else ""


def named_counts(counts: Mapping[str, int], most: int = 8) -> list[str]:
    """`source 1,000`, `idx 12`, `and 3 more`: the most common first, names that come from strangers made fit."""
    common = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{printable(name[:40])} {count:,}" for name, count in common[:most]]
    return [*shown, f"and {len(common) - most:,} more"] if len(common) > most else shown


def named_keys(counts: Mapping[str, int], most: int = 40) -> list[str]:
    """Keys that nothing reads as `messages[].mask 3`, `source 1,000`, `and 5 more`. What changes training comes before
    metadata, which is in every row: keys inside turns, then the rare ones."""
    order = sorted(counts.items(), key=lambda item: ("[]" not in item[0] and "." not in item[0], item[1], item[0]))
    shown = [f"{printable(name[:60])} {count:,}" for name, count in order[:most]]
    return [*shown, f"and {len(order) - most:,} more"] if len(order) > most else shown


def in_bytes(count: float) -> str:
    """`1.53 GB`, `5.6 MB` or `123 B`: powers of 1,000, three digits, and all of those before the point."""
    unit, scale = next(((unit, scale) for unit, scale in _SIZES if count >= scale), ("B", 1.0))
    return f"{count / scale:.3g} {unit}" if count < 1000 * scale else f"{count / scale:,.0f} {unit}"


_SIZES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def loss_in_words(loss: float | None) -> str:
    """`0.0281`; nan for what JSON has as null, since it was not finite."""
    return "nan" if loss is None else f"{loss:.4f}"


def duration(seconds: float) -> str:
    """`1:02:03` or `4:05`."""
    whole = int(seconds + 0.5)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


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
