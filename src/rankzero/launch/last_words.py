"""What a run says as it ends, in a pod's termination message or noted on an object that stays: read. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from rankzero.launch.untyped_json import at, text, whole


@dataclass(frozen=True, slots=True)
class LastWords:
    """The message that the node command leaves when it ends."""

    outcome: str
    """done, stopped, failed or peer_lost."""
    exit_code: int | None = None
    what: str = ""
    where: str = ""
    hint: str = ""
    step: int | None = None
    total_steps: int | None = None
    checkpoint: int | None = None
    run_dir: str = ""
    goodput: str = ""
    """Where the time went, in one line."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """What the result's evaluation measured; of a run that is done."""
    scores_unread: str = ""
    """Why its report could not be read, which says that."""

    @property
    def sentence(self) -> str:
        """`where: what`."""
        return ": ".join(part for part in (self.where, self.what) if part)


def parse_last_words(message: str) -> LastWords | None:
    """A termination message or outcome annotation; None where it is not one of ours."""
    try:
        value = json.loads(message)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or "rankzero" not in value:
        return None
    return LastWords(
        outcome=text(value, "outcome"),
        exit_code=whole(value, "exit_code"),
        what=text(value, "what"),
        where=text(value, "where"),
        hint=text(value, "hint"),
        step=whole(value, "step"),
        total_steps=whole(value, "total_steps"),
        checkpoint=whole(value, "checkpoint"),
        run_dir=text(value, "run_dir"),
        goodput=text(value, "goodput"),
        scores={name: float(score) for name, score in at(value, "scores").items() if isinstance(score, int | float)},
        scores_unread=text(value, "scores_unread"),
    )
