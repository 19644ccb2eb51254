"""run.yaml + settings from the command line → a RunSpec and where each value came from, or every problem at once.

Reads the spec file and nothing else; the environment is handed in. Relative paths that were typed are made relative
to the file, as those in it are.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel

from rankzero.errors import ConfigError, Problem, UsageError
from rankzero.spec.checks import check
from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.fields import keys_of, options_at
from rankzero.spec.local_paths import moved, path_fields, plain
from rankzero.spec.renames import RENAMES, Rename
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.validate import validate
from rankzero.spec.yaml_tree import Document, KeyPath, Origin, Scalar, Tree, as_tree, dotted, parse

COMMAND_LINE = "command line"
OVERRIDE = re.compile(r"(?P<field>[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*)=(?P<value>.*)", re.DOTALL)
"""What tells `train.max_steps=10` from a path."""

M = TypeVar("M", bound=BaseModel)
Check = Callable[[M, Collection[str]], list[Problem]]


@dataclass(frozen=True, slots=True)
class Setting:
    """A value from outside the file. `source` names it in errors: `--seq-len`."""

    field: str
    value: object
    source: str
    keep_existing: bool = False
    """Only where the file says nothing, or null."""
    has_variables: bool = False
    """`${NAME}` in its texts is read, as where it is typed."""


@dataclass(frozen=True, slots=True)
class Loaded(Generic[M]):
    """A spec, and the origin of every key that was written."""

    spec: M
    origins: Mapping[KeyPath, Origin] = field(repr=False)
    base: Path = field(default_factory=Path.cwd)
    """Absolute. What relative paths in `spec` are relative to: the file's directory, or the working directory."""

    def where(self, name: str) -> str:
        """`run.yaml:14 data.max_length`; the section's line where the field itself was not written."""
        return self.place(key_path(name))

    def place(self, path: KeyPath) -> str:
        """As `where`, of keys that may have dots in them."""
        return _where(self.origins, path)

    def source(self, name: str) -> str | None:
        """The file or flag that wrote this very field or section; None where it is a default."""
        origin = self.origins.get(key_path(name))
        return None if origin is None else origin.source


@dataclass(frozen=True, slots=True)
class Reading(Generic[M]):
    """What a file and settings came to, right or wrong, so that more can be looked at before anything is said."""

    found: Loaded[M] | None
    """Where there are problems, a spec with defaults for what is in `doubtful`; None where there is not even that."""
    problems: tuple[Problem, ...] = ()
    doubtful: frozenset[str] = frozenset()

    def loaded(self) -> Loaded[M]:
        """The spec. Raises ConfigError with every problem."""
        if self.problems or self.found is None:
            raise ConfigError(in_reading_order(self.problems))
        return self.found


def load_run_spec(
    path: Path | None, overrides: Sequence[str | Setting] = (), *, env: Mapping[str, str]
) -> Loaded[RunSpec]:
    """The run spec in `path` (None: an empty one) with `overrides` on top, the last one winning.

    An override is `train.max_steps=10` (its value is YAML) or a Setting. Raises UsageError for an override that
    cannot be read, and ConfigError with every problem of file and values.
    """
    return read_run_spec(path, overrides, env=env).loaded()


def read_run_spec(
    path: Path | None, overrides: Sequence[str | Setting] = (), *, env: Mapping[str, str], for_pods: bool = False
) -> Reading[RunSpec]:
    """As load_run_spec, with the problems in the result. What cannot be read at all is raised as there.

    `for_pods`: a relative output_dir is on a volume of theirs, wherever it was written.
    """
    reading = read_spec(RunSpec, path, overrides, env=env, renames=RENAMES, check=check)
    found = reading.found
    if found is None or found.base == Path.cwd():
        return reading
    names = [field.field for field in path_fields(found.spec) if not (for_pods and field.kind == "output")]
    typed = [name for name in names if not _is_of(found, name, path)]
    return replace(reading, found=replace(found, spec=moved(found.spec, typed, Path.cwd(), found.base)))


def _is_of(found: Loaded[RunSpec], name: str, path: Path | None) -> bool:
    """Whether a value is the file's own: written in it, or a default of what it left out."""
    at = key_path(name)
    written = (found.origins.get(at[:length]) for length in range(len(at), 0, -1))
    origin = next((origin for origin in written if origin is not None), None)
    return origin is None or origin.implied or origin.source == str(path)


