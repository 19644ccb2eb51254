"""RunOptions: how one invocation talks, where it copies its report, and whether it trains at all. Never changes the
maths, never stored."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast, get_args

from rankzero.errors import Problem, UsageError

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
LogBatches = Literal["all", "first-last", "none"]


@dataclass(frozen=True, slots=True)
class SmokeSettings:
    """What a smoke test trains: made-up rows and a small classifier."""

    epochs: int = 2
    batch: int = 256
    """Rows per process and step."""
    samples: int = 4096
    features: int = 128
    classes: int = 4
    lr: float = 3e-3
    seed: int = 42


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the command line says besides the spec.

    `allow_changes` names spec fields that may differ from the checkpoint a run is resumed from. With `smoke` the
    processes of the run test their place instead of training. Raises UsageError for a word that is no choice.
    """

    log_level: LogLevel = "INFO"
    log_batches: LogBatches = "first-last"
    report_json: str | os.PathLike[str] | None = None
    """Text once it is made, with `~` as the home of who made it."""
    allow_changes: tuple[str, ...] = ()
    smoke: SmokeSettings | None = None

    def __post_init__(self) -> None:
        if self.report_json is not None:
            object.__setattr__(self, "report_json", os.path.expanduser(os.fspath(self.report_json)))
        words = (("log_level", self.log_level, LogLevel), ("log_batches", self.log_batches, LogBatches))
        wrong = [
            Problem(f"there is no {word!r}", name, f"one of {', '.join(get_args(known))}")
            for name, word, known in words
            if word not in get_args(known)
        ]
        changes = cast(object, self.allow_changes)
        if isinstance(changes, str):
            wrong.append(Problem("it is one text", "allow_changes", f"give a tuple: ({changes!r},)"))
        if wrong:
            raise UsageError(wrong)

    def to_json(self) -> dict[str, Any]:
        """As plain values; without `smoke` where there is none, so that images of earlier versions read it."""
        value = asdict(self)
        if self.smoke is None:
            del value["smoke"]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunOptions:
        """What `to_json` gave. Raises KeyError, TypeError or ValueError where it is not that."""
        smoke = value.get("smoke")
        given = {
            **value,
            "allow_changes": tuple(value["allow_changes"]),
            "smoke": None if smoke is None else SmokeSettings(**smoke),
        }
        try:
            return cls(**given)
        except UsageError as error:
            raise ValueError(str(error)) from error
