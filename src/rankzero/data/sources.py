"""Data files as chunks of whole lines. Knows bytes, newlines and encodings; nothing of JSON or of rows."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankzero.data.problems import RowProblem
from rankzero.errors import DataError, Problem, StorageError

CHUNK_BYTES = 4 << 20
"""What one worker gets at a time: large enough to hide the hand-over, small enough to bound memory."""

UTF8_BOM = b"\xef\xbb\xbf"

NO_ROWS = RowProblem(0, "no rows", "there are no rows: every line is blank", "is this the right file?")

_NOT_JSONL = {
    b"\x1f\x8b": ("gzip", "unpack it first: gunzip -k FILE"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unpack it first: zstd -d FILE"),
    b"PK\x03\x04": ("zip", "unpack it first: unzip FILE"),
    b"PAR1": ("Parquet", 'pandas.read_parquet(FILE).to_json(OUT, orient="records", lines=True) makes JSON lines'),
    b"ARROW1": ("Arrow", "write it as JSON lines first"),
}
_WIDE_BOMS = {
    b"\xff\xfe\x00\x00": "UTF-32LE",
    b"\x00\x00\xfe\xff": "UTF-32BE",
    b"\xff\xfe": "UTF-16LE",
    b"\xfe\xff": "UTF-16BE",
}


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines of one source, from `first_line` on."""

    source: int
    first_line: int
    data: bytes


def read_chunks(path: str, source: int = 0, size: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Cut a file at newlines into chunks of about `size` bytes; a longer line makes a longer chunk."""
    line = 1
    pending: list[bytes] = []
    try:
        with open(path, "rb", buffering=0) as file:
            while block := file.read(size):
                cut = block.rfind(b"\n") + 1
                if not cut:
                    pending.append(block)  # the middle of a long line: joined once, when its end is seen
                    continue
                data = b"".join([*pending, block[:cut]])
                yield Chunk(source, line, data)
                line += data.count(b"\n")
                pending = [block[cut:]]
    except OSError as error:  # the file could be opened before: what fails now is the volume
        raise StorageError(f"reading failed: {error.strerror or error}", where=path) from error
    if rest := b"".join(pending):
        yield Chunk(source, line, rest)


def read_all(paths: Sequence[str]) -> Iterator[Chunk]:
    """The chunks of all files, one file after the other; `source` is the index in `paths`."""
    for index, path in enumerate(paths):
        yield from read_chunks(path, index)


def lines(chunk: Chunk) -> Iterator[tuple[int, bytes]]:
    """Every line with its number, without its end. Only b"\\n" ends a line: U+2028 inside a string does not."""
    data = chunk.data
    if chunk.first_line == 1 and data.startswith(UTF8_BOM):
        data = data[len(UTF8_BOM) :]
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), chunk.first_line):
        yield number, line.removesuffix(b"\r")


def require_readable(paths: Sequence[str]) -> None:
    """Raise one DataError with all that is wrong with the files as such."""
    problems = [Problem(problem.what, path, problem.hint) for path in dict.fromkeys(paths) if (problem := probe(path))]
    if problems:
        raise DataError(problems)


def probe(path: str) -> RowProblem | None:
    """What is wrong with the file as a whole, seen from its name and its first bytes."""
    file = Path(path)
    try:
        if file.is_dir():
            return _directory(file)
        if not file.exists():
            return _missing(file)
        if not file.is_file():
            hint = "data is read more than once: write it to a file first"
            return RowProblem(0, "not a regular file", "is not a regular file", hint)
        with file.open("rb") as stream:
            head = stream.read(4096)
    except OSError as error:
        reason = error.strerror or str(error)
        return RowProblem(0, "unreadable file", f"cannot be read: {reason}", f"try: ls -l {path}")
    return _bad_head(head, path)


def _missing(file: Path) -> RowProblem:
    names = [entry.name for entry in file.parent.iterdir()] if file.parent.is_dir() else []
    near = difflib.get_close_matches(file.name, names, n=1)
    if near:
        hint = f"did you mean {file.parent / near[0]}?"
    elif file.is_absolute():
        hint = "on a cluster the path is looked up inside the pod: is the volume mounted there?"
    else:
        hint = f"the path is relative to {Path.cwd()}"
    return RowProblem(0, "no such file", "no such file", hint)


def _directory(folder: Path) -> RowProblem:
    names = sorted(entry.name for entry in folder.iterdir() if entry.suffix in (".jsonl", ".json"))
    hint = f"name the files in it: {', '.join(names[:5])}" if names else "give the path of a JSONL file"
    return RowProblem(0, "directory", "is a directory, not a file", hint)


def _bad_head(head: bytes, path: str) -> RowProblem | None:
    if not head:
        return RowProblem(0, "empty file", "the file is empty", "was the download or the export cut off?")
    for magic, (kind, hint) in _NOT_JSONL.items():
        if head.startswith(magic):
            return RowProblem(0, "not JSON lines", f"is a {kind} file, not JSON lines", hint.replace("FILE", path))
    if encoding := _wide_encoding(head):
        hint = f"convert it: iconv -f {encoding} -t UTF-8 {path} > utf8.jsonl"
        return RowProblem(0, "not UTF-8", f"is {encoding} text, not UTF-8", hint)
    first = head.removeprefix(UTF8_BOM).lstrip()
    if first.startswith(b"["):
        what = "is one JSON array, not JSON lines (one object a line)"
        return RowProblem(0, "not JSON lines", what, f"convert it: jq -c '.[]' {path} > rows.jsonl")
    if first.split(b"\n", 1)[0].rstrip() == b"{":
        what = "holds objects spread over several lines, not JSON lines (one object a line)"
        return RowProblem(0, "not JSON lines", what, f"convert it: jq -c . {path} > rows.jsonl")
    return None


def _wide_encoding(head: bytes) -> str | None:
    """UTF-16 or UTF-32, by byte-order mark or because every second (or three in four) bytes of ASCII are NUL."""
    for mark, name in _WIDE_BOMS.items():
        if head.startswith(mark):
            return name
    mostly_zero = "".join("0" if 5 * head[k::4].count(0) > 3 * len(head[k::4]) else "x" for k in range(4))
    return {"x000": "UTF-32LE", "000x": "UTF-32BE", "x0x0": "UTF-16LE", "0x0x": "UTF-16BE"}.get(mostly_zero)
