"""JSON that is not one row a line: the elements of an array, or values that stand one after the other.

Finds where values begin and end by brackets outside strings, block by block; what is inside a value is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt
import orjson

from rankzero.data.read.containers.layout import Layout
from rankzero.data.read.containers.stream import KEPT_OF_DAMAGE, MAX_ROW_BYTES, DamagedError
from rankzero.data.rows.chunks import NumberedLine
from rankzero.data.rows.problems import RowProblem

_MAX_TAIL = 16 << 20

_QUOTE, _OPEN, _CLOSE = 1, 2, 3
_KINDS = np.zeros(256, dtype=np.uint8)
_KINDS[ord('"')] = _QUOTE
_KINDS[[ord("{"), ord("[")]] = _OPEN
_KINDS[[ord("}"), ord("]")]] = _CLOSE

_IN_GAP = re.compile(rb'"(?:[^"\\]++|\\.)*+"|,|[^\s,"]++|"', re.DOTALL)
_BLANKS = b" \t\r\n"


class Brackets:
    """Brackets outside strings and their depth, over any number of blocks."""

    def __init__(self) -> None:
        self.depth = 0
        self._in_string = 0
        self._escaped = False

    def feed(self, block: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Of each bracket: where it is in the block, the depth after it, and whether it opens."""
        kinds = _KINDS[np.frombuffer(block, dtype=np.uint8)]
        self._unmark_escaped(block, kinds)
        at = np.flatnonzero(kinds)
        kind = kinds[at]
        quotes = kind == _QUOTE
        inside = (np.cumsum(quotes) + self._in_string) & 1
        if len(inside):
            self._in_string = int(inside[-1])
        brackets = ~quotes & (inside == 0)
        opens = kind[brackets] == _OPEN
        depth = self.depth + np.cumsum(np.where(opens, 1, -1))
        if len(depth):
            self.depth = int(depth[-1])
        return at[brackets], depth, opens

    def _unmark_escaped(self, block: bytes, kinds: npt.NDArray[np.uint8]) -> None:
        """A quote after an odd number of backslashes is no quote."""
        if self._escaped:
            kinds[0] = 0
        first_is_escaped, self._escaped = self._escaped, False
        if b"\\" not in block:
            return
        slashes = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == ord("\\"))
        if first_is_escaped and slashes[0] == 0:
            slashes = slashes[1:]
        if not len(slashes):
            return
        begins = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
        lengths = np.diff(begins, append=len(slashes))
        after = (slashes[begins] + lengths)[lengths & 1 == 1]
        if len(after) and after[-1] == len(block):
            self._escaped = True
            after = after[:-1]
        kinds[after] = 0


def read_values(blocks: Iterator[bytes], layout: Layout) -> Iterator[NumberedLine]:
    """Every value with the number of the line where it begins (of one line alone: its own), newlines in it as tabs.

    As tabs, because a tab inside a string is as invalid as the newline was; between tokens both are blank.
    """
    reader = _Reader(layout)
    try:
        for block in blocks:
            yield from reader.feed(block)
            if reader.stopped:
                return
        yield from reader.finish()
    except DamagedError as damage:
        yield reader.damaged(damage.reason, damage.what, damage.hint)


