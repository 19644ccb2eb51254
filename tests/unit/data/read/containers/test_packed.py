"""gzip, zstd, xz and bzip2 of every container."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankzero.data.read.containers import json_lines, stream
from rankzero.data.read.sources import probe, read_chunks, rows_bytes
from rankzero.data.rows.chunks import DAMAGE
from rankzero.errors import ConfigError, DataError
from tests.unit.data.read.containers.reading import (
    PACK,
    Row,
    as_array,
    as_parquet,
    entries,
    gz,
    jsonl,
    problems,
    put,
    relaxed,
    rows,
    zst,
)
from tests.unit.data.read.containers.test_delimited import as_csv

ROWS: list[Row] = [{"text": "a\n\u2028", "label": "1"}, {"text": 'é"]}', "label": "x"}, {"text": "", "label": ""}]
PLAIN = {
    "f.jsonl": jsonl(ROWS),
    "f.json": as_array(ROWS, 1),
    "f.csv": as_csv(ROWS),
    "f.parquet": as_parquet(ROWS),
}

NAMES: dict[str, stream.Packing] = {".gz": "gzip", ".zst": "zstd", ".xz": "xz", ".bz2": "bzip2"}
PACKS = [".gz", ".zst", ".xz", ".bz2"]


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("size", [1, 10, 1 << 20])
def test_packed_is_as_unpacked(tmp_path: Path, name: str, pack: str, size: int) -> None:
    path = put(tmp_path / (name + pack), PACK[pack](PLAIN[name]))
    assert probe(str(path)) is None
    assert rows(path, size) == ROWS
    plain = put(tmp_path / name, PLAIN[name])
    assert entries(path, size) == entries(plain, size)


def test_packing_is_seen_from_the_bytes_not_the_name(tmp_path: Path) -> None:
    assert rows(put(tmp_path / "f.jsonl", gz(jsonl(ROWS)))) == ROWS
    assert rows(put(tmp_path / "g.jsonl.gz", jsonl(ROWS))) == ROWS
    assert rows(put(tmp_path / "h.csv", zst(as_csv(ROWS)))) == ROWS


@pytest.mark.parametrize("pack", PACK.values(), ids=PACK)
def test_parts_written_one_after_the_other_are_one_file(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = put(tmp_path / "f", b"".join(pack(part) for part in (b'{"text"', b':"a"}\n', jsonl(ROWS))))
    assert rows(path) == [{"text": "a"}, *ROWS]


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("name", PLAIN)
def test_every_prefix_is_a_located_problem(tmp_path: Path, name: str, pack: str) -> None:
    content = PACK[pack](PLAIN[name])
    for end in range(4, len(content)):
        path = put(tmp_path / (name + pack), content[:end])
        problem = probe(str(path))
        assert problem is not None and problem.reason == "cut-off file"
        assert f"byte {end} of the file" in problem.what
        with pytest.raises(DataError):
            list(read_chunks(str(path)))


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("name", ["f.jsonl", "f.json", "f.csv"])
def test_a_large_file_that_is_cut_off_gives_its_rows_and_where_it_ends(tmp_path: Path, name: str, pack: str) -> None:
    given = [{"text": f"{i * i * 2654435761 % 2**32:x}" * 3, "label": str(i)} for i in range(40_000)]
    plain = {"f.jsonl": jsonl(given), "f.json": as_array(given, 0), "f.csv": as_csv(given)}[name]
    content = PACK[pack](plain)
    path = put(tmp_path / (name + pack), content[: len(content) * 9 // 10])
    assert probe(str(path)) is None
    found = entries(path, 50_000)
    assert all(problem is None for _, _, problem in found[:-1]) and len(found) > 1000
    problem = found[-1][2]
    assert problem is not None and problem.reason == "cut-off file" and problem.line == found[-1][0]
    assert f"byte {path.stat().st_size} of the file" in problem.what


def begun_wrong(packed: bytes) -> bytes:
    return packed[:2] + bytes([packed[2] ^ 0xFF]) + packed[3:]


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("after", ["not packed", "a stream that begins wrong", "zeros"])
def test_what_follows_a_part_and_is_none_is_a_problem(tmp_path: Path, after: str, pack: str) -> None:
    """Python's own readers of bzip2 and xz end there in silence, whatever comes after it."""
    one = PACK[pack](jsonl(ROWS))
    zeros = bytes(6) + (b"\n" if pack == ".gz" else b"")
    follows = {"not packed": jsonl(ROWS), "a stream that begins wrong": begun_wrong(one) + one, "zeros": zeros}
    path = put(tmp_path / f"f.jsonl{pack}", one + follows[after])
    problem = probe(str(path)) or problems(path, 1 << 20)[-1]
    assert problem.reason in ("damaged file", "cut-off file")


