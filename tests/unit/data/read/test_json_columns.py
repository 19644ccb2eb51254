"""Columns that hold JSON as text and say so: `Json()` of the library datasets, which keeps with it what has a type of
its own in each row. They are what they were made from."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankzero.data.inspect.validate import check
from rankzero.data.read.sources import read_chunks
from rankzero.data.rows.chunks import rows_of
from rankzero.data.rows.parse import parse
from rankzero.spec.run_spec import SourceSpec

JSON = pa.json_(pa.string())


def texts(values: list[Any]) -> Any:
    """A column of them; a text is JSON as it stands."""
    given = [one if one is None or isinstance(one, str) else json.dumps(one) for one in values]
    return pa.ExtensionArray.from_storage(JSON, pa.array(given, pa.string()))


def listed(column: Any, lengths: list[int]) -> Any:
    ends = [sum(lengths[:number]) for number in range(len(lengths) + 1)]
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), column)


def write(path: Path, table: Any, kind: str) -> str:
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(path, table.schema) as out:
            out.write_table(table)
    return str(path)


def rows(path: str) -> list[Any]:
    return [json.loads(line) for chunk in read_chunks(path) for _, line, _ in rows_of(chunk)]


@pytest.fixture(params=["parquet", "arrow"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_values_are_read_wherever_they_are(tmp_path: Path, kind: str) -> None:
    values = ['"text"', "null", {"a": [1, None], "b": {"c": "\u2028é"}}, 2**80, '{\n  "over": "lines"\n}', None]
    given = texts(values)
    wanted = ["text", None, values[2], 2**80, {"over": "lines"}, None]
    table = pa.table(
        {"plain": given, "in": pa.StructArray.from_arrays([given], ["it"]), "many": listed(given, [1] * 6)}
    )
    found = rows(write(tmp_path / f"f.{kind}", table, kind))
    assert [row["plain"] for row in found] == wanted
    assert [row["in"]["it"] for row in found] == wanted
    assert [row["many"] for row in found] == [[one] for one in wanted]


def test_beside_times(tmp_path: Path, kind: str) -> None:
    at = pa.array([datetime.datetime(2026, 1, 2)])
    both = pa.StructArray.from_arrays([at, texts([{"a": 1}])], ["at", "it"])
    (row,) = rows(write(tmp_path / f"f.{kind}", pa.table({"both": both}), kind))
    assert row["both"]["it"] == {"a": 1} and row["both"]["at"].startswith("2026-01-02")


def test_conversations_as_trl_has_them(tmp_path: Path, kind: str) -> None:
    """`tool_calls: List(Json())`, `tools: List(Json())`, and contents that are texts or parts."""
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    contents = texts(['"q"', '""', '"1"', [{"type": "text", "text": "done"}]])
    roles = pa.array(["user", "assistant", "tool", "assistant"])
    turns = pa.StructArray.from_arrays(
        [roles, contents, listed(texts([call]), [0, 1, 0, 0])], ["role", "content", "tool_calls"]
    )
    table = pa.table({"messages": listed(turns, [4]), "tools": listed(texts([tool]), [1])})
    path = write(tmp_path / f"f.{kind}", table, kind)
    (chunk,) = read_chunks(path)
    (found,) = parse(chunk, "auto").conversations
    assert [message.content for message in found.messages] == ["q", "", "1", "done"]
    assert found.messages[1].tool_calls == (call,) and found.tools == (tool,)
    assert not check([SourceSpec(path=path)]).problems


def test_text_that_is_no_json_is_a_problem_of_its_row(tmp_path: Path, kind: str) -> None:
    table = pa.table({"prompt": texts(['"q"', "{", '"q"']), "completion": ["a"] * 3})
    (chunk,) = read_chunks(write(tmp_path / f"f.{kind}", table, kind))
    found = parse(chunk, "auto")
    assert len(found.conversations) == 2
    (problem,) = found.problems
    assert (problem.line, problem.reason) == (2, "not valid JSON")


def test_json_of_other_writers_is_text(tmp_path: Path) -> None:
    """As DuckDB writes `to_json(…)`: what a row is to answer, which is text in every format but Parquet's own types."""
    answer = texts(['{"name": "Ann", "age": 5}', '"five"', None])
    nested = pa.StructArray.from_arrays([answer], ["it"])
    table = pa.table({"prompt": ["q"] * 3, "completion": answer, "in": nested})
    pq.write_table(table, tmp_path / "f.parquet", store_schema=False)
    found = rows(str(tmp_path / "f.parquet"))
    assert [row["completion"] for row in found] == ['{"name": "Ann", "age": 5}', '"five"', None]
    assert [row["in"]["it"] for row in found] == [row["completion"] for row in found]
    pq.write_table(table.slice(0, 1), tmp_path / "g.parquet", store_schema=False)
    assert not check([SourceSpec(path=str(tmp_path / "g.parquet"))]).problems


def test_json_of_the_library_datasets_is_known_by_its_metadata_alone(tmp_path: Path) -> None:
    table = pa.table({"it": texts([{"a": 1}])})
    with pq.ParquetWriter(tmp_path / "f.parquet", table.schema, store_schema=False) as out:
        out.write_table(table)
        out.add_key_value_metadata({"huggingface": json.dumps({"info": {"features": {"it": {"_type": "Json"}}}})})
    assert rows(str(tmp_path / "f.parquet")) == [{"it": {"a": 1}}]
