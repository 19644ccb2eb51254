"""How a file holds its rows, seen from its first bytes and its name. Reads the head of a file and nothing more."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import orjson

from rankzero.data.read.containers.stream import PACKINGS, DamagedError, Packing, Place, blocks, opened
from rankzero.data.rows.chunks import UTF8_BOM
from rankzero.data.rows.problems import RowProblem
from rankzero.spec.data_paths import PACKED_SUFFIXES

Kind = Literal["json lines", "json array", "json object", "json values", "csv", "tsv", "text", "parquet", "arrow"]
"""json object: one that holds the array of rows; json values: one after the other, over any number of lines; text: each
line of a file of prose is a row."""

HEAD_BYTES = 256 << 10

PARQUET_MAGIC = b"PAR1"
"""The first and the last bytes of the file."""

ARROW_MAGIC = (b"ARROW1", b"\xff\xff\xff\xff")
"""The first bytes of a file with a footer, and of a stream."""

_BINARY = (PARQUET_MAGIC, *ARROW_MAGIC)

ROWS_KEYS = frozenset(
    {b"data", b"rows", b"examples", b"instances", b"records", b"items", b"samples", b"entries"}
    | {b"train", b"validation", b"test"}
)
"""Names under which an object holds the rows of a file, not the turns of a row."""

_REFUSED = {
    b"PK\x03\x04": ("zip", "unpack it first: unzip FILE"),
    b"PARE": ("Parquet file with encryption", "write it without encryption"),
    b"\x04\x22\x4d\x18": ("lz4", "unpack it first: lz4 -d FILE"),
    b"7z\xbc\xaf\x27\x1c": ("7-Zip", "unpack it first: 7z x FILE"),
    b"SQLite format 3": ("SQLite", "export the table as CSV: sqlite3 -header -csv FILE 'select * from NAME'"),
    b"\x89HDF": ("HDF5", "write it as JSON lines first"),
    b"%PDF": ("PDF", "write its text as JSON lines first"),
    b"version https://git-lfs": ("Git LFS pointer", "the data itself is not here: git lfs pull"),
}
_COLUMNAR = {".parquet": "Parquet", ".arrow": "Arrow", ".feather": "Arrow"}
"""By suffix, what cannot be told from a text that is damaged but by its name."""
_WIDE_BOMS = {
    b"\xff\xfe\x00\x00": "UTF-32LE",
    b"\x00\x00\xfe\xff": "UTF-32BE",
    b"\xff\xfe": "UTF-16LE",
    b"\xfe\xff": "UTF-16BE",
}
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TOKEN = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)
_STRINGS = re.compile(_STRING, re.DOTALL)
_LIKE_JSON = re.compile(rb"(?:\[\s*+)?\{\s*+[\"']")
"""How rows begin, in an array or not, those in Python's notation too, and lines of text hardly ever: `[Chorus]`,
`[1] See …` and `{name}` are text."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a file holds its rows."""

    kind: Kind
    packing: Packing | None = None
    start: int = 0
    """Of arrays: where the first element may begin."""
    encoding: str = ""
    """Of texts that are not UTF-8."""
    by_row: bool = False
    """Rows are numbered by their place, because the file has no lines: Parquet, Arrow, and arrays in one line."""


def find_layout(path: Place) -> Layout | RowProblem:
    """How the file holds its rows, or why it holds none that can be read. Raises OSError, StorageError, ConfigError."""
    with opened(path) as file:
        head = file.read(HEAD_BYTES + 1)
    packing = next((name for magic, name in PACKINGS.items() if head.startswith(magic)), None)
    if packing is not None:
        try:
            head = _read_head(path, packing)
        except DamagedError as damage:
            return RowProblem(0, damage.reason, damage.what, damage.hint)
    if not head:
        return RowProblem(0, "empty file", "the file is empty", "was the download or the export cut off?")
    if refused := _refused(head, str(path), packing):
        return refused
    whole = len(head) <= HEAD_BYTES
    encoding = "" if head.startswith(_BINARY) else (_wide_encoding(head[:4096]) or "")
    if encoding:
        head = head[:HEAD_BYTES].decode(encoding, errors="ignore").encode()
    layout = _layout(head[:HEAD_BYTES], whole, str(path), packing)
    return replace(layout, encoding=encoding) if encoding else layout


def _read_head(path: Place, packing: Packing) -> bytes:
    head = b""
    with closing(blocks(path, packing, HEAD_BYTES)) as stream:  # type: ignore[type-var]
        for block in stream:
            head += block
            if len(head) > HEAD_BYTES:
                break
    return head


def _refused(head: bytes, path: str, packing: Packing | None) -> RowProblem | None:
    """Files that are known not to hold rows, or not so that they could be read here."""
    for magic, (kind, hint) in _REFUSED.items():
        if head.startswith(magic):
            kind = "Excel workbook (or other zip)" if path.lower().endswith(".xlsx") else kind
            return RowProblem(0, "not a data file", f"is a {kind} file, not rows", hint.replace("FILE", path))
    if head[257:262] == b"ustar":
        return RowProblem(0, "not a data file", "is a tar archive, not rows", f"unpack it first: tar -xf {path}")
    if packing is not None and any(head.startswith(magic) for magic in PACKINGS):
        return RowProblem(0, "not a data file", "is packed twice", "unpack it once")
    if named_kind(path) != "text" and head.lstrip()[:14].lower().startswith((b"<!doctype html", b"<html")):
        hint = "a download was answered by a page: of a file on a web site, take the link to the raw file"
        return RowProblem(0, "not a data file", "is an HTML page, not rows", hint)
    if named := _named_otherwise(head, path):
        return named
    if _is_safetensors(head):
        return RowProblem(0, "not a data file", "is a safetensors file: weights, not rows", "is this the right file?")
    encoding = "" if head.startswith(_BINARY) else _wide_encoding(head[:4096])
    if encoding and encoding.startswith("UTF-32"):
        hint = f"convert it: iconv -f {encoding} -t UTF-8 {path} > utf8.jsonl"
        return RowProblem(0, "not UTF-8", f"is {encoding} text, not UTF-8", hint)
    return None


