"""One thing that preflight found: a field of the spec, what is wrong there, and the kind of error that it is."""

from __future__ import annotations

from dataclasses import dataclass

from rankzero.errors import ConfigError, RankzeroError


@dataclass(frozen=True, slots=True)
class Finding:
    """`field` is dotted (`data.train[1].path`); where it was written is told by whoever has the file."""

    field: str
    what: str
    hint: str = ""
    error: type[RankzeroError] = ConfigError
