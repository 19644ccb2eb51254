"""Windows on disk: made whole, within the room there is, and what ends them said with its place."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankzero.data.cache.dataset import TokenizedDataset, verify_bytes
from rankzero.data.cache.stream.feeder import AHEAD_WINDOWS, FAILED, NotNeededError, Room, feed, window_name
from rankzero.data.cache.stream.order import Cursor
from rankzero.data.cache.stream.plan import Stream, make_stream
from rankzero.data.cache.stream.rows import RowStream, StreamPosition, Taken
from rankzero.data.cache.tokenize import TokenRules
from rankzero.data.read.network import RemoteFile
from rankzero.errors import ConfigError, DataError, Problem, RankzeroError, ServiceError, StorageError
from rankzero.run_dir.atomic import read_manifest
from rankzero.run_dir.handover import write_error
from rankzero.spec.run_spec import SourceSpec
from tests.support.tiny import tiny_tokenizer
from tests.unit.data.read.fake_network import FakeNetwork, own_cache

__all__ = ["own_cache"]

Row = dict[str, Any]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


def texts(shard: int, rows: int) -> list[Row]:
    return [{"text": f"shard {shard} row {row} " + "train " * (row % 7)} for row in range(rows)]


def network_of(shards: list[list[Row]]) -> FakeNetwork:
    lines = [b"".join(json.dumps(row).encode() + b"\n" for row in rows) for rows in shards]
    return FakeNetwork({f"s3://b/d/{number:02}.jsonl": data for number, data in enumerate(lines)})


def stream_of(network: FakeNetwork, tokenizer: Any, *, window: int = 10, gb: float = 1, **rules: Any) -> Stream:
    source = SourceSpec(path="s3://b/d")
    kept = TokenRules(max_length=64, **rules)
    stream = make_stream(
        [source], tokenizer, kept, seed=5, window_rows=window, cache_bytes=int(gb * 1e9), network=network
    )
    return stream


class Thread:
    """A feeder in a thread, as `Feeder` is to RowStream."""

    def __init__(self, stream: Stream, cursor: Cursor, directory: Path, network: FakeNetwork) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.room = Room(directory, stream.cache_bytes, stream.window_rows)
        self.most, self.there = 0, threading.Condition()
        """`there`: told of each window."""

        def work() -> None:
            try:
                feed(stream, cursor, directory, self.room, workers=1, network=network)
            except RankzeroError as error:
                write_error(directory / FAILED, error, "", str)
            except NotNeededError:
                pass

        made = self.room.made

        def watched(number: int, nbytes: int) -> None:
            made(number, nbytes)
            self.most = max(self.most, sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()))
            with self.there:
                self.there.notify_all()

        self.room.made = watched  # type: ignore[method-assign]
        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def need(self, first: int, awaited: int) -> None:
        self.room.need(first, awaited)

    def look(self) -> None:
        """It has nothing to say."""

    def close(self) -> None:
        self.room.end()
        self._thread.join()


def steps(
    stream: Stream,
    network: FakeNetwork,
    directory: Path,
    count: int,
    *,
    size: int = 4,
    position: StreamPosition | None = None,
    watch: Callable[[Thread], None] = lambda _thread: None,
) -> list[Taken]:
    """What so many steps take."""
    begun = (position or StreamPosition()).under(stream)
    thread = Thread(stream, begun.cursor, directory, network)
    rows = RowStream(stream, begun, directory, thread)  # type: ignore[arg-type]
    taken = []
    try:
        while len(taken) < count:
            if rows.ready(size):
                taken.append(rows.take(size))
                watch(thread)
            else:
                threading.Event().wait(0.001)
    finally:
        rows.close()
    return taken


def wheres(taken: list[Taken]) -> list[str]:
    return [step.rows.where(i) for step in taken for i in range(len(step.rows))]


class Asked:
    """A feeder that makes nothing and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def need(self, first: int, awaited: int) -> None:
        self.told.append((first, awaited))

    def look(self) -> None:
        """It has nothing to say."""


@pytest.mark.parametrize(("window", "last"), [(1, 24), (10, 2), (25, 0), (100, 0)])
def test_all_windows_that_a_step_lacks_are_asked_for_at_once(
    window: int, last: int, tokenizer: Any, tmp_path: Path
) -> None:
    stream, asked = stream_of(network_of(SHARDS), tokenizer, window=window), Asked()
    rows = RowStream(stream, StreamPosition().under(stream), tmp_path, asked)  # type: ignore[arg-type]
    assert not rows.ready(25)
    assert asked.told == [(0, last)]


