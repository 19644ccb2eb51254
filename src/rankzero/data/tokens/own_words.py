"""Whether what a turn says is found in a text, whatever space a template puts around it. Pure; knows no templates."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rankzero.data.rows.conversation import Message

_EXCERPT = 40


def words_of(message: Message) -> list[str]:
    """What the turn itself says, in order: its reasoning, then its text, cut where images stand in it."""
    if message.plain:
        return [message.content]
    thought = [message.thought] if message.thought else []
    offset = len(message.content) - len(message.answer)
    bounds = [0, *(max(0, at - offset) for at in message.image_offsets), len(message.answer)]
    return [*thought, *(message.answer[start:end] for start, end in pairwise(bounds))]


def first_lost(pieces: Sequence[str], text: str) -> int | None:
    """Which of the pieces is the first that is not in the text, behind the one before it; None where all are.

    Space does not count: templates trim and indent.
    """
    at = 0
    for piece in pieces:
        stripped = piece.strip()
        at = text.find(stripped, at)
        if at < 0:
            return _first_lost(["".join(piece.split()) for piece in pieces], "".join(text.split()))
        at += len(stripped)
    return None


def _first_lost(pieces: Sequence[str], text: str) -> int | None:
    at = 0
    for number, piece in enumerate(pieces):
        at = text.find(piece, at)
        if at < 0:
            return number
        at += len(piece)
    return None


def excerpt(text: str) -> str:
    """The beginning of a text, for a message."""
    text = " ".join(text.split())
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}…"
