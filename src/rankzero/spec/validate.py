"""A tree of values → a model, or plain sentences about every value that it cannot take. Knows no files or lines."""

from __future__ import annotations

import copy
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rankzero.redaction import looks_secret
from rankzero.spec.fields import OCTAL, Option, field_at, field_options, in_words, keys_of, options_at, step
from rankzero.spec.renames import NOT_HERE, VALUES, Rename, normalised
from rankzero.spec.run_spec import product
from rankzero.spec.unknown_keys import guess
from rankzero.spec.yaml_tree import KeyPath, Scalar, Tree, dotted, with_octal

M = TypeVar("M", bound=BaseModel)
_LONGEST_VALUE = 60


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong at one path."""

    path: KeyPath
    what: str
    hint: str = ""


@dataclass(slots=True)
class Verdict(Generic[M]):
    """The outcome.

    `value` is the model; where there are findings, it is one in which defaults stand for the values in `doubtful`, so
    that rules between the other fields can still be checked, or None where not even that can be built.
    """

    value: M | None
    findings: list[Finding] = field(default_factory=list)
    doubtful: set[str] = field(default_factory=set)


def validate(model: type[M], tree: dict[str, Tree], broken: set[KeyPath], renames: Mapping[str, Rename]) -> Verdict[M]:
    """Check a tree against a model. Paths in `broken` are known to be wrong: nothing more is said of them."""
    findings: list[Finding] = []
    data = _as_python(tree, [Option(model)], (), findings)
    try:
        if not findings and not broken:
            return Verdict(model.model_validate(data))
        model.model_validate(data)
        errors: list[ErrorDetails] = []
    except ValidationError as error:
        errors = error.errors(include_url=False)
    findings = [finding for finding in findings if finding.path not in broken]
    known = broken | {finding.path for finding in findings}
    wrong, unknown, missing = _sorted_out(errors, data)
    meant: set[str] = set()
    for path in unknown:
        hint = guess(model, path, renames)
        meant.add(hint.field)
        findings.append(Finding(path, "unknown key", hint.hint))
    for path in missing:
        if dotted(path) not in meant:  # naming the slip is enough
            findings.append(Finding(path, "required, but not set", _about(model, path)))
    findings += [_wrong_value(model, path, _value_at(data, path)) for path in wrong if path not in known]
    bad = known.union(wrong, unknown, missing)
    return Verdict(_repaired(model, data, bad), findings, {dotted(path) for path in bad} | meant - {""})


def _as_python(tree: Tree, options: list[Option], path: KeyPath, findings: list[Finding]) -> Any:
    """Scalars as the field wants them, sections that were left empty as sections without keys."""
    if isinstance(tree, dict):
        return _section_as_python(tree, options, path, findings)
    if isinstance(tree, list):
        return [_as_python(item, _inside(options, i), (*path, i), findings) for i, item in enumerate(tree)]
    only_sections = options and all(option.section or option.kind is type(None) for option in options)
    if tree.is_empty and only_sections:
        if len(options) == 1:
            return _section_as_python({}, options, path, findings)
        name = dotted(path)  # a section left empty by accident must not switch something off
        hint = f"{name}: {{}} takes its defaults; {name}: null, or no {name} at all, goes without it"
        findings.append(Finding(path, "this section is empty", hint))
    kinds = {option.kind for option in options}
    of_manifests = any(OCTAL in option.limits for option in options)
    value = with_octal(tree) if of_manifests else _scalar_as_python(tree, kinds)
    if isinstance(value, float) and not math.isfinite(value) and kinds == {Any}:  # others are refused by their type
        hint = "JSON has no such number, and a spec is sent as JSON; in quotes it is text"
        findings.append(Finding(path, f"must be a finite number, but is {_shown(value)}", hint))
    return value


def _inside(options: list[Option], key: str | int) -> list[Option]:
    """As `step`; inside of what may be anything is anything."""
    return [option for option in options if option.kind is Any] or step(options, key)


def _section_as_python(
    tree: dict[str, Tree], options: list[Option], path: KeyPath, findings: list[Finding]
) -> dict[str, Any]:
    value = {key: _as_python(item, _inside(options, key), (*path, key), findings) for key, item in tree.items()}
    for option in options:
        for name, info in keys_of(option.section).items() if option.section else ():
            inner = field_options(info)
            if info.is_required() and name not in value and len(inner) == 1 and inner[0].section:
                value[name] = {}  # so that what is missing is named, not just the section it belongs to
    return value


def _scalar_as_python(scalar: Scalar, kinds: set[Any]) -> Any:
    """A field for text takes `2024` or `on` as written; true and false are never numbers."""
    value = scalar.value
    if value is None or isinstance(value, str) or not kinds:
        return value
    text_only = str in kinds and not kinds & {bool, int, float}
    no_number = isinstance(value, bool) and bool not in kinds and kinds & {int, float}
    return scalar.text if text_only or no_number else value


def _sorted_out(errors: list[ErrorDetails], data: Any) -> tuple[list[KeyPath], list[KeyPath], list[KeyPath]]:
    """Paths of wrong values, unknown keys and missing keys, each once.

    Pydantic reports each member of a union by itself; where one of them looked inside the value, it is the member
    that was meant and the others' errors are noise.
    """
    paths = [(error["type"], _path_in(data, error)) for error in errors]
    unknown = [path for kind, path in paths if kind == "extra_forbidden"]
    missing = [path for kind, path in paths if kind == "missing"]
    wrong = [path for kind, path in paths if kind not in ("extra_forbidden", "missing")]
    wrong = [path for path in wrong if not any(len(p) > len(path) and p[: len(path)] == path for _, p in paths)]
    return list(dict.fromkeys(wrong)), list(dict.fromkeys(unknown)), list(dict.fromkeys(missing))


def _path_in(data: Any, error: ErrorDetails) -> KeyPath:
    """Where in the data an error is: its location without the names of union members."""
    path: list[str | int] = []
    for key in error["loc"]:
        if isinstance(data, dict) and key in data or isinstance(data, list) and isinstance(key, int):
            path.append(key)
            data = data[key]  # type: ignore[index]
    if error["type"] == "missing":
        path.append(error["loc"][-1])
    return tuple(path)


def _wrong_value(model: type[BaseModel], path: KeyPath, value: Any) -> Finding:
    options = options_at(model, path)
    words = in_words(options)
    factor = _wrong_factor(model, path, value)
    if factor is not None:
        return Finding((*path, factor), f"must be {words}, but is {_shown(value[factor])}", _about(model, path))
    if any(looks_secret(str(key)) for key in path):  # someone may have written the secret itself here
        return Finding(path, f"must be {words}; what stands there is not shown", _about(model, path))
    choices = [str(c) for option in options if get_origin(option.kind) is Literal for c in get_args(option.kind)]
    near, why = NOT_HERE.get(normalised(value), ("", "")) if isinstance(value, str) else ("", "")
    if near in choices:
        return Finding(path, f"must be {words}, but is {_shown(value)}", why)
    meant = _meant(value, choices)
    if meant is not None:
        return Finding(path, f"must be {words}, but is {_shown(value)}", f"did you mean {meant}?")
    if isinstance(value, str) and any(option.kind == tuple[str, ...] for option in options):
        return Finding(path, f"must be {words}, but is {_shown(value)}", f"a list of one is written [{value}]")
    required = [
        name for option in options if option.section and len(options) == 1 for name in _required(option.section)
    ]
    if isinstance(value, str) and required:
        key = "" if isinstance(path[-1], int) else f"{path[-1]}: "  # an item of a list has none
        return Finding(path, f"must be {words}, but is {_shown(value)}", f"write {key}{{{required[0]}: {value}}}")
    if isinstance(value, bool) and not required and any(option.section for option in options):
        hint = f"write {path[-1]}: {{}} for its defaults" if value else "leave it out"
        return Finding(path, f"must be {words}, but is {_shown(value)}", hint)
    return Finding(path, f"must be {words}, but is {_shown(value)}", _about(model, path))


def _wrong_factor(model: type[BaseModel], path: KeyPath, value: Any) -> int | None:
    """Of a list that a number's field takes for a product: which of its factors keeps it from being one."""
    info = field_at(model, path)
    multiplies = info is not None and any(getattr(one, "func", None) is product for one in info.metadata)
    if not isinstance(value, list) or not multiplies:
        return None
    return next((number for number, one in enumerate(value) if product([one]) == [one]), None)


