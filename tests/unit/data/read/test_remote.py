"""Files that are read where they lie: any part in any order, over lines that break, and never one that has changed."""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankzero.data.read import remote
from rankzero.data.read.containers.stream import Place
from rankzero.data.read.download import TRIES
from rankzero.data.read.network import HubFile, RealNetwork, RemoteFile
from rankzero.data.read.remote import ReadInPlace
from rankzero.data.read.shards import list_shards
from rankzero.data.read.sources import read_rows
from rankzero.errors import DataError, ServiceError
from rankzero.spec.run_spec import SourceSpec
from tests.support.servers import serving
from tests.support.web_text import ROW_BYTES, Shards
from tests.unit.data.read.fake_network import FakeNetwork, own_cache

__all__ = ["own_cache"]

URL = "s3://bucket/rows.bin"


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    files = fsspec.filesystem("memory")
    yield files
    files.rm("/", recursive=True)


def in_place(network: FakeNetwork, url: str = URL) -> ReadInPlace:
    return ReadInPlace(network.file(url), network)


@given(
    st.binary(max_size=300),
    st.lists(st.tuples(st.integers(0, 320), st.integers(0, 100)), max_size=8),
    st.lists(st.integers(0, 40), max_size=3),
    st.sampled_from([0, 10, 1000]),
)
def test_any_part_is_read_as_of_a_file_here(
    content: bytes, reads: list[tuple[int, int]], breaks: list[int], near: int
) -> None:
    network = FakeNetwork({URL: content})
    network.break_after = breaks
    here = io.BytesIO(content)
    with pytest.MonkeyPatch.context() as patch, in_place(network).open() as there:
        patch.setattr(remote, "_NEAR_BYTES", near)
        for at, count in reads:
            assert there.seek(at) == here.seek(at)
            assert there.read(count) == here.read(count)
        assert there.seek(-min(4, len(content)), io.SEEK_END) == here.seek(-min(4, len(content)), io.SEEK_END)
        assert there.read() == here.read()


def test_a_break_is_gone_on_from_with_patience(caplog: pytest.LogCaptureFixture) -> None:
    content = bytes(range(256)) * 20
    network = FakeNetwork({URL: content})
    network.break_after = [100, 200]
    with in_place(network).open() as file:
        assert file.read() == content
    assert [start for _, start in network.reads] == [0, 100, 300] and network.paused == 4.0
    assert "the line broke; trying again" in caplog.text


def test_a_file_is_asked_for_once_though_its_beginning_is_looked_at_first() -> None:
    for content in (TEXT, gzip.compress(TEXT)):
        network = FakeNetwork({URL: content})
        assert len(list(read_rows(in_place(network)))) == ROWS
        assert network.reads == [(URL, 0)]


def test_a_service_that_stays_away_is_an_error_with_the_url() -> None:
    network = FakeNetwork({URL: b"x" * 100})
    network.break_after = [0] * TRIES
    with in_place(network).open() as file, pytest.raises(ServiceError) as away:
        file.read()
    assert away.value.problems[0].where == URL and len(network.reads) == TRIES


def test_a_file_that_ends_too_early_is_asked_for_again() -> None:
    class Short(FakeNetwork):
        def find(self, url: str) -> object:  # type: ignore[override]
            found = super().find(url)
            return replace(found, files=(replace(found.files[0], size=50),))

    network = Short({URL: b"x" * 30})
    file = ReadInPlace(replace(network.file(URL), size=None), network).open()
    with pytest.raises(ServiceError, match="ended at byte 30 of 50"):
        file.read()
    assert len(network.reads) == TRIES


def test_a_file_that_changed_or_went_since_it_was_listed_is_refused() -> None:
    network = FakeNetwork({URL: b"one"})
    place = in_place(network)
    network.files[URL] = b"two"
    with pytest.raises(DataError, match="changed since it was listed"):
        place.open()
    del network.files[URL]
    with pytest.raises(DataError, match="gone since it was listed"):
        place.open()


def test_a_place_that_gives_no_size_has_its_lines_read_and_its_tables_refused(tmp_path: Path) -> None:
    class Sizeless(FakeNetwork):
        def file(self, url: str) -> RemoteFile:
            return replace(super().file(url), size=None)

    table, lines = "https://x/t.parquet", "https://x/r.jsonl"
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "t")
    network = Sizeless({table: (tmp_path / "t").read_bytes(), lines: b'{"text": "a"}\n'})
    assert [row for _, row, _ in read_rows(in_place(network, lines))] == [b'{"text": "a"}']
    with pytest.raises(DataError, match="does not say how long"):
        list(read_rows(in_place(network, table)))


