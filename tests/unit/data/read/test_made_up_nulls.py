"""Nulls that tables make: of tool calls and tools no row has the members that only other rows have."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankzero.data.convert.convert import convert
from rankzero.data.inspect.validate import check
from rankzero.data.read.containers.arrow_rows import MADE_UP, NO_NUMBER, rows_of_batch
from rankzero.data.read.sources import read_chunks
from rankzero.data.rows.chunks import apart, pack, rows_of
from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.parse import parse
from rankzero.spec.run_spec import SourceSpec
from tests.support.tiny import write_jsonl
from tests.unit.data.support import user_assistant


def tool(name: str, properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more, "parameters": {"properties": properties}}}


def openai(name: str, arguments: Any) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]}


def anthropic(name: str, arguments: Any) -> dict[str, Any]:
    asked = [{"type": "text", "text": "q"}]
    used = [{"type": "tool_use", "id": "1", "name": name, "input": arguments}]
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": used}]}


def gemini(name: str, arguments: Any) -> dict[str, Any]:
    called = {"functionCall": {"name": name, "args": arguments}}
    return {"contents": [{"role": "user", "parts": [{"text": "q"}]}, {"role": "model", "parts": [called]}]}


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def arrow(path: Path, rows: list[dict[str, Any]]) -> Path:
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(str(path.with_suffix(".arrow")), table.schema) as writer:
        writer.write_table(table)
    return path.with_suffix(".arrow")


def conversations(path: Path) -> list[Conversation]:
    parsed = [parse(chunk, "auto") for chunk in read_chunks(str(path))]
    assert not any(one.problems for one in parsed)
    return [replace(conversation, line=0) for one in parsed for conversation in one.conversations]


@pytest.mark.parametrize("write", [parquet, arrow])
@pytest.mark.parametrize("called", [openai, anthropic, gemini])
def test_a_table_says_what_json_lines_say(
    called: Callable[..., Any], write: Callable[..., Path], tmp_path: Path
) -> None:
    city = {"city": {"type": "string", "enum": ["Paris"]}}
    rows = [
        called("f", {"city": "Paris", "in": [{"unit": "c"}, {"days": 2}]}) | {"tools": [tool("f", city, strict=True)]},
        called("g", {"query": "x"}) | {"tools": [tool("g", {"query": {"type": "string"}}), tool("f", city)]},
        called("h", {"query": "x"}) | {"tools": None},
    ]
    expected = conversations(write_jsonl(tmp_path / "rows.jsonl", rows))
    path = write(tmp_path / "rows", rows)
    assert conversations(path) == expected
    assert json.loads(json.dumps(expected[1].messages[1].tool_calls[0]["function"]["arguments"])) == {"query": "x"}
    assert check([SourceSpec(path=str(path))]).counts.rules == {MADE_UP: 3}
    assert check([SourceSpec(path=f"{path}#2")]).counts.rules == {MADE_UP: 2}


def test_a_table_without_made_up_members_is_not_counted(tmp_path: Path) -> None:
    path = parquet(tmp_path / "rows", [openai("f", {"city": "Paris"}), user_assistant("q", "a")])
    assert check([SourceSpec(path=str(path))]).counts.rules == {}


def test_nulls_that_are_in_the_data_stay(tmp_path: Path) -> None:
    """In JSON lines, and where a table has arguments as JSON in a string."""
    given = {"city": None, "in": {"unit": None}}
    lines = write_jsonl(tmp_path / "rows.jsonl", [openai("f", given)])
    table = parquet(tmp_path / "rows", [openai("f", json.dumps(given))])
    for path in (lines, table):
        (row,) = conversations(path)
        assert row.messages[1].tool_calls[0]["function"]["arguments"] == given
        assert check([SourceSpec(path=str(path))]).counts.rules == {}


def test_what_a_table_made_up_is_said_where_it_is_converted(tmp_path: Path) -> None:
    rows = [openai("f", {"city": "Paris"}), openai("g", {"query": "x"})]
    path = parquet(tmp_path / "rows", rows)
    result = convert([SourceSpec(path=str(path))], tmp_path / "out.jsonl", "messages")
    assert result.rules == {MADE_UP: 2} and "null" not in (tmp_path / "out.jsonl").read_text()
    (chunk,) = read_chunks(str(path))
    (again,) = pack(rows_of(chunk), 0)
    assert again.rules == chunk.rules == {0: (MADE_UP,), 1: (MADE_UP,)}


def test_no_number_in_an_object_is_counted(tmp_path: Path) -> None:
    """Its null says nothing, as of a weight; in a column of its own it is how tables have what is missing."""
    weights = (0.5, math.nan, math.inf, None)
    turns = [
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "loss_weight": w}] for w in weights
    ]
    table = pa.table({"messages": turns, "score": list(weights), "vector": [[math.nan, 1.0]] * 4})
    pq.write_table(table, tmp_path / "rows.parquet")
    assert check([SourceSpec(path=str(tmp_path / "rows.parquet"))]).counts.rules == {NO_NUMBER: 2}


def test_both_rules_of_a_row_are_counted(tmp_path: Path) -> None:
    rows = [openai("f", {"city": "Paris"}), openai("g", {"query": "x"})]
    table = pa.Table.from_pylist(rows)
    turns = [[{**turn, "weight": math.nan} for turn in row["messages"]] for row in table.to_pylist()]
    pq.write_table(table.set_column(0, "messages", pa.array(turns)), tmp_path / "rows.parquet")
    assert check([SourceSpec(path=str(tmp_path / "rows.parquet"))]).counts.rules == {MADE_UP: 2, NO_NUMBER: 2}
    (chunk,) = read_chunks(str(tmp_path / "rows.parquet"))
    assert [part.rules for part in apart(chunk)] == [chunk.rules]


def test_numbers_of_lists_in_objects_are_counted_too(tmp_path: Path) -> None:
    table = pa.table({"prompt": ["q"] * 2, "completion": ["a"] * 2, "meta": [{"p": [math.nan]}, {"p": [1.0]}]})
    pq.write_table(table, tmp_path / "rows.parquet")
    (chunk,) = read_chunks(str(tmp_path / "rows.parquet"))
    assert chunk.rules == {0: (NO_NUMBER,)}


LISTS = {
    "list": pa.list_,
    "large list": pa.large_list,
    "list of a fixed size": lambda of: pa.list_(of, 1),
    "list view": pa.list_view,
    "large list view": pa.large_list_view,
}


@pytest.mark.parametrize("kind", LISTS)
def test_lists_of_every_kind(kind: str) -> None:
    call = pa.struct({"name": pa.string(), "arguments": pa.struct({"a": pa.int64(), "b": pa.int64()})})
    calls = [[{"name": "f", "arguments": {"a": 1}}], [{"name": "g", "arguments": {"b": 2}}]]
    batch = pa.record_batch([pa.array(calls, LISTS[kind](call))], names=["tool_calls"])
    found = list(rows_of_batch(batch, 1))
    assert [json.loads(line)["tool_calls"] for line, _ in found] == calls
    assert [said for _, said in found] == [(MADE_UP,)] * 2