def _meant(value: Any, choices: list[str]) -> str | None:
    """The choice that other tools call so, or that is spelt alike."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        return None
    name = normalised(str(value)).removeprefix("torch.")
    if VALUES.get(name, name) in choices:
        return VALUES.get(name, name)
    return next(iter(difflib.get_close_matches(name, choices, n=1)), None)


def _required(section: type[BaseModel]) -> list[str]:
    return [name for name, info in keys_of(section).items() if info.is_required()]


def _about(model: type[BaseModel], path: KeyPath) -> str:
    """What the field is, and its default, from the model."""
    info = field_at(model, path)
    if info is None:
        return ""
    about = (info.description or "").replace("\n", " ")
    default = info.default
    if info.is_required() or default is None or isinstance(default, BaseModel):
        return about
    return f"{about} Default: {str(default).lower() if isinstance(default, bool) else default}.".strip()


def _shown(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    text = text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "…"
    return f'"{text}"' if isinstance(value, str) else text


def _value_at(data: Any, path: KeyPath) -> Any:
    for key in path:
        data = data[key]
    return data


def _repaired(model: type[M], data: dict[str, Any], bad: set[KeyPath]) -> M | None:
    """The model that the rest of the data makes, with "?" for what is required."""
    data = copy.deepcopy(data)
    for section, *fields in (path[:2] for path in bad if path):  # deeper, half a value would be left
        inner = data.get(str(section))
        if fields and isinstance(inner, dict):
            inner.pop(fields[0], None)
        else:
            data.pop(str(section), None)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        for item in error.errors():
            *parents, last = item["loc"]
            if item["type"] == "missing":
                holder = data
                for key in parents:
                    holder = holder.setdefault(str(key), {})
                holder[str(last)] = "?"
    try:
        return model.model_validate(data)
    except ValidationError:
        return None
