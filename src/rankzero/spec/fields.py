"""What a spec's models accept where: fields by path, their types in words. Knows nothing of files or errors."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rankzero.spec.names import PATTERNS_IN_WORDS
from rankzero.spec.yaml_tree import KeyPath

_MOST_KEYS_SHOWN = 4


OCTAL = "octal"
"""Marks a field whose YAML is a part of a manifest, where a number that begins with 0 is octal."""


@dataclass(frozen=True, slots=True)
class Option:
    """One member of a field's union, with the limits on it."""

    kind: Any
    limits: tuple[Any, ...] = ()

    @property
    def section(self) -> type[BaseModel] | None:
        """The model, where this member is one."""
        return self.kind if isinstance(self.kind, type) and issubclass(self.kind, BaseModel) else None


def keys_of(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model by the names they are written with (`class` is not a Python name)."""
    return {info.alias or name: info for name, info in section.model_fields.items()}


def options_of(annotation: object, limits: tuple[Any, ...] = ()) -> list[Option]:
    """The members of a type annotation; one unless it is a union."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *extra = get_args(annotation)
        return options_of(inner, (*limits, *extra))
    if origin in (Union, types.UnionType):
        return [option for member in get_args(annotation) for option in options_of(member)]
    return [Option(annotation, limits)]


def field_options(info: FieldInfo) -> list[Option]:
    """The members of a field's type."""
    return options_of(info.annotation, tuple(info.metadata))


def step(options: list[Option], key: str | int) -> list[Option]:
    """What is accepted one key further down; empty where there is no such key."""
    found: list[Option] = []
    for option in options:
        if option.section and key in keys_of(option.section):
            found += field_options(keys_of(option.section)[str(key)])
        elif get_origin(option.kind) is tuple and isinstance(key, int):
            found += options_of(get_args(option.kind)[0])
        elif get_origin(option.kind) is dict and isinstance(key, str):
            found += options_of(get_args(option.kind)[1])
    return found


def options_at(model: type[BaseModel], path: KeyPath) -> list[Option]:
    """What is accepted at `path`; empty where the model has no such field."""
    options = [Option(model)]
    for key in path:
        options = step(options, key)
    return options


def sections_at(model: type[BaseModel], path: KeyPath) -> list[type[BaseModel]]:
    """The models that may stand at `path`."""
    return [option.section for option in options_at(model, path) if option.section]


def field_at(model: type[BaseModel], path: KeyPath) -> FieldInfo | None:
    """The field that a path ends in."""
    for section in sections_at(model, path[:-1]):
        if path[-1] in keys_of(section):
            return keys_of(section)[str(path[-1])]
    return None


def all_fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every field by its dotted name, sections before what is in them; list items as `data.train[].path`."""
    for name, info in keys_of(model).items():
        yield f"{prefix}{name}"
        for option in field_options(info):
            if option.section:
                yield from all_fields(option.section, f"{prefix}{name}.")
            elif get_origin(option.kind) is tuple:
                for item in options_of(get_args(option.kind)[0]):
                    if item.section:
                        yield from all_fields(item.section, f"{prefix}{name}[].")
            elif get_origin(option.kind) is dict:
                for item in options_of(get_args(option.kind)[1]):
                    if item.section:
                        yield from all_fields(item.section, f"{prefix}{name}.*.")


def in_words(options: list[Option]) -> str:
    """`auto` or a whole number of at least 1."""
    words: list[str] = []
    for option in options:
        if get_origin(option.kind) is Literal:
            words += [f"`{value}`" for value in get_args(option.kind)]
        elif option.kind is not type(None):
            words.append(_kind_in_words(option))
    if len(words) < 2:
        return "".join(words) or "null"
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _kind_in_words(option: Option) -> str:
    if option.section:
        keys = list(keys_of(option.section))
        if len(keys) <= _MOST_KEYS_SHOWN:
            return "{" + ", ".join(keys) + "}"
        return f"a section with keys such as {keys[0]}"
    if get_origin(option.kind) is tuple:
        items = options_of(get_args(option.kind)[0])
        if len(items) == 1 and items[0].section is not None:
            keys = list(keys_of(items[0].section))
            more = ["…"] if len(keys) > _MOST_KEYS_SHOWN else []
            return "a list of {" + ", ".join([*keys[:_MOST_KEYS_SHOWN], *more]) + "}"
        least = max((getattr(limit, "min_length", None) or 0 for limit in _flat(option.limits)), default=0)
        return f"a list of {in_words(items)}" + (f" with at least {least} items" if least > 1 else "")
    if get_origin(option.kind) is dict:
        return "a mapping"
    limits = _limits_in_words(option.limits)
    if option.kind is int or option.kind is float:
        return ("a whole number" if option.kind is int else "a number") + limits
    return limits or {bool: "true or false", str: "text", Any: "any value"}.get(option.kind, "another type")


def _limits_in_words(limits: tuple[Any, ...]) -> str:
    """` of at least 0 and below 1`; for text with a pattern, the pattern's rule."""
    words = []
    for limit in _flat(limits):
        if getattr(limit, "pattern", None):
            return PATTERNS_IN_WORDS.get(limit.pattern, f"text like {limit.pattern}")
        for name, text in (("ge", "of at least"), ("gt", "above"), ("le", "of at most"), ("lt", "below")):
            bound = getattr(limit, name, None)
            if bound is not None:
                words.append(f"{text} {bound}")
    return " " + " and ".join(words) if words else ""


def _flat(limits: tuple[Any, ...]) -> Iterator[Any]:
    for limit in limits:
        yield from limit.metadata if isinstance(limit, FieldInfo) else (limit,)
