"""Data as it is given from Python: files by their paths, or what stands in data.train. Reads no rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from rankzero.errors import ConfigError, Problem, UsageError

if TYPE_CHECKING:
    from rankzero.spec.load import Reading
    from rankzero.spec.run_spec import SourceSpec

DataSource: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
"""A path as in data.train, or what stands there: {path, format, columns, image_root, header}."""
_IN_MEMORY = "rows are read from files: write them to one, an object a line in .jsonl, and name that"


def sources_of(data: DataSource | Iterable[DataSource]) -> list[SourceSpec]:
    """What was given as data, with a home in its paths as that of who runs this. Raises ConfigError with all that is
    wrong in mappings, UsageError for what is neither a path nor a mapping, as rows are."""
    if isinstance(data, str | os.PathLike | Mapping):
        several: list[object] = [data]
    elif isinstance(data, Iterable) and getattr(data, "ndim", 1) == 1:  # a table's names of columns would be files
        several = list(data)
    else:
        raise _no_source(data, "data")
    names = ["data"] if len(several) == 1 else [f"data[{number}]" for number in range(len(several))]
    readings = [_read(source, name) for source, name in zip(several, names, strict=True)]
    problems = [
        problem if problem.where.startswith(name) else replace(problem, where=f"{name} {problem.where}")
        for name, reading in zip(names, readings, strict=True)
        for problem in reading.problems
    ]
    if problems:
        raise ConfigError(problems)
    return [_at_home(reading.loaded().spec) for reading in readings]


def path_text(given: object, name: str) -> str:
    """A path, or a name on the Hub, as text. Raises UsageError for what is neither."""
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else given
    if not isinstance(text, str) or not text:
        raise UsageError(f"it is {given!r}", where=name, hint="give a path, or a name on the Hub")
    return text


def _read(source: object, name: str) -> Reading[SourceSpec]:
    from rankzero.spec.load import Setting, read_spec
    from rankzero.spec.run_spec import SourceSpec

    if isinstance(source, Mapping):
        if "path" not in source and not set(source) & set(SourceSpec.model_fields):
            raise UsageError("this is a row, or nothing that is known", where=name, hint=_IN_MEMORY)
        settings = [Setting(str(key), value, name, has_variables=True) for key, value in source.items()]
    elif isinstance(source, str | os.PathLike):
        settings = [Setting("path", path_text(source, name), name)]
    else:
        raise _no_source(source, name)
    return read_spec(SourceSpec, None, settings, env=os.environ, renames={})


def _no_source(given: object, name: str) -> UsageError:
    what = f"it is of type {type(given).__name__}, and no path"
    return UsageError([Problem(what, name, f"name a file, or give {{'path': …, 'format': …}}; {_IN_MEMORY}")])


def _at_home(source: SourceSpec) -> SourceSpec:
    root = source.image_root
    places = {
        "path": os.path.expanduser(source.path),
        "image_root": None if root is None else os.path.expanduser(root),
    }
    return source.model_copy(update=places)