SHARDS = [texts(shard, rows) for shard, rows in enumerate((13, 8, 20, 5, 11))]
ROWS = sum(map(len, SHARDS))


def test_an_epoch_has_every_row_once_and_each_as_it_is_tokenised_elsewhere(tokenizer: Any, tmp_path: Path) -> None:
    network = network_of(SHARDS)
    taken = steps(stream_of(network, tokenizer), network, tmp_path / "w", 2 * ROWS // 4 + 3)
    found = wheres(taken)
    every = {f"s3://b/d/{shard:02}.jsonl:{row + 1}" for shard, rows in enumerate(SHARDS) for row in range(len(rows))}
    assert set(found[:ROWS]) == every and len(set(found[:ROWS])) == ROWS
    assert set(found[ROWS : 2 * ROWS]) == every and found[:ROWS] != found[ROWS : 2 * ROWS]
    for step in taken:
        for i in range(len(step.rows)):
            ids, mask = step.rows.row(i)
            place, line = step.rows.where(i).split(".jsonl:")
            text = SHARDS[int(place[-2:])][int(line) - 1]["text"]
            assert tokenizer.decode(ids[:-1]) == text and ids[-1] == tokenizer.eos_token_id and mask[1:].all()
            assert step.rows.lengths[i] == len(ids) and step.rows.supervised[i] == mask.sum()
    assert [step.ended for step in taken if step.ended] == [1, 2]


@pytest.mark.parametrize("stop", [1, 2, 3, 7, 14, 15, 20])
def test_it_goes_on_from_every_step_with_the_same_rows_and_numbers(stop: int, tokenizer: Any, tmp_path: Path) -> None:
    network = network_of(SHARDS)
    stream = stream_of(network, tokenizer)
    whole = steps(stream, network, tmp_path / "a", 30)
    saved = StreamPosition.from_json(json.loads(json.dumps(whole[stop - 1].position.as_json())))
    rest = steps(stream, network, tmp_path / "b", 30 - stop, position=saved)
    assert wheres(whole[:stop]) + wheres(rest) == wheres(whole)
    assert [step.position for step in rest] == [step.position for step in whole[stop:]]
    assert [(step.epoch, step.ended) for step in rest] == [(step.epoch, step.ended) for step in whole[stop:]]
    for one, other in zip(rest, whole[stop:], strict=True):
        assert all(np.array_equal(one.rows.row(i)[0], other.rows.row(i)[0]) for i in range(4))


def test_a_resume_reads_no_shard_that_was_done(tokenizer: Any, tmp_path: Path) -> None:
    shards = [texts(shard, 40) for shard in range(12)]
    network = network_of(shards)
    stream = stream_of(network, tokenizer, window=40, gb=9e-5)  # so that it does not read ahead to the next epoch
    position = steps(stream, network, tmp_path / "a", 60)[-1].position
    network.reads.clear()
    steps(stream, network, tmp_path / "b", 2, position=position)
    cursor = position.cursor
    order = [piece.shard for piece in stream_order(stream, cursor.epoch)]
    done = {f"s3://b/d/{shard:02}.jsonl" for shard in order[: min(one.place for one in cursor.open)]}
    assert done and not done & {url for url, _ in network.reads}


def stream_order(stream: Stream, epoch: int) -> Any:
    from rankzero.data.cache.stream.order import epoch_order

    return epoch_order(stream.weights, seed=stream.seed, epoch=epoch)


def test_the_disk_is_bounded_and_the_rows_are_the_same_however_little_there_is(tokenizer: Any, tmp_path: Path) -> None:
    network = network_of([texts(shard, 60) for shard in range(8)])
    roomy, tight = stream_of(network, tokenizer, window=20), stream_of(network, tokenizer, window=20, gb=7e-5)
    assert roomy.fingerprint == tight.fingerprint
    most = []
    taken = steps(tight, network, tmp_path / "tight", 150, watch=lambda thread: most.append(thread.most))
    assert 0 < max(most) <= tight.cache_bytes
    assert wheres(taken) == wheres(steps(roomy, network, tmp_path / "roomy", 150))


def test_windows_that_do_not_fit_are_refused_with_the_field(tokenizer: Any, tmp_path: Path) -> None:
    network = network_of([texts(0, 60)])
    stream = stream_of(network, tokenizer, window=50, gb=1e-6)
    with pytest.raises(ConfigError) as refused:
        steps(stream, network, tmp_path / "w", 1)
    assert refused.value.problems[0].where == "data.streaming_cache_gb"


def test_where_windows_cannot_be_written_the_variable_is_named(tokenizer: Any, tmp_path: Path) -> None:
    network, gone = network_of(SHARDS), tmp_path / "gone"
    with pytest.raises(StorageError) as away:
        room = Room(gone, 10**9, 10)
        feed(stream_of(network, tokenizer), Cursor(), gone, room, workers=1, network=network)
    assert "choose another place with the variable RANKZERO_CACHE" in away.value.problems[0].hint


def test_windows_that_somebody_has_removed_are_not_waited_for(tmp_path: Path) -> None:
    """As many as are made ahead: nothing is being written that would fail."""
    room = Room(tmp_path, 10**9, 10)
    for number in range(AHEAD_WINDOWS):
        (tmp_path / window_name(number)).mkdir()
        room.made(number, 100)
    (tmp_path / window_name(1)).rmdir()
    room.need(0, 1)
    with pytest.raises(StorageError, match="somebody has removed them") as gone:
        room.wait(AHEAD_WINDOWS, 100)
    assert gone.value.problems[0].where == str(tmp_path / window_name(1))


def test_a_window_is_a_data_set_with_a_manifest(tokenizer: Any, tmp_path: Path) -> None:
    network = network_of(SHARDS)
    steps(stream_of(network, tokenizer), network, tmp_path, 1)
    directory = tmp_path / window_name(0)
    verify_bytes(directory)
    manifest = read_manifest(directory)
    dataset = TokenizedDataset.open(directory, manifest["sources"])
    assert len(dataset) == manifest["stats"]["rows"] == manifest["stats"]["rows_in"] == 10
    assert all(dataset.where(i).startswith("s3://b/d/") for i in range(10))
    assert Cursor.from_json(manifest["cursor"]).window == 0
    assert not [path for path in tmp_path.iterdir() if not path.name.startswith("window-")]


def test_bad_rows_are_said_all_of_a_window_and_good_windows_before_it_are_trained(
    tokenizer: Any, tmp_path: Path
) -> None:
    shards = [texts(0, 100)]
    shards[0][71] = {"text": 3}
    shards[0][75] = {"tekst": "x"}
    network = network_of(shards)
    stream = stream_of(network, tokenizer)
    good = steps(stream, network, tmp_path / "a", 17)
    with pytest.raises(DataError) as bad:
        steps(stream, network, tmp_path / "b", 18)
    assert len(good) == 17
    assert [problem.where for problem in bad.value.problems] == ["s3://b/d/00.jsonl:72", "s3://b/d/00.jsonl:76"]


def test_a_row_with_a_token_that_the_model_cannot_look_up_ends_it_at_its_window(tokenizer: Any, tmp_path: Path) -> None:
    last = max(tokenizer.get_vocab().values())
    shards = [texts(0, 30), [*texts(1, 7), {"text": f"a {tokenizer.decode([last])}"}]]
    network = network_of(shards)
    stream = stream_of(network, tokenizer, window=20)
    assert len(steps(stream, network, tmp_path / "all", 9)) == 9
    stream = replace(stream, unembedded={last: "<image>"})
    with pytest.raises(DataError, match=f"no embedding for token {last}, '<image>'") as refused:
        steps(stream, network, tmp_path / "not all", 9)
    assert [problem.where for problem in refused.value.problems] == ["s3://b/d/01.jsonl:8"]


def labelled(network: FakeNetwork, tokenizer: Any) -> Stream:
    source, rules = SourceSpec(path="s3://b/d"), TokenRules(max_length=64, trains="label")
    stream = make_stream([source], tokenizer, rules, seed=5, window_rows=20, cache_bytes=10**9, network=network)
    return stream.of_classes(("no", "yes"))


def with_labels(**others: int) -> FakeNetwork:
    """120 rows, of which these are of other classes."""
    rows = [{**row, "label": "yes"} for row in texts(0, 120)]
    for label, place in others.items():
        rows[place]["label"] = label
    return network_of([rows])


def test_labels_that_are_no_classes_end_it_at_their_window_all_together(tokenizer: Any, tmp_path: Path) -> None:
    network = with_labels(maybe=101, perhaps=110)
    stream = labelled(network, tokenizer)
    assert len(steps(stream, network, tmp_path / "good", 25)) == 25
    with pytest.raises(DataError, match="label 'maybe' is none of the classes") as refused:
        steps(stream, network, tmp_path / "all", 26)
    assert [problem.where for problem in refused.value.problems] == ["s3://b/d/00.jsonl:102", "s3://b/d/00.jsonl:111"]


def test_labels_of_first_rows_are_asked_about_before_anything_else(tokenizer: Any) -> None:
    with pytest.raises(DataError) as bad:
        labelled(with_labels(maybe=5), tokenizer)
    assert bad.value.problems[0].where == "s3://b/d/00.jsonl:6"
    assert "label 'maybe' is none of the classes" in bad.value.problems[0].what


def test_bad_first_rows_are_said_before_anything_else(tokenizer: Any) -> None:
    with pytest.raises(DataError) as bad:
        stream_of(network_of([[{"text": "good"}, {"text": 3}]]), tokenizer)
    assert bad.value.problems[0].where == "s3://b/d/00.jsonl:2"


def test_a_file_of_pieces_is_refused(tokenizer: Any) -> None:
    piece = {"message_id": "a", "parent_id": None, "message_tree_id": "a", "role": "prompter", "text": "hello"}
    with pytest.raises(DataError, match="in pieces over many lines"):
        stream_of(network_of([[piece]]), tokenizer)


def test_bad_first_rows_under_a_column_map_are_said_too(tokenizer: Any) -> None:
    network = network_of([[{"body": "good"}, {"body": 3}]])
    source = SourceSpec(path="s3://b/d", format="text", columns={"text": "body"})
    with pytest.raises(DataError) as bad:
        make_stream([source], tokenizer, TokenRules(), seed=0, window_rows=5, cache_bytes=10**9, network=network)
    assert bad.value.problems[0].where == "s3://b/d/00.jsonl:2"


def test_a_wrong_column_map_is_refused(tokenizer: Any) -> None:
    network = network_of([[{"body": "x"}]])
    source = SourceSpec(path="s3://b/d", format="text", columns={"text": "boddy"})
    with pytest.raises(ConfigError, match="boddy"):
        make_stream([source], tokenizer, TokenRules(), seed=0, window_rows=5, cache_bytes=10**9, network=network)


def test_dropped_rows_are_counted_and_an_epoch_of_nothing_else_ends(tokenizer: Any, tmp_path: Path) -> None:
    long = {"text": "train " * 200}
    network = network_of([texts(0, 20) + [long] * 5, texts(1, 20)])
    stream = stream_of(network, tokenizer, over_length="drop")
    last = steps(stream, network, tmp_path / "a", 11)[-1].position
    assert last.counts["rows_in"] == last.counts["rows"] + 5 == 45 and last.counts["over_length"] == 5
    network = network_of([[long] * 30])
    with pytest.raises(DataError, match=r"no row of a whole epoch is left: all are dropped \(30 × over_length\)"):
        steps(stream_of(network, tokenizer, over_length="drop"), network, tmp_path / "b", 1)


def weighted(network: FakeNetwork, tokenizer: Any, **weights: float) -> Stream:
    sources = [SourceSpec(path=f"s3://b/{name}", weight=weight) for name, weight in weights.items()]
    rules = TokenRules(max_length=64)
    return make_stream(sources, tokenizer, rules, seed=5, window_rows=10, cache_bytes=10**9, network=network)


def test_weights_that_leave_no_row_end_it_as_without_a_stream(tokenizer: Any, tmp_path: Path) -> None:
    network = network_of([texts(0, 20)])
    with pytest.raises(DataError, match="the weights leave no row") as refused:
        steps(weighted(network, tokenizer, d=0.001), network, tmp_path, 1)
    assert refused.value.problems == (Problem("the weights leave no row", "data.train", "raise a weight"),)


def test_a_source_of_which_its_weight_leaves_nothing_is_said_once(
    tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network = network_of([texts(0, 20)])
    network.files["s3://b/few/0.jsonl"] = network.files["s3://b/d/00.jsonl"]
    taken = steps(weighted(network, tokenizer, d=1, few=0.001), network, tmp_path, 20)
    assert len({*wheres(taken)}) == 20
    said = [record.getMessage() for record in caplog.records]
    assert said == ["s3://b/few: its weight of 0.001 leaves none of its 20 rows: raise it, or leave the source out"]


def test_a_window_of_which_nothing_is_left_is_passed_over(tokenizer: Any, tmp_path: Path) -> None:
    long = {"text": "train " * 200}
    network = network_of([[long] * 30 + texts(0, 5)])
    stream = stream_of(network, tokenizer, over_length="drop")
    taken = steps(stream, network, tmp_path / "a", 4)
    assert taken[0].position.cursor.window == 3
    rest = steps(stream, network, tmp_path / "b", 2, position=taken[1].position)
    assert wheres(rest) == wheres(taken[2:])


def test_chat_rows_that_come_late_need_a_template_that_is_named(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "town"}]}
    bare = tiny_tokenizer(chat_template=None)
    network = network_of([texts(0, 100) + [chat]])
    with pytest.raises(ConfigError, match="chat rows come behind first rows that are none") as refused:
        steps(stream_of(network, bare), network, tmp_path / "a", 26)
    assert "data.chat_template" in refused.value.problems[0].where
    early = network_of([[chat] + texts(0, 100) + [chat]])
    assert len(steps(stream_of(early, bare), early, tmp_path / "b", 26)) == 26


