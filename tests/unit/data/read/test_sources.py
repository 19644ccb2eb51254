"""Files as bytes: chunks at newlines, and what is wrong with a file as a whole."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankzero.data.read.containers.json_lines import read_lines
from rankzero.data.read.sources import CHUNK_BYTES, count_rows, lines, probe, read_chunks, require_readable
from rankzero.errors import DataError, StorageError
from tests.unit.data.support import GOOD, check_file, data_error, only_problem, problems_of, write


def all_lines(path: Path, size: int) -> list[tuple[int, bytes]]:
    return [line for chunk in read_chunks(str(path), size=size) for line in lines(chunk)]


@given(
    parts=st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"x").replace(b"\r", b"y"))),
    size=st.integers(1, 20),
    closed=st.booleans(),
)
def test_chunks_lose_and_split_no_line(parts: list[bytes], size: int, closed: bool) -> None:
    content = b"\n".join(parts) + (b"\n" if closed and parts else b"")
    expected = content.removesuffix(b"\n").split(b"\n") if content else []
    if expected:
        expected[0] = expected[0].removeprefix(b"\xef\xbb\xbf")
    blocks = (content[start : start + size] for start in range(0, len(content), size))
    assert [line for chunk in read_lines(blocks, 0) for line in lines(chunk)] == list(enumerate(expected, 1))


def test_only_newline_ends_a_line(tmp_path: Path) -> None:
    row = '{"text":"a\u2028b\u2029c\x85d"}'.encode()
    path = write(tmp_path / "f.jsonl", row, GOOD)
    assert all_lines(Path(path), 1 << 20) == [(1, row), (2, GOOD)]
    assert check_file(path).counts.rows == 2


def test_crlf_blank_lines_and_bom_at_the_start_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD + b"\r\n\r\n  \t\n" + GOOD)
    report = check_file(path)
    assert report.ok and (report.counts.rows, report.counts.blank) == (2, 2)


def test_sources_are_numbered_and_lines_start_anew(tmp_path: Path) -> None:
    first, second = write(tmp_path / "1", b"a", b"b"), write(tmp_path / "2", b"c")
    found = [
        (chunk.source, *line)
        for index, path in enumerate([first, second])
        for chunk in read_chunks(path, index)
        for line in lines(chunk)
    ]
    assert found == [(0, 1, b"a"), (0, 2, b"b"), (1, 1, b"c")]


def test_a_line_of_40_mb_is_one_row(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    long = b'{"text":"' + b"word " * (8 << 20) + b'"}'
    path.write_bytes(GOOD + b"\n" + long + b"\n{oops\n")
    report = check_file(path)
    assert report.counts.rows == 3
    assert [located.problem.line for located in report.problems] == [3]


def test_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", GOOD)
    (problem,) = data_error(check_file(tmp_path / "trian.jsonl"))
    assert problem.what == "no such file"
    assert problem.where == str(tmp_path / "trian.jsonl")
    assert problem.hint == f"did you mean {tmp_path / 'train.jsonl'}?"


def test_missing_relative_file_says_from_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path) in only_problem("nowhere/train.jsonl").hint


def test_directory_lists_its_files(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", GOOD)
    problem = probe(str(tmp_path))
    assert problem is not None and problem.what == "is a directory, not a file" and "a.jsonl" in problem.hint
    assert check_file(tmp_path).files == (str(tmp_path / "a.jsonl"),)


def test_empty_file(tmp_path: Path) -> None:
    assert only_problem(write(tmp_path / "f.jsonl")).reason == "empty file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(GOOD)
    path.chmod(0)
    assert "Permission denied" in only_problem(path).what


def test_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert only_problem(tmp_path / "pipe").what == "is not a regular file"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("name", ["f.jsonl", "f.csv", "f.json", "f.jsonl.gz"])
def test_utf_16_is_read_as_utf_8_is(tmp_path: Path, encoding: str, rows: int, name: str) -> None:
    row = {"question": "Grüße 🙂\u010a\u0a0a", "answer": 'Ja, "漢字"'}
    text = {
        "f.csv": "question,answer\n" + 'Grüße 🙂\u010a\u0a0a,"Ja, ""漢字"""\r\n' * rows,
        "f.json": json.dumps([row] * rows, ensure_ascii=False),
    }.get(name, (json.dumps(row, ensure_ascii=False) + "\n") * rows)
    data = text.encode(encoding)
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert probe(str(path)) is None and count_rows(str(path)) == rows
    for size in (7, CHUNK_BYTES):
        found = [line for chunk in read_chunks(str(path), size=size) for _, line in lines(chunk) if line]
        assert [json.loads(line) for line in found] == [row] * rows


