"""Shards of the work: whoever does which part, in whatever order, killed or not, the data set is the same."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rankzero.data.cache.job
import rankzero.data.cache.tokenize
from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.cache.encode import Block, EncodedChunk, Task, chunk_encoder
from rankzero.data.cache.segments import Segments
from rankzero.data.cache.tokenize import Shard, TokenRules, prepare, prepare_shard
from rankzero.data.read.containers.delimited import Header
from rankzero.data.read.sources import Chunk, read_chunks
from rankzero.data.tokens.tokenizer import take_apart
from rankzero.errors import DataError
from rankzero.spec.run_spec import SourceSpec
from tests.support.tiny import chat_rows, tiny_tokenizer, write_jsonl


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some twenty chunks of a few rows, two in a segment."""

    def small_chunks(path: str, source: int = 0, *, header: Header = "auto") -> Iterator[Chunk]:
        return read_chunks(path, source, 700, header=header)

    monkeypatch.setattr(rankzero.data.cache.job, "read_chunks", small_chunks)
    monkeypatch.setattr(rankzero.data.cache.tokenize, "SEGMENT_CHUNKS", 2)


@pytest.fixture
def files(tmp_path: Path) -> list[SourceSpec]:
    paths = [write_jsonl(tmp_path / f"{name}.jsonl", chat_rows(60)) for name in "ab"]
    return [SourceSpec(path=str(path)) for path in paths]


def rows_of(dataset: TokenizedDataset) -> list[tuple[list[int], list[bool], str]]:
    return [(*(part.tolist() for part in dataset.row(i)), dataset.where(i)) for i in range(len(dataset))]  # type: ignore[misc]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 1, 2, 0, 0]])
def test_shards_in_any_order_make_what_one_makes(
    order: list[int], files: list[SourceSpec], tokenizer: Any, tmp_path: Path
) -> None:
    alone = prepare(files, tokenizer, TokenRules(), tmp_path / "alone")
    made = [prepare_shard(files, tokenizer, TokenRules(), tmp_path / "shards", Shard(i, 3)) for i in order]
    assert [dataset is None for dataset in made[:-1]].count(True) >= 2
    together = next(dataset for dataset in made if dataset is not None)
    assert rows_of(together) == rows_of(alone)
    assert together.stats == alone.stats
    assert together.fingerprint == alone.fingerprint
    assert np.array_equal(together.groups, alone.groups)
    left = [path.name for path in (tmp_path / "shards" / "tokenized").iterdir() if path.is_dir()]
    assert left == [together.directory.name]
    found = prepare(files, tokenizer, TokenRules(), tmp_path / "shards")  # what training does
    assert found.directory == together.directory


