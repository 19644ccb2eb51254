"""Data paths as files: local ones, and URLs."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankzero.data.read.download import download
from rankzero.data.read.local import local_files
from rankzero.data.read.locate import LocatedSource, expand, understood
from rankzero.data.read.network import Found, RemoteFile
from rankzero.data.read.sources import require_readable
from rankzero.errors import DataError, Problem, ServiceError, StorageError
from rankzero.spec.run_spec import SourceSpec
from tests.support.unreadable import close, refuse, shut, stale
from tests.unit.data.read.containers.reading import put
from tests.unit.data.read.fake_network import FakeNetwork, NoNetwork, fault, located, own_cache

__all__ = ["own_cache"]
pytestmark = pytest.mark.usefixtures("own_cache")


def make(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        put(Path(name), b"{}\n")


# Local paths


def test_a_file_is_itself_whatever_its_name() -> None:
    make("a#5.jsonl", "b[1].jsonl", "data.bin")
    assert located("a#5.jsonl").files == ("a#5.jsonl",) and located("a#5.jsonl").sample is None
    assert located("b[1].jsonl").files == ("b[1].jsonl",)
    assert located("data.bin#3") == LocatedSource(SourceSpec(path="data.bin#3"), ("data.bin",), 3)


def test_file_urls_are_local(tmp_path: Path) -> None:
    make("a.jsonl")
    assert located(f"file://{tmp_path}/a.jsonl#7").files == (f"{tmp_path}/a.jsonl",)


def test_patterns_are_sorted_and_reach_into_folders() -> None:
    make("d/b.jsonl", "d/a.jsonl", "d/x/y/c.jsonl", "d/x/n.txt")
    assert located("d/*.jsonl").files == ("d/a.jsonl", "d/b.jsonl")
    assert located("d/**/*.jsonl").files == ("d/a.jsonl", "d/b.jsonl", "d/x/y/c.jsonl")
    assert located("d/[b-z].jsonl#2") == LocatedSource(SourceSpec(path="d/[b-z].jsonl#2"), ("d/b.jsonl",), 2)
    assert "no file matches" in fault("d/*.csv").what


def test_a_directory_is_its_data_files() -> None:
    make("d/part-1.parquet", "d/part-0.parquet", "d/README.md", "d/.hidden.parquet", "d/_SUCCESS", "d/state.json")
    assert located("d").files == ("d/part-0.parquet", "d/part-1.parquet")


def test_what_map_of_datasets_leaves_beside_its_rows_is_none_of_them() -> None:
    """As in its cache of a data set; files of that name elsewhere are somebody's rows."""
    make("d/alpaca-train.arrow", "d/dataset_info.json", "d/cache-1c2d3e4f5a6b7c8d.arrow", "d/tmpx1y2z3")
    make("e/cache-1.arrow", "e/cache-2.arrow")
    assert located("d").files == ("d/alpaca-train.arrow",)
    assert located("e").files == ("e/cache-1.arrow", "e/cache-2.arrow")
    assert located("d/*.arrow").files == ("d/alpaca-train.arrow", "d/cache-1c2d3e4f5a6b7c8d.arrow")


@pytest.mark.parametrize(
    "name",
    ["b.jsonl.zip", "x/b.jsonl.lz4", "b.csv.br", "b.jsonl.tar.gz", "b.jsonl.gzip", "b.json.bz", "b.jsonl.tgz"]
    + ["b.jsonl.tbz2", "b.jsonl.lzo", "b.csv.lz", "b.jsonl.deflate"],
)
def test_files_that_are_packed_otherwise_are_not_left_out(name: str) -> None:
    make("d/a.jsonl", f"d/{name}")
    problem = fault("d")
    assert problem.what == f"the directory holds {name}, packed in a way that is not read here"
    assert problem.hint == "unpack it, or name the files that are meant"
    assert located("d/a.jsonl").files == ("d/a.jsonl",)


def test_what_was_unpacked_is_there() -> None:
    make("d/a.jsonl", "d/a.jsonl.zip", "d/code.zip", "d/stats.json.zip", "d/notes.tar.gz", "d/.hidden.csv.zip")
    assert located("d").files == ("d/a.jsonl",)


