"""Parquet."""

from __future__ import annotations

import datetime
import decimal
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankzero.data.read.containers import arrow, parquet
from rankzero.data.read.sources import count_rows, numbering, probe, read_chunks, unread_columns
from rankzero.errors import DataError
from tests.unit.data.read.containers.reading import PACK, Row, as_parquet, entries, numbers, put, relaxed, rows, texts

chats = st.fixed_dictionaries(
    {
        "messages": st.lists(st.fixed_dictionaries({"role": texts, "content": texts}), min_size=1, max_size=3),
        "id": st.integers(-(2**63), 2**63 - 1),
        "score": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    }
)


@relaxed
@given(
    given=st.lists(chats, min_size=1, max_size=9), size=st.integers(1, 300), pack=st.sampled_from(["", ".gz", ".zst"])
)
def test_parquet_is_its_rows(tmp_path_factory: pytest.TempPathFactory, given: list[Row], size: int, pack: str) -> None:
    path = put(tmp_path_factory.mktemp("pq") / "f", PACK[pack](as_parquet(given)))
    assert rows(path, size) == given
    assert numbers(path) == list(range(1, len(given) + 1)) and numbering(str(path)) == "row"
    assert count_rows(str(path)) == len(given)


def table(**columns: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def test_values_without_json_become_text(tmp_path: Path) -> None:
    stamp = datetime.datetime(2024, 2, 29, 12, 30)
    data = table(
        at=pa.array([stamp]),
        nano=pa.array([1], pa.timestamp("ns")),
        day=pa.array([stamp.date()]),
        price=pa.array([decimal.Decimal("1.20")]),
        lasts=pa.array([datetime.timedelta(seconds=90)]),
        old=pa.array([b"text of an older writer"]),
        nothing=pa.array([float("nan")]),
    )
    (row,) = rows(put(tmp_path / "f.parquet", data))
    assert row["at"].startswith("2024-02-29 12:30:00") and row["nano"].endswith(".000000001")
    assert (row["day"], row["price"], row["lasts"]) == ("2024-02-29", "1.20", "0:01:30")
    assert (row["old"], row["nothing"]) == ("text of an older writer", None)


def test_times_inside_of_other_values_become_text_too(tmp_path: Path) -> None:
    stamp = pa.timestamp("ns")
    data = table(
        turns=pa.array([[{"role": "user", "at": 1}, {"at": None}]], pa.list_(struct(role=pa.string(), at=stamp))),
        meta=pa.array([{"on": 10_000_000, "of": {"at": 1}}], struct(on=pa.int32(), of=struct(at=stamp))),
        seen=pa.array([[0]], pa.large_list(pa.timestamp("s", "UTC"))),
        pair=pa.array([[1, 2]], pa.list_(pa.time32("s"), 2)),
    )
    (row,) = rows(put(tmp_path / "f.parquet", data))
    nano = "1970-01-01 00:00:00.000000001"
    assert row["turns"] == [{"role": "user", "at": nano}, {"role": None, "at": None}]
    assert row["meta"] == {"on": 10_000_000, "of": {"at": nano}}
    assert row["seen"] == ["1970-01-01 00:00:00.000Z"] and row["pair"] == ["00:00:01.000", "00:00:02.000"]


@pytest.mark.parametrize("zone", ["UTC+01:00", "utc", "Z", "GMT+2", "tzlocal()"])
@pytest.mark.parametrize("container", ["parquet", "arrow"])
def test_a_time_zone_that_is_not_known_here_is_left_out_and_the_time_is_utc(
    zone: str, container: str, tmp_path: Path
) -> None:
    stamp = pa.timestamp("us", zone)
    columns = {
        "text": pa.array(["a", "b"]),
        "at": pa.array([0, None], stamp),
        "seen": pa.array([[0], []], pa.list_(stamp)),
        "meta": pa.array([{"of": {"at": 0}}, None], struct(of=struct(at=stamp))),
        "by": pa.array([[(0, 0)], []], pa.map_(stamp, stamp)),
        "often": pa.array([0, 0], stamp).dictionary_encode(),
        "in_berlin": pa.array([0, None], pa.timestamp("us", "+01:00")),
    }
    data = table(**columns) if container == "parquet" else as_stream(columns)
    found = rows(put(tmp_path / f"f.{container}", data))
    time = "1970-01-01 00:00:00.000000Z"
    assert found[0] == {
        "text": "a",
        "at": time,
        "seen": [time],
        "meta": {"of": {"at": time}},
        "by": [[time, time]],
        "often": time,
        "in_berlin": "1970-01-01 01:00:00.000000+0100",
    }
    assert found[1]["text"] == "b" and found[1]["at"] is None and found[1]["meta"] is None


def as_stream(columns: dict[str, Any]) -> bytes:
    made, out = pa.table(columns), io.BytesIO()
    with pa.ipc.new_stream(out, made.schema) as stream:
        stream.write_table(made)
    return out.getvalue()


def struct(**members: Any) -> Any:
    return pa.struct(list(members.items()))


def test_bytes_of_images_are_read_and_those_of_sounds_are_not(tmp_path: Path) -> None:
    image = {"bytes": b"\xff\xd8\xff", "path": "1.jpg"}
    url = "data:image/jpeg;base64,/9j/"
    data = table(
        text=pa.array(["a", "b"]),
        image=pa.array([image, None]),
        images=pa.array([[image, {"bytes": b"\x89", "path": None}], []]),
        audio=pa.array([{"bytes": b"RIFF", "path": "1.wav"}, None]),
        raw=pa.array([b"\xff\xd8", None]),
    )
    path = put(tmp_path / "f.parquet", data)
    kept, other = {"bytes": url, "path": "1.jpg"}, {"bytes": {"bytes": 1}, "path": None}
    assert rows(path) == [
        {"text": "a", "image": kept, "images": [kept, other], "audio": {"path": "1.wav"}, "raw": {"bytes": 2}},
        {"text": "b", "image": None, "images": [], "audio": None, "raw": None},
    ]
    assert unread_columns(str(path)) == ("audio",)


_IMAGE = b"\x89PNG\r\n\x1a\n" + b"x" * 100


@pytest.mark.parametrize("container", ["parquet", "arrow"])
@pytest.mark.parametrize(
    "images",
    [
        pa.array([_IMAGE] * 40),
        pa.array([_IMAGE] * 40, pa.large_binary()),
        pa.array([_IMAGE] * 40).dictionary_encode(),
        pa.array([[_IMAGE]] * 40),
        pa.array([{"bytes": _IMAGE, "path": "a.png"}] * 40),
        pa.array([{"picture": _IMAGE}] * 40),
        pa.array([[("a", _IMAGE)]] * 40, pa.map_(pa.string(), pa.binary())),
    ],
    ids=lambda images: str(images.type),
)
def test_images_are_few_at_a_time_in_whatever_column(
    images: Any, container: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {len(batch) for batch in _batches(images, container, tmp_path, monkeypatch)} == {16, 8}


@pytest.mark.parametrize("container", ["parquet", "arrow"])
def test_rows_of_text_and_numbers_are_many_at_a_time(
    container: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = pa.array([{"text": "t", "numbers": [decimal.Decimal(1)], "when": datetime.date(2024, 1, 1)}] * 40)
    assert [len(batch) for batch in _batches(values, container, tmp_path, monkeypatch)] == [40]


def _batches(column: Any, container: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What becomes Python objects at a time."""
    table, path = pa.table({"text": ["t"] * 40, "image": column}), folder / f"f.{container}"
    if container == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(path, table.schema) as out:
            out.write_table(table)
    taken: list[Any] = []
    for module in (parquet, arrow):
        given = module.rows_of_batch
        monkeypatch.setattr(
            module, "rows_of_batch", lambda batch, *more, of=given: (taken.append(batch), of(batch, *more))[1]
        )
    assert len(entries(path)) == 40
    return taken


def test_a_value_that_python_has_not_spoils_its_row_alone(tmp_path: Path) -> None:
    lasts = pa.array([0, 10**17, 1], pa.int64()).cast(pa.duration("s"))
    found = entries(put(tmp_path / "f.parquet", table(took=pa.StructArray.from_arrays([lasts], ["s"]))))
    assert [(number, problem.reason if problem else "") for number, _, problem in found] == [
        (1, ""),
        (2, "value without JSON"),
        (3, ""),
    ]
    assert found[1][2] is not None and "'took'" in found[1][2].what


def test_two_columns_of_one_name_are_a_problem(tmp_path: Path) -> None:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), out)
    problem = probe(str(put(tmp_path / "f.parquet", out.getvalue())))
    assert problem is not None and "two columns are named 'a'" in problem.what


def test_every_prefix_is_a_problem(tmp_path: Path) -> None:
    content = as_parquet([{"text": "a" * 10}, {"text": "b"}])
    for end in range(4, len(content)):
        path = str(put(tmp_path / "f.parquet", content[:end]))
        problem = probe(path)
        assert problem is not None and problem.reason in ("cut-off file", "damaged file")
        ((_, _, found),) = entries(path)
        assert found is not None and found.reason == problem.reason
        with pytest.raises(DataError):
            count_rows(path)
        assert unread_columns(path) == ()


def test_damage_inside_is_located_by_row(tmp_path: Path) -> None:
    content = bytearray(as_parquet([{"text": f"{i:>200}"} for i in range(3000)], row_group=1000))
    half = len(content) // 2
    content[half : half + 2000] = b"\xff" * 2000
    found = entries(put(tmp_path / "f.parquet", bytes(content)))
    problem = found[-1][2]
    assert problem is not None and problem.line > 1 and problem.reason == "damaged file"


def test_damage_at_any_byte_never_surprises(tmp_path: Path) -> None:
    content = as_parquet([{"text": "a", "n": 1}, {"text": "b", "n": 2}])
    for at in range(4, len(content) - 4, 3):
        data = bytearray(content)
        data[at] ^= 0x55
        path = put(tmp_path / "f.parquet", bytes(data))
        assert probe(str(path)) is not None or sum(1 for _ in read_chunks(str(path))) <= 2
