"""What a place has for a run, beside what the run needs of it: a value, made by backends and printed by commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rankzero.errors import RankzeroError


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something that a submit would be taken with all the same."""

    name: str
    """Of what it is about, as in `Survey.has`."""
    what: str
    fix: str
    waits: bool = False
    """Whether pods would not start."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Looked at, with nothing applied."""

    has: tuple[tuple[str, str], ...]
    """What there is, by name: api, kinds, nodes, quota, storage, secrets, queue, image, rights."""
    gpu: str = ""
    """Name of the GPUs that the run would get; empty where nobody says."""
    gpu_bytes: int = 0
    """Memory of one of them, the smallest; 0 where nobody says."""
    refused: RankzeroError | None = None
    """Every reason why a submit would be refused."""
    doubts: tuple[Doubt, ...] = ()
    lacking: frozenset[str] = frozenset()
    """Names in `has` of what is not as the run needs it; `refused` says more."""

    def redacted(self, redact: Callable[[str], str]) -> Survey:
        """The same without secrets; the error is whoever's who shows it."""
        has = tuple((name, redact(what)) for name, what in self.has)
        doubts = tuple(replace(one, what=redact(one.what), fix=redact(one.fix)) for one in self.doubts)
        return replace(self, has=has, doubts=doubts)