def _by_dots(name: str) -> KeyPath:
    return tuple(name.split("."))


def load_spec(
    model: type[M],
    path: Path | None,
    overrides: Sequence[str | Setting] = (),
    *,
    env: Mapping[str, str],
    renames: Mapping[str, Rename],
    check: Check[M] | None = None,
) -> Loaded[M]:
    """As load_run_spec, for any model with its own table of names and rules."""
    return read_spec(model, path, overrides, env=env, renames=renames, check=check).loaded()


_STARTS = {
    "RunSpec": "`rankzero init` writes one to start from",
    "ClusterSpec": "`rankzero init --recipe NAME` writes one to start from",
    "SweepSpec": "docs/sweeps.md has one to start from",
    "InfraSpec": "`rankzero init --recipe distilbert-sst2` writes one to start from",
}
"""Where the first file of each kind comes from."""


def read_spec(
    model: type[M],
    path: Path | None,
    overrides: Sequence[str | Setting] = (),
    *,
    env: Mapping[str, str],
    renames: Mapping[str, Rename],
    check: Check[M] | None = None,
    keys: Callable[[str], KeyPath] = _by_dots,
) -> Reading[M]:
    """As load_spec, with the problems in the result. `keys` are those that a typed name leads along."""
    draft = _Draft()
    if path is not None:
        draft = _read_file(path, env, _STARTS.get(model.__name__, ""))
        _require_kind(model, draft.tree, path)
    for override in overrides:
        if isinstance(override, Setting):
            draft.put(override, model, env)
        else:
            draft.merge(_parse_override(override, env, keys), model)
    verdict = validate(model, draft.tree, draft.broken, renames)
    problems = list(draft.problems)
    problems += [
        (finding.path, Problem(finding.what, _where(draft.origins, finding.path), finding.hint))
        for finding in verdict.findings
    ]
    if check is not None and verdict.value is not None:
        for problem in check(verdict.value, verdict.doubtful):
            at = key_path(problem.where)
            problems.append((at, Problem(problem.what, _where(draft.origins, at), problem.hint)))
    found = None if verdict.value is None else Loaded(verdict.value, draft.origins, base_of(path))
    return Reading(found, tuple(problem for _, problem in problems), frozenset(verdict.doubtful))


def base_of(path: Path | None) -> Path:
    """What relative paths in a file are relative to: its directory. Of a pipe, the working directory."""
    if path is None or not path.is_file() or str(path).startswith(("/dev/", "/proc/")):
        return Path.cwd()
    return Path(plain(str(Path.cwd() / path.parent)))


def key_path(name: str) -> KeyPath:
    """`data.train[0].path` as the keys that lead there."""
    keys = re.findall(r"[^.\[\]]+|\[\d+\]", name)
    return tuple(int(key[1:-1]) if key.startswith("[") else key for key in keys)


@dataclass(slots=True)
class _Draft:
    """What has been written so far, from whatever source."""

    tree: dict[str, Tree] = field(default_factory=dict)
    origins: dict[KeyPath, Origin] = field(default_factory=dict)
    problems: list[tuple[KeyPath, Problem]] = field(default_factory=list)
    broken: set[KeyPath] = field(default_factory=set)

    def put(self, setting: Setting, model: type[BaseModel], env: Mapping[str, str]) -> None:
        """Put a value of the program's in its place."""
        path = tuple(setting.field.split("."))
        if setting.keep_existing and not _is_null(self._get(path)):
            return
        document = Document(as_tree(setting.value), path, {path: Origin(setting.source)})
        if setting.has_variables:
            document.expand(env)
        self.merge(document, model)

    def merge(self, document: Document, model: type[BaseModel]) -> None:
        """Put a value in its place, making the sections above it where they are missing.

        `data.eval.fraction=0.1` replaces a path that the file gives for data.eval. Where the file has something else
        in place of a section that must be one, that stays, to be complained of.
        """
        holder, path = self.tree, document.base
        for depth, key in enumerate(path[:-1], start=1):
            inner = holder.get(str(key))
            if not isinstance(inner, dict):
                if not _is_null(inner) and all(option.section for option in options_at(model, path[:depth])):
                    return
                self._forget(path[:depth])
                self.origins[path[:depth]] = replace(document.origins[path], implied=True)
                holder[str(key)] = inner = {}
            holder = inner
        self._forget(path)
        holder[str(path[-1])] = document.tree
        self.origins |= document.origins
        self.problems += document.problems
        self.broken |= document.broken

    def _get(self, path: KeyPath) -> Tree | None:
        value: Tree | None = self.tree
        for key in path:
            value = value.get(str(key)) if isinstance(value, dict) else None
        return value

    def _forget(self, path: KeyPath) -> None:
        """Drop what was known of a value that is being replaced."""
        self.origins = {at: origin for at, origin in self.origins.items() if at[: len(path)] != path}
        self.problems = [(at, problem) for at, problem in self.problems if at[: len(path)] != path]
        self.broken = {at for at in self.broken if at[: len(path)] != path}


