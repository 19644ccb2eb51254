"""Data paths as files: local ones, URLs, and Hub data sets against made-up listings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rankzero.data.download import download
from rankzero.data.locate_data import LocatedSource, expand
from rankzero.data.network import Found, RemoteFile
from rankzero.errors import AccessError, DataError, Problem, ServiceError
from rankzero.spec.run_spec import SourceSpec
from tests.unit.data.containers.reading import put


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and no variables that forbid the network."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANKZERO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


class FakeNetwork:
    """Files by URL, and data sets by name and revision."""

    def __init__(self, files: dict[str, bytes], sets: dict[tuple[str, str | None], list[str]] | None = None) -> None:
        self.files = files
        self.sets = sets or {}
        self.reads: list[tuple[str, int]] = []
        self.paused = 0.0
        self.break_after: list[int] = []
        """For each read to come: bytes after which the line breaks."""

    def find(self, url: str) -> Found:
        """See Network."""
        inside = sorted(name for name in self.files if name.startswith(url.rstrip("/") + "/"))
        if inside:
            return Found(tuple(self.file(name) for name in inside), is_directory=True)
        return Found((self.file(url),)) if url in self.files else Found(())

    def file(self, url: str) -> RemoteFile:
        """As the place lists it."""
        return RemoteFile(url.rpartition("/")[2], url, len(self.files[url]), version=str(hash(self.files[url])))

    def data_set(self, name: str, revision: str | None) -> tuple[RemoteFile, ...]:
        """See Network."""
        if (name, revision) not in self.sets:
            raise DataError("there is no such data set", where=name, hint="neither a file here nor")
        names = self.sets[name, revision]
        return tuple(RemoteFile(file, f"hub/{name}/{revision}/{file}", None, version="1") for file in names)

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """See Network."""
        self.reads.append((file.url, start))
        data = self.files.get(file.url, f"content of {file.url}".encode())[start:]
        if self.break_after:
            yield data[: self.break_after.pop(0)]
            raise ServiceError("the line broke", where=file.url)
        yield data

    def pause(self, seconds: float) -> None:
        """See Network."""
        self.paused += seconds


class NoNetwork(FakeNetwork):
    """Whoever asks it fails the test."""

    def find(self, url: str) -> Found:
        raise AssertionError(url)

    def data_set(self, name: str, revision: str | None) -> tuple[RemoteFile, ...]:
        raise AssertionError(name)


def located(
    path: str, network: FakeNetwork | None = None, offline: bool = False, sample: int | None = None
) -> LocatedSource:
    (found,) = expand([SourceSpec(path=path, sample=sample)], network=network or NoNetwork({}), offline=offline)
    return found


def fault(path: str, network: FakeNetwork | None = None, sample: int | None = None) -> Problem:
    with pytest.raises(DataError) as caught:
        located(path, network, sample=sample)
    (problem,) = caught.value.problems
    return problem


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
    make("d/more/part-2.parquet")
    assert located("d").files == ("d/part-0.parquet", "d/part-1.parquet")


@pytest.mark.parametrize(
    ("names", "words", "hint"),
    [
        (("d/n.txt", "d/x/a.jsonl"), "no data files", "**/*.jsonl"),
        (("d/a.jsonl", "d/b.csv", "d/c.jsonl.gz"), "1 CSV, 2 JSONL", "d/*.jsonl"),
        (("d/a.jsonl", "d/a.jsonl.gz"), "packed and unpacked", "same rows"),
        (("d/train.jsonl", "d/test.jsonl"), "several splits: train, test", "d/train.jsonl"),
        (("d/train_sft-00000-of-00001.parquet", "d/test_sft-00000-of-00001.parquet"), "several splits", "d/"),
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
    network.files["s3://b/d/c.csv"] = b""
    assert "several kinds" in fault("s3://b/d/", network).what
    assert "no file matches" in fault("s3://b/none*", network).what


def test_a_download_that_breaks_goes_on_where_it_was(cache: Path) -> None:
    network = FakeNetwork({"s3://b/x.jsonl": bytes(range(200))})
    network.break_after = [50, 0, 30]
    (path,) = located("s3://b/x.jsonl", network).files
    assert Path(path).read_bytes() == bytes(range(200))
    assert [start for _, start in network.reads] == [0, 50, 50, 80]
    assert network.paused == 1 + 2 + 1
    assert not list(cache.rglob("*.partial"))


def test_a_download_that_never_works_is_an_error_and_keeps_what_came(cache: Path) -> None:
    network = FakeNetwork({"s3://b/x.jsonl": bytes(100)})
    network.break_after = [10, 0, 0, 0, 0]
    with pytest.raises(ServiceError, match="the line broke"):
        located("s3://b/x.jsonl", network)
    (partial,) = cache.rglob("*.partial")
    assert partial.stat().st_size == 10 and not list(cache.rglob("x.jsonl"))
    located("s3://b/x.jsonl", network)
    assert network.reads[-1] == ("s3://b/x.jsonl", 10)


def test_a_file_of_another_length_or_content_is_not_taken(cache: Path) -> None:
    network = FakeNetwork({"s3://b/x.jsonl": b"whole"})
    short = RemoteFile("x.jsonl", "s3://b/x.jsonl", 9, "1")
    with pytest.raises(ServiceError, match="5 bytes came, 9 were announced"):
        download(short, network)
    other = RemoteFile("x.jsonl", "s3://b/x.jsonl", 5, "2", sha256="0" * 64)
    with pytest.raises(ServiceError, match="its content is not"):
        download(other, network)
    assert not list(cache.rglob("x.jsonl*"))


def test_a_file_without_a_version_is_fetched_anew(cache: Path) -> None:
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


# Hub data sets


def hub(*names: str, card: str = "", converted: tuple[str, ...] = ()) -> FakeNetwork:
    sets: dict[tuple[str, str | None], list[str]] = {("o/n", None): [*names, *(["README.md"] if card else [])]}
    if converted:
        sets["o/n", "refs/convert/parquet"] = list(converted)
    return FakeNetwork({"hub/o/n/None/README.md": card.encode()}, sets)


def of_hub(path: str, network: FakeNetwork) -> list[str]:
    files = located(path, network).files
    contents = [Path(name).read_text().removeprefix("content of hub/o/n/") for name in files]
    return [content.removeprefix("None/") for content in contents]


SHARDS = ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test-00000-of-00001.parquet")


def test_shards_are_split_by_name() -> None:
    network = hub(*SHARDS, ".gitattributes", "dataset_infos.json")
    assert of_hub("o/n", network) == of_hub("o/n[train]", network) == list(SHARDS[:2])
    assert of_hub("o/n[test]#3", network) == [SHARDS[2]]
    assert of_hub("o/n[test+train]", network) == [SHARDS[2], *SHARDS[:2]]
    problem = fault("o/n[dev]", network)
    assert problem.what == "it has no split 'dev'" and "train, test" in problem.hint and problem.where == "o/n[dev]"
    assert "#500" in fault("o/n[train:10%]", network).hint


def test_words_in_names_and_folders_are_splits() -> None:
    assert of_hub("o/n", hub("FIRE-train-100K.json", "FIRE-test.json", "FIRE-1M.json")) == ["FIRE-train-100K.json"]
    assert of_hub("o/n[validation]", hub("a/dev.csv", "a/training.csv")) == ["a/dev.csv"]
    assert of_hub("o/n[test]", hub("train/x.jsonl", "test/x.jsonl")) == ["test/x.jsonl"]
    assert of_hub("o/n", hub("rows.json", "README.txt")) == ["rows.json"]
    sft = ("data/train_sft-00000-of-00001.parquet", "data/test_sft-00000-of-00001.parquet")
    assert of_hub("o/n[train_sft]", hub(*sft)) == [sft[0]]
    assert "which one is meant" in fault("o/n", hub(*sft)).what


CARD = """---
licence: mit
configs:
- config_name: sst2
  data_files:
  - split: train
    path: sst2/train-*
  - split: test
    path: ["sst2/test-*", "extra/**/t?.parquet"]