class Away(FakeNetwork):
    """Files that can be seen, but not read while `away` says so."""

    away = True

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """See Network."""
        if self.away:
            raise ServiceError("not reached", where=file.url)
        return super().read(file, start)


def test_a_place_that_stays_away_is_tried_again_for_as_long_as_no_window_is_due(tokenizer: Any, tmp_path: Path) -> None:
    stream, network = stream_of(network_of(SHARDS), tokenizer), Away(network_of(SHARDS).files)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        network.away = len(pauses) < 12

    network.pause = pause  # type: ignore[method-assign]
    begun = StreamPosition().under(stream)
    thread = Thread(stream, begun.cursor, tmp_path, network)
    with thread.there:
        assert thread.there.wait_for(lambda: (tmp_path / window_name(0)).exists(), 30)
    thread.close()
    assert pauses == [2, 4, 8, 16] + [30] * 8


def test_a_place_that_stays_away_is_an_error_of_the_service(tokenizer: Any, tmp_path: Path) -> None:
    stream, network = stream_of(network_of(SHARDS), tokenizer), Away(network_of(SHARDS).files)
    with pytest.raises(ServiceError) as away:
        steps(stream, network, tmp_path, 1)
    assert away.value.problems[0].where.startswith("s3://b/d/")


def test_rows_that_changed_behind_an_unchanged_listing_are_noticed(tokenizer: Any, tmp_path: Path) -> None:
    network = network_of(SHARDS)
    stream = stream_of(network, tokenizer)
    saved = steps(stream, network, tmp_path / "a", 4)[-1].position
    listed = {url: network.file(url) for url in network.files}
    for url, data in network.files.items():  # as long as it was, with one row
        network.files[url] = data.partition(b"\n")[0].ljust(len(data), b"\n")
    network.file = listed.__getitem__  # type: ignore[method-assign]
    with pytest.raises(DataError, match="no longer those that were trained on"):
        steps(stream, network, tmp_path / "b", 1, position=saved)