def test_utf_16_that_ends_in_the_middle_of_a_character(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes((GOOD.decode() + "\n").encode("utf-16") + b"\x00")
    assert [problem.reason for problem in problems_of(path)] == ["cut-off file"]


@pytest.mark.parametrize("encoding", ["utf-32", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("rows", [1, 40])
def test_wide_encodings_are_one_problem(tmp_path: Path, encoding: str, rows: int) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(((GOOD.decode() + "\n") * rows).encode(encoding))
    problem = only_problem(path)
    assert problem.line == 0 and problem.reason == "not UTF-8"
    assert "iconv -f UTF-" in problem.hint and str(path) in problem.hint
    name = problem.hint.split("-f ")[1].split()[0]
    assert path.read_bytes().decode(name).strip("\ufeff\n").startswith('{"messages"')


class TestText:
    def test_a_line_is_a_row(self, tmp_path: Path) -> None:
        path = tmp_path / "f.txt"
        path.write_bytes('\ufeffOne line.\r\n\n  \n{Not "JSON\u2028 at all\n'.encode())
        report = check_file(path)
        assert report.ok and report.counts.rows == 2 and report.counts.formats == {"text": 2}
        found = [json.loads(line) for chunk in read_chunks(str(path)) for _, line in lines(chunk) if line.strip()]
        assert found == [{"text": "One line."}, {"text": '{Not "JSON\u2028 at all'}]

    @pytest.mark.parametrize("first", ["[Chorus]", "[1] See below.", "[ ] buy milk", "{name}, hello", "[", "{"])
    def test_a_line_that_begins_with_a_bracket_is_text(self, tmp_path: Path, first: str) -> None:
        path = tmp_path / "f.txt"
        path.write_text(f"{first}\nLa la\n{{}}\n")
        report = check_file(path)
        assert report.ok and report.counts.rows == 3 and report.counts.formats == {"text": 3}

    def test_rows_in_an_array_or_in_python_s_notation_are_not(self, tmp_path: Path) -> None:
        path = tmp_path / "f.txt"
        path.write_bytes(b"[\n  " + GOOD + b",\n  " + GOOD + b"\n]\n")
        assert check_file(path).counts.formats == {"messages": 2}
        path.write_text("{'text': 'a'}\n")
        assert "Python's notation" in only_problem(path).hint

    def test_json_lines_are_what_they_are_whatever_their_name(self, tmp_path: Path) -> None:
        path = tmp_path / "f.txt"
        path.write_bytes(GOOD + b"\n" + GOOD)
        assert check_file(path).counts.formats == {"messages": 2}

    def test_bytes_that_are_no_text_are_that_line_s_problem(self, tmp_path: Path) -> None:
        path = tmp_path / "f.txt"
        path.write_bytes(b"good\ncaf\xe9\ngood\n")
        problem = only_problem(path)
        assert (problem.line, problem.reason) == (2, "not UTF-8") and "iconv" in problem.hint


@pytest.mark.parametrize(
    ("content", "word", "hint"),
    [
        (b"PK\x03\x04rest", "zip", "unzip"),
        (b"ARROW1\0\0" + bytes(range(1, 90)), "the Arrow data is damaged", "copy or download"),
        (b"\xff\xff\xff\xff" + bytes(range(1, 90)), "the Arrow data is damaged", "copy or download"),
        (b"BZh91AY&SY", "bzip2 data is cut off", "cut off"),
        (b"BZh91AY&SY" + bytes(99), "bzip2 data is damaged", "copy or download"),
        (b"\xfd7zXZ\x00\x00", "xz data is cut off", "cut off"),
        (b"SQLite format 3\0", "SQLite", "sqlite3 -header"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer", "git lfs pull"),
        (b"\n<!DOCTYPE html><html><head>", "HTML page", "raw file"),
        (b"d/".ljust(257, b"\0") + b"ustar\x0000" + bytes(243), "tar archive", "tar -xf"),
        (b'\x40\0\0\0\0\0\0\0{"w":{"dtype":"F32"', "safetensors", "right file"),
        (b"PAR1" + bytes(range(1, 200)), "no end", "cut off"),
        (b"\x1f\x8b\x08\0\0\0", "gzip data is cut off at byte 6", "cut off"),
        (b"\x28\xb5\x2f\xfdrest", "zstd data", "cut off"),
    ],
)
def test_files_that_cannot_be_read_are_one_problem(tmp_path: Path, content: bytes, word: str, hint: str) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(content)
    problem = only_problem(path)
    assert problem.line == 0 and word in problem.what and hint in problem.hint


def test_a_name_that_says_columns_is_believed_only_of_columns_and_json(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    path.write_bytes(b"abc")
    problem = only_problem(path)
    assert problem.line == 0 and problem.what == "is named .parquet, but is no Parquet file"
    path.write_bytes(GOOD)
    assert count_rows(str(path)) == 1


def test_an_excel_workbook_is_called_one(tmp_path: Path) -> None:
    path = tmp_path / "f.xlsx"
    path.write_bytes(b"PK\x03\x04rest")
    assert "Excel" in only_problem(path).what


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("f.jsonl", gzip.compress(GOOD, mtime=0)),
        ("f.json", b"[" + GOOD + b"]"),
        ("f.json", b"\n\n [\n" + GOOD + b"\n]"),
        ("f.json", b'{\n  "messages": [{"role":"user","content":"q"},\n{"role":"assistant","content":"a"}]\n}\n'),
        ("f.json", b'{"data": [' + GOOD + b"]}"),
        ("f.csv", b'prompt,completion\n"a, b",c\n'),
        ("f.tsv", b"prompt\tcompletion\na\tb\n"),
    ],
)
def test_every_kind_of_file_is_checked(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    report = check_file(path)
    assert report.ok and report.counts.rows == 1


def test_rows_that_a_container_cannot_give_are_rows_with_problems(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes(b"prompt,completion\na,b\nc\nd,e\nf,\xe9\n")
    report = check_file(path)
    assert report.counts.rows == 4
    assert [(found.problem.line, found.problem.reason) for found in report.problems] == [
        (3, "ragged row"),
        (5, "not UTF-8"),
    ]


def test_blank_file_has_no_rows(tmp_path: Path) -> None:
    assert only_problem(write(tmp_path / "f.jsonl", b"", b"  ")).reason == "no rows"


def test_all_bad_files_are_reported_together(tmp_path: Path) -> None:
    good = write(tmp_path / "good", GOOD)
    with pytest.raises(DataError) as caught:
        require_readable([str(tmp_path / "one"), good, str(tmp_path / "two")])
    assert [problem.where for problem in caught.value.problems] == [str(tmp_path / "one"), str(tmp_path / "two")]
    assert probe(good) is None


def test_a_failing_volume_is_not_bad_data(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="reading failed"):
        list(read_chunks(str(tmp_path)))  # opens, cannot be read, like a file on a dead mount
