"""A file here that changes while a stream reads it: no window has rows of two contents, and none go missing unsaid."""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from rankzero.data.cache.encode import chunk_encoder
from rankzero.data.cache.stream.feeder import Room, WindowWriter
from rankzero.data.cache.stream.order import Cursor
from rankzero.data.cache.stream.plan import Stream, make_stream
from rankzero.data.cache.tokenize import TokenRules
from rankzero.data.read.network import RealNetwork
from rankzero.data.rows.chunks import pack
from rankzero.errors import DataError
from rankzero.spec.run_spec import SourceSpec
from tests.support.tiny import tiny_tokenizer

CHANGED = "the file changed since it was listed"


def lines(tag: str, rows: int) -> str:
    return "".join(json.dumps({"text": f"{tag} {row:05} " + "y" * 2000}) + "\n" for row in range(rows))


def stream_of(folder: Path) -> Stream:
    source = SourceSpec(path=str(folder))
    rules, network = TokenRules(max_length=64), RealNetwork()
    return make_stream([source], tiny_tokenizer(), rules, seed=5, window_rows=10, cache_bytes=10**9, network=network)


def cut_at_a_row(path: Path) -> None:
    """Behind what a reader has in memory by then."""
    os.truncate(path, path.read_bytes().index(b"\n", 4 << 20) + 1)


def written_anew(path: Path) -> None:
    with path.open("r+") as file:
        file.write(lines("new", 6000))


def damaged(path: Path) -> None:
    os.truncate(path, 4 << 20)
    with path.open("ab") as file:
        file.write(b"\xff\n")


@pytest.mark.parametrize("change", [cut_at_a_row, written_anew, damaged])
def test_rows_of_a_file_that_changed_end_in_an_error(change: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(lines("old", 5000))
    rows = stream_of(tmp_path).rows(0, 0, RealNetwork())
    assert len(list(islice(rows, 100))) == 100
    change(path)
    with pytest.raises(DataError, match=CHANGED) as changed:
        list(rows)
    assert changed.value.problems[0].where == str(path)


@pytest.mark.parametrize("bad", [False, True])
def test_a_window_with_rows_of_a_file_that_changed_is_never_whole(bad: bool, tmp_path: Path) -> None:
    """Bad rows of one that is half written are not held against it."""
    path = tmp_path / "d/x.jsonl"
    path.parent.mkdir()
    path.write_text(lines("old", 64) + '{"text": 3}\n' * bad + lines("old", 100))
    stream, windows = stream_of(path.parent), tmp_path / "w"
    windows.mkdir()
    encode = chunk_encoder(stream.parts, stream.rules)
    rows = islice(stream.rows(0, 0, RealNetwork()), 66)
    with WindowWriter(stream, windows, 0, Room(windows, 10**9, 10)) as window:
        for chunk in pack(rows, 0):
            window.add(encode(stream.task(chunk, 0, encode=True)), 0)
        written_anew(path)
        with pytest.raises(DataError, match=CHANGED):
            window.commit(Cursor(), window.tally)
    assert not list(windows.iterdir())
