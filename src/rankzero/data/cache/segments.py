"""Tokenised rows on their way to a data set: segments of the input, each written whole or not at all.

A segment is what a fixed number of consecutive chunks gives, so that its content does not depend on who makes it.
Several processes or machines share the work by taking every n-th segment, a killed one goes on with the first that is
missing, and the data set is all segments in their order, none of them rewritten.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankzero.data.cache.dataset import SCHEMA, DatasetStats, schema_of
from rankzero.data.cache.encode import Block, EncodedChunk
from rankzero.data.cache.pictures import ImageFile
from rankzero.run_dir.atomic import TEMPORARY_PREFIX, commit_directory, fsync_path, stage_name, write_json
from rankzero.spec.tasks import Trains

SEGMENT_CHUNKS = 8
"""32 MiB of input: what a killed process loses at most, and the smallest piece that shards share."""


@dataclass(slots=True)
class Tally:
    """What became of the rows of a segment, or of all."""

    rows_of: Counter[int] = field(default_factory=Counter)
    """Rows read, by source."""
    dropped: Counter[str] = field(default_factory=Counter)
    unopened: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    ignored_keys: Counter[str] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    """The plain numbers of DatasetStats."""

    def count(self, chunk: EncodedChunk) -> None:
        """Add what a chunk gave."""
        self.rows_of[chunk.source] += chunk.rows_in
        self.dropped.update(chunk.dropped)
        self.unopened.update(chunk.unopened)
        self.notes.update(chunk.notes)
        self.ignored_keys.update(chunk.ignored_keys)
        self.totals.update(blank_lines=chunk.blank, truncated=chunk.truncated, boundary_rows=chunk.straddling)
        if chunk.block is not None:
            self.totals.update(
                rows=len(chunk.block.lines),
                tokens=len(chunk.block.input_ids),
                supervised_tokens=int(chunk.block.supervised.sum()),
            )

    def add(self, other: Tally) -> None:
        """Sum up."""
        for name in (item.name for item in fields(self)):
            getattr(self, name).update(getattr(other, name))

    def stats(self) -> DatasetStats:
        """As the manifest has it."""
        return DatasetStats(
            rows_in=self.rows_of.total(),
            dropped=dict(self.dropped),
            unopened=dict(self.unopened),
            notes=dict(self.notes),
            ignored_keys=dict(self.ignored_keys),
            **self.totals,
        )

    def as_json(self) -> dict[str, Any]:
        """Plain dicts."""
        return {item.name: dict(getattr(self, item.name)) for item in fields(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Tally:
        """Read what `as_json` gave; JSON has no whole numbers as keys."""
        rows_of = Counter({int(source): rows for source, rows in value["rows_of"].items()})
        counters = ("dropped", "unopened", "notes", "ignored_keys", "totals")
        return cls(rows_of, **{name: Counter(value[name]) for name in counters})


class Segments:
    """The segments of one data set in the making. Several processes may write to the same directory."""

    def __init__(self, directory: Path, trains: Trains = "answers") -> None:
        self.directory, self._trains = directory, trains

    def has(self, number: int) -> bool:
        """Whether this one is whole."""
        return self._tally(number).exists() and self._rows(number).exists()

    def missing(self, count: int) -> list[int]:
        """Of `count` segments those that are not there yet."""
        return [number for number in range(count) if not self.has(number)]

    def write(self, number: int) -> SegmentWriter:
        """Begin one."""
        self.directory.mkdir(parents=True, exist_ok=True)
        return SegmentWriter(self._rows(number), self._tally(number), self._trains)

    def tally(self, count: int) -> Tally:
        """The sum over all segments."""
        whole = Tally()
        for number in range(count):
            whole.add(Tally.from_json(json.loads(self._tally(number).read_text(encoding="utf-8"))))
        return whole

    def commit(self, count: int, directory: Path, meta: Mapping[str, Any]) -> None:
        """Make all segments one data set, and forget them. Raises StorageError."""
        names = [f"part-{number:05}.arrow" for number in range(count)]
        staged = directory.with_name(stage_name(directory.name))
        staged.mkdir()
        try:
            for number, name in enumerate(names):
                os.replace(self._rows(number), staged / name)
            commit_directory(staged, directory, {**meta, "parts": names})
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        self.forget()

    def forget(self) -> None:
        """Remove what there is, but for what a living process is about to write: it finds out by itself."""
        with suppress(OSError):  # another process does the same
            for path in self.directory.iterdir():
                if not _is_written(path):
                    path.unlink(missing_ok=True)
            self.directory.rmdir()

    def _rows(self, number: int) -> Path:
        return self.directory / f"segment-{number:05}.arrow"

    def _tally(self, number: int) -> Path:
        return self.directory / f"segment-{number:05}.json"


def _is_written(path: Path) -> bool:
    """Whether a writer holds the file: the kernel lets go of it when its process dies, however it dies."""
    file = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # somebody does; or nobody can tell, as on a volume without locks
        return path.name.startswith(TEMPORARY_PREFIX)
    finally:
        os.close(file)
    return False


class SegmentWriter:
    """One segment: rows go to a temporary file, which gets its name in `finish` and vanishes otherwise. It is locked
    meanwhile, so that others see that it is no dead process's."""

    def __init__(self, rows: Path, tally: Path, trains: Trains) -> None:
        self._rows, self._tally_file = rows, tally
        self._staged = rows.with_name(stage_name(rows.name))
        self._lock = os.open(self._staged, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        with suppress(OSError):  # a volume without locks
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._file = pa.OSFile(str(self._staged), "wb")
        self._writer = pa.ipc.new_file(self._file, schema_of(trains))
        self.tally = Tally()

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._close()
            else:  # where writing failed, ending the file would fail, too
                self._file.close()
        finally:
            self._staged.unlink(missing_ok=True)
            os.close(self._lock)

    def add(self, chunk: EncodedChunk) -> None:
        """Write the rows of a chunk and count them."""
        self.tally.count(chunk)
        if chunk.block is not None and len(chunk.block.lines):
            self._writer.write_batch(record_batch(chunk.block, chunk.source))

    def finish(self) -> None:
        """Give the rows their name, then say that they are whole."""
        self._close()
        fsync_path(self._staged)
        os.replace(self._staged, self._rows)
        write_json(self._tally_file, self.tally.as_json())

    def _close(self) -> None:
        if not self._file.closed:
            self._writer.close()
            self._file.close()


def record_batch(block: Block, source: int) -> Any:
    """The rows of a chunk as they lie on disk."""
    columns = [
        _lists(block.offsets, block.input_ids),
        _lists(block.range_offsets, block.ranges),
        _lists(block.weight_offsets, block.weights),
        _column(block.supervised),
        _column(block.loss_weight),
        _column(block.lines),
        _column(np.full(len(block.lines), source, dtype=np.int32)),
        _lists(block.tie_offsets, block.ties),
        _column(np.asarray(block.digests, dtype=np.int64)),
        _labels(block.labels),
        _images(block.images),
    ]
    if block.rejected_from is None:
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    return pa.RecordBatch.from_arrays([*columns, _column(block.rejected_from)], schema=schema_of("preferences"))


# `pa.array` imports pandas to know whether it was given something of it: most of a second of each process that writes
# rows. So arrays are made of the buffers that it would make.


def _column(values: npt.NDArray[Any]) -> Any:
    plain = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(plain.dtype), len(plain), [None, pa.py_buffer(plain)])


def _lists(offsets: npt.NDArray[np.int32], values: npt.NDArray[Any]) -> Any:
    return pa.ListArray.from_arrays(_column(offsets), _column(values))


def _labels(labels: list[str | None]) -> Any:
    if all(label is None for label in labels):
        return pa.nulls(len(labels), pa.string())
    known = np.array([label is not None for label in labels])
    bitmap = None if known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    return _texts([label or "" for label in labels], bitmap)


def _texts(texts: Sequence[str], known: Any = None) -> Any:
    """`known`: the bits of those that are none."""
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)), known)


def _images(images: list[tuple[ImageFile, ...]]) -> Any:
    kind = SCHEMA.field("images").type
    offsets = np.cumsum([0, *map(len, images)], dtype=np.int32)
    every = [image for of_row in images for image in of_row]
    if not every:
        return pa.ListArray.from_arrays(_column(offsets), pa.nulls(0, kind.value_type))
    columns = [_texts([getattr(image, field.name) for image in every]) for field in kind.value_type]
    made = pa.StructArray.from_arrays(columns, fields=list(kind.value_type))
    return pa.ListArray.from_arrays(_column(offsets), made, type=kind)
