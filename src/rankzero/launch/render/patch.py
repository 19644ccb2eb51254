"""Merging one plain object into another. Pure, except that it changes its first argument, as its name says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge(target: dict[str, Any], patch: Mapping[str, Any]) -> None:
    """Put `patch` into `target`, in place.

    Maps merge; lists of things that have a name merge by it, new ones last; null removes; everything else replaces.
    """
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, Mapping):
            inner = target.get(key)
            if not isinstance(inner, dict):
                target[key] = inner = {}
            merge(inner, value)
        elif isinstance(value, list) and _named(value) and isinstance(target.get(key), list) and _named(target[key]):
            target[key] = _merged_by_name(target[key], value)
        else:
            target[key] = value


def _named(values: list[Any]) -> bool:
    return all(isinstance(value, dict) and "name" in value for value in values)


def _merged_by_name(values: list[dict[str, Any]], patches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    merged = {value["name"]: value for value in values}
    for patch in patches:
        merge(merged.setdefault(patch["name"], {}), patch)
    return list(merged.values())
