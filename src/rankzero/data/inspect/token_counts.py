"""Examples counted in tokens, as training would take them. Knows templates and rules; keeps no tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rankzero.data.inspect.statistics import TokenCounts, stepped
from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.problems import RowProblem
from rankzero.data.tokens.chat import Rendered, Renderer, TokenRules
from rankzero.data.tokens.row_tokens import Encoder, Row, cuts_images
from rankzero.data.tokens.tokenizer import TokenizerParts

COUNTED = 16_384
"""Longer examples are counted as this long, or as data.max_length where that is more. Cutting them here costs no more
memory than training takes."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """With which tokenizer tokens are counted, and by which rules rows are cut."""

    parts: TokenizerParts
    rules: TokenRules


class Counted(NamedTuple):
    """The counts of a chunk, what the template refuses, and the examples that are trained."""

    counts: TokenCounts
    problems: list[RowProblem]
    kept: list[Conversation]


class TokenCounter:
    """One worker's."""

    def __init__(self, tokens: Tokens) -> None:
        self._rules = tokens.rules
        self._cap = max(tokens.rules.max_length, COUNTED)
        self._renderer = Renderer(tokens.parts, tokens.rules)
        self._encoder = Encoder(tokens.parts, replace(tokens.rules, max_length=self._cap, over_length="truncate"))

    def count(self, examples: Sequence[Conversation], image_root: str = ".") -> Counted:
        """A row with a refused example is not counted at all."""
        rendered: list[tuple[Conversation, Rendered]] = []
        problems: list[RowProblem] = []
        for example in examples:
            row = self._renderer.render(example, image_root)
            if isinstance(row, RowProblem):
                problems.append(row)
            else:
                rendered.append((example, row))
        refused = {problem.line for problem in problems}
        taken = [(example, row) for example, row in rendered if example.line not in refused]
        counts = TokenCounts(self._cap)
        kept = [
            example
            for (example, _), encoded in zip(taken, self._encoder.encode([row for _, row in taken]), strict=True)
            if self._add(counts, encoded)
        ]
        return Counted(counts, problems, kept)

    def _add(self, counts: TokenCounts, row: Row) -> bool:
        """Count it. Returns whether it is trained."""
        counts.examples += 1
        counts.lengths[max(len(one.ids) for one in row.sequences)] += 1
        dropped, tokens, supervised = fate(row, self._rules)
        if dropped:
            counts.dropped[dropped] += 1
            return False
        counts.kept += 1
        counts.tokens += tokens
        if row.label is None:
            counts.supervised += supervised
            counts.trained_lengths[stepped(supervised)] += 1
        counts.truncated += tokens < len(row.ids) or row.truncated
        counts.cut_tokens += len(row.ids) - tokens
        counts.boundary += row.straddles
        if row.unopened:
            counts.unopened[row.unopened] += 1
        counts.notes.update(row.notes)
        return True


def fate(row: Row, rules: TokenRules) -> tuple[str, int, int]:
    """Of a row that was cut late or not at all: why the rules drop it, or how many tokens they leave, and how many of
    those are trained."""
    fates = [_fate(one, rules) for one in row.sequences]
    dropped = next((why for why, *_ in fates if why), "")
    if not dropped and len(fates) == 2:
        chosen, rejected = (one.ids[: rules.max_length] for one in row.sequences)
        dropped = "answers_alike" if chosen == rejected else ""
    if dropped:
        return dropped, 0, 0
    return "", sum(tokens for _, tokens, _ in fates), sum(supervised for *_, supervised in fates)


def _fate(row: Row, rules: TokenRules) -> tuple[str, int, int]:
    if row.dropped in ("nothing_to_train", "empty_text"):
        return row.dropped, 0, 0
    too_long = row.truncated or len(row.ids) > rules.max_length
    if too_long and rules.over_length == "drop":
        return "over_length", 0, 0
    tokens = min(len(row.ids), rules.max_length)
    if row.label is not None:
        return "", tokens, row.supervised
    if too_long and cuts_images(row.images_end, rules.max_length):
        return "image_cut_off", 0, 0
    supervised = sum(max(0, min(end, tokens) - start) for start, end in row.ranges)
    if too_long and not supervised:
        return "truncated_before_trained", 0, 0
    return "", tokens, supervised
