"""Names as a person reads and mistypes them: of files on this machine, and ids of a hub that is not asked. Standard
library only; knows no spec."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from rankzero.directories import status


def near(path: str | Path) -> str | None:
    """What is in the same directory under a similar name."""
    folder, name = os.path.split(str(path).rstrip("/"))
    stem, suffix = os.path.splitext(name)
    try:
        names = [other for other in os.listdir(folder or ".") if other != name]
    except OSError:  # no such directory either, or not ours to look into
        return None
    # A common suffix makes no two names alike.
    compared = {other.removesuffix(suffix) if other.endswith(suffix) else other: other for other in sorted(names)}
    close = difflib.get_close_matches(stem, compared, n=1)
    return os.path.join(folder, compared[close[0]]) if close else None


def dangling(path: str | Path) -> str | None:
    """What to say of a link whose target is not there; None of anything else."""
    try:
        if not os.path.islink(path) or status(path) is not None:
            return None
    except OSError:  # nobody can tell now
        return None
    return f"it is a link to {os.readlink(path)}, which is not there: is a disk not mounted, or was the target moved?"


def meant_here(name: str) -> str:
    """The beginning of a hint: `models/tiney` has the shape of a Hub id; beside models/tiny it may be a slip. A single
    word, as `gpt2` is, only beside a model's directory."""
    close = near(name)
    if close and "/" not in name and not os.path.isfile(os.path.join(close, "config.json")):
        close = None
    return f"did you mean {shown(close)}, which is here? Else: " if close else ""


def shown(path: str | Path) -> str:
    """A path as a person wants to read it: relative where it is below the working directory."""
    text, here = str(path), os.getcwd()
    return os.path.relpath(text, here) if here != "/" and text.startswith(os.path.join(here, "")) else text


_SAME_ON_THE_HUB = {"AI-ModelScope/alpaca-gpt4-data-en": "vicgalle/alpaca-gpt4"}
"""Where the same thing is on the Hub."""
_OWNERS = frozenset({"AI-ModelScope", "LLM-Research", "modelscope", "swift", "iic", "damo", "ZhipuAI", "opencompass"})
"""Owners of ids that are ModelScope's."""


def modelscope_hint(name: str, kind: str, field: str) -> str:
    """The beginning of a hint for `org/name`, a `dataset` or `model`; empty where it is no id of ModelScope.

    `field` is what takes a directory: `data.train`.
    """
    owner = name.partition("/")[0]
    if owner not in _OWNERS:
        return ""
    if name in _SAME_ON_THE_HUB:
        return f"this is an id of ModelScope; on the Hub the same is {_SAME_ON_THE_HUB[name]}. Else: "
    folder = name.rpartition("/")[2]
    fetch = f"modelscope download --{kind} {name} --local_dir {folder}"
    return f"an id of ModelScope? Then `{fetch}` (pip install modelscope) and {field}: {folder}. Else: "
