"""TokenizedDataset: tokenised rows in memory-mapped Arrow files. Knows how rows lie on disk; nothing of how they were
made, or of batches.

Processes that open the same directory share its pages. Besides the map only three small arrays are held in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankzero.data.cache.pictures import ImageFile
from rankzero.data.cache.selection import components
from rankzero.data.images.embedded import kept_images
from rankzero.directories import status
from rankzero.errors import StorageError
from rankzero.run_dir.atomic import file_sha256, read_manifest
from rankzero.spec.tasks import Trains

Int32 = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]

SCHEMA = pa.schema(
    {
        "input_ids": pa.list_(pa.int32()),
        "trained": pa.list_(pa.int32()),  # start, end, start, end, …: a bit per token cannot be mapped, ranges can
        "weights": pa.list_(pa.float32()),  # of each of these ranges; none where all are 1
        "supervised": pa.int32(),
        "loss_weight": pa.float64(),  # the sum of the weights of the trained tokens
        "line": pa.int64(),
        "source": pa.int32(),
        "ties": pa.list_(pa.int64()),  # rows with an equal one must not be split between train and eval
        "digest": pa.int64(),  # equal for equal rows
        "label": pa.string(),  # task classify: the class by its name
        "images": pa.list_(pa.struct(dict.fromkeys(ImageFile._fields, pa.string()))),  # in their order
    }
)

PREFERENCES = SCHEMA.append(pa.field("rejected_from", pa.int32()))
"""Of rows with two sequences: where the second begins, that with the worse answer. Apart, so that what was tokenised
before there were any is still of use."""


def schema_of(trains: Trains) -> Any:
    """How rows lie on disk that teach this."""
    return PREFERENCES if trains == "preferences" else SCHEMA


@dataclass(frozen=True, slots=True)
class DatasetStats:
    """What became of the rows of the data files. `rows_in` counts all that are not blank; dropped: by reason."""

    rows_in: int = 0
    rows: int = 0
    truncated: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    tokens: int = 0
    supervised_tokens: int = 0
    blank_lines: int = 0
    boundary_rows: int = 0
    """Rows in which one token joins the end of the prompt with the start of the completion; it is trained."""
    unopened: Mapping[str, int] = field(default_factory=dict)
    """Rows whose answers lack what the chat template opens an answer with in use, by that text."""
    notes: Mapping[str, int] = field(default_factory=dict)
    """Rows to which a rule did something, by what it did; which chat template was used where it is not the model's."""
    ignored_keys: Mapping[str, int] = field(default_factory=dict)
    """Rows with a key that nothing reads, by the key; `messages[].source` is one of a turn."""

    def as_json(self) -> dict[str, Any]:
        """For the manifest and for reports."""
        return asdict(self)


LENGTH_BINS = 24


