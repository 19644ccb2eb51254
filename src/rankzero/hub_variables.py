"""Variables of the Hub under names that its client does not read (any more). Standard library only."""

from __future__ import annotations

from collections.abc import MutableMapping

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
