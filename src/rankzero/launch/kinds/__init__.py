"""The kinds of object that a run can be on a cluster: one file each, under the name that it has in spec/kinds.py."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from rankzero.launch import labels
from rankzero.launch.kinds.kind import End, Kind
from rankzero.launch.resource import Resource
from rankzero.launch.untyped_json import text
from rankzero.spec.kinds import KINDS

__all__ = ["End", "Kind", "containers", "controlled", "kind_named", "kind_of", "kind_of_pod", "node_index", "templates"]


@cache
def kind_named(name: str) -> Kind:
    """The kind of this name. Raises KeyError where there is none."""
    if name not in KINDS:
        raise KeyError(name)
    found = import_module(f"{__name__}.{name}").KIND
    if not isinstance(found, Kind):
        raise TypeError(f"{__name__}.{name}.KIND is no Kind")
    return found


@cache
def controlled() -> Mapping[str, Kind]:
    """The kinds that have one object with a controller, by name; owners before what they own."""
    return {name: kind_named(name) for name in reversed(KINDS) if kind_named(name).controlled}


@cache
def templates() -> tuple[Resource, ...]:
    """Where objects are that only describe the pods of one that trains."""
    return tuple(kind.template.resource for kind in controlled().values() if kind.template is not None)


@cache
def containers() -> tuple[str, ...]:
    """Names that the container that trains may have."""
    return tuple(dict.fromkeys(kind_named(name).container for name in KINDS))


def kind_of(manifest: Mapping[str, Any]) -> Kind | None:
    """The kind of an object that trains, or of its template; None of any other."""
    own = text(manifest, "kind")
    for kind in controlled().values():
        if own == kind.resource.kind or (kind.template is not None and own == kind.template.resource.kind):
            return kind
    return None


def kind_of_pod(pod: Mapping[str, Any]) -> Kind | None:
    """The kind of the run that a pod is of; None where its label names none that there is."""
    name = text(pod, "metadata", "labels", labels.KIND)
    return kind_named(name) if name in KINDS else None


def node_index(pod: Mapping[str, Any]) -> int:
    """Which node of the run a pod is, as its own kind or any other says it; 0 where nothing does, or it prepares."""
    if text(pod, "metadata", "labels", labels.ROLE) == labels.PREPARE_ROLE:
        return 0
    own = kind_of_pod(pod)
    kinds = [*([own] if own is not None else []), *(kind_named(name) for name in KINDS)]
    return next((index for kind in kinds if (index := kind.node_index(pod)) is not None), 0)
