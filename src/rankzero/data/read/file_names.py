"""What names of files say: kind, split, and which of a directory's files are its rows. Pure: names in, names out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath

from rankzero.errors import Problem
from rankzero.spec.data_paths import PACKED_SUFFIXES

_KINDS = {
    ".jsonl": "JSONL",
    ".ndjson": "JSONL",
    ".json": "JSON",
    ".csv": "CSV",
    ".tsv": "TSV",
    ".parquet": "Parquet",
    ".arrow": "Arrow",
}
_PATTERNS = {
    "JSONL": "*.jsonl*",
    "JSON": "*.json",
    "CSV": "*.csv*",
    "TSV": "*.tsv*",
    "Parquet": "*.parquet",
    "Arrow": "*.arrow",
}

_ABOUT_DATA = frozenset(
    {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "config.json", "metadata.json"}
    | {"package.json", "stats.json", "stats-failed.json"}
)
"""JSON files that describe data and hold no rows."""

_OTHER_PACKINGS = (
    *(".zip", ".lz4", ".br", ".lzma", ".z", ".7z", ".rar", ".sz", ".snappy", ".tar"),
    *(".gzip", ".bzip2", ".bz", ".lz", ".lzo", ".deflate", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst"),
)
"""What names of packed files end in that are not unpacked here."""

_OF_MAP = re.compile(r"cache-.*\.arrow")
"""What `map` and `filter` of the library datasets leave beside the rows that they were given."""

_SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_EDGE = "[-._ 0-9]"
_SHARD = re.compile(r"(?:.*/)?(?P<split>\w+(?:\.\w+)*)-[0-9]{5}-of-[0-9]{5}[^/]*")


def data_kind(name: str) -> str | None:
    """JSONL, CSV and so on, packed or not; None where the name is not that of a data file."""
    return _KINDS.get(PurePosixPath(unpacked(name.lower())).suffix)


def is_data_file(name: str) -> bool:
    """Whether a file of this name, found among others, holds rows."""
    base = PurePosixPath(name).name
    return data_kind(name) is not None and base not in _ABOUT_DATA and not base.startswith((".", "_"))


def files_of_directory(names: Iterable[str], where: str) -> tuple[str, ...] | Problem:
    """The data files among the names of a directory and of the folders in it, sorted; or why it is not clear which of
    them are meant."""
    shown = {name for name in names if not _in_hidden_folder(name)}
    found = sorted(name for name in shown if is_data_file(name) and not _is_of_map(name, shown))
    unread = sorted(name for name in shown if (inside := _packed_otherwise(name)) and inside not in found)
    if unread:
        others = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
        what = f"the directory holds {unread[0]}{others}, packed in a way that is not read here"
        return Problem(what, where, "unpack it, or name the files that are meant")
    if not found:
        hint = f"looked for {', '.join(_KINDS)}, packed or not, in its folders too"
        return Problem("the directory holds no data files", where, hint)
    kinds = Counter(str(data_kind(name)) for name in found)
    if len(kinds) > 1:
        counted = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        folders = "**/" if any("/" in name for name in found) else ""
        hint = f"name the ones that are meant: {where.rstrip('/')}/{folders}{_PATTERNS[kinds.most_common()[0][0]]}"
        return Problem(f"the directory holds several kinds of data files: {counted}", where, hint)
    twice = [name for name, count in Counter(unpacked(name) for name in found).items() if count > 1]
    if twice:
        what = f"the directory holds {PurePosixPath(twice[0]).name} packed and unpacked"
        return Problem(what, where, "are these the same rows? name the files that are meant")
    splits = _every_split(found)
    if len(splits) > 1:
        what = f"the directory holds several splits: {', '.join(splits)}"
        first = next(iter(splits.values()))[0]
        return Problem(what, where, f"name the files that are meant: {where.rstrip('/')}/{first}")
    return tuple(found)


def _is_of_map(name: str, beside: Collection[str]) -> bool:
    path = PurePosixPath(name)
    return _OF_MAP.fullmatch(path.name) is not None and str(path.with_name("dataset_info.json")) in beside


def _packed_otherwise(name: str) -> str:
    """The name of what a file holds; empty where it is not packed, or holds no data by its name."""
    suffix = next((suffix for suffix in _OTHER_PACKINGS if unpacked(name.lower()).endswith(suffix)), "")
    inside = unpacked(name)[: -len(suffix)] if suffix else ""
    return inside if inside and is_data_file(inside) else ""


def _in_hidden_folder(name: str) -> bool:
    return any(folder.startswith((".", "_")) for folder in PurePosixPath(name).parts[:-1])


def by_split(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Files by the split in their names: `train-00000-of-00002.parquet`, `data/train.jsonl`, `test/rows.csv`.

    A file whose name has no split is in none where others have one; where none has, all are `train`.
    """
    found = next((splits for way in _WAYS if (splits := way(names))), {})
    return _in_order(found) or {"train": tuple(sorted(names))}


def _every_split(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Files by whatever split is in their names: where one way leaves some in none, by the next. A file without a split
    is in none."""
    found: dict[str, list[str]] = {}
    left = list(names)
    for way in _WAYS:
        for split, files in way(left).items():
            found.setdefault(split, []).extend(files)
            done = set(files)
            left = [name for name in left if name not in done]
    return _in_order(found)


def _in_order(splits: Mapping[str, list[str]]) -> dict[str, tuple[str, ...]]:
    order = sorted(splits, key=lambda split: (not split.startswith("train"), split))
    return {split: tuple(sorted(splits[split])) for split in order}


def _by_shard(names: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        if match := _SHARD.fullmatch(name):
            found.setdefault(match["split"], []).append(name)
    return found


def _by_word(names: Sequence[str], in_folders: bool) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        path = PurePosixPath(name)
        parts = path.parts[:-1] if in_folders else (path.name,)
        for split, words in _SPLIT_WORDS.items():
            word = f"(.*{_EDGE})?({'|'.join(words)})({_EDGE}.*)?"
            if any(re.fullmatch(word, part, re.IGNORECASE | re.DOTALL) for part in parts):
                found.setdefault(split, []).append(name)
                break
    return found


_WAYS = (_by_shard, partial(_by_word, in_folders=False), partial(_by_word, in_folders=True))
"""In which names say splits, the surest first."""


def unpacked(name: str) -> str:
    """The name without the suffixes of packed files."""
    for suffix in PACKED_SUFFIXES:
        name = name.removesuffix(suffix)
    return name
