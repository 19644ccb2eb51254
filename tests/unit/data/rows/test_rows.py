"""Lines as JSON: every trap with its line, column and a hint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankzero.data.convert.convert import convert
from rankzero.data.rows.chunks import Chunk
from rankzero.data.rows.parse import parse
from rankzero.spec.run_spec import SourceSpec
from tests.unit.data.support import GOOD, check_file, data_error, only_problem, problems_of, write


@pytest.mark.parametrize(
    ("line", "what", "hint"),
    [
        (GOOD[:-1] + b",}", "trailing comma is not allowed at column 79", "one JSON object a line"),
        (GOOD[:40], "unexpected end of data", "cut off"),
        (b"{'text': 'x'}", "expected a string key", "json.dumps"),
        (GOOD + GOOD, "unexpected content after document", "newline missing"),
        (b'{"text": NaN}', "at column 10", "write null"),
        (b'{"text": Infinity}', "at column 10", "write null"),
        (b'{"text": -Infinity}', "column 1", "write null"),
        (b'{"text": "\\ud83d"}', "surrogate", "emoji"),
        (b'{"text": "a\tb"}', "control character", "one JSON object a line"),
        (b"plain words", "unexpected character", "one JSON object a line"),
    ],
)
def test_bad_json(tmp_path: Path, line: bytes, what: str, hint: str) -> None:
    problem = only_problem(write(tmp_path / "f.jsonl", GOOD, b"", line, GOOD))
    assert problem.line == 3 and problem.reason == "not valid JSON"
    assert problem.what.startswith("not valid JSON: ") and what in problem.what
    assert hint in problem.hint


def test_columns_count_characters(tmp_path: Path) -> None:
    problem = only_problem(write(tmp_path / "f.jsonl", '{"text":"é🙂",}'.encode()))
    assert "column 13" in problem.what


def test_latin_1_byte(tmp_path: Path) -> None:
    problem = only_problem(write(tmp_path / "f.jsonl", GOOD, b'{"text":"caf\xe9"}'))
    assert (problem.line, problem.reason) == (2, "not UTF-8")
    assert problem.what == "byte 13 (0xe9) is not UTF-8" and "WINDOWS-1252" in problem.hint


def test_nul_byte(tmp_path: Path) -> None:
    problem = only_problem(write(tmp_path / "f.jsonl", GOOD, GOOD, b'{"text":"a\0b"}'))
    assert (problem.line, problem.what) == (3, "a raw NUL byte at byte 11")


def test_escaped_nul_is_text(tmp_path: Path) -> None:
    assert check_file(write(tmp_path / "f.jsonl", b'{"text":"a\\u0000b"}')).ok


@pytest.mark.parametrize("lines", [(GOOD, b"\xef\xbb\xbf" + GOOD), (GOOD, GOOD + b"\xef\xbb\xbf" + GOOD)])
def test_byte_order_mark_of_joined_files(tmp_path: Path, lines: tuple[bytes, ...]) -> None:
    problem = only_problem(write(tmp_path / "f.jsonl", *lines))
    assert (problem.line, problem.reason) == (2, "byte-order mark inside the file")
    assert "sed" in problem.hint


def test_byte_order_mark_inside_a_string_is_text(tmp_path: Path) -> None:
    assert check_file(write(tmp_path / "f.jsonl", GOOD, '{"text":"a\ufeffb"}'.encode())).ok


@pytest.mark.parametrize(("line", "kind"), [(b"[1]", "a list"), (b'"x"', "a string"), (b"null", "null"), (b"3", "3")])
def test_not_an_object(tmp_path: Path, line: bytes, kind: str) -> None:
    problem = only_problem(write(tmp_path / "f.jsonl", GOOD, line))
    assert problem.line == 2 and problem.what == f"the line is {kind}, not an object"
    assert '{"prompt"' in problem.hint


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b'{"text":"a","prompt":"p","prompt":"q"}', None),  # ambiguous first of all
        (b'{"prompt":"p","prompt":"q","completion":"c"}', "prompt"),
        (GOOD[:-1] + b',"messages":' + GOOD[12:], "messages"),
        (GOOD.replace(b'"role":"user"', b'"role":"user","role":"user"'), "role"),
        (GOOD.replace(b'"content":"a"', b'"content":"x","content":"a"'), "content"),
    ],
)
def test_duplicate_keys(tmp_path: Path, line: bytes, key: str | None) -> None:
    problem = only_problem(write(tmp_path / "f.jsonl", GOOD, line))
    assert problem.reason == ("duplicate key" if key else "ambiguous row")
    assert key is None or f"`{key}`" in problem.what


def test_keys_inside_strings_and_other_objects_are_no_duplicates(tmp_path: Path) -> None:
    inside = b'{"text":"{\\"role\\":\\"x\\",\\"role\\":\\"messages\\":","id":{"role":"a","content":"b"}}'
    assert check_file(write(tmp_path / "f.jsonl", inside)).ok


def called(arguments: bytes) -> bytes:
    call = b'{"type":"function","function":{"name":"f","arguments":' + arguments + b"}}"
    return GOOD.replace(b'"content":"a"', b'"content":null,"tool_calls":[' + call + b"," + call + b"]")


def as_string(value: bytes) -> bytes:
    return json.dumps(value.decode()).encode()


CITY_TWICE = b'{"city":"Paris","city":"Rome"}'


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (called(CITY_TWICE), "city"),
        (called(as_string(CITY_TWICE)), "city"),
        (called(b'{"in":[' + CITY_TWICE + b"]}"), "city"),
        (GOOD[:-1] + b',"tools":[{"name":"f","parameters":' + CITY_TWICE + b"}]}", "city"),
        (GOOD[:-1] + b',"tools":' + as_string(b'[{"name":"f","parameters":' + CITY_TWICE + b"}]") + b"}", "city"),
        (b'{"messages":' + as_string(GOOD[12:-1].replace(b'"role":', b'"role":"x","role":')) + b"}", "role"),
        (GOOD.replace(b'"q"', b'[{"type":"text","text":"q","text":"r"}]'), "text"),
    ],
)
def test_a_duplicate_is_found_in_calls_tools_and_json_in_strings(tmp_path: Path, line: bytes, key: str) -> None:
    problem = only_problem(write(tmp_path / "f.jsonl", GOOD, line))
    assert (problem.line, problem.reason) == (2, "duplicate key") and f"`{key}`" in problem.what


def test_the_same_keys_in_several_calls_are_no_duplicates(tmp_path: Path) -> None:
    lines = (called(b'{"city":"Paris","in":{"city":"Rome"}}'), called(as_string(b'{"city":"Paris"}')))
    assert check_file(write(tmp_path / "f.jsonl", *lines)).ok


@pytest.mark.parametrize("number", ["123456789012345678901234", "100000000000000000000", "-9223372036854775809"])
def test_whole_numbers_in_calls_and_tools_keep_their_digits(tmp_path: Path, number: str) -> None:
    """Also where a float would be equal, which a template would write in another way."""
    given = f'{{"id":{number}}}'.encode()
    tools = b',"tools":[{"name":"f","parameters":{"least":' + number.encode() + b"}}]}"
    whole = called(given)
    lines = [whole[:-1] + tools, called(as_string(given)), b'{"messages":' + as_string(whole[12:-1]) + b"}"]
    path = write(tmp_path / "f.jsonl", *lines)
    convert([SourceSpec(path=path)], tmp_path / "out.jsonl", "messages")
    rows = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(row)["messages"][1]["tool_calls"][1]["function"]["arguments"] for row in rows] == [
        given.decode()
    ] * 3
    assert f'"parameters":{{"least":{number}}}' in rows[0]
    for row in parse(Chunk(0, 1, "\n".join([*map(bytes.decode, lines), *rows, ""]).encode()), "auto").conversations:
        (value,) = row.messages[1].tool_calls[0]["function"]["arguments"].values()
        assert str(value) == number


@pytest.mark.parametrize("number", ["123456789012345678901234", "100000000000000000000", "-9223372036854775809"])
def test_ids_and_labels_keep_their_digits(number: str) -> None:
    turns = b'"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]'
    lines = [
        b'{"id":%b,"conversation_id":%b,%b}',
        b'{"id":%b,"group":1.5,"conversation_id":%b,"score":0.5,%b}',
    ]
    whole = number.encode()
    chunk = Chunk(0, 1, b"".join(line % (whole, whole, turns) + b"\n" for line in lines))
    assert [(row.id, row.group) for row in parse(chunk, "auto").conversations] == [(number, number)] * 2
    (row,) = parse(Chunk(0, 1, b'{"text":"t","label":%b}\n' % whole), "auto").conversations
    assert row.label == int(number)
    columns = {"id": "key"}
    (row,) = parse(Chunk(0, 1, b'{"key":%b,%b}\n' % (whole, turns)), "auto", columns).conversations
    assert row.id == number


def test_messages_of_trees_are_told_apart_by_all_digits_of_their_ids(tmp_path: Path) -> None:
    """These round to the same float."""
    first, second = 123456789012345678901234, 123456789012345678901235
    said = {"message_tree_id": first, "lang": "en"}
    rows = [
        {"message_id": first, "parent_id": None, "text": "q", "role": "prompter", **said},
        {"message_id": second, "parent_id": first, "text": "a", "role": "assistant", **said},
    ]
    path = write(tmp_path / "f.jsonl", *[json.dumps(row).encode() for row in rows])
    assert check_file(path).ok
    convert([SourceSpec(path=path)], tmp_path / "out.jsonl", "messages")
    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert (row["id"], row["conversation_id"]) == (str(second), str(first))


def test_deep_nesting_is_a_problem_not_a_crash(tmp_path: Path) -> None:
    line = b'{"text":"x","meta":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert only_problem(write(tmp_path / "f.jsonl", line)).reason == "not valid JSON"


def test_every_bad_line_is_reported_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", b"{,", GOOD, b'{"text":""}', b"\xff", GOOD, b'{"a":1}')
    assert [problem.line for problem in problems_of(path)] == [1, 3, 4, 6]
    shown = data_error(check_file(path))
    assert [problem.where for problem in shown] == [f"{path}:{line}" for line in (1, 3, 4, 6)]


def test_the_same_fault_in_many_rows_is_said_once(tmp_path: Path) -> None:
    row = b'{"question": "?", "reply": "!"}'
    path = write(tmp_path / "f.jsonl", *[row] * 3, b"{", *[row] * 4)
    same, other = data_error(check_file(path))
    assert same.where == f"{path}:1" and same.what.endswith("`reply` (also at 2, 3, 5, 6, 7, 8)")
    assert other.where == f"{path}:4"


def test_thousands_of_bad_lines_are_counted_by_reason(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", *[b'{"text":""}'] * 3000, *[b"{"] * 40)
    report = check_file(path)
    assert report.log.total == 3040 and len(report.problems) == 1005
    head, *examples = data_error(report)
    assert head.what == "3040 problems: 3000 × empty text, 40 × not valid JSON"
    assert [p.where for p in examples] == [f"{path}:1", f"{path}:3001"]
    assert all("also at" in p.what and p.hint for p in examples)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b'{"text":"a","t\\u0065xt":"b"}', "text"),
        (b'{"prompt":"p","completion":"c","pr\\u006Fmpt":"q"}', "prompt"),
        (GOOD.replace(b'"role":"user"', b'"role":"user","r\\u006fle":"system"'), "role"),
        (GOOD.replace(b'"role":"user"', b'"r\\u006fle":"user","\\u0072ole":"system"'), "role"),
    ],
)
def test_an_escape_hides_no_duplicate(tmp_path: Path, line: bytes, key: str) -> None:
    problem = only_problem(write(tmp_path / "f.jsonl", GOOD, line))
    assert problem.reason == "duplicate key" and f"`{key}`" in problem.what


def test_escapes_that_hide_nothing(tmp_path: Path) -> None:
    lines = (b'{"t\\u0065xt":"a\\u003cb"}', b'{"text":"caf\\u00e9 \\u0041"}', GOOD.replace(b"role", b"r\\u006fle"))
    assert check_file(write(tmp_path / "f.jsonl", *lines)).ok
