"""The raw files of a recipe: which file is which split, and their rows one by one. Knows no row shape.

Rows are streamed, whatever the size of the file: an array of a gigabyte is never held.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rankzero.data.read.download import download
from rankzero.data.read.file_names import data_kind, is_data_file, unpacked
from rankzero.data.read.network import Network, RealNetwork, RemoteFile
from rankzero.data.read.sources import probe, read_chunks
from rankzero.data.rows.chunks import DAMAGE, lines
from rankzero.data.rows.parse import read_json
from rankzero.datasets.tally import STATS
from rankzero.errors import DataError, Problem, UsageError

_JSON = ("JSON", "JSONL")
_COLUMNAR = ("Parquet", "Arrow")
_FLAG = "--input"
_READ_BYTES = 1 << 20
"""At a time: raw rows are small, and what is read ahead of `--max_samples` is wasted."""


def rows_of(paths: Sequence[str]) -> Iterator[tuple[int, Any]]:
    """(number, value) of every row of the files, numbered through from 1; a RowProblem where a row cannot be read."""
    number = 0
    for path in paths:
        for value in _rows_of_file(path):
            number += 1
            yield number, value


def _rows_of_file(path: str) -> Iterator[Any]:
    """The value of every row; a RowProblem where it cannot be read.

    Raises DataError where the file is damaged, as nothing is known of the rows behind that place.
    """
    for chunk in read_chunks(path, size=_READ_BYTES):
        for index, (number, line) in enumerate(lines(chunk)):
            problem = chunk.problems.get(index)
            if problem is not None and problem.reason in DAMAGE:
                raise DataError(Problem(problem.what, f"{path}:{number}", problem.hint))
            if problem is not None:
                yield problem
            elif line and not line.isspace():
                yield read_json(line, number)


def find_inputs(
    given: Sequence[str], wanted: Sequence[str], hub_id: str, network: Network | None = None
) -> dict[str, tuple[str, ...]]:
    """Files by split. Raises UsageError and DataError.

    `given`: `[SPLIT=]FILE`, a folder, a URL of either, `hub` for the data set's own place, or `hub:org/name`. In a
    folder and on the Hub, the split is a word of the file's name (`FIRE-test.json`); a lone file, and those of a
    folder's URL that name no split, are the only split asked for, or the one in their name, or train.
    """
    if not given:
        hint = f"{_FLAG} FILE, a folder or a URL; {_FLAG} hub downloads {hub_id}"
        raise UsageError("the raw data is not named", where=_FLAG, hint=hint)
    found: dict[str, list[str]] = {}
    for text in given:
        for split, path in _expanded(text, wanted, hub_id, network or RealNetwork()):
            found.setdefault(split, []).append(path)
    splits = list(wanted) or sorted(found, key=lambda split: (split != "train", split))
    missing = [split for split in splits if split not in found]
    if missing:
        hint = f"name it: {_FLAG} {missing[0]}=FILE"
        raise DataError(
            Problem(f"no file of split {split} in {', '.join(given)}", f"{_FLAG}", hint) for split in missing
        )
    return {split: tuple(found[split]) for split in splits}


def _expanded(text: str, wanted: Sequence[str], hub_id: str, network: Network) -> Iterator[tuple[str, str]]:
    split, is_named, place = text.partition("=")
    if not is_named or not re.fullmatch(r"[A-Za-z]\w*", split) or Path(text).exists():  # a path or URL with a = in it
        split, place = "", text
    place = os.path.expanduser(place)
    if place == "hub" or place.startswith("hub:"):
        files = {
            file.name: file for file in network.data_set(place.removeprefix("hub").removeprefix(":") or hub_id, None)
        }
        for has, name in _by_name(sorted(files), split, wanted):
            yield has, download(files[name], network)
    elif "://" in place:
        for has, file in _at_url(text, place, split, wanted, network):
            yield has, download(file, network)
    elif Path(place).is_dir():
        written = written_into(Path(place))
        names = sorted(str(path) for path in Path(place).iterdir() if path.name not in written)
        yield from _by_name(names, split, wanted)
    elif problem := probe(place):
        raise DataError(problem.what, where=place, hint=problem.hint)
    else:
        yield _only_split(text, place, split, wanted), place


def _at_url(
    text: str, place: str, split: str, wanted: Sequence[str], network: Network
) -> Iterator[tuple[str, RemoteFile]]:
    """Files of a directory by their names as those of a folder here, those that a pattern matches each by its own."""
    found = network.find(place)
    files = {file.name if found.is_directory else file.url: file for file in found.files}
    if found.is_directory and any(_split_in(name, _words(split, wanted)) for name in files):
        pairs = list(_by_name(sorted(files), split, wanted))
    else:
        named = _of_rows(sorted(files)) if found.is_directory else list(files)
        pairs = [(_only_split(text, name, split, wanted), name) for name in named]
    yield from ((has, files[name]) for has, name in pairs)


def _only_split(text: str, path: str, split: str, wanted: Sequence[str]) -> str:
    """The split of a file that is named itself. Raises UsageError where it could be several."""
    if not split and len(wanted) > 1:
        hint = " ".join(f"{_FLAG} {name}=FILE" for name in wanted)
        raise UsageError("one file and several splits: which is it?", where=f"{_FLAG} {text}", hint=hint)
    return split or (wanted[0] if wanted else _split_in(path) or "train")


def written_into(folder: Path) -> set[str]:
    """The names of the files that recipes wrote there, by the statistics beside them: they are no raw rows."""
    try:
        stats = json.loads((folder / STATS).read_text(encoding="utf-8"))
        written = {name for split in stats["splits"].values() for name in split["written"]}
        return written.union(stats.get("written_before", ()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # there are none, or they are somebody else's
        return set()


def _by_name(names: Sequence[str], split: str, wanted: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(split, name) of the files whose names have one that is asked for. Raises DataError where one is there twice."""
    found: dict[str, list[str]] = {}
    for name in names:
        has = _split_in(name, _words(split, wanted))
        if has and (not split or has == split) and (not wanted or has in wanted):
            found.setdefault(has, []).append(name)
    for has, of_split in found.items():
        yield from ((has, name) for name in _of_rows(of_split))


def _of_rows(names: Sequence[str]) -> list[str]:
    """Those that hold raw rows: JSON or, where there is none, tables of other kinds, which are copies at times. Raises
    DataError where one is there packed and unpacked."""
    by_kind = [
        [name for name in names if is_data_file(name) and data_kind(name) in kinds] for kinds in (_JSON, _COLUMNAR)
    ]
    found = by_kind[0] or by_kind[1]
    if twice := [name for name, count in Counter(map(unpacked, found)).items() if count > 1]:
        hint = f"are these the same rows? name the files that are meant: {_FLAG} FILE"
        raise DataError("the file is there packed and unpacked", where=twice[0], hint=hint)
    return found


def _words(split: str, wanted: Sequence[str]) -> Sequence[str]:
    """What says in a file's name which split it is."""
    return (*wanted, split, "train", "test")


def _split_in(path: str, splits: Sequence[str] = ("train", "test")) -> str | None:
    """The split that is a word of the file's name."""
    words = re.split(r"[^a-z]+", path.rsplit("/", 1)[-1].lower())
    return next((split for split in splits if split and split.lower() in words), None)
