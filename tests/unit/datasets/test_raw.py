"""Which raw file is which split, and rows out of every kind of file, damaged ones too."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankzero.data.read.network import Found, RemoteFile
from rankzero.data.rows.problems import RowProblem
from rankzero.datasets.raw import find_inputs, rows_of
from rankzero.errors import DataError, UsageError

ROWS = [{"id": 1}, {"id": 2, "text": 'a\u2028b [ { " \\'}, {"id": 3}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("FIRE-train-100K.json", "FIRE-test.json", "FIRE-1M.json", "README.md", "train.csv"):
        (tmp_path / name).write_text(json.dumps(ROWS))
    return tmp_path


def test_a_folder_by_the_words_of_names(folder: Path) -> None:
    found = find_inputs([str(folder)], [], "x/y")
    assert found == {"train": (f"{folder}/FIRE-train-100K.json",), "test": (f"{folder}/FIRE-test.json",)}
    assert list(find_inputs([str(folder)], ["test"], "x/y")) == ["test"]


def test_files(folder: Path) -> None:
    train, test, million = (str(folder / name) for name in ("FIRE-train-100K.json", "FIRE-test.json", "FIRE-1M.json"))
    assert find_inputs([test], [], "x/y") == {"test": (test,)}
    assert find_inputs([million], [], "x/y") == {"train": (million,)}
    assert find_inputs([million], ["test"], "x/y") == {"test": (million,)}
    assert find_inputs([f"train={train}", f"train={million}", f"test={test}"], ["train", "test"], "x/y") == {
        "train": (train, million),
        "test": (test,),
    }


@pytest.mark.parametrize(
    ("given", "wanted", "error", "words"),
    [
        ([], [], UsageError, "not named"),
        (["FIRE-1M.json"], ["train", "test"], UsageError, "which is it"),
        (["none.json"], ["train"], DataError, "no such file"),
        (["."], ["train", "dev"], DataError, "no file of split dev"),
    ],
)
def test_what_cannot_be_found(
    given: list[str],
    wanted: list[str],
    error: type[Exception],
    words: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(error, match=words):
        find_inputs(given, wanted, "x/y")


class FakeNetwork:
    """One data set and one URL, both served from a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, list[str]()

    def find(self, url: str) -> Found:
        self.asked.append(url)
        return Found((self._file(url.rpartition("/")[2]),))

    def data_set(self, name: str, revision: str | None) -> tuple[RemoteFile, ...]:
        self.asked.append(name)
        return tuple(self._file(path.name) for path in self.folder.iterdir() if path.is_file())

    def _file(self, name: str) -> RemoteFile:
        return RemoteFile(name, name, (self.folder / name).stat().st_size, "v1")

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        yield (self.folder / file.url).read_bytes()[start:]


def test_the_hub_and_urls_only_when_they_are_named(folder: Path) -> None:
    network = FakeNetwork(folder)
    find_inputs([str(folder)], [], "x/y", network)
    assert network.asked == []
    found = find_inputs(["hub"], ["train"], "x/y", network)
    assert [Path(path).name for path in found["train"]] == ["FIRE-train-100K.json"]
    find_inputs(["hub:other/name"], ["test"], "x/y", network)
    found = find_inputs(["test=https://example.org/a=b/FIRE-test.json"], ["test"], "x/y", network)
    assert [row["id"] for _, row in rows_of(found["test"])] == [1, 2, 3]
    assert network.asked == ["x/y", "other/name", "https://example.org/a=b/FIRE-test.json"]


