"""Arrays, objects that hold one, and values one after the other."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankzero.data.read.containers import json_values
from rankzero.data.read.sources import count_rows, lines, numbering, probe, read_chunks
from tests.unit.data.read.containers.reading import (
    Row,
    as_array,
    entries,
    json_rows,
    numbers,
    problems,
    put,
    relaxed,
    rows,
)

ROWS: list[Row] = [{"text": 'a "]}" \\'}, {"text": "b\n,", "deep": [{"x": [1, "{"]}, []]}, {"text": "\u2028"}]

blanks = st.text(" \t\r\n", max_size=5).map(str.encode)


@relaxed
@given(given=json_rows, size=st.integers(1, 60), indent=st.sampled_from([None, 0, 1, 4]), space=blanks)
def test_an_array_is_its_elements(
    tmp_path_factory: pytest.TempPathFactory, given: list[Row], size: int, indent: int | None, space: bytes
) -> None:
    path = tmp_path_factory.mktemp("array") / "f.json"
    put(path, space + as_array(given, indent) + space)
    assert rows(path, size) == given
    assert count_rows(str(path)) == len(given)


@relaxed
@given(given=json_rows, size=st.integers(1, 60), space=st.lists(blanks, min_size=30, max_size=30))
def test_blanks_are_anywhere_between_elements(
    tmp_path_factory: pytest.TempPathFactory, given: list[Row], size: int, space: list[bytes]
) -> None:
    data = b"["
    for index, row in enumerate(given):
        comma = b"," if index else b""
        data += space[3 * index] + comma + space[3 * index + 1] + orjson.dumps(row) + space[3 * index + 2]
    path = put(tmp_path_factory.mktemp("array") / "f.json", data + b"]")
    assert rows(path, size) == given


@relaxed
@given(
    given=json_rows.filter(all),
    size=st.integers(1, 60),
    mark=st.booleans(),
    joiner=st.sampled_from(["\n", "", " \n\n"]),
)
def test_objects_over_several_lines(
    tmp_path_factory: pytest.TempPathFactory, given: list[Row], size: int, mark: bool, joiner: str
) -> None:
    text = joiner.join(json.dumps(row, indent=1, ensure_ascii=False) for row in given)
    path = put(tmp_path_factory.mktemp("values") / "f.jsonl", (b"\xef\xbb\xbf" if mark else b"") + text.encode())
    assert rows(path, size) == given


@relaxed
@given(given=json_rows, size=st.integers(1, 60), indent=st.sampled_from([None, 2]))
def test_an_object_that_holds_the_array(
    tmp_path_factory: pytest.TempPathFactory, given: list[Row], size: int, indent: int | None
) -> None:
    outer = {"version": "1.0", "info": {"by": ["x"]}, "data": given, "licence": {"name": "none"}}
    path = put(tmp_path_factory.mktemp("outer") / "f.json", json.dumps(outer, indent=indent).encode())
    assert rows(path, size) == given


def test_elements_are_numbered_by_the_line_where_they_begin(tmp_path: Path) -> None:
    path = put(tmp_path / "f.json", as_array(ROWS, indent=1))
    begins = [index for index, line in enumerate(path.read_text().split("\n"), 1) if line == " {"]
    assert numbers(path) == begins and numbering(str(path)) == "line"


def test_elements_in_one_line_are_numbered_by_their_place(tmp_path: Path) -> None:
    path = put(tmp_path / "f.json", as_array(ROWS))
    assert numbers(path) == [1, 2, 3] and numbering(str(path)) == "row"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_newline_in_a_string_is_not_made_good(tmp_path: Path, size: int) -> None:
    path = put(tmp_path / "f.json", b'[\n{"text": "a\nb"},\n{"text": "c"}]')
    (problem,) = problems(path, size)
    assert problem.line == 2 and "control character" in problem.what
    assert [number for number, _, _ in entries(path, size)] == [2, 4]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "reason", "line"),
    [
        ('[\n{"a":1},\n{"a":2},\n]', "comma out of place", 3),
        ('[,\n{"a":1}\n]', "comma out of place", 1),
        ('[\n{"a":1},,\n{"a":2}\n]', "comma out of place", 2),
        ('[\n{"a":1}\n{"a":2}\n]', "missing comma", 3),
        ('[\n{"a":1},\n{"a":2}\n', "cut-off file", 4),
        ('[\n{"a":1},\n{"a":2},', "cut-off file", 3),
        ('[\n{"a":1},\n{"a":2', "cut-off file", 3),
        ("[", "cut-off file", 1),
        ('[\n{"a":1}]\n[{"a":2}]', "text after the rows", 3),
        ('[\n{"a":1}}\n', "text after the rows", 2),
        ('{\n"a":1}\n}\n{"a":1}', "text after the rows", 3),
        ('{\n"a":1},\n{"a":1}', "comma out of place", 2),
        ('{"data":[\n{"a":1}],\n"test":[{"a":2}]}', "text after the rows", 2),
        ('{"data":[\n{"a":1}],\n"x":', "text after the rows", 2),
        ('{"data":[\n{"a":1}]\n', "cut-off file", 3),
    ],
)
def test_faults_between_rows_are_located(tmp_path: Path, text: str, reason: str, line: int, size: int) -> None:
    found = [problem for _, _, problem in entries(put(tmp_path / "f.json", text.encode()), size) if problem]
    assert [(problem.reason, problem.line) for problem in found] == [(reason, line)]
    assert count_rows(str(tmp_path / "f.json")) == len(entries(tmp_path / "f.json"))


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_elements_without_brackets_are_rows_of_their_own(tmp_path: Path, size: int) -> None:
    path = put(tmp_path / "f.json", b'[\n1, "a,]b",\n{"a":1}, null\n, true]')
    found = [(number, line) for number, line, _ in entries(path, size)]
    assert found == [(2, b"1"), (2, b'"a,]b"'), (3, b'{"a":1}'), (3, b"null"), (4, b"true")]
    assert problems(path, size) == []


def test_an_empty_array_has_no_rows(tmp_path: Path) -> None:
    assert entries(put(tmp_path / "f.json", b" [ \n ]\n")) == []


def test_a_quote_that_is_not_closed_is_located(tmp_path: Path) -> None:
    path = put(tmp_path / "f.json", b'[\n{"a":1},\n{"a":"x},\n{"a":3},\n{"a":4}\n]')
    (problem,) = problems(path)
    assert problem.line == 3 and problem.reason == "cut-off file" and "control character" not in problem.what
    assert "column 1 of its line 2" in problem.what or "column" in problem.what


def test_a_row_without_an_end_is_not_held_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_values, "MAX_ROW_BYTES", 1000)
    path = put(tmp_path / "f.json", b'[{"a":1},\n{"a":"' + b"x" * 5000)
    (problem,) = problems(path, 100)
    assert problem.reason == "row without an end" and problem.line == 2


def test_several_objects_that_look_like_holders_are_rows(tmp_path: Path) -> None:
    line = b'{"data":[{"x":1}]}\n'
    assert rows(put(tmp_path / "f.jsonl", line * 2)) == [{"data": [{"x": 1}]}] * 2
    assert rows(put(tmp_path / "g.jsonl", line)) == [{"x": 1}]
    assert rows(put(tmp_path / "h.jsonl", b'{"messages":[{"x":1}]}\n')) == [{"messages": [{"x": 1}]}]


def test_a_first_row_that_is_cut_off_does_not_make_json_lines_something_else(tmp_path: Path) -> None:
    cut = [b'{"a":"x', b'{"a":[1,2', b'{"a":1,', b'{"a":1', b'{"a', b"{", b'{"a":']
    for first in cut:
        path = put(tmp_path / "f.jsonl", first + b'\n{"a":1}\n{"a":2}\n')
        assert [problem.line for problem in problems(path)] == [1], first
        assert [line for _, line, _ in entries(path)][1:] == [b'{"a":1}', b'{"a":2}'], first


@pytest.mark.parametrize("content", [as_array(ROWS), as_array(ROWS, 2), json.dumps({"data": ROWS}, indent=1).encode()])
def test_every_prefix_gives_rows_or_a_located_problem(tmp_path: Path, content: bytes) -> None:
    for end in range(1, len(content)):
        path = put(tmp_path / "f.json", content[:end])
        found = problems(path, 50)
        assert found, content[:end]
        whole = [orjson.loads(line) for _, line, problem in entries(path, 50) if problem is None and _is_json(line)]
        assert whole == ROWS[: len(whole)] or end < 12


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


@relaxed
@given(data=st.binary(max_size=80), mixed=st.text('[]{}",:\\ \n1a', max_size=60), size=st.integers(1, 40))
def test_no_bytes_make_it_fail(tmp_path_factory: pytest.TempPathFactory, data: bytes, mixed: str, size: int) -> None:
    folder = tmp_path_factory.mktemp("noise")
    for content in (b"[" + data, b"{\n" + mixed.encode(), b"[" + mixed.encode(), b'{"data":[' + mixed.encode()):
        path = put(folder / "f.json", content)
        if probe(str(path)) is not None:  # another encoding, told by its first bytes: refused as a whole
            continue
        assert entries(path, size) or not content.strip(b"[] \n\t\r") or count_rows(str(path)) == 0


def test_a_large_array_is_never_held_whole(tmp_path: Path) -> None:
    element = orjson.dumps({"conversations": [{"from": "human", "value": 'x "y" \n' * 1000}]})
    count = (200 << 20) // len(element)
    path = tmp_path / "f.json"
    with path.open("wb") as file:
        file.write(b"[")
        for index in range(count):
            file.write(b"," * (index > 0) + element)
        file.write(b"]")
    tracemalloc.start()
    try:
        found = sum(1 for chunk in read_chunks(str(path)) for _ in lines(chunk))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == count
    assert peak < 64 << 20
