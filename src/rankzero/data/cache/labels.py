"""Labels of rows as classes by number. Knows rows and their label texts; nothing of models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rankzero.data.cache.dataset import Indices, Int32, RowLabels
from rankzero.errors import DataError, Problem

_SHOWN = 20


class Labelled(Protocol):
    """Rows with labels, by number."""

    def __len__(self) -> int: ...
    @property
    def label_names(self) -> RowLabels: ...
    def where(self, i: int) -> str: ...


@dataclass(frozen=True, slots=True)
class RowsWithLabels:
    """Rows that are no data set yet."""

    label_names: RowLabels
    places: Sequence[str]
    """`train.jsonl:812`."""

    def __len__(self) -> int:
        return len(self.places)

    def where(self, i: int) -> str:
        return self.places[i]


def classes_of(train: Labelled | None, evaluation: Labelled | None, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    """The classes by number of a run. `train` is None of a stream, of which `wanted` names them. Raises DataError as
    `label_set` and `label_codes` do."""
    rows = [part for part in (train, evaluation) if part is not None]
    labels = wanted or label_set(rows[0], None)
    for part in rows:
        if len(part):
            label_codes(part, labels, numbers=wanted is not None)
    return labels


def label_set(dataset: Labelled, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    """The classes by number: `wanted` as it stands, else the names that the rows have, in order.

    Whole numbers are ordered by their value where all names are such, other names by their characters. Raises
    DataError where that is not at least two.
    """
    if wanted is not None:
        return wanted
    found = dataset.label_names
    names = [found.names[code] for code in np.unique(found.codes) if code >= 0]
    if len(names) < 2:
        only = f"only one: {names[0]!r}" if names else "none"
        hint = "a classifier needs rows of at least two classes; data.labels names those that no row has"
        raise DataError(f"the labels of the rows to train on are {only}", where="data.train", hint=hint)
    return tuple(sorted(names, key=_order if all(map(_is_number, names)) else None))


def label_codes(dataset: Labelled, labels: tuple[str, ...], *, numbers: bool = True) -> Int32:
    """The class of each row, as its place in `labels`.

    A row's label is a name, or with `numbers` a place itself, unless the names are numbers. Raises DataError with the
    first rows of every label that is neither.
    """
    found = dataset.label_names
    places = {name: place for place, name in enumerate(labels)}
    if numbers and not any(map(_is_number, labels)):
        places |= {str(place): place for place in range(len(labels))}
    codes = np.array([*(places.get(name, -1) for name in found.names), -1], dtype=np.int32)[found.codes]
    unknown = np.flatnonzero(codes < 0)
    if len(unknown):
        raise DataError(_unknown(dataset, unknown, labels))
    return codes


def _unknown(dataset: Labelled, rows: Indices, labels: tuple[str, ...]) -> list[Problem]:
    """One problem for each label that is not known, at its first row."""
    _, first, counts = np.unique(dataset.label_names.codes[rows], return_index=True, return_counts=True)
    known = ", ".join(labels[:_SHOWN]) + (", …" if len(labels) > _SHOWN else "")
    hint = f"the classes are {known}; data.labels lists them, in the order of their numbers"
    problems: list[Problem] = []
    for at, count in sorted(zip(first.tolist(), counts.tolist(), strict=True))[:_SHOWN]:
        row = int(rows[at])
        name = dataset.label_names[row]
        what = "the row has no label" if name is None else f"label {name!r} is none of the classes"
        more = f" ({count} rows have it)" if count > 1 and name is not None else ""
        problems.append(Problem(what + more, dataset.where(row), "" if problems else hint))
    return problems


def _is_number(name: str) -> bool:
    return re.fullmatch(r"-?[0-9]+", name) is not None


def _order(name: str) -> tuple[int, str]:
    return int(name), name