MANY: list[Row] = [{"text": f"{i * i * 2654435761 % 2**32:x}" * 3} for i in range(9_000)]


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("follows", ["not packed", "cut off", "damaged"])
def test_every_row_before_the_fault_is_given_and_the_fault_behind_them(tmp_path: Path, follows: str, pack: str) -> None:
    """In one read of 4 MiB are all of these, and most of the file's packed bytes."""
    one = PACK[pack](jsonl(MANY))
    wrong = {"not packed": jsonl(ROWS), "cut off": one[:6], "damaged": begun_wrong(one)}[follows]
    *given, (line, _, problem) = entries(put(tmp_path / f"f.jsonl{pack}", one + wrong))
    assert [(number, problem) for number, _, problem in given] == [(i, None) for i in range(1, len(MANY) + 1)]
    assert problem is not None and problem.reason in DAMAGE and line == len(MANY) + 1


@pytest.mark.parametrize("pack", [".gz", ".xz", ".bz2"])
@pytest.mark.parametrize("after", [b"\n", b'{"text": "a"}\n', bytes(8) + b"a"])
def test_what_was_appended_unpacked_is_named_as_that(tmp_path: Path, after: bytes, pack: str) -> None:
    one = PACK[pack](jsonl(ROWS))
    problem = probe(str(put(tmp_path / f"f.jsonl{pack}", one + after)))
    at = len(one) + (8 if after[0] == 0 and pack != ".bz2" else 0)
    assert problem is not None and problem.reason == "damaged file"
    assert problem.what == f"what follows the {NAMES[pack]} data, at byte {at} of the file, is none"


@pytest.mark.parametrize("zeros", [1, 512, 200_000])
def test_gzip_may_have_zeros_behind_it(tmp_path: Path, zeros: int) -> None:
    """A tape's last block, or a block device; gunzip passes over them."""
    some = MANY[:2000]
    one = gz(jsonl(some))
    path = str(put(tmp_path / "f.jsonl.gz", one + bytes(zeros)))
    assert probe(path) is None and rows(path) == some
    packed = gz(as_parquet(some, 1000))
    assert rows(put(tmp_path / "f.parquet.gz", packed + bytes(zeros))) == some
    path = str(put(tmp_path / "g.jsonl.gz", one + bytes(zeros) + one))
    assert rows(path) == some * 2
    whole = [len(block) for block in stream.blocks(path, "gzip", 10_000)]
    assert set(whole[:-1]) == {10_000}


def test_xz_may_have_zeros_behind_a_stream(tmp_path: Path) -> None:
    one = PACK[".xz"](jsonl(ROWS))
    assert rows(put(tmp_path / "f.jsonl.xz", one + bytes(8) + one + bytes(4))) == ROWS + ROWS


def test_frames_of_several_threads_are_one_file(tmp_path: Path) -> None:
    """`pzstd` begins each part with a frame that says its length, and that readers skip."""
    part = zst(jsonl(ROWS))
    framed = b"\x50\x2a\x4d\x18\x04\x00\x00\x00" + len(part).to_bytes(4, "little") + part
    assert rows(put(tmp_path / "f.jsonl.zst", framed + framed)) == ROWS + ROWS


