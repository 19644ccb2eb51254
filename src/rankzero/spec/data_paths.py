"""What a data path means: a file, a pattern, a URL or a Hub data set, and a sample of it. Pure: told what exists."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

Place = Literal["local", "url", "hub"]

FILE_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
PACKED_SUFFIXES = (".gz", ".zst", ".zstd")

_SAMPLE = re.compile(r"(?P<rest>.+)#(?P<count>[0-9]+)", re.DOTALL)
_HUB = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(:(?P<subset>[\w.-]+))?(\[(?P<split>[\w.:%+-]+)\])?(@(?P<revision>[\w./-]+))?"
)


@dataclass(frozen=True, slots=True)
class DataPath:
    """A data path, taken apart."""

    place: Place
    path: str
    """Of local: file, directory or pattern. Of url: the URL. Of hub: `org/name`."""
    subset: str | None = None
    split: str | None = None
    revision: str | None = None
    sample: int | None = None
    """Rows to draw; None: all."""


def parse_data_path(text: str, exists: Callable[[str], bool]) -> DataPath:
    """Take a path apart. A path that exists is taken as it stands, whatever characters it has.

    `name#500` samples; `org/name:subset[split]@revision` is a Hub data set unless it ends like a data file.
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
    return DataPath("hub", hub["name"], hub["subset"], hub["split"], hub["revision"])
