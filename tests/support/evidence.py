"""Prepared evidence: what clusters say of a run, as YAML, and what is expected of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rankzero.launch.evidence import Evidence, Refusal

FOLDER = Path(__file__).parents[1] / "fixtures" / "evidence"


@dataclass(frozen=True)
class Prepared:
    """One evidence set."""

    name: str
    about: str
    evidence: Evidence
    expect: dict[str, Any]


@cache
def prepared() -> tuple[Prepared, ...]:
    """All sets, by name."""
    return tuple(_read(path) for path in sorted(FOLDER.glob("*.yaml")))


def named(name: str) -> Prepared:
    """One set."""
    return next(one for one in prepared() if one.name == name)


def _read(path: Path) -> Prepared:
    value = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    nodes, classes = value.get("nodes"), value.get("storage_classes")
    evidence = Evidence(
        run=value["run"],
        now=datetime.fromisoformat(value["now"]),
        objects=tuple(value.get("objects", ())),
        pods=tuple(value.get("pods", ())),
        events=tuple(value.get("events", ())),
        nodes=None if nodes is None else tuple(nodes),
        workloads=tuple(value.get("workloads", ())),
        storage_classes=None if classes is None else tuple(classes),
        logs=value.get("logs", {}),
        refused=tuple(Refusal(**refusal) for refusal in value.get("refused", ())),
    )
    return Prepared(path.stem, value["about"], evidence, value["expect"])