def test_other_data_begin_the_next_epoch_and_other_windows_the_one_under_way(tokenizer: Any, tmp_path: Path) -> None:
    network = network_of(SHARDS)
    stream = stream_of(network, tokenizer)
    saved = steps(stream, network, tmp_path / "a", 4)[-1].position
    grown = network_of([*SHARDS, texts(9, 9)])
    other = saved.under(stream_of(grown, tokenizer))
    assert (other.cursor, other.taken) == (Cursor(saved.cursor.window + 1, 1), 0)
    wider = saved.under(replace(stream, window_rows=20))
    assert (wider.cursor, wider.taken) == (saved.cursor, 0)
    other_tokens = replace(saved, code_version=saved.code_version - 1)
    assert other_tokens.under(stream) == replace(saved, taken=0) != saved
    earlier = replace(saved, fingerprint="as an earlier version knew it")  # be its listing the same or not
    assert earlier.under(stream) == replace(other, fingerprint=stream.fingerprint)
    assert saved.under(stream) == StreamPosition.from_json(saved.as_json()) == saved


@pytest.mark.parametrize(
    "change",
    [
        lambda network, spec, rules: network.files.update({"s3://b/d/09.jsonl": b'{"text": "more"}\n'}),
        lambda network, spec, rules: network.files.update({"s3://b/d/00.jsonl": b'{"text": "other"}\n'}),
        lambda network, spec, rules: spec.update(weight=2.0),
        lambda network, spec, rules: rules.update(max_length=32),
    ],
)
def test_the_fingerprint_is_of_listing_and_rules(change: Any, tokenizer: Any) -> None:
    def fingerprint(changed: bool) -> str:
        network, spec, rules = network_of(SHARDS), {"path": "s3://b/d"}, {"max_length": 64}
        if changed:
            change(network, spec, rules)
        source = SourceSpec.model_validate(spec)
        stream = make_stream(
            [source], tokenizer, TokenRules(**rules), seed=5, window_rows=9, cache_bytes=10, network=network
        )
        return stream.fingerprint

    assert fingerprint(False) == fingerprint(False) != fingerprint(True)
