"""Chunks of rows as token ids with trained ranges: what one data worker does. Knows no files and no cache.

Token arrays travel as numpy arrays, thousands of rows in one: a Python object per row would cost more than the rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

from rankzero.data.chat import Rendered, Renderer, TokenRules
from rankzero.data.chunks import Chunk
from rankzero.data.conversation import Conversation
from rankzero.data.problems import RowProblem
from rankzero.data.rows import parse
from rankzero.data.tokenizer import TokenizerParts

Int32 = npt.NDArray[np.int32]
TokenRange = tuple[int, int]

_BATCH_CHARS = 256 * 1024
"""Text tokenised in one call: tokenizers needs some hundred bytes of memory for each token until its ids are taken."""

_CHARS_PER_TOKEN = 64
_SPARE_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Row:
    """One tokenised row. `ranges` are the trained tokens; the first token is never among them, nothing predicts it."""

    ids: list[int]
    ranges: list[TokenRange]
    truncated: bool = False
    dropped: str = ""
    straddles: bool = False
    unopened: str = ""


@dataclass(slots=True)
class Block:
    """The rows of a chunk: row i is input_ids[offsets[i]:offsets[i + 1]], its trained ranges likewise in `ranges`
    (start, end, start, end, …)."""

    input_ids: Int32
    offsets: Int32
    ranges: Int32
    range_offsets: Int32
    supervised: Int32
    lines: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]
    """Equal for rows that must not be split between train and eval."""
    digests: npt.NDArray[np.int64]
    """Equal for rows of equal tokens, of which the same are trained."""


@dataclass(slots=True)
class EncodedChunk:
    """What came of a chunk. `block` is None where nothing was tokenised because rows are bad."""

    source: int
    length: int
    block: Block | None = None
    problems: list[RowProblem] = field(default_factory=list)
    rows_in: int = 0
    blank: int = 0
    truncated: int = 0
    straddling: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    unopened: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Task:
    """A chunk and its format. Without `encode` only problems are looked for: other rows are known to be bad."""

    chunk: Chunk
    format: str
    encode: bool
    columns: Mapping[str, str] | None = None


def chunk_encoder(parts: TokenizerParts, rules: TokenRules) -> Callable[[Task], EncodedChunk]:
    """What a worker runs on every chunk."""
    renderer, encoder = Renderer(parts, rules), Encoder(parts, rules)

    def encode_chunk(task: Task) -> EncodedChunk:
        parsed = parse(task.chunk, task.format, task.columns)
        result = EncodedChunk(
            task.chunk.source, len(task.chunk.data), problems=parsed.problems, rows_in=parsed.rows, blank=parsed.blank
        )
        result.dropped.update(parsed.dropped)
        rendered: list[Rendered] = []
        kept: list[Conversation] = []
        for conversation in parsed.conversations:
            row = renderer.render(conversation)
            if isinstance(row, RowProblem):
                result.problems.append(row)
            else:
                rendered.append(row)
                kept.append(conversation)
        if result.problems:
            result.problems.sort(key=lambda problem: problem.line)
        elif task.encode:
            _fill(result, encoder.encode(rendered), kept)
        return result

    return encode_chunk


def _fill(result: EncodedChunk, rows: Iterator[Row], conversations: Sequence[Conversation]) -> None:
    """Count, and lay the rows that stay out end to end."""
    ids: list[Int32] = []
    ranges: list[int] = []
    range_counts: list[int] = []
    supervised: list[int] = []
    lines: list[int] = []
    groups: list[int] = []
    digests: list[int] = []
    for row, conversation in zip(rows, conversations, strict=True):
        if row.dropped:
            result.dropped[row.dropped] += 1
            continue
        result.truncated += row.truncated
        result.straddling += row.straddles
        if row.unopened:
            result.unopened[row.unopened] += 1
        row_ids = np.array(row.ids, dtype=np.int32)
        row_ranges = [end for pair in row.ranges for end in pair]
        ids.append(row_ids)
        ranges += row_ranges
        range_counts.append(len(row_ranges))
        supervised.append(sum(end - start for start, end in row.ranges))
        lines.append(conversation.line)
        group = conversation.group
        groups.append(digest64(f"{result.source}:{conversation.line}" if group is None else f"group {group}"))
        digests.append(digest64(f"{row_ranges}", row_ids.tobytes()))
    result.block = Block(
        input_ids=np.concatenate(ids) if ids else np.empty(0, np.int32),
        offsets=_offsets([len(row_ids) for row_ids in ids]),
        ranges=np.array(ranges, dtype=np.int32),
        range_offsets=_offsets(range_counts),
        supervised=np.array(supervised, dtype=np.int32),
        lines=np.array(lines, dtype=np.int64),
        groups=np.array(groups, dtype=np.int64),
        digests=np.array(digests, dtype=np.int64),
    )


def digest64(text: str, more: bytes = b"") -> int:
    """A signed 64-bit hash that is the same in every process and for ever."""
    return int.from_bytes(blake2b(text.encode() + more, digest_size=8).digest(), "little", signed=True)


def _offsets(lengths: list[int]) -> Int32:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)


class Encoder:
    """Rendered rows to token ids."""

    def __init__(self, parts: TokenizerParts, rules: TokenRules) -> None:
        self._backend = Backend.from_str(parts.backend)
        self._eos_id = parts.eos_id
        self._max_length = rules.max_length
        self._drop_long = rules.over_length == "drop"
        self._longest_text = max(1 << 20, _CHARS_PER_TOKEN * rules.max_length)
        self._before, self._after = self._surroundings()

    def _surroundings(self) -> tuple[list[int], list[int]]:
        """The ids that the tokenizer itself puts before and behind a text."""
        plain = self._backend.encode("a", add_special_tokens=False).ids
        whole = self._backend.encode("a", add_special_tokens=True).ids
        at = next((at for at in range(len(whole)) if whole[at : at + len(plain)] == plain), 0)
        return whole[:at], whole[at + len(plain) :]

    def encode(self, rows: Sequence[Rendered]) -> Iterator[Row]:
        """The rows in order, some hundred kilobytes of text at a time."""
        for batch in _batches(rows):
            cut = [row.text[: self._longest_text] for row in batch]
            encodings = self._backend.encode_batch(cut, add_special_tokens=False)
            for row, text, encoding in zip(batch, cut, encodings, strict=True):
                # A 40 MB row need not become millions of tokens to be cut to a few thousand; its first tokens are the
                # same as long as the cut is far behind them.
                whole = len(text) == len(row.text)
                if not whole and len(encoding) < self._max_length + _SPARE_TOKENS:
                    encoding, whole = self._backend.encode(row.text, add_special_tokens=False), True
                yield self._row(row, encoding, whole)

    def _row(self, row: Rendered, encoding: Encoding, whole: bool) -> Row:
        before, after = (self._before, self._after) if row.raw else ([], [])
        ids = [*before, *encoding.ids, *after]
        ranges, straddles = _token_ranges(row, encoding, len(before))
        if row.add_eos:
            if ids[-1:] != [self._eos_id]:
                ids.append(self._eos_id)
            # Trained even where the tokenizer, or the text itself, brought it: it is where the model learns to stop.
            ranges = _joined([*ranges, (len(before) + len(encoding), len(ids))])
        ranges = _clipped(ranges, 1, len(ids))
        if whole and not ranges:
            return Row(ids, [], dropped="nothing_to_train")
        if whole and len(ids) <= self._max_length:
            return Row(ids, ranges, straddles=straddles, unopened=row.unopened)
        if self._drop_long:
            return Row(ids, [], dropped="over_length")
        ranges = _clipped(ranges, 1, self._max_length)
        dropped = "" if ranges else "truncated_before_trained"
        return Row(ids[: self._max_length], ranges, True, dropped, straddles, row.unopened)


def _token_ranges(row: Rendered, encoding: Encoding, shift: int) -> tuple[list[TokenRange], bool]:
    """Character spans as token ranges, and whether a token joins the end of the prompt with the start of the answer.

    A token belongs to the span that it starts in: an end token may swallow the space behind it, and still is the end.
    Only in raw prompt + completion a token that begins in the prompt and reaches into the completion is trained,
    since no other token of the row stands for that part of the completion.
    """
    tokens = range(len(encoding))

    def start_of(token: int) -> int:
        return int(_chars(encoding, token)[0])

    def end_of(token: int) -> int:
        return int(_chars(encoding, token)[1])

    if row.raw:
        boundary = row.spans[0][0]
        first = bisect_right(tokens, boundary, key=end_of) if boundary else 0
        straddles = first < len(tokens) and start_of(first) < boundary
        return [(first + shift, len(tokens) + shift)], straddles
    ranges = [
        (bisect_left(tokens, start, key=start_of) + shift, bisect_left(tokens, end, key=start_of) + shift)
        for start, end in row.spans
    ]
    return _joined(ranges), False


def _chars(encoding: Encoding, token: int) -> Any:
    """A token's characters. Asking for one is cheap; the list of all offsets would cost half as much as tokenising."""
    return encoding.token_to_chars(token)


def _clipped(ranges: list[TokenRange], low: int, high: int) -> list[TokenRange]:
    clipped = [(max(start, low), min(end, high)) for start, end in ranges]
    return [(start, end) for start, end in clipped if start < end]


def _joined(ranges: list[TokenRange]) -> list[TokenRange]:
    """Touching ranges as one, empty ones left out."""
    joined: list[TokenRange] = []
    for start, end in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        elif start < end:
            joined.append((start, end))
    return joined


def _batches(rows: Sequence[Rendered]) -> Iterator[list[Rendered]]:
    batch: list[Rendered] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(row.text)
        if size >= _BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
