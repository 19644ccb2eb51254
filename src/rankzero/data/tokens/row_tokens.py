"""Rendered rows as token ids with trained ranges. Knows the tokenizer's backend and the length limit; nothing of
templates, chunks or files."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

from rankzero.data.tokens.chat_text import Rendered
from rankzero.data.tokens.image_tokens import Picture
from rankzero.data.tokens.surroundings import surroundings
from rankzero.data.tokens.token_rules import TokenRules
from rankzero.data.tokens.tokenizer import TokenizerParts

TokenRange = tuple[int, int]
_Weighted = tuple[int, int, float]
"""Tokens from, to (exclusive), and what their losses are multiplied by."""

_BATCH_CHARS = 256 * 1024
"""Text tokenised in one call: tokenizers needs some hundred bytes of memory for each token until its ids are taken."""

_CHARS_PER_TOKEN = 64
_SPARE_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Row:
    """One tokenised row. `ranges` are the trained tokens; the first token is never among them, nothing predicts it.
    A row with a label has none: it is put into a class as a whole. `weights` are what the losses of each range are
    multiplied by; none where all are 1. Images have their full number of tokens."""

    ids: list[int]
    ranges: list[TokenRange]
    truncated: bool = False
    dropped: str = ""
    straddles: bool = False
    unopened: str = ""
    label: str | None = None
    pictures: tuple[Picture, ...] = ()
    images_end: int = 0
    """The tokens up to and with the last image."""
    weights: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    rejected_from: int = 0
    """Of a preference: where among the tokens the row with its worse answer begins. 0: there is none."""

    @property
    def sequences(self) -> tuple[Row, ...]:
        """The row; of a preference the one with the better answer and the one with the worse."""
        at = self.rejected_from
        if not at:
            return (self,)
        chosen = [(start, end) for start, end in self.ranges if end <= at]
        rejected = [(start - at, end - at) for start, end in self.ranges if start >= at]
        alone = replace(self, rejected_from=0)
        return replace(alone, ids=self.ids[:at], ranges=chosen), replace(alone, ids=self.ids[at:], ranges=rejected)

    @property
    def supervised(self) -> int:
        """How many losses the row has."""
        return 1 if self.label is not None else sum(end - start for start, end in self.ranges)

    @property
    def loss_weight(self) -> float:
        """The sum of what its losses are multiplied by, each weight as float32 holds it; 1 of a preference, which has
        one loss."""
        if self.rejected_from:
            return 1.0
        if not self.weights:
            return float(self.supervised)
        weighted = zip(self.ranges, np.array(self.weights, dtype=np.float32).tolist(), strict=True)
        return float(sum((end - start) * weight for (start, end), weight in weighted))


def cuts_images(images_end: int, max_length: int) -> bool:
    """Whether a cut leaves less than whole images. The last token of a row is only a target and never fed in, so an
    image must end before it."""
    return images_end >= max_length


class Encoder:
    """Rendered rows to token ids."""

    def __init__(self, parts: TokenizerParts, rules: TokenRules) -> None:
        self._image_token_id = None if rules.vision is None else rules.vision.image_token_id
        self._backend = Backend.from_str(parts.backend)
        self._eos_id = parts.eos_id
        self._max_length = rules.max_length
        self._drop_long = rules.over_length == "drop"
        self._longest_text = max(1 << 20, _CHARS_PER_TOKEN * rules.max_length)
        self._surroundings = surroundings(self._backend)

    def encode(self, rows: Sequence[Rendered]) -> Iterator[Row]:
        """The rows in order."""
        encoded = self._each([one for row in rows for one in (row, row.rejected) if one is not None])
        for row in rows:
            first = next(encoded)
            yield first if row.rejected is None else _preference(first, next(encoded))

    def _each(self, rows: Sequence[Rendered]) -> Iterator[Row]:
        """Some hundred kilobytes of text at a time."""
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
        if row.label is not None:
            return self._labelled(row.label, encoding.ids, whole)
        before, after, notes = self._surroundings.around(encoding.ids) if row.raw else ([], [], ())
        ids = [*before, *encoding.ids, *after]
        ranges, straddles = _token_ranges(row, encoding, len(before))
        if row.add_eos:
            if ids[-1:] != [self._eos_id]:
                ids.append(self._eos_id)
            # Trained even where the tokenizer, or the text itself, brought it: it is where the model learns to stop.
            ranges = _joined([*ranges, (len(before) + len(encoding), len(ids), ranges[-1][2] if ranges else 1.0)])
        ranges, images_end = _clipped(ranges, 1, len(ids)), 0
        if row.pictures:
            of_images = _tokens_of_images(row, encoding, len(before))
            ids, ranges, images_end = self._with_images(ids, ranges, row.pictures, of_images)
        made = Row(
            ids,
            [],
            straddles=straddles,
            unopened=row.unopened,
            pictures=row.pictures,
            images_end=images_end,
            notes=(*row.notes, *notes),
        )
        if whole and not ranges:
            return replace(made, dropped="nothing_to_train")
        if whole and len(ids) <= self._max_length:
            return _with_ranges(made, ranges)
        if self._drop_long:
            return replace(made, dropped="over_length")
        ranges = _clipped(ranges, 1, self._max_length)
        dropped = "" if ranges else "truncated_before_trained"
        if cuts_images(images_end, self._max_length):
            dropped = "image_cut_off"
        return _with_ranges(replace(made, ids=ids[: self._max_length], truncated=True, dropped=dropped), ranges)

    def _with_images(
        self, ids: list[int], ranges: list[_Weighted], pictures: Sequence[Picture], spans: list[TokenRange]
    ) -> tuple[list[int], list[_Weighted], int]:
        """The row with as many image tokens as each image has, and where the last image ends. `spans` are the tokens of
        the images, with one for each run of image tokens; nothing trains the model to write any of them. Images whose
        place was cut off with the text end behind all tokens."""
        copies = [run for picture in pictures for run in picture.layout.copies]
        places = [at for span in spans for at in range(*span) if ids[at] == self._image_token_id]
        whole: list[int] = []
        last = 0
        for place, run in zip(places, copies, strict=False):
            whole += ids[last:place]
            whole += ids[place : place + 1] * run
            last = place + 1
        whole += ids[last:]
        more = [0, *accumulate(run - 1 for run in copies)]

        def moved(token: int) -> int:
            return token + more[bisect_left(places, token)]

        trained: list[_Weighted] = []
        for start, end, weight in ranges:
            inside = [span for span in spans if span[0] < end and span[1] > start]
            edges = [start, *(edge for span in inside for edge in span), end]
            pieces = zip(edges[::2], edges[1::2], strict=True)
            trained += [(moved(low), moved(high), weight) for low, high in pieces if low < high]
        return whole, trained, moved(spans[-1][1]) if len(places) == len(copies) else sys.maxsize

    def _labelled(self, label: str, text: list[int], whole: bool) -> Row:
        """A text and its class. A cut leaves the tokens that close the text: an encoder has never seen one without."""
        first, last = self._surroundings.before, self._surroundings.after
        before, after, notes = self._surroundings.around(text)
        text = text[len(first) - len(before) : len(text) - len(last) + len(after)]
        room = self._max_length - len(first) - len(last)
        ids = [*first, *text[: max(room, 0)], *last]
        if not ids:
            return Row(ids, [], dropped="empty_text", label=label, notes=notes)
        long = not whole or len(text) > room
        dropped = "over_length" if long and self._drop_long else ""
        return Row(ids, [], long, dropped, label=label, notes=notes)


def _preference(chosen: Row, rejected: Row) -> Row:
    """Both as one row, which is dropped where one of them is, and where nothing that was left tells them apart."""
    at = len(chosen.ids)
    return Row(
        chosen.ids + rejected.ids,
        [*chosen.ranges, *((start + at, end + at) for start, end in rejected.ranges)],
        truncated=chosen.truncated or rejected.truncated,
        dropped=chosen.dropped or rejected.dropped or ("answers_alike" if chosen.ids == rejected.ids else ""),
        straddles=chosen.straddles or rejected.straddles,
        unopened=chosen.unopened or rejected.unopened,
        notes=tuple(dict.fromkeys((*chosen.notes, *rejected.notes))),
        rejected_from=at,
    )


def _with_ranges(row: Row, ranges: Sequence[_Weighted]) -> Row:
    weights = tuple(weight for *_, weight in ranges)
    plain = all(weight == 1 for weight in weights)
    return replace(row, ranges=[(start, end) for start, end, _ in ranges], weights=() if plain else weights)


def _token_ranges(row: Rendered, encoding: Encoding, shift: int) -> tuple[list[_Weighted], bool]:
    """Character spans as token ranges, and whether a token joins the end of the prompt with the start of the answer.

    A token belongs to the span that it starts in: an end token may swallow the space behind it, and still is the end.
    One that begins in the prompt and reaches into the answer is trained where no other token of the row stands for
    that part of the answer: in raw prompt + completion, and from a template where all that it takes of the prompt is
    space. A template's line break belongs to the prompt that it is given in use.
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
        return [(first + shift, len(tokens) + shift, 1.0)], straddles
    weights = row.weights or (1.0,) * len(row.spans)
    ranges, before = [], 0
    for (start, end), weight in zip(row.spans, weights, strict=True):
        first = _first_from(encoding, start)
        first -= _takes_space_alone(row.text, before, encoding, first - 1, start)
        ranges.append((first + shift, _first_from(encoding, end) + shift, weight))
        before = end
    return _joined(ranges), False


