"""Ids of ModelScope, which setups for ms-swift have: what to say where the Hub has no such name. Pure."""

from __future__ import annotations

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
