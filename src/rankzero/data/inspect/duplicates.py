"""Equal examples found by their digests, in bounded memory. Knows nothing of what an example is."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from rankzero.data.rows.conversation import Conversation, Message

DIGEST_BYTES = 8
_HELD = 1 << 21
"""Digests held in memory; more go to a temporary file, and are looked at so many at a time."""
_LINE_BITS = 40
_EXAMPLES = 10

Words = npt.NDArray[np.uint64]
Place = tuple[int, int]
"""Source, line."""


def digest(example: Conversation) -> bytes:
    """Equal for examples with equal content, whatever their ids, formats and keys."""
    parts = [f"{message.role}\x1f{message.content}" for message in example.messages]
    if example.images or example.tools or example.rejected or example.label is not None:
        parts += [repr((example.images, example.tools, example.label)), *map(_whole, example.rejected)]
    parts += [repr(example.template_kwargs)] if example.template_kwargs else []
    richer = (message for message in example.messages if message.tool_calls or message.image_offsets)
    parts += [_whole(message) for message in richer]
    parts += [message.reasoning for message in example.messages if message.reasoning]
    return blake2b("\x1e".join(parts).encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def _whole(message: Message) -> str:
    return repr((message.role, message.content, message.image_offsets, message.tool_calls, message.tool_call_id))


@dataclass(slots=True)
class Duplicates:
    """What was found; the examples are (place of the copy, place of the first one)."""

    copies: int = 0
    """Examples that repeat an earlier one."""
    leaks: int = 0
    """Examples to evaluate on that are also trained on."""
    copy_examples: list[tuple[Place, Place]] = field(default_factory=list)
    leak_examples: list[tuple[Place, Place]] = field(default_factory=list)


class DigestLog:
    """Digests with their places. Places are added in ascending order of source."""

    def __init__(self, held: int = _HELD) -> None:
        self._held = held
        self._blocks: list[Words] = []
        self._in_memory = self._count = 0
        self._file: BinaryIO | None = None

    def add(self, source: int, digests: bytes, lines: Any) -> None:
        """The digests end to end, and as many line numbers."""
        block = np.empty((len(lines), 2), np.uint64)
        block[:, 0] = np.frombuffer(digests, np.uint64)
        block[:, 1] = np.asarray(lines, np.uint64) | np.uint64(source << _LINE_BITS)
        self._blocks.append(block)
        self._in_memory += len(block)
        self._count += len(block)
        if self._in_memory > self._held:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            self._file = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115  closed by `find`, or with the log
        for block in self._blocks:
            self._file.write(block.tobytes())
        self._blocks, self._in_memory = [], 0

    def find(self, evaluation_from: int | None = None) -> Duplicates:
        """All that are equal. Sources from `evaluation_from` on are those to evaluate on."""
        first_held_out = np.uint64(2**63 if evaluation_from is None else evaluation_from << _LINE_BITS)
        found = Duplicates()
        for entries in self._buckets():
            _find(entries, first_held_out, found)
        for examples in (found.copy_examples, found.leak_examples):
            examples.sort()
            del examples[_EXAMPLES:]
        if self._file is not None:
            self._file.close()
        return found

    def _buckets(self) -> Iterator[Words]:
        """All entries, in parts that fit into memory; equal digests are in the same part."""
        if self._file is None:
            if self._blocks:
                yield np.concatenate(self._blocks)
            return
        self._spill()
        parts = -(-self._count // self._held)
        for part in range(parts):
            self._file.seek(0)
            wanted = []
            while data := self._file.read(16 * (1 << 18)):
                block = np.frombuffer(data, np.uint64).reshape(-1, 2)
                wanted.append(block[block[:, 0] % np.uint64(parts) == np.uint64(part)])
            yield np.concatenate(wanted)


def _find(entries: Words, first_held_out: np.uint64, found: Duplicates) -> None:
    entries = entries[np.lexsort((entries[:, 1], entries[:, 0]))]
    digests, places = entries[:, 0], entries[:, 1]
    begins = np.concatenate([[True], digests[1:] != digests[:-1]])
    if begins.all():
        return
    first = places[begins][np.cumsum(begins) - 1]
    held_out, first_is_held_out = places >= first_held_out, first >= first_held_out
    leaks = held_out & ~first_is_held_out
    copies = ~begins & ~leaks
    found.copies += int(copies.sum())
    found.leaks += int(leaks.sum())
    for which, examples in ((copies, found.copy_examples), (leaks, found.leak_examples)):
        earliest = np.sort(places[which])[:_EXAMPLES]
        for place in earliest:
            at = int(np.flatnonzero(which & (places == place))[0])
            examples.append((_place(places[at]), _place(first[at])))


def _place(word: np.uint64) -> Place:
    return int(word) >> _LINE_BITS, int(word) & ((1 << _LINE_BITS) - 1)
