"""Variables of the Hub: the places that its client finds by them, and names that it does not read (any more). Standard
library only."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path

_READ_AS = {
    "HUGGINGFACE_HUB_TOKEN": ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
    "HUGGINGFACE_TOKEN": ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
    "TRANSFORMERS_CACHE": ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"),
}
"""What each is read as: the first name, unless one of the names is set."""


def other_names(name: str) -> tuple[str, ...]:
    """Under which other names people have what the client reads from `name`: the client's own first, then as
    `adopt_hub_variables` takes them."""
    known = {old: names for old, names in _READ_AS.items() if names[0] == name}
    return tuple(dict.fromkeys([*(one for names in known.values() for one in names[1:]), *known]))


def adopt_hub_variables(env: MutableMapping[str, str]) -> list[str]:
    """Set what the client reads from what is set under another name; a line for each. Call it before the client is
    imported, which reads its variables once."""
    said = []
    for old, names in _READ_AS.items():
        if env.get(old) and not any(env.get(name) for name in names):
            env[names[0]] = env[old]
            said.append(f"{old} is taken as {names[0]}")
    return said


def hub_home(env: Mapping[str, str]) -> Path:
    """As the Hub's client finds it."""
    shared = env.get("XDG_CACHE_HOME") or "~/.cache"
    return expanded(env.get("HF_HOME") or f"{shared}/huggingface", env)


def hub_cache(env: Mapping[str, str]) -> Path:
    """Where the Hub's client keeps models and data sets."""
    named = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE")
    return expanded(named, env) if named else hub_home(env) / "hub"


def expanded(path: str, env: Mapping[str, str]) -> Path:
    """With homes and variables in the place of their names, as the Hub's client takes paths."""
    known = os.path.expanduser(path)
    return Path(_VARIABLE.sub(lambda found: env.get(found[1] or found[2], found[0]), known))


_VARIABLE = re.compile(r"\$(?:(\w+)|\{([^}]*)\})", re.ASCII)
