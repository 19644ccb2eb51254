"""The fields of a run spec that name files of this machine, and what a relative one is relative to.

A relative path that a file says is relative to that file; one from the command line is relative to the working
directory. A spec as it is read has all of them relative to one base, so that the same spec is the same run wherever
the command is typed; what a process is given has them absolute. Looks at which names exist, and reads nothing.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rankzero.spec.data_paths import FILE_SUFFIXES, parse_data_path, without_protocol
from rankzero.spec.names import PLAIN_TEMPLATE

if TYPE_CHECKING:
    from rankzero.spec.run_spec import DataSpec, RunSpec, SourceSpec

PathKind = Literal["model", "data", "file", "directory", "output"]
"""model: a directory, a .gguf file or a Hub id; data: as `data.train[].path`; output: where run directories are."""


@dataclass(frozen=True, slots=True)
class PathField:
    """One field that may name something here."""

    field: str
    """Dotted: `data.train[1].path`."""
    kind: PathKind
    text: str


@dataclass(frozen=True, slots=True)
class LocalPart:
    """What of a field's text is a path here, and what stands after it: `#500`."""

    path: str
    rest: str = ""


def with_paths(spec: RunSpec, change: Callable[[PathField], str]) -> RunSpec:
    """The spec with each of these fields as `change` has it."""

    def put(field: str, kind: PathKind, text: str | None) -> str | None:
        return None if text is None else change(PathField(field, kind, text))

    model = spec.model.model_copy(
        update={
            "name": put("model.name", "model", spec.model.name) if spec.model.local_dir is None else spec.model.name,
            "local_dir": put("model.local_dir", "directory", spec.model.local_dir),
            "tokenizer_dir": put("model.tokenizer_dir", "directory", spec.model.tokenizer_dir),
        }
    )
    return spec.model_copy(
        update={
            "model": model,
            "data": _data_with_paths(spec.data, put),
            "train": spec.train.model_copy(
                update={"deepspeed": put("train.deepspeed", "file", spec.train.deepspeed)},
            ),
            "eval": spec.eval.model_copy(
                update={
                    "prompts": put("eval.prompts", "data", spec.eval.prompts)
                    if isinstance(spec.eval.prompts, str)
                    else spec.eval.prompts
                }
            ),
            "output_dir": put("output_dir", "output", spec.output_dir),
        }
    )


def _data_with_paths(data: DataSpec, put: Callable[[str, PathKind, str | None], str | None]) -> DataSpec:
    def sources(value: object, field: str) -> object:
        if isinstance(value, str):
            return put(field, "data", value)
        if isinstance(value, tuple):
            return tuple(source(item, f"{field}[{index}]") for index, item in enumerate(value))
        return value

    def source(value: SourceSpec, field: str) -> SourceSpec:
        return value.model_copy(
            update={
                "path": put(f"{field}.path", "data", value.path),
                "image_root": put(f"{field}.image_root", "directory", value.image_root),
            }
        )

    return data.model_copy(
        update={
            "train": sources(data.train, "data.train"),
            "eval": sources(data.eval, "data.eval"),
            "chat_template": data.chat_template
            if data.chat_template == PLAIN_TEMPLATE
            else put("data.chat_template", "file", data.chat_template),
        }
    )


def path_fields(spec: RunSpec) -> list[PathField]:
    """All of them that are set, in the order of the spec."""
    found: list[PathField] = []

    def note(field: PathField) -> str:
        found.append(field)
        return field.text

    with_paths(spec, note)
    return found


def local_part(field: PathField, base: Path) -> LocalPart | None:
    """The path in a field whose relative paths are relative to `base`; None for a Hub id or a URL."""
    text = field.text
    if field.kind == "model":
        is_path = text.endswith(".gguf") or text.startswith((".", "/", "~")) or text.count("/") > 1
        return LocalPart(text) if is_path or os.path.exists(base / text) else None
    if field.kind == "data":
        meant = parse_data_path(text, lambda path: os.path.exists(in_base(path, base)))
        if meant.place != "local":
            return None
        return LocalPart(meant.path, "" if meant.sample is None else f"#{meant.sample}")
    return None if "://" in text else LocalPart(text)


