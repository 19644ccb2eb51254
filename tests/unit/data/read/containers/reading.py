"""Shorthand for tests of containers: a file's rows as a reader of chunks sees them."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import settings
from hypothesis import strategies as st

from rankzero.data.read.sources import CHUNK_BYTES, lines, read_chunks
from rankzero.data.rows.problems import RowProblem

Row = dict[str, Any]

relaxed = settings(deadline=None)
"""Examples write files: how long one takes is the machine's affair."""

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12) | st.sampled_from(
    ["\u2028", '"', '\\"', "\\", "\\\\", "a\nb", "\r\n", "{[", "]}", ",", "\t", "\ufeff", "'", "é", "😀", "</s>"]
)
"""Strings with all that a container could trip over."""

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
json_rows = st.lists(st.dictionaries(texts, values, max_size=4), min_size=1, max_size=8)
string_rows = st.lists(st.fixed_dictionaries({"text": texts, "label": texts, "é\u2028": texts}), min_size=1, max_size=8)


def gz(data: bytes) -> bytes:
    """As gzip writes it."""
    return gzip.compress(data, mtime=0)


def zst(data: bytes) -> bytes:
    """As zstd writes it."""
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


PACK: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gz,
    ".zst": zst,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}


def entries(path: str | Path, size: int = CHUNK_BYTES) -> list[tuple[int, bytes, RowProblem | None]]:
    """Every line that is not blank, and every problem."""
    found = []
    for chunk in read_chunks(str(path), size=size):
        numbered = list(lines(chunk))
        assert set(chunk.problems) <= set(range(len(numbered)))
        for index, (number, line) in enumerate(numbered):
            problem = chunk.problems.get(index)
            assert b"\n" not in line
            if problem is not None or line.strip():
                assert problem is None or problem.line == number
                found.append((number, line, problem))
    return found


def rows(path: str | Path, size: int = CHUNK_BYTES) -> list[Row]:
    """The rows of a file without a fault."""
    found = entries(path, size)
    assert [problem for _, _, problem in found if problem] == []
    return [orjson.loads(line) for _, line, _ in found]


def numbers(path: str | Path) -> list[int]:
    """Of each row."""
    return [number for number, _, _ in entries(path)]


def problems(path: str | Path, size: int = CHUNK_BYTES) -> list[RowProblem]:
    """What containers and JSON say of a file's rows."""
    found = []
    for number, line, problem in entries(path, size):
        if problem is not None:
            found.append(problem)
            continue
        try:
            orjson.loads(line)
        except orjson.JSONDecodeError as error:
            found.append(RowProblem(number, "not valid JSON", str(error)))
    return found


def put(path: Path, data: bytes) -> Path:
    """A file of these bytes."""
    path.write_bytes(data)
    return path


def jsonl(given: Sequence[Row]) -> bytes:
    """JSON lines."""
    return b"".join(orjson.dumps(row) + b"\n" for row in given)


def as_array(given: Sequence[Row], indent: int | None = None) -> bytes:
    """One JSON array."""
    return json.dumps(list(given), indent=indent, ensure_ascii=False).encode()


def as_parquet(given: Sequence[Row], row_group: int = 3) -> bytes:
    """A Parquet file."""
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(given)), out, row_group_size=row_group)
    return out.getvalue()
