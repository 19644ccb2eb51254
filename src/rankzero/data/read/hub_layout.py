"""Which files of a Hub data set are a subset's split. Pure: names of files and the card's text in, names of files out.

The card's `configs` decide, then names of folders and files. Where that is not certain, the Hub's own conversion to
Parquet is used instead. Loading scripts are never run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from rankzero.data.read.file_names import by_split, data_kind, is_data_file
from rankzero.errors import DataError

CONVERTED = "refs/convert/parquet"
"""The branch on which the Hub keeps its own conversion."""

_FRONT_MATTER = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|$)", re.DOTALL)

Splits = dict[str, tuple[str, ...]]


class UnsureError(Exception):
    """The files alone do not say which of them are meant; the message says why."""


def choose(files: Sequence[str], card: str, subset: str | None, split: str | None) -> tuple[str, ...]:
    """The files of a subset's split, in order.

    Raises DataError where there is no such subset or split, UnsureError where that cannot be told.
    """
    if configs := _configs(card):
        chosen = _named(configs, subset)
        splits = _of_config(chosen, files)
    else:
        splits = _of_names(files, subset)
    found = _of_split(splits, split)
    kinds = {data_kind(name) for name in found}
    if None in kinds or len(kinds) != 1:
        raise UnsureError("its files are not all of one kind that can be read")
    return found


def choose_converted(files: Sequence[str], subset: str | None, split: str | None) -> tuple[str, ...]:
    """The same for the Hub's conversion, where files are `subset/split/0000.parquet`. Raises DataError."""
    subsets: dict[str, dict[str, list[str]]] = {}
    for name in sorted(files):
        parts = name.split("/")
        if len(parts) == 3 and data_kind(name) == "Parquet":
            subsets.setdefault(parts[0], {}).setdefault(parts[1], []).append(name)
    if not subsets:
        raise DataError("the Hub has no conversion to Parquet of it", hint=_DOWNLOAD)
    chosen = subsets[_pick(list(subsets), subset, "subset", prefer="default")]
    found = _of_split({name.removeprefix(_PART): tuple(names) for name, names in chosen.items()}, split)
    if any(name.split("/")[1].startswith(_PART) for name in found):
        raise DataError("the Hub has converted only a part of it to Parquet", hint=_DOWNLOAD)
    return found


_PART = "partial-"
_DOWNLOAD = "download its files and give their paths, or name one by its URL: hf://datasets/ORG/NAME/FILE"


def _configs(card: str) -> list[Mapping[str, Any]]:
    """The `configs` in the YAML at the top of a card."""
    match = _FRONT_MATTER.match(card)
    if match is None:
        return []
    try:
        front = yaml.safe_load(match[1])
    except yaml.YAMLError as error:
        raise UnsureError("the YAML of its card cannot be read") from error
    configs = front.get("configs") if isinstance(front, Mapping) else None
    if not isinstance(configs, list):
        return []
    return [entry for entry in configs if isinstance(entry, Mapping)]


def _named(configs: Sequence[Mapping[str, Any]], subset: str | None) -> Mapping[str, Any]:
    names = [str(entry.get("config_name", "default")) for entry in configs]
    marked = next((name for name, entry in zip(names, configs, strict=True) if entry.get("default") is True), "default")
    return configs[names.index(_pick(names, subset, "subset", prefer=marked))]


def _of_config(entry: Mapping[str, Any], files: Sequence[str]) -> Splits:
    folder = str(entry.get("data_dir") or "").strip("./")
    inside = [name for name in files if not folder or name.startswith(f"{folder}/")]
    given = entry.get("data_files")
    if given is None:
        return by_split([name for name in inside if is_data_file(name)])
    groups: dict[str, list[str]] = {}
    for item in given if isinstance(given, list) else [given]:
        split, patterns = "train", item
        if isinstance(item, Mapping):
            split, patterns = item.get("split", "train"), item.get("path")
        for pattern in patterns if isinstance(patterns, list) else [patterns]:
            groups.setdefault(str(split), []).extend(_matching(str(pattern), folder, inside))
    return {split: tuple(dict.fromkeys(names)) for split, names in groups.items()}


def _matching(pattern: str, folder: str, files: Iterable[str]) -> list[str]:
    pattern = pattern.removeprefix("./")
    if "://" in pattern:
        raise UnsureError("its card names files elsewhere")
    whole = f"{folder}/{pattern}" if folder else pattern
    wanted = re.compile(f"{_as_regex(whole)}|{_as_regex(whole.rstrip('/'))}/.*")
    found = sorted(name for name in files if wanted.fullmatch(name))
    if not found:
        raise UnsureError(f"no file matches {pattern!r} in its card")
    return found


def _as_regex(pattern: str) -> str:
    """A file pattern as a regular expression: `*` stays within a folder, `**` does not."""
    out = []
    for part in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]/]+\])", pattern):
        if part.startswith("[") and part.endswith("]") and len(part) > 2:
            out.append("[" + part[1:-1].replace("\\", "\\\\").replace("!", "^", 1) + "]")
        else:
            out.append({"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(part, re.escape(part)))
    return "".join(out)


def _of_names(files: Sequence[str], subset: str | None) -> Splits:
    """Without `configs` in the card: folders and names."""
    names = [name for name in files if is_data_file(name)]
    if subset not in (None, "default"):
        names = [name for name in names if name.startswith((f"{subset}/", f"data/{subset}/"))]
        if not names:
            raise UnsureError(f"no folder is named {subset!r}")
    if not names:
        raise UnsureError("it has no data files that can be read")
    splits = by_split(names)
    if any(len({name.rpartition("/")[0] for name in found}) > 1 for found in splits.values()):
        raise UnsureError("its files are in several folders, which may be subsets")
    return splits


def _of_split(splits: Splits, wanted: str | None) -> tuple[str, ...]:
    if wanted is not None and re.search("[:%]", wanted):
        name, _, rows = wanted.partition(":")
        hint = f"rows of a split are written [{name}[:{rows.lstrip(':')}]]; #500 after the path draws rows at random"
        raise DataError(f"there is no split {wanted!r}", hint=hint)
    if wanted is None:
        return splits[_pick(list(splits), None, "split", prefer="train")]
    return tuple(name for part in wanted.split("+") for name in splits[_pick(list(splits), part, "split")])


def _pick(names: Sequence[str], wanted: str | None, kind: str, prefer: str = "") -> str:
    if wanted is None:
        wanted = prefer if prefer in names else names[0] if len(names) == 1 else None
    if wanted in names:
        return str(wanted)
    known = ", ".join(names[:20]) + (" …" if len(names) > 20 else "")
    how = "org/name:SUBSET" if kind == "subset" else "org/name[SPLIT]"
    what = f"it has {len(names)} {kind}s; which one is meant?" if wanted is None else f"it has no {kind} {wanted!r}"
    raise DataError(what, hint=f"{how} with one of: {known}")
