"""What columns of unknown names may be: a proposal that can be typed. Pure; knows names, and which values are text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

_ASKS = ("question", "query", "prompt", "instruction", "input", "problem", "request", "user", "human", "q")
_ANSWERS = (
    *("completion", "response", "answer", "reply", "output", "assistant", "target", "solution", "result", "bot", "gpt"),
    "a",
)
_TEXTS = ("content", "body", "document", "article", "passage", "story", "sentence", "code")
_TURNS = {"role": "messages", "from": "conversations"}
"""Where a list of turns belongs, by a key that each of its turns has."""
_NAMES = frozenset({"id", "uuid", "idx", "index", "key", "url", "link", "source", "lang", "language", "date", "split"})
"""Of columns that say where a row comes from."""


def likely_columns(row: Mapping[str, Any], telling: Sequence[str]) -> dict[str, str]:
    """Our names by the row's, such as {prompt: question, completion: reply}; empty where nothing is likely.

    `telling` are keys whose misspelling is worth a proposal: they make a row shape, alone or with one other.
    """
    slips = {close[0]: key for key in row if (close := difflib.get_close_matches(key, telling, n=1, cutoff=0.85))}
    slips = {ours: theirs for ours, theirs in slips.items() if ours not in row}
    if slips:
        return slips
    for key, value in row.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            ours = next((ours for sign, ours in _TURNS.items() if sign in value[0]), None)
            if ours is not None:
                return {ours: key}
    if (labelled := labelled_texts(row)) is not None:  # as prompt and completion nothing would read the label
        return {"text": labelled[0]} if len(labelled) == 1 else {}
    texts = _texts(row)
    ask = _named(texts, _ASKS)
    answer = _named([key for key in texts if key != ask], _ANSWERS)
    if ask and answer:
        return {"prompt": ask, "completion": answer}
    if len(texts) == 2:  # in the order of a sheet: what is asked stands first
        first, second = texts if answer != texts[0] and ask != texts[1] else reversed(texts)
        return {"prompt": first, "completion": second}
    text = _named(texts, _TEXTS) or (texts[0] if len(texts) == len(row) == 1 else None)
    return {"text": text} if text else {}


def labelled_texts(row: Mapping[str, Any]) -> list[str] | None:
    """The keys of what a row puts into a class; None where it has no label that could be one's."""
    label = row.get("label")
    if isinstance(label, bool) or not isinstance(label, int | str):
        return None
    return [key for key in _texts(row) if key != "label"]


def _texts(row: Mapping[str, Any]) -> list[str]:
    return [key for key, value in row.items() if isinstance(value, str) and not _NAMES & _words(key)]


def as_flag(columns: Mapping[str, str]) -> str:
    """As the command line takes it."""
    pairs = ",".join(f"{ours}={theirs}" for ours, theirs in columns.items())
    return f"--columns {pairs}" if re.fullmatch(r"[\w=,.-]+", pairs) else f"--columns '{pairs}'"


def as_field(columns: Mapping[str, str]) -> str:
    """As a run spec takes it."""
    return "columns: {" + ", ".join(f"{ours}: {theirs}" for ours, theirs in columns.items()) + "}"


def _named(keys: Sequence[str], words: Sequence[str]) -> str | None:
    """The key that has one of these words, the first word first."""
    return next((key for word in words for key in keys if word in _words(key)), None)


def _words(key: str) -> set[str]:
    """`userQuestion`, `user_question` and `User question` are of two words."""
    return set(re.split(r"[^a-z0-9]+", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", key).lower()))
