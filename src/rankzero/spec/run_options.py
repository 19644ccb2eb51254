"""RunOptions: how one invocation talks, where it copies its report, and whether it trains at all. Never changes the
maths, never stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

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
    processes of the run test their place instead of training.
    """

    log_level: LogLevel = "INFO"
    log_batches: LogBatches = "first-last"
    report_json: str | None = None
    allow_changes: tuple[str, ...] = ()
    smoke: SmokeSettings | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain values; without `smoke` where there is none, so that images of earlier versions read it."""
        value = asdict(self)
        if self.smoke is None:
            del value["smoke"]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunOptions:
        """What `to_json` gave. Raises KeyError or TypeError where it is not that."""
        smoke = value.get("smoke")
        return cls(
            **{
                **value,
                "allow_changes": tuple(value["allow_changes"]),
                "smoke": None if smoke is None else SmokeSettings(**smoke),
            }
        )
