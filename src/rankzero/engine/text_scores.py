"""How like an answer is to the one that was wanted. Pure.

Both are compared without case, punctuation and runs of white space, in any script; what is a sign, an operator, a
decimal mark or a symbol is no punctuation. Words such as articles stay, since what may be left out is a matter of the
language. Reasoning is no part of an answer: references are without theirs.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

_ONE_FORM = str.maketrans({dash: "-" for dash in "‐‑‒–−"} | {"\u2044": "/", "\u2215": "/"})
"""Hyphens, the en dash and the minus stand for each other in what is typed. The em dash is punctuation."""
_SUPERSCRIPT = re.compile("[\u00b2\u00b3\u00b9\u2070-\u207b]+")
_FRACTION = re.compile("(?<=\\d)(?=[\u00bc-\u00be\u2150-\u215f\u2189])")
"""Between a whole number and the fraction that is more of it, of which the plain form begins with a digit."""
_IN_LISTS = re.compile(r"(?<!\\)[\[\]]|(?<=\d),(?=\d)")
"""Brackets, but those of LaTeX's \\[ … \\], and commas between digits."""
_ONE_NUMBER = re.compile(r"[^\w\[\],]*\d{1,3}(?:,\d{3})+(?:\.\d+)?[^\w\[\],]*")
_VARIATION = re.compile("[\ufe00-\ufe0f]")
"""Which picture of a character is shown."""
_LINE_MARK = re.compile(r"^[ \t]*(?:[*+-](?=\s+[^\s\d.,])|#+(?=\s)|[-*]{2,}\s*$)", re.MULTILINE)
"""Bullets, headings and rules of Markdown."""
_SPACED_DASHES = re.compile(r"(?<!\S)-{2,}(?!\S)")
_EMPHASIS = re.compile(r"(?<![\w)\]*\u00b7])[*\u00b7]+(?=[^\s*\u00b7])|(?<=[^\s*\u00b7])[*\u00b7]+(?![\w(\[*\u00b7+-])")
"""Runs of stars, each judged as one, that do not stand between two things that they could multiply or raise."""


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
    """The words that are compared; a sign in front of a number is part of it, other symbols are words of their own.
    Compatible forms of a character are one (NFKC), but that what is raised stays a power. In a list commas part."""
    powers = _SUPERSCRIPT.sub(lambda found: f"^{found[0]}", _VARIATION.sub("", text))
    plain = unicodedata.normalize("NFKC", _FRACTION.sub(" ", powers)).casefold().translate(_ONE_FORM)
    plain = _lists_parted(plain)
    for mark in (_LINE_MARK, _SPACED_DASHES, _EMPHASIS):
        plain = mark.sub(" ", plain)
    return "".join(_as_words(plain, at) for at in range(len(plain))).split()


def _lists_parted(text: str) -> str:
    """With a space behind each comma between digits in a list, at any depth. What has one number in it, whose digits
    commas group, is none."""
    opened: list[tuple[int, list[int]]] = []
    commas: list[int] = []
    for found in _IN_LISTS.finditer(text):
        if found[0] == "[":
            opened.append((found.end(), []))
        elif found[0] == "," and opened:
            opened[-1][1].append(found.end())
        elif found[0] == "]" and opened:
            start, own = opened.pop()
            commas += [] if _ONE_NUMBER.fullmatch(text, start, found.start()) else own
    places = [0, *sorted(commas), len(text)]
    return " ".join(text[start:end] for start, end in zip(places, places[1:], strict=False))


def _as_words(text: str, at: int) -> str:
    """What is left of a character where it stands: itself, itself as a word of its own, or white space."""
    one, left, right = text[at], text[at - 1 : at], text[at + 1 : at + 2]
    kind = unicodedata.category(one)
    if kind[0] in "LMN":
        return one
    if one in ".,:\u066b\u066c" and right.isdigit() and (left.isdigit() or (one == "." != left and not _in_word(left))):
        return one  # a decimal mark, and what groups digits or parts them
    if one in "+-" and right.strip() and not (_in_word(left) or left in {")", "]"}):
        return f" {one}"  # a sign: of what follows
    if one == "-" and left.isalpha() and right.isalpha():  # of a word, but x-y, which is as likely a difference
        return " " if text[at + 2 : at + 3].isalpha() or text[max(0, at - 2) : at - 1].isalpha() else f" {one} "
    if one in "!:":
        return f" {one} " if right == "=" else " "
    return f" {one} " if one in "-*\u00b7/%#&@" or (kind[0] == "S" and (kind != "Sk" or one == "^")) else " "


def _in_word(one: str) -> bool:
    return bool(one) and unicodedata.category(one)[0] in "LMN"


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