ROWS = 50
TEXT = b"".join(b'{"text": "row %d"}\n' % i + b"\n" * (i % 3 == 0) for i in range(ROWS))


def contents(tmp_path: Path) -> dict[str, bytes]:
    """The same rows in containers of all sorts, by name."""
    names = [f"row {i}" for i in range(ROWS)]
    pq.write_table(pa.table({"text": names}), tmp_path / "p", row_group_size=7)
    with pa.ipc.new_file(str(tmp_path / "a"), pa.schema({"text": pa.string()})) as writer:
        writer.write_table(pa.table({"text": names}), max_chunksize=9)
    return {
        "rows.jsonl": TEXT,
        "rows.jsonl.gz": gzip.compress(TEXT),
        "rows.jsonl.zst": pa.compress(TEXT, "zstd", asbytes=True),
        "rows.json": b"[" + b",".join(line for line in TEXT.split(b"\n") if line) + b"]",
        "rows.csv": b"text,number\n" + b"".join(b"row %d,%d\n" % (i, i) for i in range(ROWS)),
        "rows.parquet": (tmp_path / "p").read_bytes(),
        "rows.arrow": (tmp_path / "a").read_bytes(),
    }


def test_rows_are_passed_over_in_every_container_here_and_there(tmp_path: Path) -> None:
    for name, content in contents(tmp_path).items():
        (tmp_path / name).write_bytes(content)
        network = FakeNetwork({f"s3://b/{name}": content})
        places: list[Place] = [str(tmp_path / name), in_place(network, f"s3://b/{name}")]
        whole = list(read_rows(places[0]))
        assert [b"row %d" % i in row for i, (_, row, _) in enumerate(whole)] == [True] * ROWS, name
        for place in places:
            for skip in (0, 1, 6, 7, 20, ROWS - 1, ROWS, ROWS + 5):
                assert list(read_rows(place, skip=skip)) == whole[skip:], (name, skip)


def test_of_parquet_no_row_group_before_is_read(tmp_path: Path) -> None:
    noise = [str(hash((i, "x"))) * 40 for i in range(4000)]
    pq.write_table(pa.table({"text": noise}), tmp_path / "p", row_group_size=100, compression="none")
    content = (tmp_path / "p").read_bytes()

    class Counting(FakeNetwork):
        sent = 0

        def read(self, file: RemoteFile, start: int) -> object:  # type: ignore[override]
            data = self.files[file.url]
            for at in range(start, len(data), 4096):
                self.sent += len(data[at : at + 4096])
                yield data[at : at + 4096]

    network = Counting({"s3://b/p.parquet": content})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "_NEAR_BYTES", 0)
        patch.setattr(remote, "_BUFFER_BYTES", 4096)
        assert len(list(read_rows(in_place(network, "s3://b/p.parquet"), skip=3900))) == 100
    assert network.sent < len(content) / 4


def test_a_table_that_is_packed_as_a_whole_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(contents(tmp_path)["rows.parquet"])
    with pytest.raises(DataError, match="packed as a whole") as refused:
        list(read_rows(in_place(FakeNetwork({URL: packed}))))
    assert refused.value.problems[0].where == URL


def test_damage_is_a_problem_of_its_row() -> None:
    numbers = random.Random(0)
    cut = gzip.compress(b"".join(b'{"text": "%x"}\n' % numbers.getrandbits(400) for _ in range(20_000)))[:-40]
    *_, (_, _, problem) = read_rows(in_place(FakeNetwork({URL: cut})))
    assert problem is not None and problem.reason == "cut-off file"