def summary(dataset: TokenizedDataset) -> dict[str, Any]:
    """What a run directory keeps of its rows: those that take part, what became of all in their files, and `lengths`, a
    histogram of [tokens from, tokens to (exclusive), rows]."""
    lengths = dataset.lengths
    low, longest = (int(lengths.min()), int(lengths.max())) if len(lengths) else (0, 0)
    width = max(1, -(-(longest + 1 - low) // LENGTH_BINS))
    counts = np.bincount((lengths - low) // width) if len(lengths) else ()
    return {
        **dataset.stats.as_json(),
        "rows": len(dataset),
        "tokens": int(lengths.sum(dtype=np.int64)),
        "supervised_tokens": int(dataset.supervised.sum(dtype=np.int64)),
        "longest": longest,
        "lengths": [[low + i * width, low + (i + 1) * width, int(rows)] for i, rows in enumerate(counts)],
    }


@dataclass(frozen=True, slots=True)
class RowLabels(Sequence[str | None]):
    """The label of each row; None where it has none. Held as numbers: `names[codes[i]]`, and -1 for none."""

    names: tuple[str, ...]
    """Each name once, in the order in which rows first have it. Of a selection: those of all rows."""
    codes: Int32

    @classmethod
    def of(cls, texts: Iterable[str | None]) -> RowLabels:
        """The labels of rows one by one."""
        names: dict[str, int] = {}
        codes = [-1 if text is None else names.setdefault(text, len(names)) for text in texts]
        return cls(tuple(names), np.array(codes, dtype=np.int32))

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, i: int) -> str | None: ...
    @overload
    def __getitem__(self, i: slice) -> list[str | None]: ...
    def __getitem__(self, i: int | slice) -> str | None | list[str | None]:
        if isinstance(i, slice):
            return [self[row] for row in range(*i.indices(len(self)))]
        code = int(self.codes[i])
        return None if code < 0 else self.names[code]


class TokenizedDataset:
    """Rows of token ids with the mask of the trained ones. Pickles as its path: the other side maps it anew."""

    def __init__(self, directory: Path, sources: Sequence[str], rows: Indices | None = None) -> None:
        """Open a committed directory; `sources` are the data files under their names of today. Raises StorageError."""
        self.directory = directory
        self.sources = tuple(sources)
        self._manifest = _verified_manifest(directory)
        self._parts = [_Part(directory / name) for name in self._manifest["parts"]]
        self._starts = np.cumsum([0, *(len(part) for part in self._parts)])
        self._rows = rows

    @classmethod
    def open(cls, directory: Path, sources: Sequence[str]) -> TokenizedDataset:
        """The data set in `directory`."""
        return cls(directory, sources)

    def __len__(self) -> int:
        return int(self._starts[-1]) if self._rows is None else len(self._rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.directory, self.sources, self._rows)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal rows in equal order, whatever the files are called, wherever images lie, and whichever
        version of rankzero made them. Of rows with images also what the processor makes of those."""
        whole = self.digests.astype("<i8").tobytes() + self._vision.encode()
        return f"rows:{hashlib.sha256(whole).hexdigest()}"

    @property
    def sees_images(self) -> bool:
        """Whether they are of a model that sees images, be it that no row has one."""
        return bool(self._vision)

    @property
    def _vision(self) -> str:
        return str(self._manifest.get("rules", {}).get("vision", ""))

    @cached_property
    def lengths(self) -> Int32:
        """Tokens of each row."""
        return self._chosen(np.concatenate([part.lengths for part in self._parts]))

    @cached_property
    def rejected_from(self) -> Int32 | None:
        """Of preferences: where in each row the sequence with its worse answer begins. None where rows are one sequence
        each."""
        if not all(part.are_preferences for part in self._parts):
            return None
        return self._chosen(np.concatenate([part.column("rejected_from") for part in self._parts]))

    @cached_property
    def supervised(self) -> Int32:
        """Trained tokens of each row. The first token of a row is never one, so this is the number of its losses."""
        return self._chosen(np.concatenate([part.column("supervised") for part in self._parts]))

    @cached_property
    def loss_weights(self) -> npt.NDArray[np.float64]:
        """What the losses of each row's trained tokens are multiplied by, summed up: their number where all are 1."""
        values = np.concatenate([part.column("loss_weight") for part in self._parts]).astype(np.float64)
        return values if self._rows is None else values[self._rows]

    @cached_property
    def groups(self) -> Indices:
        """Equal for rows that must not be split between train and eval, be it for the sake of rows between them."""
        whole = components(*_joined([part.ties for part in self._parts]))
        return whole if self._rows is None else whole[self._rows]

    @cached_property
    def digests(self) -> Indices:
        """Equal for rows of equal tokens, of which the same are trained by the same weights, with equal labels and
        images."""
        return self._wide("digest")

    @cached_property
    def label_names(self) -> RowLabels:
        """The class of each row by its name."""
        whole = pa.chunked_array([chunk for part in self._parts for chunk in part.chunks("label")], pa.string())
        encoded = whole.dictionary_encode(null_encoding="encode").combine_chunks()
        names, codes = encoded.dictionary.to_pylist(), _array(encoded.indices)
        if None in names:
            none = names.index(None)
            numbers = np.arange(len(names), dtype=np.int32)
            codes = np.where(numbers == none, -1, numbers - (numbers > none)).astype(np.int32)[codes]
            del names[none]
        return RowLabels(tuple(names), self._chosen(codes))

    def images(self, i: int) -> tuple[str, ...]:
        """Where the images of a row are, in the order of their placeholders."""
        part, local = self._locate(i)
        return tuple(str(kept_images() / image["path"]) for image in part.value("images", local) or ())

    def image_files(self) -> set[ImageFile]:
        """The images of all rows, each once."""
        return {file for part in self._parts for file in part.images()}

    @cached_property
    def source_of(self) -> Indices:
        """Index in `sources` of each row's file."""
        return self._wide("source")

    @cached_property
    def stats(self) -> DatasetStats:
        """Of the files as a whole; of a selection: rows and tokens are the selection's, the rest the files'."""
        stats = DatasetStats(**self._manifest["stats"])
        if self._rows is None:
            return stats
        tokens, supervised = int(self.lengths.sum()), int(self.supervised.sum())
        return replace(stats, rows=len(self), tokens=tokens, supervised_tokens=supervised)

    def row(self, i: int) -> tuple[Int32, npt.NDArray[np.bool_]]:
        """Token ids (read-only, straight from the map) and which of them are trained."""
        part, local = self._locate(i)
        return part.row(local)

    def weights(self, i: int) -> npt.NDArray[np.float32] | None:
        """What the loss of each token of a row is multiplied by, 0 where it is not trained; None where all that are
        trained count in full."""
        part, local = self._locate(i)
        return part.weights(local)

    def where(self, i: int) -> str:
        """`train.jsonl:812`."""
        name, line = self.place(i)
        return f"{name}:{line}"

    def place(self, i: int) -> tuple[str, int]:
        """The file of a row, and its line there."""
        part, local = self._locate(i)
        source = part.value("source", local)
        name = self.sources[source] if source < len(self.sources) else f"source {source}"
        return name, int(part.value("line", local))

    def rows_with(self, least: int) -> Indices:
        """Rows that have a token of this number or a larger one. Reads all tokens."""
        found = self._chosen(np.concatenate([part.rows_with(least) for part in self._parts]))
        return np.flatnonzero(found)

    def select(self, indices: Sequence[int] | Indices) -> TokenizedDataset:
        """These rows in this order; nothing is copied."""
        chosen = np.asarray(indices, dtype=np.int64)
        if len(chosen) and not (chosen.min() >= 0 and chosen.max() < len(self)):
            raise IndexError(f"rows are numbered 0 to {len(self) - 1}")
        rows = chosen if self._rows is None else self._rows[chosen]
        return TokenizedDataset(self.directory, self.sources, rows)

    def _chosen(self, values: Any) -> Int32:
        return np.asarray(values if self._rows is None else values[self._rows], dtype=np.int32)

    def _wide(self, name: str) -> Indices:
        values = np.concatenate([part.column(name) for part in self._parts]).astype(np.int64)
        return values if self._rows is None else values[self._rows]

    def _locate(self, i: int) -> tuple[_Part, int]:
        if not 0 <= i < len(self):
            raise IndexError(f"row {i} of {len(self)}")
        row = i if self._rows is None else int(self._rows[i])
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._parts[number], row - int(self._starts[number])


class _Part:
    """One Arrow file, mapped."""

    def __init__(self, path: Path) -> None:
        reader = pa.ipc.open_file(pa.memory_map(str(path), "r"))
        if reader.schema not in (SCHEMA, PREFERENCES):
            raise StorageError("the tokenised data has another layout", where=str(path), hint=f"delete {path.parent}")
        self.are_preferences = reader.schema == PREFERENCES
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        self._batches = [batch for batch in batches if batch.num_rows]
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])
        # Views into the map, made once: going through Arrow for every row would cost microseconds each time.
        self._ids = [_lists(batch.column("input_ids")) for batch in self._batches]
        self._trained = [_lists(batch.column("trained")) for batch in self._batches]
        self._weights = [_lists(batch.column("weights")) for batch in self._batches]

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def lengths(self) -> Int32:
        return np.concatenate([np.diff(offsets) for offsets, _ in self._ids] or [np.empty(0, np.int32)])

    def column(self, name: str) -> npt.NDArray[Any]:
        return np.concatenate([_array(b.column(name)) for b in self._batches] or [np.empty(0, np.int32)])

    @property
    def ties(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Of all rows, as `_lists` gives those of a batch."""
        return _joined([_lists(batch.column("ties")) for batch in self._batches])

    def rows_with(self, least: int) -> npt.NDArray[np.bool_]:
        """Of each row, whether it has a token of this number or a larger one."""
        found = np.zeros(len(self), dtype=np.bool_)
        for start, (offsets, values) in zip(self._starts, self._ids, strict=False):
            places = np.flatnonzero(values >= least)
            found[start + np.searchsorted(offsets, places, side="right") - 1] = True
        return found

    def chunks(self, name: str) -> list[Any]:
        return [batch.column(name) for batch in self._batches]

    def images(self) -> Iterator[ImageFile]:
        """Of all rows, in their order."""
        for column in self.chunks("images"):
            fields = [texts.to_pylist() for texts in column.flatten().flatten()]
            yield from map(ImageFile, *fields)

    def value(self, name: str, row: int) -> Any:
        batch, local = self._locate(row)
        return self._batches[batch].column(name)[local].as_py()

    def row(self, row: int) -> tuple[Int32, npt.NDArray[np.bool_]]:
        batch, local = self._locate(row)
        offsets, values = self._ids[batch]
        ids = values[offsets[local] : offsets[local + 1]]
        mask = np.zeros(len(ids), dtype=np.bool_)
        offsets, values = self._trained[batch]
        for start, end in values[offsets[local] : offsets[local + 1]].reshape(-1, 2):
            mask[start:end] = True
        return ids, mask

    def weights(self, row: int) -> npt.NDArray[np.float32] | None:
        batch, local = self._locate(row)
        offsets, values = self._weights[batch]
        weights = values[offsets[local] : offsets[local + 1]]
        if not len(weights):
            return None
        lengths, _ = self._ids[batch]
        whole = np.zeros(lengths[local + 1] - lengths[local], dtype=np.float32)
        offsets, ranges = self._trained[batch]
        row_ranges = ranges[offsets[local] : offsets[local + 1]].reshape(-1, 2)
        for (start, end), weight in zip(row_ranges, weights, strict=True):
            whole[start:end] = weight
        return whole

    def _locate(self, row: int) -> tuple[int, int]:
        batch = int(np.searchsorted(self._starts, row, side="right")) - 1
        return batch, row - int(self._starts[batch])


def _lists(column: Any) -> tuple[Int32, npt.NDArray[Any]]:
    """Offsets and values of a list column, as arrays over the map."""
    return _array(column.offsets), _array(column.values)


def _joined(lists: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Offsets and values of several list columns as of one."""
    lengths = [np.diff(offsets) for offsets, _ in lists]
    offsets = np.cumsum(np.concatenate([[0], *lengths]), dtype=np.int64)
    return offsets, np.concatenate([np.empty(0, np.int64), *(values for _, values in lists)])


def _array(column: Any) -> npt.NDArray[Any]:
    """A column of numbers without nulls, as an array over the map. By DLPack: `to_numpy` imports pandas where it is
    installed, which every process of every start would wait for."""
    return np.from_dlpack(column)


def verify_bytes(directory: Path, workers: int = 1) -> None:
    """Compare every byte of a committed directory with what was written, `workers` files at a time. Raises
    StorageError.

    For the first opening in a run: a byte that the disk or the network changed would else be trained, or make Arrow
    read where nothing is.
    """
    files = {directory / name: entry["sha256"] for name, entry in _verified_manifest(directory)["files"].items()}
    with ThreadPoolExecutor(workers) if min(workers, len(files)) > 1 else nullcontext() as pool:
        hashes = map(file_sha256, files) if pool is None else pool.map(file_sha256, files)
        for (path, expected), found in zip(files.items(), hashes, strict=True):
            if found != expected:
                raise _damaged(path, "its bytes are not those that were written")


def _verified_manifest(directory: Path) -> dict[str, Any]:
    """The manifest, with every file in its full size. The bytes are compared by `verify_bytes`, once in a run."""
    manifest = read_manifest(directory)
    for name, entry in manifest["files"].items():
        path = directory / name
        about = status(path)
        if about is None or about.st_size != entry["size"]:
            raise _damaged(path, "it is missing, or not as long as it was written")
    return manifest


def _damaged(path: Path, why: str) -> StorageError:
    hint = f"delete {path.parent}; the data is then tokenised again"
    return StorageError(f"tokenised data is damaged: {why}", where=str(path), hint=hint)