@pytest.mark.parametrize("path", ["d", "d/*.jsonl", "d/**/*.jsonl"])
def test_a_link_among_data_that_leads_nowhere_is_an_error(path: str, tmp_path: Path) -> None:
    """What it stands for would not be trained on."""
    make("d/a.jsonl", "d/in/b.jsonl")
    away = tmp_path / "away"
    Path("d/c.jsonl").symlink_to(away / "c.jsonl")
    found = fault(path)
    assert (found.where, found.what) == ("d/c.jsonl", "a link leads nowhere")
    assert f"{away}/c.jsonl, which is not there" in found.hint
    Path("d/d.jsonl").symlink_to(away / "d.jsonl")
    assert "2 links lead nowhere" in fault(path).what
    make(f"{away}/c.jsonl", f"{away}/d.jsonl")
    assert {"d/a.jsonl", "d/c.jsonl", "d/d.jsonl"} <= set(located(path).files)


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("d", "d/shut"),
        ("d/**/*.jsonl", "d/shut"),
        ("d/**", "d/shut"),
        ("d/*/*.jsonl", "d/shut"),
        ("*/shut/*.jsonl", "d/shut"),
        ("d*/*/shut/*.jsonl", "d/x/shut"),
    ],
)
def test_a_folder_that_may_not_be_read_is_an_error(path: str, refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files would not be trained on."""
    make("d/a.jsonl", f"{refused}/b.jsonl", "d/open/c.jsonl")
    assert located(path).files
    refuse(monkeypatch, "shut")
    found = fault(path)
    assert (Path(found.where), found.what) == (Path(refused), "cannot be read: Permission denied")
    assert "ls -l" in found.hint


def test_a_pattern_need_not_read_what_it_does_not_look_into(monkeypatch: pytest.MonkeyPatch) -> None:
    make("d/a.jsonl", "d/shut/b.jsonl")
    refuse(monkeypatch, "shut")
    assert located("d/*.jsonl").files == ("d/a.jsonl",)
    assert located("[d]/shut/b.jsonl").files == ("d/shut/b.jsonl",)


def test_a_folder_that_is_a_link_and_not_there_is_an_error(tmp_path: Path) -> None:
    make("d/a.jsonl")
    for name in ("notes.txt", ".#a.jsonl", ".#README"):
        (Path("d") / name).symlink_to(tmp_path / "away.txt")
    assert located("d").files == ("d/a.jsonl",)
    Path("d/more").symlink_to(tmp_path / "away")
    assert fault("d").where == "d/more"


def test_a_directory_is_its_folders_too() -> None:
    make("d/part-1.jsonl", "d/more/part-2.jsonl", "d/more/deep/part-0.jsonl", "d/.cache/x.jsonl", "d/_old/y.jsonl")
    make("elsewhere/z.jsonl")
    Path("d/linked").symlink_to("../elsewhere")
    Path("d/more/up").symlink_to("..")
    files = ("d/linked/z.jsonl", "d/more/deep/part-0.jsonl", "d/more/part-2.jsonl", "d/part-1.jsonl")
    assert located("d").files == files


def test_folders_may_be_splits() -> None:
    make("d/train/a.jsonl", "d/test/a.jsonl")
    problem = fault("d")
    assert "several splits: train, test" in problem.what and "d/train/a.jsonl" in problem.hint


@pytest.mark.parametrize(
    ("names", "words", "hint"),
    [
        (("d/n.txt", "d/x/a.txt"), "no data files", "in its folders too"),
        (("d/a.jsonl", "d/x/b.csv", "d/x/c.jsonl"), "1 CSV, 2 JSONL", "d/**/*.jsonl"),
        (("d/a.jsonl", "d/b.csv", "d/c.jsonl.gz"), "1 CSV, 2 JSONL", "d/*.jsonl"),
        (("d/a.jsonl", "d/a.jsonl.gz"), "packed and unpacked", "same rows"),
        (("d/train.jsonl", "d/test.jsonl"), "several splits: train, test", "d/train.jsonl"),
        (("d/train_sft-00000-of-00001.parquet", "d/test_sft-00000-of-00001.parquet"), "several splits", "d/"),
        (("d/train.jsonl", "d/test/rows.jsonl"), "several splits: train, test", "d/train.jsonl"),
        (("d/train-00000-of-00001.parquet", "d/test.parquet"), "several splits: train, test", "d/train-00000"),
        (("d/train.csv", "d/more.csv", "d/dev/more.csv"), "several splits: train, validation", "d/train.csv"),
    ],
)
def test_a_directory_that_is_not_clear_is_an_error(names: tuple[str, ...], words: str, hint: str) -> None:
    make(*names)
    problem = fault("d")
    assert words in problem.what and hint in problem.hint and problem.where == "d"


def test_all_local_faults_are_one_error_and_come_before_downloads() -> None:
    make("here.jsonl", "empty/x.txt")
    sources = [SourceSpec(path=path) for path in ("her.jsonl", "here.jsonl", "empty", "no/*.csv", "s3://b/x.jsonl")]
    with pytest.raises(DataError) as caught:
        expand(sources, network=NoNetwork({}))
    assert [problem.where for problem in caught.value.problems] == ["her.jsonl", "empty", "no/*.csv"]
    assert "here.jsonl" in caught.value.problems[0].hint


def test_samples() -> None:
    make("a.jsonl")
    assert located("a.jsonl", sample=4).sample == 4
    assert located("a.jsonl#4", sample=4).sample == 4
    assert "samples 3 rows and `sample` 4" in fault("a.jsonl#3", sample=4).what
    assert "no rows" in fault("a.jsonl#0").what


# URLs


def test_a_url_is_downloaded_once_for_each_content() -> None:
    network = FakeNetwork({"s3://b/x.csv": b"a,b\n"})
    (path,) = located("s3://b/x.csv", network).files
    assert Path(path).name == "x.csv" and Path(path).read_bytes() == b"a,b\n"
    assert located("s3://b/x.csv", network).files == (path,) and len(network.reads) == 1
    network.files["s3://b/x.csv"] = b"c,d\n"
    (other,) = located("s3://b/x.csv", network).files
    assert other != path and Path(other).read_bytes() == b"c,d\n"


def test_a_directory_at_a_url_is_as_a_local_one() -> None:
    network = FakeNetwork({f"s3://b/d/{name}": name.encode() for name in ("b.jsonl", "a.jsonl", "README.md")})
    assert [Path(path).read_text() for path in located("s3://b/d/", network).files] == ["a.jsonl", "b.jsonl"]
    network.files["s3://b/d/more/a.jsonl"] = b"of the folder"
    assert [Path(path).read_text() for path in located("s3://b/d/", network).files] == [
        *("a.jsonl", "b.jsonl", "of the folder")
    ]
    network.files["s3://b/d/c.csv"] = b""
    assert "several kinds" in fault("s3://b/d/", network).what
    assert "no file matches" in fault("s3://b/none*", network).what


def test_a_download_that_breaks_goes_on_where_it_was(own_cache: Path) -> None:
    network = FakeNetwork({"s3://b/x.jsonl": bytes(range(200))})
    network.break_after = [50, 0, 30]
    (path,) = located("s3://b/x.jsonl", network).files
    assert Path(path).read_bytes() == bytes(range(200))
    assert [start for _, start in network.reads] == [0, 50, 50, 80]
    assert network.paused == 1 + 2 + 1
    assert not list(own_cache.rglob("*.partial"))


def test_a_download_that_never_works_is_an_error_and_keeps_what_came(own_cache: Path) -> None:
    network = FakeNetwork({"s3://b/x.jsonl": bytes(100)})
    network.break_after = [10, 0, 0, 0, 0]
    with pytest.raises(ServiceError, match="the line broke"):
        located("s3://b/x.jsonl", network)
    (partial,) = own_cache.rglob("*.partial")
    assert partial.stat().st_size == 10 and not list(own_cache.rglob("x.jsonl"))
    located("s3://b/x.jsonl", network)
    assert network.reads[-1] == ("s3://b/x.jsonl", 10)


def test_what_came_of_a_file_of_unknown_length_may_be_all_of_it(own_cache: Path) -> None:
    """Behind which a server has nothing to give: whoever is killed before the file has its name begins again."""
    unknown = RemoteFile("x.jsonl", "s3://b/x.jsonl", None, "1")

    class Killed(FakeNetwork):
        def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
            yield from super().read(file, start)
            raise KeyboardInterrupt

    class Refusing(FakeNetwork):
        def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
            if start >= len(self.files[file.url]):
                raise ServiceError("416: the requested range cannot be satisfied", where=file.url)
            yield from super().read(file, start)

    with pytest.raises(KeyboardInterrupt):
        download(unknown, Killed({"s3://b/x.jsonl": b"all"}))
    (partial,) = own_cache.rglob("*.partial")
    assert partial.read_bytes() == b"all"
    assert Path(download(unknown, Refusing({"s3://b/x.jsonl": b"all"}))).read_bytes() == b"all"


def test_a_file_of_another_length_is_not_taken(own_cache: Path) -> None:
    network = FakeNetwork({"s3://b/x.jsonl": b"whole"})
    short = RemoteFile("x.jsonl", "s3://b/x.jsonl", 9, "1")
    with pytest.raises(ServiceError, match="5 bytes came, 9 were announced"):
        download(short, network)
    assert not list(own_cache.rglob("x.jsonl*"))


def test_a_file_without_a_version_is_fetched_anew(own_cache: Path) -> None:
    network = FakeNetwork({"https://h/x.jsonl": b"old"})
    file = RemoteFile("x.jsonl", "https://h/x.jsonl")
    download(file, network)
    network.files["https://h/x.jsonl"] = b"new"
    assert Path(download(file, network)).read_bytes() == b"new"


def test_without_the_network_only_what_was_fetched_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServiceError, match="network is not to be used"):
        located("s3://b/x.jsonl", offline=True)
    (path,) = located("s3://b/x.jsonl", FakeNetwork({"s3://b/x.jsonl": b"x"})).files
    assert located("s3://b/x.jsonl#5", offline=True).files == (path,)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert located("s3://b/x.jsonl").files == (path,)
    Path(path).unlink()
    with pytest.raises(ServiceError):
        located("s3://b/x.jsonl")


def test_an_unreachable_place_says_what_there_is() -> None:
    class Down(FakeNetwork):
        def find(self, url: str) -> Found:
            raise ServiceError("no answer", where=url, hint="is it up?")

    with pytest.raises(ServiceError) as caught:
        located("s3://b/x.jsonl", Down({}))
    assert caught.value.problems[0].hint == "is it up?"
    located("s3://b/x.jsonl", FakeNetwork({"s3://b/x.jsonl": b"x"}))
    with pytest.raises(ServiceError) as caught:
        located("s3://b/x.jsonl", Down({}))
    assert "HF_HUB_OFFLINE=1" in caught.value.problems[0].hint


def test_a_link_that_leads_nowhere_says_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").symlink_to("/mnt/gone/train.jsonl")
    with pytest.raises(DataError) as refused:
        expand([SourceSpec(path=str(tmp_path / "train.jsonl"))])
    (problem,) = refused.value.problems
    assert problem.what == "no such file" and "a link to /mnt/gone/train.jsonl" in problem.hint
    assert "did you mean" not in problem.hint


AT_THE_MOMENT = (errno.ESTALE, errno.EIO, errno.ETIMEDOUT)


@pytest.mark.parametrize("number", AT_THE_MOMENT)
@pytest.mark.parametrize("place", ["rows", "rows/train.jsonl"])
@pytest.mark.parametrize("asked", ["rows/train.jsonl", "rows", "rows/*.jsonl", "rows/**/*.jsonl"])
def test_data_that_cannot_be_looked_at_now_is_not_missing(
    asked: str, place: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart may find it again: DataError ends a run for good."""
    rows = tmp_path / "rows"
    rows.mkdir()
    for name in ("train.jsonl", "more.jsonl"):
        (rows / name).write_text("{}\n")
    stale(monkeypatch, tmp_path / place, number)
    with pytest.raises(StorageError, match="cannot be read at the moment"):
        expand([SourceSpec(path=str(tmp_path / asked))])
    with pytest.raises(StorageError, match="cannot be read at the moment"):
        require_readable([str(rows / "train.jsonl")])


def test_a_relative_path_that_cannot_be_looked_at_now_is_no_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org/rows").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    stale(monkeypatch, tmp_path / "org")
    with pytest.raises(StorageError, match="Stale file handle"):
        expand([SourceSpec(path="org/rows")])


@pytest.mark.parametrize("asked", ["org/rows", "org/rows:part[train]@v1", "org/rows[test]#500"])
def test_a_hub_id_is_one_where_nobody_may_look_what_is_here(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another user's home, say. Of a path, and of what lies in a folder here, it is said that it is closed."""
    (tmp_path / "org").mkdir()
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        close(patch, tmp_path)
        (path,), here = understood([SourceSpec(path=asked)])
        assert (path.place, path.path, here) == ("hub", "org/rows", {})
        for text in ("./org/rows", "org/rows.jsonl", "org/rows/train", str(tmp_path / "rows")):
            with pytest.raises(DataError, match="Permission denied"):
                understood([SourceSpec(path=text)])
    close(monkeypatch, tmp_path / "org")
    with pytest.raises(DataError, match="Permission denied"):
        understood([SourceSpec(path=asked)])


def test_data_that_may_not_be_looked_at_is_said_to_be_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "train.jsonl").write_text("{}\n")
    with monkeypatch.context() as patch:
        close(patch, rows)
        found = local_files(str(rows / "train.jsonl"))
        assert isinstance(found, Problem) and found.what == "cannot be read: Permission denied"
    with monkeypatch.context() as patch:
        shut(patch, rows)  # what is in it can be looked at by its name alone
        found = local_files(str(rows / "train.json"))
        assert isinstance(found, Problem) and found.what == "no such file"
        assert found.hint == f"what else is in {rows} cannot be listed: Permission denied"


def test_what_was_saved_to_disk_is_not_taken_for_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its state it is of two files in an order of their own; without it of all that lie there."""
    for name in ("state.json", "data-1.arrow", "data-0.arrow", "left.arrow"):
        (tmp_path / name).write_text('{"_data_files": [{"filename": "data-1.arrow"}, {"filename": "data-0.arrow"}]}')
    assert local_files(str(tmp_path)) == (str(tmp_path / "data-1.arrow"), str(tmp_path / "data-0.arrow"))
    stale(monkeypatch, tmp_path / "state.json")
    with pytest.raises(StorageError):
        local_files(str(tmp_path))
