"""Counting rows, and reading only some of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankzero.data.read.hashing import content_hash
from rankzero.data.read.sources import count_rows, lines, read_chunks
from rankzero.data.rows.chunks import select
from rankzero.errors import DataError
from tests.unit.data.read.containers.reading import as_array, as_parquet, gz, jsonl, put

ROWS = [{"text": f"row {index}"} for index in range(50)]
FILES = {
    "f.jsonl": b"\xef\xbb\xbf\n" + jsonl(ROWS).replace(b"\n", b"\r\n \n"),
    "f.jsonl.gz": gz(jsonl(ROWS)),
    "f.json": as_array(ROWS, 1),
    "f.csv": b"text\n\n" + b"\n\n".join(row["text"].encode() for row in ROWS),
    "f.parquet": as_parquet(ROWS),
}


@pytest.mark.parametrize("name", FILES)
def test_rows_are_counted_without_blank_lines(tmp_path: Path, name: str) -> None:
    assert count_rows(str(put(tmp_path / name, FILES[name]))) == 50


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("wanted", [[], [0], [49], [0, 1, 2], [3, 17, 18, 40], list(range(50))])
def test_only_the_rows_asked_for_are_read(tmp_path: Path, name: str, wanted: list[int]) -> None:
    path = str(put(tmp_path / name, FILES[name]))
    all_of_it = [line for chunk in read_chunks(path) for line in lines(chunk) if line[1].strip()]
    keep = np.array(wanted, dtype=np.int64)
    found = [line for chunk in select(read_chunks(path), keep) for line in lines(chunk)]
    assert found == [all_of_it[index] for index in wanted]
    assert [orjson.loads(line[1]) for line in found] == [ROWS[index] for index in wanted]


@settings(deadline=None)
@given(wanted=st.sets(st.integers(0, 199)), size=st.integers(1, 300))
def test_any_sample_over_any_chunks(tmp_path_factory: pytest.TempPathFactory, wanted: set[int], size: int) -> None:
    given_rows = [{"n": index, "pad": "x" * (index % 7)} for index in range(200)]
    path = str(put(tmp_path_factory.mktemp("sample") / "f.jsonl", b"\n" + jsonl(given_rows)))
    keep = np.array(sorted(wanted), dtype=np.int64)
    found = [line for chunk in select(read_chunks(path, 3, size), keep, size) for line in lines(chunk)]
    assert [orjson.loads(line)["n"] for _, line in found] == sorted(wanted)
    assert [number for number, _ in found] == [index + 2 for index in sorted(wanted)]


def test_damage_is_in_every_sample(tmp_path: Path) -> None:
    path = str(put(tmp_path / "f.json", as_array(ROWS, 1)[:-1]))
    (chunk,) = select(read_chunks(path), np.array([2], dtype=np.int64))
    assert [problem.reason for problem in chunk.problems.values()] == ["cut-off file"]
    assert [line for _, line in lines(chunk)][0].startswith(b"{") and len(list(lines(chunk))) == 2


def test_a_bad_row_is_in_the_samples_that_draw_it(tmp_path: Path) -> None:
    path = str(put(tmp_path / "f.csv", b"a,b\n1,2\n3\n5,6\n"))
    assert count_rows(path) == 3
    for ordinal, bad in ((0, 0), (1, 1), (2, 0)):
        (chunk,) = select(read_chunks(path), np.array([ordinal], dtype=np.int64))
        assert len(chunk.problems) == bad and len(list(lines(chunk))) == 1


def test_a_file_that_cannot_be_read_is_an_error_for_who_did_not_probe(tmp_path: Path) -> None:
    path = str(put(tmp_path / "f.jsonl", b"PK\x03\x04rest"))
    with pytest.raises(DataError, match="zip"):
        list(read_chunks(path))


def test_the_same_bytes_are_other_rows_where_the_name_says_so(tmp_path: Path) -> None:
    data = b"text\tlabel\n"
    names = ("f.csv", "g.csv", "f.tsv", "f.tsv.gz", "f.jsonl", "f")
    hashes = {name: content_hash(str(put(tmp_path / name, data)), tmp_path) for name in names}
    assert hashes["f.csv"] == hashes["g.csv"] and hashes["f.tsv"] == hashes["f.tsv.gz"]
    assert hashes["f"] == hashes["f.jsonl"] and len(set(hashes.values())) == 3