- config_name: cola
  data_dir: cola
---
# About
"""


def test_the_card_decides() -> None:
    files = ("sst2/train-0.parquet", "sst2/test-0.parquet", "extra/a/b/t1.parquet", "cola/train.csv", "cola/test.csv")
    network = hub(*files, card=CARD)
    assert of_hub("o/n:sst2", network) == ["sst2/train-0.parquet"]
    assert of_hub("o/n:sst2[test]", network) == ["sst2/test-0.parquet", "extra/a/b/t1.parquet"]
    assert of_hub("o/n:cola[test]", network) == ["cola/test.csv"]
    problem = fault("o/n", network)
    assert problem.what == "it has 2 subsets; which one is meant?" and "sst2, cola" in problem.hint
    assert "no subset 'x'" in fault("o/n:x", network).what
    marked = CARD.replace("  data_dir: cola", "  data_dir: cola\n  default: true")
    assert of_hub("o/n", hub(*files, card=marked)) == ["cola/train.csv"]
    plain = "---\nconfigs:\n- config_name: default\n  data_files: '*.jsonl'\n---\n"
    assert of_hub("o/n", hub("b.jsonl", "a.jsonl", "x/c.jsonl", card=plain)) == ["a.jsonl", "b.jsonl"]


@pytest.mark.parametrize(
    ("names", "card"),
    [
        (("o.py", "data.zip"), ""),
        (("a/train.jsonl", "b/train.jsonl"), ""),
        (("train.jsonl", "train.csv"), ""),
        (("x.jsonl",), CARD.replace("sst2", "s")),
        (("x.jsonl",), "---\nconfigs: [\n---\n"),
        (("x.txt",), "---\nconfigs:\n- config_name: s\n  data_files: https://h/x.jsonl\n---\n"),
    ],
)
def test_where_it_is_not_clear_the_hubs_conversion_is_read(names: tuple[str, ...], card: str) -> None:
    converted = ("s/train/0000.parquet", "s/train/0001.parquet", "s/test/0000.parquet")
    prefix = "refs/convert/parquet/"
    assert of_hub("o/n:s" if card else "o/n", hub(*names, card=card, converted=converted)) == [
        prefix + name for name in converted[:2]
    ]
    problem = fault("o/n:s" if card else "o/n", hub(*names, card=card))
    assert "not clear" in problem.what and "hf://datasets/" in problem.hint


def test_a_conversion_of_a_part_is_not_taken_for_the_whole() -> None:
    network = hub("o.py", converted=("s/partial-train/0000.parquet", "s/test/0000.parquet"))
    assert "only a part" in fault("o/n", network).what
    assert of_hub("o/n[test]", network) == ["refs/convert/parquet/s/test/0000.parquet"]


def test_a_revision_is_asked_for() -> None:
    network = FakeNetwork({}, {("o/n", "v1.0"): ["train.csv"], ("o/n", "odd"): ["a/train.csv", "b/train.csv"]})
    assert Path(located("o/n@v1.0", network).files[0]).read_text() == "content of hub/o/n/v1.0/train.csv"
    assert "not clear" in fault("o/n@odd", network).what
    assert "no such data set" in fault("o/n@v2", network).what


def test_a_misspelled_file_is_not_only_called_a_missing_data_set() -> None:
    assert "neither a file here" in fault("data/trian", FakeNetwork({})).hint


def test_access_errors_stay_what_they_are() -> None:
    class Gated(FakeNetwork):
        def data_set(self, name: str, revision: str | None) -> tuple[RemoteFile, ...]:
            raise AccessError("the data set is gated", where=name)

    with pytest.raises(AccessError):
        located("o/n", Gated({}))