def names(found: dict[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """What the files by split hold."""
    return {split: [Path(path).read_text() for path in paths] for split, paths in found.items()}


def test_the_url_of_a_folder_is_as_the_folder(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for name in ("FIRE-train-100K.json", "FIRE-test.json", "FIRE-1M.json", "README.md"):
        (raw / name).write_text(name)
    url = raw.as_uri()
    both = {"train": ["FIRE-train-100K.json"], "test": ["FIRE-test.json"]}
    assert names(find_inputs([url], [], "x/y")) == both
    assert names(find_inputs([url], ["train", "test"], "x/y")) == both
    assert names(find_inputs([f"test={url}"], [], "x/y")) == {"test": ["FIRE-test.json"]}
    assert names(find_inputs([f"{url}/FIRE-t*.json"], [], "x/y")) == both
    with pytest.raises(DataError, match="no file of split dev"):
        find_inputs([url], ["dev"], "x/y")


def test_the_url_of_a_folder_whose_files_name_no_split(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for name in ("a.json", "b.json", "README.md"):
        (raw / name).write_text(name)
    assert names(find_inputs([raw.as_uri()], [], "x/y")) == {"train": ["a.json", "b.json"]}
    assert names(find_inputs([f"test={raw.as_uri()}"], [], "x/y")) == {"test": ["a.json", "b.json"]}


@pytest.mark.parametrize(
    "name", ["train.json.xz", "train.jsonl.bz2", "train.json.zstd", "train.parquet", "train.arrow"]
)
def test_a_folder_has_files_of_every_kind_that_is_read(name: str, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for file in (name, "test.json", "train.md", "._train.json"):
        (raw / file).write_text(file)
    for given in (str(raw), raw.as_uri()):
        assert names(find_inputs([given], ["train"], "x/y")) == {"train": [name]}


def test_a_table_beside_the_json_of_a_split_is_no_more_rows(tmp_path: Path) -> None:
    for file in ("train.json", "train.parquet", "test.parquet"):
        (tmp_path / file).write_text(file)
    found = names(find_inputs([str(tmp_path)], [], "x/y"))
    assert found == {"train": ["train.json"], "test": ["test.parquet"]}


def test_a_file_packed_beside_itself_is_not_taken_twice(tmp_path: Path) -> None:
    for file in ("train.json", "train.json.gz", "test.json"):
        (tmp_path / file).write_text(file)
    with pytest.raises(DataError, match="packed and unpacked") as raised:
        find_inputs([str(tmp_path)], [], "x/y")
    assert str(tmp_path / "train.json") in str(raised.value)
    assert names(find_inputs([str(tmp_path)], ["test"], "x/y")) == {"test": ["test.json"]}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("packed", [False, True])
def test_arrays_and_lines(indent: int | None, packed: bool, tmp_path: Path) -> None:
    array = json.dumps(ROWS, indent=indent).encode()
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
    for data in (array, lines, b"\xef\xbb\xbf" + lines):
        (tmp_path / "raw").write_bytes(gzip.compress(data) if packed else data)
        assert list(rows_of([str(tmp_path / "raw")])) == list(enumerate(ROWS, 1))


def test_several_files_are_numbered_through(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"id": 1}\n\n{"id": 2}\n')
    assert [number for number, _ in rows_of([str(tmp_path / "a")] * 2)] == [1, 2, 3, 4]


def test_a_bad_row_is_a_problem_and_a_cut_off_file_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('[{"id": 1},\n{"id": NaN},\n{"id": 3}]')
    kinds = [type(value) for _, value in rows_of([str(tmp_path / "a")])]
    assert kinds == [dict, RowProblem, dict]
    (tmp_path / "a").write_text('[{"id": 1},\n{"id": 2},\n{"id": ')
    with pytest.raises(DataError, match="ends in the middle"):
        list(rows_of([str(tmp_path / "a")]))


@pytest.mark.parametrize("stats", ["", "[]", "{}", '{"splits": 1}', '{"splits": {"train": null}}'])
def test_statistics_of_something_else_leave_all_files(stats: str, folder: Path) -> None:
    (folder / "stats.json").write_text(stats)
    assert find_inputs([str(folder)], ["test"], "x/y") == {"test": (f"{folder}/FIRE-test.json",)}
