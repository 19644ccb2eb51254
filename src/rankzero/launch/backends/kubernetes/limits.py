"""LimitRanges of a namespace, held against what pods ask for. Pure.

Whoever makes the pods is refused them, long after the object that trains was taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from rankzero.launch.backends.kubernetes.needs import amounts_of, shown
from rankzero.launch.labels import Manifest
from rankzero.launch.untyped_json import at, exact_amount, maps, text, words


def exceeded(ranges: Sequence[Manifest], pods: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What each of them says against these pods, in words. Of what a pod leaves open nothing: it may be filled in."""
    for one in ranges:
        for limit in maps(one, "spec", "limits"):
            for pod in pods:
                for who, asked in _asking(pod, text(limit, "type")):
                    for words_ in _beyond(limit, asked):
                        yield f"LimitRange/{text(one, 'metadata', 'name')}: {who} asks for {words_}"


def defaulted(ranges: Sequence[Manifest], counted: str) -> bool:
    """Whether one fills in what containers leave open of `requests.cpu` and the like."""
    kind, _, name = counted.partition(".")
    part = "defaultRequest" if kind == "requests" else "default"
    limits = [one for each in ranges for one in maps(each, "spec", "limits")]
    return any(name in at(one, part) or name in at(one, "default") for one in limits)


def _asking(pod: Mapping[str, Any], kind: str) -> Iterator[tuple[str, list[dict[str, Fraction]]]]:
    """Who a limit is for, with its requests and its limits."""
    if kind == "Pod":
        yield "a pod", [amounts_of(pod, "requests"), amounts_of(pod, "limits")]
    elif kind == "Container":
        for one in (*maps(pod, "initContainers"), *maps(pod, "containers")):
            alone = {"containers": [one]}
            yield f"container {text(one, 'name')}", [amounts_of(alone, "requests"), amounts_of(alone, "limits")]


def _beyond(limit: Mapping[str, Any], asked: Sequence[Mapping[str, Fraction]]) -> Iterator[str]:
    for name, most in words(at(limit, "max")).items():
        bound = exact_amount(most)
        many = max((one[name] for one in asked if name in one), default=None)
        if bound is not None and many is not None and many > bound:
            yield f"{shown(name, many)} {name}, and {most} is the most"
    for name, least in words(at(limit, "min")).items():
        bound = exact_amount(least)
        many = min((one[name] for one in asked if name in one), default=None)
        if bound is not None and many is not None and many < bound:
            yield f"{shown(name, many)} {name}, and {least} is the least"
