"""What rows hold, counted: formats, turns, lengths, tokens. Sums up over workers; knows no files and prints nothing."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any

from rankzero.data.rows.chunks import Chunk, lines
from rankzero.data.rows.conversation import Conversation, Message
from rankzero.errors import RankzeroError

OTHER = "(other)"
_MOST_NAMES = 1000
"""Names that are told apart in one count. A file can have a million labels or keys; memory has an end."""

_EXACT_BITS = 7

# Inside a JSON string a quote is escaped, so this is a key and its value.
_LANGUAGE = re.compile(rb'"(?:lang|language)"\s*:\s*"([^"\\]{1,32})"')


@dataclass(slots=True)
class TokenCounts:
    """Tokens of examples. `lengths` are those before anything is cut, up to `cap`; the sums are of what is trained."""

    cap: int = 0
    lengths: Counter[int] = field(default_factory=Counter)
    trained_lengths: Counter[int] = field(default_factory=Counter)
    """Trained tokens an example, in steps of about 1 %."""
    examples: int = 0
    kept: int = 0
    tokens: int = 0
    supervised: int = 0
    truncated: int = 0
    cut_tokens: int = 0
    """Tokens that truncation leaves out, of those counted."""
    boundary: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    unopened: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    """Examples to which a rule did something on their way through the template, by what it did."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "examples": self.examples,
            "kept": self.kept,
            "dropped": dict(by_count(self.dropped)),
            "truncated": self.truncated,
            "cut_tokens": self.cut_tokens,
            "tokens": self.tokens,
            "trained_tokens": self.supervised,
            "trained_share": share(self.supervised, self.tokens),
            "per_example": Spread.of(self.lengths).as_json(),
            "trained_per_example": Spread.of(self.trained_lengths).as_json(),
            "histogram": [[bin_.low, bin_.high, bin_.count] for bin_ in histogram(self.lengths)],
            "boundary_examples": self.boundary,
            "unopened": dict(by_count(self.unopened)),
            "notes": dict(by_count(self.notes)),
        }


@dataclass(slots=True)
class Counts:
    """What a chunk, or all of them, hold. A row is a line; an example is what is trained: a tree is one row and several
    examples. Of chat examples, `roles` counts turns and `turns` examples by number of turns."""

    rows: int = 0
    """All that are not blank: readable, bad, merged, or dropped by a named rule."""
    readable: int = 0
    bad: int = 0
    merged: int = 0
    """Messages that became part of a tree whose first message is on another line."""
    blank: int = 0
    examples: int = 0
    preferences: int = 0
    """Examples with an answer that is not wanted beside the one that is."""
    images: int = 0
    image_rows: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    """What was done to rows that are kept."""
    roles: Counter[str] = field(default_factory=Counter)
    turns: Counter[int] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)
    """By the row's own `lang` or `language`; nothing is guessed from the text."""
    labels: Counter[str] = field(default_factory=Counter)
    characters: Counter[int] = field(default_factory=Counter)
    """Examples by length, in steps of about 1 %."""
    image_sources: Counter[str] = field(default_factory=Counter)
    ignored_keys: Counter[str] = field(default_factory=Counter)
    detected: dict[str, str] = field(default_factory=dict)
    """Of each format that was detected: by what."""
    tokens: TokenCounts | None = None

    def add(self, other: Counts) -> None:
        """Sum up."""
        _sum(self, other)

    def require_whole(self) -> None:
        """No row may get lost: raise where one did, which is a fault of ours."""
        found = self.readable + self.bad + self.merged + self.dropped.total()
        if found != self.rows:
            raise RankzeroError(f"{self.rows} rows were read, {found} are accounted for: please report this")

    @property
    def an_example(self) -> str:
        """What a length is of, for people."""
        return "an example, of pairs with the longer answer" if self.preferences else "an example"

    def count_examples(self, examples: list[Conversation]) -> None:
        """What is in these."""
        shapes: Counter[tuple[str, ...]] = Counter()
        characters: Counter[int] = Counter()
        for example in examples:
            messages = example.messages
            length = 0
            for message in messages:
                length += len(message.content) + len(message.reasoning)
            if example.templated:
                shapes[tuple([message.role for message in messages])] += 1  # a list is twice as fast as a generator
            if example.rejected:
                self.preferences += 1
                length += max(0, _characters(example.rejected) - _characters(messages[-example.preferred :]))
            characters[length] += 1
            if example.images:
                self._count_images(example.images)
            if example.label is not None:
                self.labels[str(example.label)[:80]] += 1
        for shape, count in shapes.items():
            self.turns[len(shape)] += count
            for role in shape:
                self.roles[role] += count
        for length, count in characters.items():
            self.characters[stepped(length)] += count
        self.examples += len(examples)

    def count_languages(self, chunk: Chunk, bad: Collection[int]) -> None:
        """The languages that good rows name."""
        if b'"lang' not in chunk.data:
            return
        for number, line in lines(chunk):
            if number not in bad and (found := _LANGUAGE.search(line)):
                self.languages[found[1].decode("utf-8", "replace")] += 1

    def _count_images(self, images: tuple[str, ...]) -> None:
        from rankzero.data.images.layout import source_of
        from rankzero.data.images.paths import refusal

        self.image_rows += 1
        self.images += len(images)
        for path in images:
            self.image_sources["(refused)" if refusal(path) else source_of(path)] += 1

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "rows": self.rows,
            "readable": self.readable,
            "bad": self.bad,
            "merged": self.merged,
            "dropped": dict(by_count(self.dropped)),
            "blank_lines": self.blank,
            "examples": self.examples,
            "preferences": self.preferences,
            "formats": dict(by_count(self.formats)),
            "detected_by": self.detected,
            "rules": dict(by_count(self.rules)),
            "roles": dict(by_count(self.roles)),
            "turns": {str(turns): examples for turns, examples in sorted(self.turns.items())},
            "languages": dict(by_count(self.languages)),
            "labels": dict(by_count(self.labels)),
            "characters": Spread.of(self.characters).as_json(),
            "images": {
                "images": self.images,
                "examples": self.image_rows,
                "sources": dict(by_count(self.image_sources)),
            },
            "ignored_keys": dict(by_count(self.ignored_keys)),
            "tokens": None if self.tokens is None else self.tokens.as_json(),
        }


