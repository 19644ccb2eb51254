"""Chunks of rows as token ids with trained ranges: what one data worker does. Knows no files and no cache.

Token arrays travel as numpy arrays, thousands of rows in one: a Python object per row would cost more than the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from rankzero.collector import without_collector
from rankzero.data.cache.pictures import ImageFile, image_file
from rankzero.data.images.decode import ImageError
from rankzero.data.rows.chunks import Chunk
from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.parse import parse
from rankzero.data.rows.problems import RowProblem
from rankzero.data.tokens.chat import Rendered, Renderer, TokenRules
from rankzero.data.tokens.image_tokens import Picture, bad_image
from rankzero.data.tokens.row_tokens import Encoder, Row
from rankzero.data.tokens.tokenizer import TokenizerParts

Int32 = npt.NDArray[np.int32]
ReadImage = Callable[[str, tuple[int, ...]], ImageFile]

_REMEMBERED = 1 << 16


@dataclass(slots=True)
class Block:
    """The rows of a chunk: row i is input_ids[offsets[i]:offsets[i + 1]], its trained ranges likewise in `ranges`
    (start, end, start, end, …)."""

    input_ids: Int32
    offsets: Int32
    ranges: Int32
    range_offsets: Int32
    weights: npt.NDArray[np.float32]
    """What the losses of each range are multiplied by, row by row as `weight_offsets` say; none where all are 1."""
    weight_offsets: Int32
    supervised: Int32
    loss_weight: npt.NDArray[np.float64]
    """The sum of the weights of each row's trained tokens: their number where all are 1."""
    lines: npt.NDArray[np.int64]
    ties: npt.NDArray[np.int64]
    """Rows with an equal one must not be split between train and eval. Of each row, as `tie_offsets` say, one or
    more."""
    tie_offsets: Int32
    digests: npt.NDArray[np.int64]
    """Equal for rows of equal tokens, of which the same are trained, with equal labels and images."""
    labels: list[str | None]
    images: list[tuple[ImageFile, ...]]
    rejected_from: Int32 | None = None
    """Of preferences: where in each row its second sequence begins."""

    @property
    def nbytes(self) -> int:
        """Of its arrays, about what it takes on disk."""
        arrays = (self.input_ids, self.offsets, self.ranges, self.range_offsets, self.weights, self.weight_offsets)
        of_rows = (self.supervised, self.loss_weight, self.lines, self.ties, self.tie_offsets, self.digests)
        texts = [
            *(label or "" for label in self.labels),
            *(text for files in self.images for file in files for text in file),
        ]
        beside = sum(len(text.encode()) + 8 for text in texts) + 16 * len(self.lines)
        return sum(array.nbytes for array in (*arrays, *of_rows)) + beside


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
    notes: Counter[str] = field(default_factory=Counter)
    ignored_keys: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Task:
    """A chunk and its format. Without `encode` only problems are looked for: other rows are known to be bad."""

    chunk: Chunk
    format: str
    encode: bool
    columns: Mapping[str, str] | None = None
    image_root: str = "."


def chunk_encoder(parts: TokenizerParts, rules: TokenRules) -> Callable[[Task], EncodedChunk]:
    """What a worker runs on every chunk."""
    renderer, encoder = Renderer(parts, rules), Encoder(parts, rules)
    read_image = lru_cache(_REMEMBERED)(image_file)

    @without_collector()
    def encode_chunk(task: Task) -> EncodedChunk:
        parsed = parse(
            *(task.chunk, task.format, task.columns),
            trains=rules.trains,
            minus_one_is_a_class=rules.minus_one_is_a_class,
        )
        result = EncodedChunk(
            task.chunk.source, task.chunk.done, problems=parsed.problems, rows_in=parsed.rows, blank=parsed.blank
        )
        result.dropped.update(parsed.dropped)
        result.ignored_keys.update(parsed.ignored_keys)
        rendered: list[Rendered] = []
        kept: list[Conversation] = []
        for conversation in parsed.conversations:
            row = renderer.render(conversation, task.image_root)
            if isinstance(row, RowProblem):
                result.problems.append(row)
            else:
                rendered.append(row)
                kept.append(conversation)
        if result.problems:
            result.problems.sort(key=lambda problem: problem.line)
        elif task.encode:
            _fill(result, encoder.encode(rendered), kept, read_image)
        return result

    return encode_chunk


