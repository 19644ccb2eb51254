"""Arrow files, and the directories of them that the library datasets saves."""

from __future__ import annotations

import datetime
import io
import json
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankzero.data.read.containers.arrow_rows import rows_of_batch
from rankzero.data.read.local import local_files
from rankzero.data.read.locate import expand
from rankzero.data.read.sources import count_rows, numbering, probe, read_chunks, unread_columns
from rankzero.data.rows.chunks import DAMAGE
from rankzero.errors import DataError, Problem
from rankzero.spec.run_spec import SourceSpec
from tests.unit.data.read.containers.reading import PACK, Row, entries, numbers, put, rows

CHATS: list[Row] = [
    {"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"a{i}"}], "score": i / 2}
    for i in range(2500)
]


def as_arrow(table: pa.Table, *, footer: bool = False, batch: int = 1000) -> bytes:
    """As `datasets` writes it: a stream of batches of a thousand rows."""
    out = io.BytesIO()
    with (pa.ipc.new_file if footer else pa.ipc.new_stream)(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    return out.getvalue()


@pytest.mark.parametrize("footer", [False, True])
@pytest.mark.parametrize("pack", ["", ".gz"])
def test_arrow_is_its_rows(footer: bool, pack: str, tmp_path: Path) -> None:
    data = as_arrow(pa.Table.from_pylist(CHATS), footer=footer)
    path = put(tmp_path / "data-00000-of-00001.arrow", PACK[pack](data))
    assert rows(path, 5000) == CHATS
    assert numbers(path) == list(range(1, 2501)) and numbering(str(path)) == "row"
    assert count_rows(str(path)) == 2500 and probe(str(path)) is None


def test_bytes_of_images_are_read_and_those_of_sounds_are_not(tmp_path: Path) -> None:
    picture = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    columns = {
        "image": pa.array([{"bytes": b"GIF89a", "path": "a.gif"}, None, {"bytes": None, "path": "c.png"}], picture),
        "audios": pa.array([[{"bytes": b"y", "path": "d.wav"}], [], None], pa.list_(picture)),
        "text": pa.array(["t", "u", "v"]),
    }
    path = put(tmp_path / "f.arrow", as_arrow(pa.table(columns)))
    assert rows(path) == [
        {
            "image": {"bytes": "data:image/gif;base64,R0lGODlh", "path": "a.gif"},
            "audios": [{"path": "d.wav"}],
            "text": "t",
        },
        {"image": None, "audios": [], "text": "u"},
        {"image": {"bytes": None, "path": "c.png"}, "audios": None, "text": "v"},
    ]
    assert unread_columns(str(path)) == ("audios",)


def test_a_stream_that_breaks_off(tmp_path: Path) -> None:
    whole = as_arrow(pa.Table.from_pylist(CHATS))
    path = put(tmp_path / "f.arrow", whole[: len(whole) * 3 // 4])
    *good, (number, _, problem) = entries(path)
    assert len(good) == number - 1 == 1000 and problem is not None and "Arrow data is damaged" in problem.what


@pytest.mark.parametrize("pack", ["", ".gz"])
def test_what_follows_the_end_of_a_stream_is_a_problem(pack: str, tmp_path: Path) -> None:
    """As where files are put together with `cat`: the rows of all but the first would be left out in silence."""
    one = as_arrow(pa.Table.from_pylist(CHATS))
    path = put(tmp_path / "rows.arrow", PACK[pack](one + one))
    found = entries(path)
    problem = found[-1][2]
    assert len(found) == len(CHATS) + 1 and problem is not None and problem.reason in DAMAGE
    assert f"byte {len(one)} " in problem.what
    with pytest.raises(DataError, match="more data follows"):
        count_rows(str(path))


@pytest.mark.parametrize("after", [b"", bytes(4000)])
def test_a_stream_may_end_with_zeros_and_without_its_mark(after: bytes, tmp_path: Path) -> None:
    """Files of a fixed size have them; the format leaves the mark to who writes."""
    whole = as_arrow(pa.Table.from_pylist(CHATS)).removesuffix(bytes(4)).removesuffix(b"\xff" * 4)
    path = put(tmp_path / "rows.arrow", whole + after)
    assert rows(path) == CHATS and count_rows(str(path)) == len(CHATS)


def test_types_of_their_own_are_as_in_parquet(tmp_path: Path) -> None:
    ids = [uuid.UUID(int=5), None]
    stored = pa.array([None if one is None else one.bytes for one in ids], pa.binary(16))
    table = pa.table(
        {
            "id": pa.ExtensionArray.from_storage(pa.uuid(), stored),
            "good": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0], pa.int8())),
            "audio_id": pa.ExtensionArray.from_storage(pa.uuid(), stored),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    path = put(tmp_path / "rows.arrow", as_arrow(table))
    assert rows(path) == rows(tmp_path / "rows.parquet")
    first = str(ids[0])
    assert rows(path) == [{"id": first, "good": True, "audio_id": first}, {"id": None, "good": False, "audio_id": None}]


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"])
    problem = probe(str(put(tmp_path / "f.arrow", as_arrow(table))))
    assert problem is not None and "two columns are named 'text'" in problem.what


LISTS: dict[str, Callable[[Any], Any]] = {
    "list": pa.list_,
    "large list": pa.large_list,
    "list of a fixed size": lambda of: pa.list_(of, 2),
    "list view": pa.list_view,
    "large list view": pa.large_list_view,
}

HOLDERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "alone": (lambda kind: kind, lambda value: value),
    "in an object": (lambda kind: pa.struct({"x": kind, "n": pa.int8()}), lambda value: {"x": value, "n": 1}),
    "in a list": (lambda kind: pa.list_(kind), lambda value: [None, value]),
    "in a view": (lambda kind: pa.list_view(kind), lambda value: [value, value]),
    "in a map": (lambda kind: pa.map_(pa.string(), kind), lambda value: [("k", value), ("l", None)]),
}


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("kind", LISTS)
def test_lists_of_times_keep_their_rows(kind: str, holder: str) -> None:
    """Whichever rows of a batch are read, and wherever in it values are missing."""
    days = [datetime.date(2026, 1, day) for day in range(1, 9)]
    lists = [days[:2], days[2:4], None, [days[4], None], [None, days[5]], days[6:]]
    type_of, value_of = HOLDERS[holder]
    given = [*map(value_of, lists), None]
    batch = pa.record_batch([pa.array(given, type_of(LISTS[kind](pa.date32())))], names=["c"])
    expected = [json.loads(json.dumps(value, default=str)) for value in given]
    for start in range(len(given)):
        for end in range(start + 1, len(given) + 1):
            read = [json.loads(line)["c"] for line, _ in rows_of_batch(batch.slice(start, end - start), 1)]
            assert read == expected[start:end]


def test_views_of_times_in_any_order() -> None:
    stamps = pa.array([0, 1, None], pa.timestamp("ns"))
    views = pa.ListViewArray.from_arrays([2, 0, 0], [1, 2, 3], stamps, mask=pa.array([False, True, False]))
    (first, _), (second, _), (third, _) = rows_of_batch(pa.record_batch([views], names=["c"]), 1)
    assert json.loads(first)["c"] == [None] and json.loads(second)["c"] is None
    assert json.loads(third)["c"] == ["1970-01-01 00:00:00.000000000", "1970-01-01 00:00:00.000000001", None]


def save_to_disk(folder: Path, table: pa.Table, shards: int = 2) -> Path:
    """A directory as `Dataset.save_to_disk` leaves it."""
    folder.mkdir(parents=True)
    names = [f"data-{index:05}-of-{shards:05}.arrow" for index in range(shards)]
    size = -(-len(table) // shards)
    for index, name in enumerate(names):
        put(folder / name, as_arrow(table.slice(index * size, size)))
    state = {"_data_files": [{"filename": name} for name in names], "_format_type": None, "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}), encoding="utf-8")
    put(folder / "cache-1234.arrow", b"left over")
    return folder


def read_all(paths: Sequence[str]) -> list[Any]:
    lines = (line for path in paths for chunk in read_chunks(path) for line in chunk.data.splitlines())
    return [json.loads(line) for line in lines]


def test_a_data_set_that_was_saved(tmp_path: Path) -> None:
    folder = save_to_disk(tmp_path / "saved", pa.Table.from_pylist(CHATS[:7]))
    (source,) = expand([SourceSpec(path=str(folder))])
    assert [Path(path).name for path in source.files] == ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    assert read_all(source.files) == CHATS[:7]
    (folder / "data-00001-of-00002.arrow").unlink()
    problem = local_files(str(folder))
    assert isinstance(problem, Problem) and "data-00001-of-00002.arrow is missing" in problem.what


def test_a_data_set_of_several_splits(tmp_path: Path) -> None:
    for split in ("train", "test"):
        save_to_disk(tmp_path / "saved" / split, pa.Table.from_pylist(CHATS[:3]), shards=1)
    splits = tmp_path / "saved/dataset_dict.json"
    splits.write_text('{"splits": ["train", "test"]}', encoding="utf-8")
    problem = local_files(str(tmp_path / "saved"))
    assert isinstance(problem, Problem) and problem.what.endswith("several splits: train, test")
    assert problem.hint.endswith("saved/train")
    assert read_all(expand([SourceSpec(path=str(tmp_path / "saved/train"))])[0].files) == CHATS[:3]
    splits.write_text('{"splits": ["test"]}', encoding="utf-8")
    assert local_files(str(tmp_path / "saved")) == (str(tmp_path / "saved/test/data-00000-of-00001.arrow"),)