class _Reader:
    """Where in the file we are, and what has been read but belongs to a value that has not ended."""

    def __init__(self, layout: Layout) -> None:
        self.stopped = False
        self._layout = layout
        self._in_array = layout.kind != "json values"
        self._skip = layout.start
        self._line = 1
        self._row = 1
        self._brackets = Brackets()
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._in_value = False
        self._after_value = False
        self._last_comma = 0
        self._tail: list[bytes] | None = None

    def feed(self, block: bytes) -> Iterator[NumberedLine]:
        """The values that end in this block."""
        if self._skip:
            skipped, block = block[: self._skip], block[self._skip :]
            self._skip -= len(skipped)
            self._line += skipped.count(b"\n")
        if self._tail is not None:
            yield from self._more_tail(block)
            return
        at, depths, opens = self._brackets.feed(block)
        edges = np.flatnonzero((depths <= 0) | (opens & (depths == 1)))
        begin = 0
        for position, depth in zip(at[edges].tolist(), depths[edges].tolist(), strict=True):
            if depth < 0:
                yield from self._gap(self._take(block[begin:position]), before="close")
                yield from self._close(block[position:])
                return
            if depth:
                yield from self._gap(self._take(block[begin:position]))
                begin, self._in_value = position, True
            else:
                yield self._value(self._take(block[begin : position + 1]))
                begin, self._in_value = position + 1, False
        self._held.append(block[begin:])
        self._held_bytes += len(block) - begin
        if self._held_bytes > MAX_ROW_BYTES:
            self.stopped = True
            what = f"what begins here has no end within {MAX_ROW_BYTES >> 20} MiB"
            yield self.damaged("row without an end", what, "a quote or a bracket is not closed")

    def finish(self) -> Iterator[NumberedLine]:
        """What the end of the file leaves open."""
        if self._tail is not None:
            yield from self._check_tail()
            return
        if not self._in_value and not self._in_array:
            yield from self._gap(self._take(b""), before="end")
            return
        if not self._in_value:
            yield from self._gap(self._take(b""), before="end")
        hint = "was the download or the copy cut off? the rows before are whole"
        where = "in the middle of this row" if self._in_value else "before the array is closed"
        yield self.damaged("cut-off file", f"the file ends {where}", hint)

    def damaged(self, reason: str, what: str, hint: str) -> NumberedLine:
        """A problem that ends the reading, with what is left of the row."""
        rest = self._take(b"")
        if self._in_value:
            try:
                orjson.loads(rest)
            except orjson.JSONDecodeError as error:
                if "end of data" not in error.msg:
                    what += f"; it is not valid JSON from column {error.colno} of its line {error.lineno} on"
        else:
            rest = rest.strip(_BLANKS)
        return self._number(), rest[:KEPT_OF_DAMAGE], RowProblem(self._number(), reason, what, hint)

    def _number(self) -> int:
        return self._row if self._layout.by_row else self._line

    def _take(self, more: bytes) -> bytes:
        """What was held and this."""
        if not self._held:
            return more
        whole = b"".join([*self._held, more])
        self._held, self._held_bytes = [], 0
        return whole

    def _value(self, value: bytes) -> NumberedLine:
        number = self._number()
        self._row += 1
        if newlines := value.count(b"\n"):
            self._line += newlines
            value = value.replace(b"\n", b"\t")
        self._after_value, self._last_comma = True, 0
        return number, value, None

    def _gap(self, gap: bytes, before: Literal["value", "close", "end"] = "value") -> Iterator[NumberedLine]:
        """What stands between two values with brackets: a comma, blanks, and values without brackets."""
        if before == "value" and gap.strip(_BLANKS) == (b"," if self._after_value and self._in_array else b""):
            self._line += gap.count(b"\n")
            return
        done = 0
        for token in _IN_GAP.finditer(gap):
            self._line += gap.count(b"\n", done, token.start())
            done = token.start()
            if token[0] == b",":
                if not self._in_array or not self._after_value:
                    yield self._comma()
                self._after_value, self._last_comma = False, self._number() if self._in_array else 0
                continue
            if self._after_value and self._in_array:
                yield self._missing_comma()
            yield self._value(token[0])
            done = token.end()
        self._line += gap.count(b"\n", done)
        if before == "close" and self._last_comma:
            yield self._comma("a comma with no row after it", self._last_comma)
        elif before == "value" and self._after_value and self._in_array:
            yield self._missing_comma()

    def _comma(self, what: str = "a comma with no row before it", number: int = 0) -> NumberedLine:
        number = number or self._number()
        hint = "" if self._in_array else "rows with commas between them are an array: put [ before and ] after them"
        return number, b",", RowProblem(number, "comma out of place", what, hint)

    def _missing_comma(self) -> NumberedLine:
        what = "there is no comma between this row and the one before"
        return self._number(), b"", RowProblem(self._number(), "missing comma", what)

    def _close(self, rest: bytes) -> Iterator[NumberedLine]:
        """The bracket that ends the array, and what is known of what follows it."""
        if self._in_array and rest.startswith(b"]"):
            self._tail, self._held_bytes = [], 0
            yield from self._more_tail(rest[1:])
            return
        self.stopped = True
        what = f"`{rest[:1].decode()}`, which closes nothing, stands between rows; nothing after it was read"
        yield self.damaged("text after the rows", what, "is a quote or a bracket missing in the rows before?")

    def _more_tail(self, block: bytes) -> Iterator[NumberedLine]:
        assert self._tail is not None
        self._tail.append(block)
        self._held_bytes += len(block)
        if self._held_bytes > _MAX_TAIL:
            self.stopped = True
            yield from self._check_tail()

    def _check_tail(self) -> Iterator[NumberedLine]:
        """After the array: nothing, or the rest of the object that it is in, without another array."""
        assert self._tail is not None
        tail = b"".join(self._tail)
        what, hint, reason = "", "", "text after the rows"
        if self._layout.kind == "json array":
            if tail.strip(_BLANKS):
                what, hint = "there is text after the end of the array; it was not read", "were two files joined?"
        elif not tail.strip(_BLANKS):
            reason, what = "cut-off file", "the file ends before its outer object is closed"
            hint = "was the download or the copy cut off?"
        else:
            what, hint = _outer_fault(tail)
        if what:
            start = len(tail) - len(tail.lstrip(_BLANKS))
            self._line += tail.count(b"\n", 0, start)
            rest = tail[start:][:KEPT_OF_DAMAGE]
            yield self._number(), rest, RowProblem(self._number(), reason, what, hint)


def _outer_fault(tail: bytes) -> tuple[str, str]:
    """What is wrong with an object's members after its array of rows, and a hint; both empty where nothing is."""
    try:
        outer = orjson.loads(b'{"":0' + tail)
    except orjson.JSONDecodeError as error:
        return f"what stands after the array of rows is not valid JSON: {error.msg}", "was the copy cut off?"
    others = [name for name, value in outer.items() if isinstance(value, list)]
    if others:
        what = f"the file holds another array, `{others[0]}`; only the first was read"
        return what, "write the rows that are meant as an array of their own: jq '.data' FILE > rows.json"
    return "", ""
