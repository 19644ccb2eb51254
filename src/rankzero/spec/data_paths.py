"""What a data path means: a file, a pattern, a URL or a Hub data set, and a sample of it. Pure: told what exists."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

Place = Literal["local", "url", "hub"]

FILE_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt", ".parquet", ".arrow")
PACKED_SUFFIXES = (".gz", ".zst", ".zstd", ".xz", ".bz2")

_LOCAL_PROTOCOLS = ("file://", "local://")

_SAMPLE = re.compile(r"(?P<rest>.+)#(?P<count>[0-9]+)", re.DOTALL)
_HUB = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(:(?P<subset>[\w.-]+))?"
    r"(\[(?P<split>[\w.:%+-]+?)(\[(?P<rows>-?[0-9_]*%?:-?[0-9_]*%?)\])?\])?(@(?P<revision>[\w./-]+))?"
)


@dataclass(frozen=True, slots=True)
class RowSlice:
    """Rows from one place to another: `:1%`, `100:200`, `-10%:`."""

    start: int | None = None
    stop: int | None = None
    percent: bool = False

    def bounds(self, n_rows: int) -> tuple[int, int]:
        """The first row and the one after the last, of so many. A percentage is rounded to the nearest row; negative
        numbers count from the end. Raises ValueError where there are not as many, or none is left."""
        first, last = self._place(self.start, 0, n_rows), self._place(self.stop, n_rows, n_rows)
        if not 0 <= first < last <= n_rows:
            raise ValueError(f"rows [{self}] of {n_rows}")
        return first, last

    def _place(self, at: int | None, default: int, n_rows: int) -> int:
        if at is None:
            return default
        row = round(at * n_rows / 100) if self.percent else at
        return row + n_rows if at < 0 else row

    def __str__(self) -> str:
        unit = "%" if self.percent else ""
        return ":".join("" if at is None else f"{at}{unit}" for at in (self.start, self.stop))


@dataclass(frozen=True, slots=True)
class DataPath:
    """A data path, taken apart."""

    place: Place
    path: str
    """Of local: file, directory or pattern. Of url: the URL. Of hub: `org/name`."""
    subset: str | None = None
    split: str | None = None
    revision: str | None = None
    rows: RowSlice | None = None
    """Of a split: only these rows."""
    sample: int | None = None
    """Rows to draw; None: all."""

    def __str__(self) -> str:
        """What `parse_data_path` takes apart into this."""
        rows = "" if self.rows is None else f"[{self.rows}]"
        parts = (
            self.path,
            "" if self.subset is None else f":{self.subset}",
            "" if self.split is None else f"[{self.split}{rows}]",
            "" if self.revision is None else f"@{self.revision}",
            "" if self.sample is None else f"#{self.sample}",
        )
        return "".join(parts)


def parse_data_path(text: str, exists: Callable[[str], bool]) -> DataPath:
    """Take a path apart. A path that exists is taken as it stands, whatever characters it has.

    `name#500` samples; `org/name:subset[split[:1%]]@revision` is a Hub data set unless it ends like a data file.
    """
    if exists(text):
        return DataPath("local", text)
    match = _SAMPLE.fullmatch(text)
    if match is not None:
        return replace(parse_data_path(match["rest"], exists), sample=int(match["count"]))
    if "://" in text:
        return DataPath("url", text)
    hub = _HUB.fullmatch(text)
    if hub is None or hub["name"].lower().endswith(FILE_SUFFIXES + PACKED_SUFFIXES):
        return DataPath("local", text)
    return DataPath("hub", hub["name"], hub["subset"], hub["split"], hub["revision"], _row_slice(hub["rows"]))


def is_hub_id(text: str) -> bool:
    """Whether it means a Hub data set where nothing here has the name."""
    return parse_data_path(text, lambda _: False).place == "hub"


def without_protocol(path: DataPath) -> DataPath:
    """The same, where a URL is that of a path here as one."""
    if path.place != "url" or not path.path.startswith(_LOCAL_PROTOCOLS):
        return path
    return DataPath("local", path.path.partition("://")[2], sample=path.sample)


def _row_slice(text: str | None) -> RowSlice | None:
    if text is None:
        return None
    start, stop = (int(part.rstrip("%").replace("_", "") or 0) if part else None for part in text.split(":"))
    return RowSlice(start, stop, "%" in text)