def _fill(
    result: EncodedChunk, rows: Iterator[Row], conversations: Sequence[Conversation], read_image: ReadImage
) -> None:
    """Count, and lay the rows that stay out end to end. Images that changed since they were looked at are problems."""
    ids: list[Int32] = []
    ranges: list[int] = []
    range_counts: list[int] = []
    weights: list[float] = []
    weight_counts: list[int] = []
    supervised: list[int] = []
    loss_weight: list[float] = []
    lines: list[int] = []
    ties: list[int] = []
    tie_counts: list[int] = []
    digests: list[int] = []
    labels: list[str | None] = []
    images: list[tuple[ImageFile, ...]] = []
    rejected_from: list[int] = []
    for row, conversation in zip(rows, conversations, strict=True):
        if row.dropped:
            result.dropped[row.dropped] += 1
            continue
        files = _read_images(row.pictures, conversation.line, read_image)
        if isinstance(files, RowProblem):
            result.problems.append(files)
            continue
        result.truncated += row.truncated
        result.straddling += row.straddles
        if row.unopened:
            result.unopened[row.unopened] += 1
        result.notes.update(row.notes)
        row_ids = np.array(row.ids, dtype=np.int32)
        row_ranges = [end for pair in row.ranges for end in pair]
        ids.append(row_ids)
        ranges += row_ranges
        range_counts.append(len(row_ranges))
        weights += row.weights
        weight_counts.append(len(row.weights))
        supervised.append(row.supervised)
        loss_weight.append(row.loss_weight)
        lines.append(conversation.line)
        held = [file.sha256 for file in files]
        row_ties = ties_of(result.source, conversation, held)
        ties += row_ties
        tie_counts.append(len(row_ties))
        labels.append(row.label)
        images.append(files)
        if row.rejected_from:
            rejected_from.append(row.rejected_from)
        counted = f" {row.weights}" if row.weights else ""
        counted += f" rejected from {row.rejected_from}" if row.rejected_from else ""
        digests.append(digest64(f"{row_ranges} {row.label!r} {held}{counted}", row_ids.tobytes()))
    if result.problems:
        return
    result.block = Block(
        input_ids=np.concatenate(ids) if ids else np.empty(0, np.int32),
        offsets=_offsets([len(row_ids) for row_ids in ids]),
        ranges=np.array(ranges, dtype=np.int32),
        range_offsets=_offsets(range_counts),
        weights=np.array(weights, dtype=np.float32),
        weight_offsets=_offsets(weight_counts),
        loss_weight=np.array(loss_weight, dtype=np.float64),
        supervised=np.array(supervised, dtype=np.int32),
        lines=np.array(lines, dtype=np.int64),
        ties=np.array(ties, dtype=np.int64),
        tie_offsets=_offsets(tie_counts),
        digests=np.array(digests, dtype=np.int64),
        labels=labels,
        images=images,
        rejected_from=np.array(rejected_from, dtype=np.int32) if rejected_from else None,
    )


def _read_images(pictures: Sequence[Picture], line: int, read_image: ReadImage) -> tuple[ImageFile, ...] | RowProblem:
    files = []
    for picture in pictures:
        try:
            files.append(read_image(picture.path, picture.state))
        except ImageError as error:
            return bad_image(line, picture.path, error)
    return tuple(files)


def ties_of(source: int, conversation: Conversation, images: Sequence[str]) -> list[int]:
    """What ties a row to others: its group and what each of its images holds (`images`); where it has none, its line,
    of which there may be several rows."""
    names = [] if conversation.group is None else [f"group {conversation.group}"]
    names += [f"image {image}" for image in dict.fromkeys(images)]
    return [digest64(name) for name in names or [f"{source}:{conversation.line}"]]


def digest64(text: str, more: bytes = b"") -> int:
    """A signed 64-bit hash that is the same in every process and for ever."""
    return int.from_bytes(blake2b(text.encode() + more, digest_size=8).digest(), "little", signed=True)


def _offsets(lengths: list[int]) -> Int32:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