def _takes_space_alone(text: str, before: int, encoding: Encoding, token: int, start: int) -> bool:
    """Whether a token reaches into the span from `start` on, and what it takes of the text in front, as far as the span
    before, is space."""
    if token < 0:
        return False
    begins, ends = _chars(encoding, token)
    return bool(before <= begins < start < ends and not text[begins:start].strip(" "))


def _tokens_of_images(row: Rendered, encoding: Encoding, shift: int) -> list[TokenRange]:
    """The tokens that begin in each of the row's images."""
    return [
        (_first_from(encoding, start) + shift, _first_from(encoding, end) + shift) for start, end in row.picture_spans
    ]


def _first_from(encoding: Encoding, char: int) -> int:
    """The first token that begins at a character or behind it."""
    # Nearly always one begins right there: this asks once instead of ten times.
    token: int | None = encoding.char_to_token(char)
    if token is not None and _begins(encoding, token, char) and not (token and _begins(encoding, token - 1, char)):
        return token
    return bisect_left(range(len(encoding)), char, key=lambda token: int(_chars(encoding, token)[0]))


def _begins(encoding: Encoding, token: int, char: int) -> bool:
    return bool(_chars(encoding, token)[0] == char)


def _chars(encoding: Encoding, token: int) -> Any:
    """A token's characters. Asking for one is cheap; the list of all offsets would cost half as much as tokenising."""
    return encoding.token_to_chars(token)


def _clipped(ranges: list[_Weighted], low: int, high: int) -> list[_Weighted]:
    clipped = [(max(start, low), min(end, high), weight) for start, end, weight in ranges]
    return [(start, end, weight) for start, end, weight in clipped if start < end]


def _joined(ranges: list[_Weighted]) -> list[_Weighted]:
    """Touching ranges of one weight as one, empty ones left out."""
    joined: list[_Weighted] = []
    for start, end, weight in ranges:
        if joined and joined[-1][1] == start and joined[-1][2] == weight:
            joined[-1] = (joined[-1][0], end, weight)
        elif start < end:
            joined.append((start, end, weight))
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