def path_read(field: PathField, base: Path) -> str | None:
    """The absolute path, or the pattern, of what a field has read; None for what is not here."""
    if field.kind == "data":
        meant = without_protocol(parse_data_path(field.text, lambda path: os.path.exists(in_base(path, base))))
        return in_base(meant.path, base) if meant.place == "local" else None
    part = local_part(field, base)
    return None if part is None else in_base(part.path, base)


def in_base(path: str, base: Path) -> str:
    """The path as an absolute one. `~` is the user's home; a pattern stays one, whatever the base is called."""
    path = os.path.expanduser(path)
    if os.path.isabs(path):
        return path
    return os.path.join(glob.escape(str(base)), path) if is_pattern(path, base) else plain(os.path.join(base, path))


def is_pattern(path: str, base: Path) -> bool:
    """Whether it stands for all files that match it. A name that exists is that file."""
    return glob.has_magic(path) and not os.path.exists(os.path.join(base, path))


def stands_for(path: str, file: Path) -> bool:
    """Whether data at an absolute path, pattern or directory, are in this file among others."""
    if os.path.isdir(path):
        return file.suffix in FILE_SUFFIXES and Path(os.path.realpath(file)).is_relative_to(os.path.realpath(path))
    matched = glob.glob(path, recursive=True) if glob.has_magic(path) else ()
    return any(os.path.realpath(found) == os.path.realpath(file) for found in matched)


def is_there(path: str) -> bool:
    """Whether something is at a path, or matches a pattern."""
    return os.path.exists(path) or bool(glob.glob(path))


def is_gone(path: str) -> bool:
    """Whether nothing is there. Of what is in a directory that may not be entered nobody knows it."""
    try:
        os.stat(path)
    except PermissionError:
        return False
    except (OSError, ValueError):  # also of a server that is gone, for which data move
        return not glob.glob(path)
    return False


def absolute(spec: RunSpec, base: Path) -> RunSpec:
    """What a process is given: no path in it depends on where the process runs."""

    def change(field: PathField) -> str:
        part = local_part(field, base)
        return field.text if part is None else in_base(part.path, base) + part.rest

    return with_paths(spec, change)


def at_home(spec: RunSpec, *, shared: bool) -> RunSpec:
    """What is read elsewhere, where `~` would be another home or a name: in it, this user's. `shared`: those who read
    it have this one, so that a model may lie in it."""

    def change(field: PathField) -> str:
        return field.text if shared and field.kind == "model" else os.path.expanduser(field.text)

    return with_paths(spec, change)


def moved(spec: RunSpec, fields: Iterable[str], old: Path, new: Path) -> RunSpec:
    """The spec with the paths of these fields, which are relative to `old`, relative to `new` as the others are."""
    wanted, source, target = set(fields), os.path.realpath(old), os.path.realpath(new)

    def change(field: PathField) -> str:
        part = local_part(field, old) if field.field in wanted else None
        if part is None or os.path.isabs(os.path.expanduser(part.path)):
            return field.text
        if is_pattern(part.path, old):
            text = os.path.join(glob.escape(os.path.relpath(source, target)), part.path)
        else:
            text = os.path.relpath(plain(os.path.join(source, part.path)), target)
        again = local_part(PathField(field.field, field.kind, text + part.rest), new)
        return (text if again is not None else os.path.join(".", text)) + part.rest  # ./a/b is no Hub id

    return with_paths(spec, change)


def plain(path: str) -> str:
    """Without `..`, except where a link gives it another meaning."""
    short = os.path.normpath(path)
    return short if os.path.realpath(short) == os.path.realpath(path) else path