@pytest.mark.parametrize("pack", [".xz", ".bz2"])
def test_no_step_copies_more_than_it_is_long(tmp_path: Path, pack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that a stream is appended to for each row: what is left of a read is copied at every end of one."""
    path = put(tmp_path / "f", PACK[pack](b"{}\n") * 5000)
    asked: list[int] = []

    class Counting(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            asked.append(size or -1)
            return super().read(size) or b""

    monkeypatch.setattr(stream, "opened", lambda place, buffered: Counting(place))
    packing = NAMES[pack]
    assert b"".join(stream.blocks(str(path), packing, 4 << 20)) == b"{}\n" * 5000
    assert min(asked) > 0 and max(asked) <= 64 << 10


def zst_long(plain: bytes) -> bytes:
    """As `zstd --long=31` writes it: a frame of one block as it stands, with a window of 2 GiB."""
    return b"\x28\xb5\x2f\xfd\x00" + bytes([21 << 3]) + (len(plain) << 3 | 1).to_bytes(3, "little") + plain


def test_zstd_that_looks_back_too_far_is_no_damage(tmp_path: Path) -> None:
    path = put(tmp_path / "f.jsonl.zst", zst_long(jsonl(ROWS)))
    problem = probe(str(path))
    assert problem is not None and problem.what == "the zstd data refers back further than is read here"
    assert problem.hint == f"unpack it first: zstd -d --long=31 {path}"


def test_what_cannot_be_unpacked_from_the_middle_on_is_no_bad_row(tmp_path: Path) -> None:
    """All that follows would be left out of what `--max-bad` or a sample let pass."""
    many = [{"text": f"{i * i * 2654435761 % 2**32:x}" * 3} for i in range(20_000)]
    path = put(tmp_path / "f.jsonl.zst", zst(jsonl(many)) + zst_long(jsonl(ROWS)))
    assert probe(str(path)) is None
    (problem,) = problems(path, 50_000)
    assert problem.reason in DAMAGE and str(path) in problem.hint


def test_lz4_is_named(tmp_path: Path) -> None:
    problem = probe(str(put(tmp_path / "f.jsonl.lz4", b"\x04\x22\x4d\x18" + bytes(20))))
    assert problem is not None and problem.what == "is a lz4 file, not rows"


@pytest.mark.parametrize("pack", PACK)
def test_blocks_are_the_same_however_much_a_read_brings(
    tmp_path: Path, pack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network's file system may bring less than it is asked for, and who reads each n-th block counts them."""
    content = jsonl([{"text": f"{i * i * 2654435761 % 2**32:x}" * 3} for i in range(4_000)])
    packing = NAMES.get(pack)
    path = str(put(tmp_path / "f", PACK[pack](content)))
    whole = [len(block) for block in stream.blocks(path, packing, 10_000)]
    assert set(whole[:-1]) == {10_000}

    class Short(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(size if size is None or size < 100 else size // 3) or b""

    monkeypatch.setattr(stream, "opened", lambda place, buffered: Short(place))
    assert [len(block) for block in stream.blocks(path, packing, 10_000)] == whole


def test_damage_says_where(tmp_path: Path) -> None:
    content = bytearray(gz(jsonl([{"text": f"{i * 2654435761 % 2**32:x}"} for i in range(60_000)])))
    content[len(content) // 2] ^= 0xFF
    (problem,) = problems(put(tmp_path / "f.jsonl.gz", bytes(content)), 10_000)[-1:]
    assert problem.reason in ("damaged file", "not valid JSON")


@relaxed
@given(noise=st.binary(max_size=200), pack=st.sampled_from([b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zX", b"BZh"]))
def test_noise_is_a_problem(tmp_path_factory: pytest.TempPathFactory, noise: bytes, pack: bytes) -> None:
    path = put(tmp_path_factory.mktemp("noise") / "f", pack + noise)
    assert probe(str(path)) is not None


def test_packed_twice_is_refused(tmp_path: Path) -> None:
    problem = probe(str(put(tmp_path / "f.gz", gz(gz(jsonl(ROWS))))))
    assert problem is not None and problem.what == "is packed twice"


def test_a_packed_tar_is_refused(tmp_path: Path) -> None:
    import io
    import tarfile

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("rows.jsonl"), io.BytesIO())
    problem = probe(str(put(tmp_path / "f.tar.gz", out.getvalue())))
    assert problem is not None and "tar archive" in problem.what


def test_a_build_of_pyarrow_without_the_codec_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    path = str(put(tmp_path / "f.zst", zst(jsonl(ROWS))))

    class NoCodec:
        @staticmethod
        def is_available(_name: str) -> bool:
            return False

    monkeypatch.setattr(pa, "Codec", NoCodec)
    with pytest.raises(ConfigError, match="zstd -d"):
        probe(path)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("pack", ["", ".gz", ".zst"])
def test_progress_counts_bytes_of_the_file(tmp_path: Path, name: str, pack: str) -> None:
    """Not those of what it holds, which is larger, or smaller."""
    many: list[Row] = [{"text": f"{i} {'a' * 200}", "label": "1"} for i in range(3000)]
    whole = {"f.jsonl": jsonl, "f.json": partial(as_array, indent=1), "f.csv": as_csv, "f.parquet": as_parquet}[name](
        many
    )
    path = put(tmp_path / (name + pack), PACK[pack](whole) if pack else whole)
    taken = [chunk.done for chunk in read_chunks(str(path), size=50_000)]
    assert len(taken) > 3 and min(taken) >= 0
    if not (name == "f.parquet" and pack):  # unpacked as a whole before anything is read
        assert 0.98 * path.stat().st_size <= sum(taken) <= path.stat().st_size + len(taken)


@pytest.mark.parametrize("pack", ["", ".gz"])
def test_a_line_without_an_end(tmp_path: Path, pack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more of it is held than of any other row without an end."""
    monkeypatch.setattr(json_lines, "MAX_ROW_BYTES", 1000)
    monkeypatch.setattr(json_lines, "KEPT_OF_DAMAGE", 100)
    content = b'{"text": "a"}\n{"text": "' + b"a" * 50_000
    path = put(tmp_path / f"f.jsonl{pack}", PACK[pack](content) if pack else content)
    chunks = list(read_chunks(str(path), size=100))
    (problem,) = chunks[-1].problems.values()
    assert problem.reason == "row without an end" and problem.line == 2 and "was read" in problem.what
    assert chunks[-1].data == content.partition(b"\n")[2][:100] and sum(len(chunk.data) for chunk in chunks) < 200


def test_packed_rows_are_more_work_than_their_file_is_large(tmp_path: Path) -> None:
    """What decides how many processes share the work are the rows."""
    many: list[Row] = [{"text": f"{i} {'a' * 200}"} for i in range(300)]
    made = {"a.jsonl": jsonl(many), "a.jsonl.gz": gz(jsonl(many)), "a.parquet": as_parquet(many, 300)}
    paths = {name: put(tmp_path / name, content) for name, content in made.items()}
    assert {name: rows_bytes(str(path)) / path.stat().st_size for name, path in paths.items()} == {
        "a.jsonl": 1,
        "a.jsonl.gz": 4,
        "a.parquet": 4,
    }
