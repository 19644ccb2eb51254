"""How like an answer is to the one that was wanted. Pure.

Both are compared without case, punctuation and runs of white space, in any script; words such as articles stay, since
what may be left out is a matter of the language. Reasoning is no part of an answer: references are without theirs.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence


def without_reasoning(text: str) -> str:
    """What an answer says behind its reasoning, `<think>…</think>`, whose first mark the prompt may have. Nothing where
    the reasoning never ends."""
    thought, ended, said = text.partition("</think>")
    begins = thought.lstrip().startswith("<think>")
    if ended and (begins or "<think>" not in thought):
        said = said.strip()
        return without_reasoning(said) if said.startswith("<think>") else said  # behind an empty one that it opens with
    return "" if begins else text


def normalised(text: str) -> list[str]:
    """The words that are compared. Compatible forms of a character are one (NFKC)."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    spaced = "".join(" " if unicodedata.category(one)[0] in "PSZC" else one for one in plain)
    return spaced.split()


def exact_match(answer: str, wanted: str) -> bool:
    """Whether both are the same words in the same order. Of answers without a word, such as `+`, the same text."""
    words, others = normalised(answer), normalised(wanted)
    return words == others if words or others else answer.strip() == wanted.strip()


def token_f1(answer: str, wanted: str) -> float:
    """Harmonic mean of precision and recall of words, counted as often as they stand (Rajpurkar et al. 2016)."""
    words, others = normalised(answer), normalised(wanted)
    if not words or not others:
        return float(exact_match(answer, wanted))
    same = sum((Counter(words) & Counter(others)).values())
    return 2 * same / (len(words) + len(others))


def mean(values: Sequence[float]) -> float | None:
    """None of nothing."""
    return sum(values) / len(values) if values else None