def _is_null(value: Tree | None) -> bool:
    return value is None or (isinstance(value, Scalar) and value.value is None)


def _parse_override(text: str, env: Mapping[str, str], keys: Callable[[str], KeyPath]) -> Document:
    match = OVERRIDE.fullmatch(text)
    if match is None:
        raise UsageError(f"cannot read {text!r}", where=COMMAND_LINE, hint="write key=value: train.max_steps=100")
    path = keys(match["field"])
    try:
        document = parse(match["value"], source=COMMAND_LINE, env=env, base=path, with_lines=False)
    except ConfigError as error:
        hint = f"put quotes around it: '{match['field']}=\"{match['value']}\"'"
        what = f"the value is {error.problems[0].what}"
        raise UsageError(what, where=f"{COMMAND_LINE} {match['field']}", hint=hint) from error
    return document or Document(Scalar("", None), path, {path: Origin(COMMAND_LINE)})


def _read_file(path: Path, env: Mapping[str, str], start: str) -> _Draft:
    """`start`: where a file of this kind comes from."""
    name = str(path)
    document = parse(_read_text(path, start), source=name, env=env)
    if document is None:
        raise ConfigError("the file is empty", where=name, hint=start)
    if not isinstance(document.tree, dict):
        hint = "the smallest run spec is\n    model: {name: Qwen/Qwen3-0.6B}\n    data: {train: train.jsonl}"
        raise ConfigError("the file must hold sections such as model: and data:", where=name, hint=hint)
    return _Draft(document.tree, document.origins, document.problems, document.broken)


def _require_kind(model: type[BaseModel], tree: Mapping[str, Tree], path: Path) -> None:
    """Raise ConfigError where a file is clearly the other kind of spec, rather than calling all its keys unknown."""
    kinds: dict[type[BaseModel], tuple[str, str]] = {
        RunSpec: ("run spec", "rankzero train FILE"),
        ClusterSpec: ("cluster spec", "--cluster FILE"),
    }
    other = next((kind for kind in kinds if kind is not model), None)
    if model not in kinds or other is None or set(keys_of(model)) & set(tree):
        return
    if len(set(keys_of(other)) & set(tree)) > 1:
        (own, _), (its, use) = kinds[model], kinds[other]
        hint = f"what takes it: {use.replace('FILE', str(path))}"
        raise ConfigError(f"this is a {its}, not a {own}", where=str(path), hint=hint)


def _read_text(path: Path, start: str) -> str:
    """The file's text. Raises ConfigError that says why it cannot be had."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError("no such file", where=str(path), hint=_files_like(path) or start) from error
    except IsADirectoryError as error:
        raise ConfigError("this is a directory", where=str(path), hint="name the run spec in it") from error
    except OSError as error:
        raise ConfigError(f"cannot read it: {error.strerror or error}", where=str(path)) from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError("not UTF-8", where=f"{path}:{line}", hint="save the file as UTF-8") from error


def _files_like(path: Path) -> str | None:
    beside = {entry.stem: entry for entry in path.parent.glob("*.y*ml")}
    close = difflib.get_close_matches(path.stem, beside, n=1, cutoff=0.7)
    return f"did you mean {beside[close[0]]}?" if close else None


def _where(origins: Mapping[KeyPath, Origin], path: KeyPath) -> str:
    for length in range(len(path), -1, -1):
        origin = origins.get(path[:length])
        if origin is not None and not origin.implied:
            return origin.at(path)
    return dotted(path)


def in_reading_order(problems: Iterable[Problem]) -> list[Problem]:
    """By line of the file; what has no line comes last."""

    def line(problem: Problem) -> float:
        match = re.match(r".*?:(\d+) ", problem.where)
        return int(match[1]) if match else math.inf

    return sorted(problems, key=line)