def test_a_killed_shard_goes_on_where_it_was(
    files: list[SourceSpec], tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = rankzero.data.cache.tokenize.chunk_encoder
    encoded: list[int] = []

    def dying(*args: Any, most: int) -> Any:
        work = original(*args)

        def encode(task: Any) -> Any:
            if len(encoded) == most:
                raise KeyboardInterrupt
            encoded.append(task.chunk.first_line)
            return work(task)

        return encode

    monkeypatch.setattr(rankzero.data.cache.tokenize, "chunk_encoder", partial(dying, most=7))
    with pytest.raises(KeyboardInterrupt):
        prepare(files, tokenizer, TokenRules(), tmp_path / "cache")
    monkeypatch.setattr(rankzero.data.cache.tokenize, "chunk_encoder", partial(dying, most=-1))
    encoded.clear()
    dataset = prepare(files, tokenizer, TokenRules(), tmp_path / "cache")
    chunks = sum(1 for spec in files for _ in read_chunks(spec.path, 0, 700))
    assert len(encoded) == chunks - 6  # three segments of two chunks were whole
    monkeypatch.setattr(rankzero.data.cache.tokenize, "chunk_encoder", original)
    assert rows_of(dataset) == rows_of(prepare(files, tokenizer, TokenRules(), tmp_path / "other"))


@pytest.mark.parametrize("slow", ["run", "shard"])
@pytest.mark.parametrize("at", [1, 2, 7])
def test_a_run_and_a_shard_that_make_the_same_do_not_disturb_each_other(
    at: int, slow: str, files: list[SourceSpec], tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one is in the middle of a segment, or between two, the other makes all of it and forgets the segments."""
    original = rankzero.data.cache.tokenize.chunk_encoder
    given = (files, tokenizer, TokenRules(), tmp_path / "cache")
    encoded: list[int] = []
    fast: list[TokenizedDataset | None] = []

    def slower(*args: Any) -> Any:
        work = original(*args)

        def encode(task: Any) -> Any:
            encoded.append(task.chunk.first_line)
            if len(encoded) == at:
                monkeypatch.setattr(rankzero.data.cache.tokenize, "chunk_encoder", original)
                fast.append(prepare_shard(*given, Shard()) if slow == "run" else prepare(*given))
            return work(task)

        return encode

    monkeypatch.setattr(rankzero.data.cache.tokenize, "chunk_encoder", slower)
    dataset = prepare(*given) if slow == "run" else prepare_shard(*given, Shard())
    assert dataset is not None and fast[0] is not None
    assert rows_of(dataset) == rows_of(fast[0]) == rows_of(prepare(files, tokenizer, TokenRules(), tmp_path / "other"))
    assert len(encoded) <= at + 2, "what another has made is not made again"
    left = [path.name for path in (tmp_path / "cache" / "tokenized").iterdir() if path.is_dir()]
    assert left == [dataset.directory.name]


def test_bad_rows_that_one_finds_take_nothing_from_another(
    files: list[SourceSpec], tokenizer: Any, tmp_path: Path
) -> None:
    segments = Segments(tmp_path / "partial")
    chunk = chunk_encoder(take_apart(tokenizer), TokenRules())(Task(Chunk(0, 1, b'{"text": "seven"}\n'), "auto", True))
    with segments.write(0) as writer:
        Segments(segments.directory).forget()
        writer.add(chunk)
        writer.finish()
    assert segments.has(0)
    segments.forget()
    assert not segments.directory.exists()


def test_a_shard_names_the_bad_rows_of_its_part(files: list[SourceSpec], tokenizer: Any, tmp_path: Path) -> None:
    path = Path(files[1].path)
    lines = path.read_text().splitlines()
    lines[-1] = '{"messages": []}'
    path.write_text("\n".join(lines))
    errors = []
    for index in range(2):
        try:
            prepare_shard(files, tokenizer, TokenRules(), tmp_path / "cache", Shard(index, 2))
        except DataError as error:
            errors.append(str(error))
    (error,) = errors
    assert f"{path}:60" in error


def test_equal_rows_have_equal_digests_and_groups_of_their_own(
    files: list[SourceSpec], tokenizer: Any, tmp_path: Path
) -> None:
    dataset = prepare(files, tokenizer, TokenRules(), tmp_path / "cache")
    assert np.array_equal(dataset.digests[:60], dataset.digests[60:])
    assert len(set(dataset.groups.tolist())) == 120
    assert set(dataset.source_of.tolist()) == {0, 1}


def test_nothing_stays_of_a_segment_that_the_disk_has_no_room_for(tmp_path: Path) -> None:
    """However often it is tried: what is written ends at a limit that the system itself keeps."""
    segments = Segments(tmp_path / "partial")
    ids = np.arange(100_000, dtype=np.int32)
    one, none = np.array([0, len(ids)], dtype=np.int32), np.array([0, 0], dtype=np.int32)
    number = np.zeros(1, dtype=np.int64)
    block = Block(
        *(ids, one, ids[:0], none, np.empty(0, np.float32), none, np.ones(1, np.int32), np.ones(1)),
        *(number, number, np.arange(2, dtype=np.int32), number, [None], [()]),
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for _ in range(2):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            with pytest.raises(OSError, match="File too large"), segments.write(0) as writer:
                writer.add(EncodedChunk(0, 1, block))
                writer.finish()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert [*segments.directory.iterdir()] == []


def test_a_data_set_may_be_of_more_files_than_16_bits_count(tokenizer: Any, tmp_path: Path) -> None:
    line = b'{"text": "seven legs"}\n'
    chunk = chunk_encoder(take_apart(tokenizer), TokenRules())(Task(Chunk(40_000, 1, line), "auto", encode=True))
    segments = Segments(tmp_path / "partial")
    with segments.write(0) as writer:
        writer.add(chunk)
        writer.finish()
    segments.commit(1, tmp_path / "whole", {"fingerprint": "f", "stats": segments.tally(1).stats().as_json()})
    dataset = TokenizedDataset.open(tmp_path / "whole", [f"{number}.jsonl" for number in range(40_001)])
    assert dataset.source_of.tolist() == [40_000] and dataset.where(0) == "40000.jsonl:1"