def _named_otherwise(head: bytes, path: str) -> RowProblem | None:
    """A file that its name says to be of columns, and that is neither that nor JSON."""
    suffix = next((suffix for suffix in _COLUMNAR if path.lower().endswith(suffix)), None)
    if suffix is None or head.startswith(_BINARY) or head.removeprefix(UTF8_BOM).lstrip()[:1] in (b"{", b"["):
        return None
    hint = "its first bytes are of another kind of file: was the download or the export damaged?"
    return RowProblem(0, "not a data file", f"is named {suffix}, but is no {_COLUMNAR[suffix]} file", hint)


def _is_safetensors(head: bytes) -> bool:
    """Eight bytes of length, then a JSON object of that length."""
    return head[5:9] == b"\0\0\0{" and head[8:10] in (b'{"', b"{ ", b"{}")


def _layout(head: bytes, whole: bool, path: str, packing: Packing | None) -> Layout:
    if head.startswith(PARQUET_MAGIC):
        return Layout("parquet", packing, by_row=True)
    if head.startswith(ARROW_MAGIC):
        return Layout("arrow", packing, by_row=True)
    named = named_kind(path)
    if named in ("csv", "tsv"):
        return Layout(named, packing)
    first = head.removeprefix(UTF8_BOM).lstrip()
    if named == "text" and first and not _LIKE_JSON.match(first):
        return Layout("text", packing)
    offset = len(head) - len(first)
    if first.startswith(b"["):
        return Layout("json array", packing, offset + 1, by_row=_in_one_line(first[1:], whole))
    if first.startswith(b"{"):
        kind = _of_objects(first, whole)
        if kind == "json object":
            start = offset + (_rows_array(first) or 0)
            return Layout(kind, packing, start, by_row=_in_one_line(head[start:], whole))
        has_mark = kind == "json values" and head.startswith(UTF8_BOM)
        return Layout(kind, packing, len(UTF8_BOM) if has_mark else 0)
    return Layout("json lines", packing)


def named_kind(path: str) -> Literal["csv", "tsv", "text"] | None:
    """The kind of a file that its name decides, because any text could be that. What is called text may be JSON."""
    name = path.lower()
    for suffix in PACKED_SUFFIXES:
        name = name.removesuffix(suffix)
    if name.endswith(".csv"):
        return "csv"
    if name.endswith(".txt"):
        return "text"
    return "tsv" if name.endswith((".tsv", ".tab")) else None


def _of_objects(first: bytes, whole: bool) -> Kind:
    """What a file is that begins with `{`."""
    line, newline, rest = first.partition(b"\n")
    if newline or whole:
        try:
            orjson.loads(line)
        except orjson.JSONDecodeError:
            if not _goes_on(line, rest.lstrip()):
                return "json lines"
        else:
            alone = whole and not rest.strip()
            return "json object" if alone and _rows_array(first) is not None else "json lines"
        return "json object" if _rows_array(first) is not None else "json values"
    return "json object" if _rows_array(first) is not None else "json lines"


def _goes_on(line: bytes, following: bytes) -> bool:
    """Whether a value that this line leaves open goes on in what follows, rather than being cut off."""
    bare = _STRINGS.sub(b"0", line).rstrip()
    if b'"' in bare:
        return False  # cut off in a string
    open_brackets: list[bytes] = []
    for bracket in re.findall(rb"[{}\[\]]", bare):
        if bracket in b"{[":
            open_brackets.append(bracket)
        elif open_brackets:
            open_brackets.pop()
    if not open_brackets:
        return False
    last, comes = bare[-1:], following[:1]
    if last in b"{," and open_brackets[-1] == b"{":
        return comes in b'"}'  # true of nothing at all, too
    return last in b"{[," or (comes in b",:]}" and comes != b"")


def _rows_array(head: bytes) -> int | None:
    """Where the elements of an object's first array begin, if it is named as one that holds rows."""
    depth, name = 0, b""
    for token in _TOKEN.finditer(head):
        if token[0].startswith(b'"'):
            name = token[0][1:-1]
        elif token[0] in b"{[":
            if depth == 1 and token[0] == b"[":
                following = head[token.end() :].lstrip()[:1]
                return token.end() if name in ROWS_KEYS and following in b"{]" else None
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                return None
    return None


def _in_one_line(elements: bytes, whole: bool) -> bool:
    """Whether the first two elements begin in one line."""
    depth = 0
    begins: list[int] = []
    for token in _TOKEN.finditer(elements):
        if token[0] in b"{[":
            if depth == 0:
                begins.append(token.start())
            depth += 1
        elif not token[0].startswith(b'"'):
            depth -= 1
        if len(begins) == 2 or depth < 0:
            break
    for first, second in pairwise(begins):
        return b"\n" not in elements[first:second]
    return not whole and b"\n" not in elements


def _wide_encoding(head: bytes) -> str | None:
    """UTF-16 or UTF-32, by byte-order mark or because every second (or three in four) bytes of ASCII are NUL."""
    for mark, name in _WIDE_BOMS.items():
        if head.startswith(mark):
            return name
    mostly_zero = "".join("0" if 5 * head[k::4].count(0) > 3 * len(head[k::4]) else "x" for k in range(4))
    return {"x000": "UTF-32LE", "000x": "UTF-32BE", "x0x0": "UTF-16LE", "0x0x": "UTF-16BE"}.get(mostly_zero)