def _characters(messages: Iterable[Message]) -> int:
    return sum(len(message.content) + len(message.reasoning) for message in messages)


def _sum(into: Any, other: Any) -> None:
    for item in fields(into):
        name, value = item.name, getattr(other, item.name)
        mine = getattr(into, name)
        if isinstance(value, Counter):
            mine.update(value)
            if len(mine) > 2 * _MOST_NAMES and isinstance(next(iter(mine)), str):
                _fold(mine)
        elif isinstance(value, dict):
            setattr(into, name, value | mine)
        elif name == "cap":
            setattr(into, name, max(mine, value))
        elif isinstance(value, int):
            setattr(into, name, mine + value)
        elif value is not None:  # counts of tokens
            if mine is None:
                setattr(into, name, mine := type(value)())
            _sum(mine, value)


def _fold(counter: Counter[str]) -> None:
    """The rarest names as one."""
    kept = dict(counter.most_common(_MOST_NAMES))
    rest = counter.total() - sum(kept.values())
    counter.clear()
    counter.update(kept)
    counter[OTHER] += rest


def by_count(counter: Mapping[str, int]) -> list[tuple[str, int]]:
    """The most common first; of equals the first by name, so that the same data gives the same report."""
    return sorted(counter.items(), key=lambda item: (-item[1], item[0]))


def stepped(number: int) -> int:
    """Rounded down by at most 1.6 %, so that there are few different ones."""
    shift = max(0, number.bit_length() - _EXACT_BITS)
    return number >> shift << shift


@dataclass(frozen=True, slots=True)
class Spread:
    """How a number is spread over rows."""

    minimum: int = 0
    p50: int = 0
    p90: int = 0
    p95: int = 0
    p99: int = 0
    maximum: int = 0
    mean: float = 0.0

    @classmethod
    def of(cls, counter: Mapping[int, int]) -> Spread:
        """The percentiles are values that occur: the smallest that so many percent of the rows do not exceed."""
        if not counter:
            return cls()
        values = sorted(counter)
        up_to = list(accumulate(counter[value] for value in values))
        total = up_to[-1]
        p50, p90, p95, p99 = (values[bisect_left(up_to, math.ceil(total * p / 100))] for p in (50, 90, 95, 99))
        mean = sum(value * counter[value] for value in values) / total
        return cls(values[0], p50, p90, p95, p99, values[-1], mean)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True, slots=True)
class Bin:
    """Rows whose number is from `low` to `high`, both included; None: or more."""

    low: int
    high: int | None
    count: int

    @property
    def label(self) -> str:
        """`100–199`."""
        if self.high is None:
            return f"{self.low:,}+"
        return f"{self.low:,}" if self.high == self.low else f"{self.low:,}–{self.high:,}"


def histogram(counter: Mapping[int, int], most: int = 12) -> list[Bin]:
    """At most so many bins of one round width. What is beyond the 99th percentile may share the last, open one."""
    if not counter:
        return []
    spread = Spread.of(counter)
    low, high = spread.minimum, spread.maximum
    width = _round_width(low, high, most)
    if _bins(low, spread.p99, width) * 2 < _bins(
        low, high, width
    ):  # a few giants would squeeze all others into one bin
        width = _round_width(low, spread.p99, most - 1)
        high = spread.p99
    first = low // width
    count = _bins(low, high, width)
    heights = [0] * (count + (high < spread.maximum))
    for value, rows in counter.items():
        heights[min(value // width - first, len(heights) - 1)] += rows
    bins = [Bin((first + i) * width, (first + i + 1) * width - 1, rows) for i, rows in enumerate(heights)]
    if high < spread.maximum:
        bins[-1] = Bin(bins[-1].low, None, bins[-1].count)
    return bins


def _bins(low: int, high: int, width: int) -> int:
    return high // width - low // width + 1


def _round_width(low: int, high: int, most: int) -> int:
    width = 1
    for step in (step * 10**power for power in range(20) for step in (1, 2, 5)):
        width = step
        if _bins(low, high, width) <= most:
            break
    return width


def share(part: int, whole: int) -> float:
    """`part` of `whole`; 0 of nothing."""
    return part / whole if whole else 0.0
