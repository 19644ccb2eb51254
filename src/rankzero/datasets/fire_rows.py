"""FIRE's raw rows as trajectories: a question, an image, attempts with feedback. Knows nothing of training rows.

Two shapes are read:

    {"id", "image", "question": {"value"}, "groundtruth": {"value"}, "conversations": [
        {"role": "student", "type": "response", "value"}, {"role": "teacher", "type": "feedback", "value"}, …]}
    {"id", "image", "conversations": [{"from": "human", "value"}, {"from": "gpt", "value"}, …],
     "raw": {"question", "groundtruth", …}}

Decisions (each has a test):
- `groundtruth` is never looked at, in either shape.
- The score is text in the teacher's turn. As in the data set's own code: its first line must contain `Score:`, and the
  first digits of that line are the score ("7.5" is 7, "8/10" is 8). Feedback is what follows the first `Feedback:`;
  without that word, the turn without its score line.
- An attempt without text can be no action: it is left out with the feedback on it, and the rest is renumbered, because
  what the model sees when it is used is numbered without gaps. Counted.
- Teacher turns in a row are one feedback, joined by a newline. Student turns in a row are attempts without feedback.
- Feedback before any attempt is left out and counted.
- In the second shape the first human turns are the question (where there are none, `raw.question`), gpt turns the
  attempts, later human turns the feedback. Rows whose gpt turns are scores train a critic: their prompts quote the
  ground truth, so they are dropped.
- `<image>` is taken out of every text: where the image stands is decided by the row that is written. Counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rankzero.data.rows.problems import kind
from rankzero.datasets.tally import Dropped

IMAGE_TAG = "<image>"

_STUDENT = frozenset({"student", "gpt", "assistant"})
_TEACHER = frozenset({"teacher", "human", "user"})
_BY_TYPE = {"response": "student", "feedback": "teacher"}
_TAG = re.compile(r"<image>[ \t]*\n?")


@dataclass(frozen=True, slots=True)
class Round:
    """One attempt, and what the teacher said to it."""

    attempt: str
    feedback: str = ""
    """Without the score."""
    feedback_raw: str = ""
    """The teacher's whole turn."""
    score: int | None = None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A question and the attempts at it, in order."""

    question: str
    rounds: tuple[Round, ...]


def read_trajectory(row: Mapping[str, Any], notes: Counter[str]) -> Trajectory | Dropped:
    """The row's trajectory. What is left out of it is counted in `notes` by rule."""
    turns = _turns(row.get("conversations"))
    if isinstance(turns, Dropped):
        return turns
    llava = any(shape == "from" for _, _, shape in turns)
    question = _text(row.get("question")) or ""
    if llava and any(speaker == "student" and _has_score(text) for speaker, text, _ in turns):
        return Dropped("row of a critic", "its gpt turns are scores: the prompt quotes the ground truth")
    if llava and not question:
        first = next((i for i, (speaker, _, _) in enumerate(turns) if speaker == "student"), len(turns))
        asked = [text.strip() for _, text, _ in turns[:first] if text.strip()]
        turns = turns[first:]
        raw = row.get("raw")
        question = "\n".join(asked) or (_text(raw.get("question")) if isinstance(raw, Mapping) else "") or ""
    question = _without_tag(question, notes)
    if not question:
        return Dropped("no question", "the row asks nothing")
    rounds = _rounds([(speaker, _without_tag(text, notes)) for speaker, text, _ in turns], notes)
    if not rounds:
        return Dropped("no attempt", "no student turn has text")
    return Trajectory(question, rounds)


def score_of(turn: str) -> int | None:
    """The score in a teacher's turn."""
    digits = re.search(r"\d+", turn.split("\n", 1)[0]) if _has_score(turn) else None
    return int(digits[0]) if digits else None


def feedback_of(turn: str) -> str:
    """A teacher's turn without its score."""
    _, marker, after = turn.partition("Feedback:")
    if marker:
        return after.strip()
    return turn.partition("\n")[2].strip() if _has_score(turn) else turn.strip()


def _has_score(turn: str) -> bool:
    return "Score:" in turn.lstrip().split("\n", 1)[0]


def _turns(value: object) -> list[tuple[str, str, str]] | Dropped:
    """(student or teacher, text, key of the speaker) of every turn."""
    if not isinstance(value, list) or not value:
        return Dropped("no turns", f"`conversations` is {kind(value) if value != [] else 'empty'}")
    turns: list[tuple[str, str, str]] = []
    for index, item in enumerate(value):
        where = f"conversations[{index}]"
        if not isinstance(item, Mapping):
            return Dropped("turn is not an object", f"{where} is {kind(item)}")
        shape = "from" if "from" in item else "role"
        name = item.get(shape)
        if name is None:
            name = _BY_TYPE.get(str(item.get("type")))
        name = str(name).strip().lower()
        if name not in _STUDENT | _TEACHER:
            return Dropped("unknown role", f"{where}.{shape} is {name[:40]!r}")
        text = item.get("value")
        if text is not None and not isinstance(text, str):
            return Dropped("turn is not text", f"{where}.value is {kind(text)}")
        turns.append(("student" if name in _STUDENT else "teacher", text or "", shape))
    return turns


def _rounds(turns: list[tuple[str, str]], notes: Counter[str]) -> tuple[Round, ...]:
    attempts: list[tuple[str, list[str]]] = []
    for speaker, text in turns:
        if speaker == "student":
            attempts.append((text, []))
        elif not text:
            notes["empty feedback"] += 1
        elif attempts:
            attempts[-1][1].append(text)
        else:
            notes["feedback before any attempt"] += 1
    rounds: list[Round] = []
    for attempt, said in attempts:
        if not attempt:
            notes["empty attempt"] += 1
            continue
        if len(said) > 1:
            notes["feedback turns joined"] += len(said) - 1
        feedback = "\n".join(filter(None, map(feedback_of, said)))
        score = next((score for turn in said if (score := score_of(turn)) is not None), None)
        rounds.append(Round(attempt, feedback, "\n".join(said), score))
    return tuple(rounds)


def _text(value: object) -> str | None:
    """A string, or the string under `value`."""
    if isinstance(value, Mapping):
        value = value.get("value")
    return value if isinstance(value, str) else None


def _without_tag(text: str, notes: Counter[str]) -> str:
    while IMAGE_TAG in text:  # again, for what stood around a tag may make one: "<im<image>age>"
        notes["<image> tag taken out"] += text.count(IMAGE_TAG)
        text = _TAG.sub("", text)
    return text.strip()
