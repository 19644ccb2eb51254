"""CSV and TSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rankzero.data.read.containers import delimited
from rankzero.data.read.containers.stream import DamagedError
from rankzero.data.read.sources import count_rows, lines, read_chunks
from tests.unit.data.read.containers.reading import Row, entries, numbers, problems, put, relaxed, rows, string_rows


def as_csv(given: list[Row], end: str = "\r\n", separator: str = ",", quoting: int = csv.QUOTE_MINIMAL) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(given[0]), lineterminator=end, delimiter=separator, quoting=quoting)  # type: ignore[arg-type]
    writer.writeheader()
    writer.writerows(given)
    return out.getvalue().encode()


@relaxed
@given(
    given=string_rows,
    size=st.integers(1, 60),
    mark=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
)
def test_csv_is_its_rows(
    tmp_path_factory: pytest.TempPathFactory, given: list[Row], size: int, mark: bool, end: str, quoting: int
) -> None:
    assume("\r" in end or quoting == csv.QUOTE_ALL)  # else Python's writer leaves \r in a value without its quotes
    data = (b"\xef\xbb\xbf" if mark else b"") + as_csv(given, end, quoting=quoting)
    path = put(tmp_path_factory.mktemp("csv") / "f.csv", data)
    assert rows(path, size) == given
    assert count_rows(str(path)) == len(given)


@relaxed
@given(given=string_rows, size=st.integers(1, 60))
def test_tsv_is_its_rows_or_says_why_not(tmp_path_factory: pytest.TempPathFactory, given: list[Row], size: int) -> None:
    path = put(tmp_path_factory.mktemp("tsv") / "f.tsv", as_csv(given, separator="\t"))
    found = entries(path, size)
    good = [row for row in given if not any("\t" in value and "\n" in value for value in row.values())]
    assert len(found) == len(given)
    assert len([1 for _, _, problem in found if problem is None]) == len(good)


@pytest.mark.parametrize(
    "data",
    [
        b'text,label\n"good film", "pos"\n',
        b'text,label\ngood film,  "pos" \n',
        b'text,label\n "good\nfilm",pos\n',
        b'text,label,note\nfilm, "a, b"\n',
        b'text,label\nfilm, "a, b"\n',
    ],
)
@pytest.mark.parametrize("separator", [b",", b"\t"])
def test_a_space_before_a_quote_makes_no_value_of_the_quotes(data: bytes, separator: bytes, tmp_path: Path) -> None:
    path = put(tmp_path / ("f.csv" if separator == b"," else "f.tsv"), data.replace(b",", separator))
    found = [problem for _, _, problem in entries(path) if problem]
    assert found[0].reason == "space before a quote" and "remove the space" in found[0].hint


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'" ""pos""",x', ' "pos"'),
        (b' "pos" is it,x', ' "pos" is it'),
        (b'it is "pos",x', 'it is "pos"'),
        (b" pos,x", " pos"),
    ],
)
def test_quotes_that_are_part_of_a_value_stay_in_it(line: bytes, value: str, tmp_path: Path) -> None:
    assert rows(put(tmp_path / "f.csv", b"text,label\n" + line + b"\n")) == [{"text": value, "label": "x"}]


def test_a_space_before_a_quoted_name_is_a_problem(tmp_path: Path) -> None:
    (problem,) = problems(put(tmp_path / "f.csv", b'text, "label"\na,b\n'))
    assert problem.reason == "space before a quote"


def test_values_stay_strings(tmp_path: Path) -> None:
    path = put(tmp_path / "f.csv", b"text,label\na,1\nb,007\nc,\nd,true\n")
    assert [row["label"] for row in rows(path)] == ["1", "007", "", "true"]


def test_rows_are_numbered_by_the_line_where_they_begin(tmp_path: Path) -> None:
    path = put(tmp_path / "f.csv", b'\ntext,label\n\n"a\nb",1\nc,2\n  \n"d\r\n\n",3\ne,4')
    assert numbers(path) == [4, 6, 8, 11]
    assert [row["label"] for row in rows(path)] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(
    ("line", "reason", "words"),
    [
        (b"a", "ragged row", "1 value for 2 columns"),
        (b"a,1,2", "ragged row", "3 values for 2 columns"),
        (b'"a"x,1', "quoting", "',' expected after '\"'"),
        (b"a\0b,1", "NUL byte", "NUL"),
        (b"caf\xe9,1", "not UTF-8", "byte 4 (0xe9)"),
    ],
)
def test_a_bad_row_is_one_problem_and_the_rest_is_read(
    tmp_path: Path, line: bytes, reason: str, words: str, size: int
) -> None:
    path = put(tmp_path / "f.csv", b"text,label\na,1\n" + line + b"\nb,2\n")
    found = entries(path, size)
    assert [number for number, _, _ in found] == [2, 3, 4]
    assert found[0][2] is None and found[2][2] is None
    problem = found[1][2]
    assert problem is not None and (problem.line, problem.reason) == (3, reason) and words in problem.what
    assert found[1][1] == line


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"text,text", "two columns are named 'text'"),
        (b",text,label", "column 1 of 3 has no name"),
        (b"text,,label", "column 2 of 3 has no name"),
        (b"text;label", "separated by `;`"),
        (b"text\tlabel", "separated by a tab"),
        (b'{"text": "a"}', "is JSON"),
        (b"caf\xe9,label", "not UTF-8"),
        (b"a\0,label", "NUL"),
        (b'"a"b,label', "quotes are out of place"),
    ],
)
def test_a_bad_header_is_the_only_problem(tmp_path: Path, header: bytes, words: str) -> None:
    (problem,) = problems(put(tmp_path / "f.csv", header + b"\na,b\nc,d\n"))
    assert problem.line == 1 and words in problem.what


