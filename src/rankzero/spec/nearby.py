"""Names on this machine as a person reads and mistypes them. Standard library only; knows no spec."""

from __future__ import annotations

import difflib
import os
from pathlib import Path


def near(path: str | Path) -> str | None:
    """What is in the same directory under a similar name."""
    folder, name = os.path.split(str(path).rstrip("/"))
    stem, suffix = os.path.splitext(name)
    try:
        names = os.listdir(folder or ".")
    except OSError:  # no such directory either, or not ours to look into
        return None
    # A common suffix makes no two names alike.
    compared = {other.removesuffix(suffix) if other.endswith(suffix) else other: other for other in sorted(names)}
    close = difflib.get_close_matches(stem, compared, n=1)
    return os.path.join(folder, compared[close[0]]) if close else None


def meant_here(name: str) -> str:
    """The beginning of a hint: `models/tiney` has the shape of a Hub id; beside models/tiny it may be a slip."""
    close = near(name) if "/" in name else None
    return f"did you mean {shown(close)}, which is here? Else: " if close else ""


def shown(path: str | Path) -> str:
    """A path as a person wants to read it: relative where it is below the working directory."""
    text, here = str(path), os.getcwd()
    return os.path.relpath(text, here) if here != "/" and text.startswith(os.path.join(here, "")) else text