def test_listing_reads_nothing_and_knows_files_by_what_places_say(own_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    for name in ("b", "a"):
        (tmp_path / f"here/{name}.jsonl").write_bytes(b'{"text": "x"}\n')
    network = FakeNetwork(
        {"s3://b/d/1.jsonl": b"one", "s3://b/d/2.jsonl": b"two"},
        {("org/set", None): ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]},
    )
    sources = [SourceSpec(path=path) for path in (str(tmp_path / "here"), "s3://b/d", "org/set")]
    shards = list_shards(sources, network=network)
    assert [(shard.source, shard.name) for shard in shards] == [
        *((0, "a.jsonl"), (0, "b.jsonl"), (1, "1.jsonl"), (1, "2.jsonl")),
        *((2, f"data/train-0000{i}-of-00002.parquet") for i in range(2)),
    ]
    assert not network.reads and not network.brought
    before = [shard.identity for shard in shards]
    network.files["s3://b/d/2.jsonl"] = b"TWO"
    after = [shard.identity for shard in list_shards(sources, network=network)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, True, False, True, True]


def test_a_file_of_the_hub_is_read_there_and_not_brought_here(own_cache: Path, tmp_path: Path) -> None:
    name, url = "data/train-00000-of-00001.parquet", "hf://datasets/org/set/data/train-00000-of-00001.parquet"
    network = FakeNetwork({url: contents(tmp_path)["rows.parquet"]}, {("org/set", None): [name]})
    source = SourceSpec(path="org/set")
    (shard,) = list_shards([source], network=network)
    rows = list(shard.rows(source, network, skip=40))
    assert [number for number, _, _ in rows] == list(range(41, 51)) and not network.brought
    assert (shard.url, shard.version) == (url, "None"), "the commit, which the Hub says"


def test_a_file_at_a_hub_url_is_known_by_its_content(own_cache: Path) -> None:
    """A URL without a revision means a branch, whose name says nothing of what is on it."""

    class Hub(FakeNetwork):
        def file(self, url: str) -> RemoteFile:
            return replace(super().file(url), hub=HubFile("o/n", "a.jsonl", "main"))

    url = "hf://datasets/o/n/a.jsonl"
    network, source = Hub({url: b'{"text": "one"}\n'}), SourceSpec(path=url)
    (shard,) = list_shards([source], network=network)
    assert len(list(shard.rows(source, network))) == 1
    network.files[url] = b'{"text": "two"}\n'
    (other,) = list_shards([source], network=network)
    assert other.identity != shard.identity
    with pytest.raises(DataError, match="changed since it was listed"):
        list(shard.rows(source, network))


def test_a_file_here_that_changed_since_it_was_listed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "x"}\n')
    source = SourceSpec(path=str(path))
    (shard,) = list_shards([source])
    assert len(list(shard.rows(source, FakeNetwork({})))) == 1
    path.write_bytes(b'{"text": "longer"}\n')
    with pytest.raises(DataError, match="changed since it was listed"):
        list(shard.rows(source, FakeNetwork({})))


def test_parts_of_sources_and_a_forbidden_network_are_refused(own_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "x"}\n')
    with pytest.raises(DataError) as refused:
        list_shards([SourceSpec(path="a.jsonl#5"), SourceSpec(path="org/set[train[:1%]]")])
    assert [problem.where for problem in refused.value.problems] == ["a.jsonl#5", "org/set[train[:1%]]"]
    with pytest.raises(ServiceError, match="the network is not to be used"):
        list_shards([SourceSpec(path="s3://b/d")], network=FakeNetwork({}), offline=True)


def test_a_web_server_and_an_object_store_are_read_in_place(
    own_cache: Path, tmp_path: Path, memory: fsspec.AbstractFileSystem
) -> None:
    memory.pipe({f"/s/{name}": content for name, content in contents(tmp_path).items() if "parquet" in name})
    with serving(Shards) as url:
        sources = [SourceSpec(path=f"{url}/shard-00.jsonl"), SourceSpec(path="memory://s")]
        web, store = list_shards(sources)
        assert web.size == ROW_BYTES * Shards.rows and web.version and store.size and store.version
        (number, row, _), *_ = islice(web.rows(sources[0], RealNetwork(), skip=2500), 1)
        assert number == 2501 and row.startswith(b'{"text": "000000002500 ')
        assert web.remote is not None
        with ReadInPlace(web.remote, RealNetwork()).open() as file:
            file.seek(-ROW_BYTES, io.SEEK_END)
            assert file.read().startswith(b'{"text": "%012d ' % (Shards.rows - 1))
    assert [number for number, _, _ in store.rows(sources[1], RealNetwork(), skip=48)] == [49, 50]
    memory.pipe({"/s/rows.parquet": b"PAR1"})
    with pytest.raises(DataError, match="changed since it was listed"):
        list(store.rows(sources[1], RealNetwork()))