class TestWithoutHeader:
    ROWS = b'"What is 2+2?",4\n\n"a\nb",007\nc,\n'

    def read(self, path: Path, **header: Any) -> list[Row]:
        return [
            row
            for chunk in read_chunks(str(path), **header)
            for _, line in lines(chunk)
            if line and (row := json.loads(line))
        ]

    def test_columns_by_number(self, tmp_path: Path) -> None:
        path = put(tmp_path / "f.csv", self.ROWS)
        assert self.read(path, header=False) == [
            {"column_1": "What is 2+2?", "column_2": "4"},
            {"column_1": "a\nb", "column_2": "007"},
            {"column_1": "c", "column_2": ""},
        ]
        assert count_rows(str(path), header=False) == 3
        assert list(self.read(path, header=True)[0]) == ["What is 2+2?", "4"]

    @pytest.mark.parametrize(
        "first",
        [
            b"What is 2+2?,4",
            b"the film is good,0.5",
            b"a film that is really very good indeed,good",
            b"It works.,yes",
            b"film,pos",  # which the second column holds again
            b'"' + b"x" * 61 + b'",y',
            b"2024-like,-1e5",
        ],
    )
    def test_a_row_in_place_of_names_is_a_question(self, tmp_path: Path, first: bytes) -> None:
        path = put(tmp_path / "f.csv", first + b"\nfine,pos\nbad,neg\n")
        (problem,) = problems(path)
        assert (problem.line, problem.reason) == (1, "row in place of names")
        assert "header: false" in problem.hint and "header: true" in problem.hint
        assert len(self.read(path, header=False)) == 3 and len(self.read(path, header=True)) == 2

    @pytest.mark.parametrize(
        "header",
        [
            b"text,label",
            b"Frage,Antwort",
            b"0,1",
            b"What do you want to ask us today?,answer",
            b"sentence1,is_duplicate",
        ],
    )
    def test_names_are_names(self, tmp_path: Path, header: bytes) -> None:
        path = put(tmp_path / "f.csv", header + b"\nfine,pos\nbad,neg\n")
        assert len(self.read(path)) == 2

    def test_damage_behind_the_first_rows_loses_none_of_them(self) -> None:
        def blocks() -> Iterator[bytes]:
            yield b"text,label\n" + b"".join(b"row %d,%d\n" % (i, i) for i in range(7))
            raise DamagedError("cut-off file", "the data is cut off")

        *found, (number, _, problem) = delimited.read_delimited(blocks(), ",")
        assert [json.loads(line)["label"] for _, line, _ in found] == [str(i) for i in range(7)]
        assert problem is not None and (number, problem.reason) == (9, "cut-off file")


def test_a_quote_without_an_end_says_where_it_was_opened(tmp_path: Path) -> None:
    (problem,) = problems(put(tmp_path / "f.csv", b'text,label\na,1\n"b,2\nc,3\nd,4\n'))
    assert problem.line == 3 and problem.reason == "row without an end"


def test_a_quote_without_an_end_is_not_held_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "MAX_FIELD_CHARACTERS", 1000)
    found = problems(put(tmp_path / "f.csv", b'text,label\na,1\n"' + b"b,2\n" * 1000))
    assert (found[0].line, found[0].reason) == (3, "row without an end")


def test_a_long_value_is_read(tmp_path: Path) -> None:
    assert rows(put(tmp_path / "f.csv", b"text\n" + b"x" * 300_000 + b"\n")) == [{"text": "x" * 300_000}]


def test_tsv_without_quoting_is_read_as_it_stands(tmp_path: Path) -> None:
    path = put(tmp_path / "f.tsv", b'sentence\tlabel\n"the film" is good\t1\nit is "fine"\t0\n')
    assert rows(path) == [{"sentence": '"the film" is good', "label": "1"}, {"sentence": 'it is "fine"', "label": "0"}]


def test_quotes_that_would_join_rows_of_tsv_are_a_problem(tmp_path: Path) -> None:
    path = put(tmp_path / "f.tsv", b'sentence\tlabel\n"open\t1\nhe said "\t0\nlast\t1\n')
    assert [(problem.line, problem.reason) for problem in problems(path)] == [(2, "quotes over several rows")]


def test_a_header_alone_has_no_rows(tmp_path: Path) -> None:
    assert entries(put(tmp_path / "f.csv", b"text,label\n")) == []


def test_every_prefix_gives_rows_or_a_located_problem(tmp_path: Path) -> None:
    content = 'text,label\r\n"é ""x""\n,",1\r\nb,2\r\n'.encode()
    for end in range(1, len(content) + 1):
        found = entries(put(tmp_path / "f.csv", content[:end]), 3)
        assert all(problem is None or problem.line >= 1 for _, _, problem in found)
        assert count_rows(str(tmp_path / "f.csv")) == len(found)


@relaxed
@given(data=st.binary(max_size=60), mixed=st.text('",\n\r\ta\0é', max_size=60), size=st.integers(1, 30))
def test_no_bytes_make_it_fail(tmp_path_factory: pytest.TempPathFactory, data: bytes, mixed: str, size: int) -> None:
    folder = tmp_path_factory.mktemp("noise")
    for name in ("f.csv", "f.tsv"):
        for content in (b"a,b\n" + data, b"a\tb\n" + mixed.encode(), b"a,b\n" + mixed.encode()):
            path = put(folder / name, content)
            assert count_rows(str(path)) == len(entries(path, size))
