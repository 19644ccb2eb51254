"""The space of a sweep: each field as choices or as numbers between two ends, values as samplers have them. Pure."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

from pydantic import TypeAdapter, ValidationError

from rankzero.spec.fields import Option, options_at
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.sweep_spec import ParameterSpec

Label: TypeAlias = None | bool | int | float | str
"""A value as a sampler has it: what is no scalar is its JSON."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Some values, in the order in which they were written."""

    values: tuple[Any, ...]
    labels: tuple[Label, ...]
    """Of the values as they were written."""

    def value(self, chosen: Label) -> Any:
        """What a label stands for."""
        return self.values[self.labels.index(chosen)]

    @property
    def points(self) -> tuple[Label, ...] | None:
        """Every label, for a grid."""
        return self.labels

    def to_json(self) -> dict[str, Any]:
        """As a sweep file has it."""
        return {"values": list(self.values)}

    def __str__(self) -> str:
        return ", ".join(repr(value) if isinstance(value, float) else shown(value) for value in self.values)


@dataclass(frozen=True, slots=True)
class Numbers:
    """All numbers from `low` to `high`, or those that are a multiple of `step` away from `low`."""

    low: float
    high: float
    whole: bool
    step: float | None = None
    log: bool = False

    def value(self, chosen: Label) -> Any:
        """The same number."""
        return chosen

    @property
    def steps(self) -> int | None:
        """How many steps of `step` lie between its ends; None where it has none."""
        return None if self.step is None else _steps(self.low, self.high, self.step)

    @property
    def points(self) -> tuple[Label, ...] | None:
        """Every number; None where they cannot be counted."""
        step = self.step or (1 if self.whole and not self.log else None)
        if step is None:
            return None
        found = (_multiple(self.low, step, times) for times in range(_steps(self.low, self.high, step) + 1))
        return tuple(int(number) if self.whole else number for number in found)

    def to_json(self) -> dict[str, Any]:
        """As a sweep file has it."""
        step = {} if self.step is None else {"step": self.step}
        return {"min": self.low, "max": self.high, **step, "log": self.log, "whole": self.whole}

    def __str__(self) -> str:
        kind = "whole numbers" if self.whole else "numbers"
        step = f" in steps of {shown(self.step)}" if self.step is not None else ""
        return f"{kind} from {shown(self.low)} to {shown(self.high)}{step}{', logarithmic' if self.log else ''}"


Space: TypeAlias = "Mapping[str, Choices | Numbers]"
"""By the fields' dotted names, in the order in which they were written."""


def space_of(parameters: Mapping[str, ParameterSpec]) -> Space:
    """The space of parameters that were checked."""
    return {name: _dimension(name, parameter) for name, parameter in parameters.items()}


def _dimension(name: str, parameter: ParameterSpec) -> Choices | Numbers:
    if parameter.values is not None:
        return Choices(tuple(meant(name, value) for value in parameter.values), tuple(map(label, parameter.values)))
    low, high, whole = float(parameter.min or 0), float(parameter.max or 0), is_whole(name)
    if parameter.step is not None:  # so that the last one is a point, too
        high = _multiple(low, parameter.step, _steps(low, high, parameter.step))
    return Numbers(
        int(low) if whole else low,
        int(high) if whole else high,
        whole,
        None if parameter.step is None else int(parameter.step) if whole else parameter.step,
        parameter.log,
    )


def _steps(low: float, high: float, step: float) -> int:
    """How many steps there is room for, counted as they are written: binary fractions would lose the last."""
    return int((_written(high) - _written(low)) // _written(step))


def _multiple(low: float, step: float, times: int) -> float:
    return float(_written(low) + times * _written(step))


def _written(number: float) -> Decimal:
    return Decimal(repr(number))


def meant(name: str, value: Any) -> Any:
    """A value as the run spec has it: text of which its field makes a number, or true or false, is that."""
    kinds = {option.kind for option in options_at(RunSpec, tuple(name.split(".")))}
    for kind in (int, float, bool) if isinstance(value, str) and str not in kinds else ():
        if kind in kinds:
            with suppress(ValidationError):
                return TypeAdapter(kind).validate_python(value)
    return _plain(value)


def takes_text_alone(name: str) -> bool:
    """Whether a field takes text, and neither numbers nor true and false."""
    kinds = {option.kind for option in options_at(RunSpec, tuple(name.split(".")))}
    return str in kinds and not kinds & {bool, int, float}


def is_whole(name: str) -> bool:
    """Whether the numbers that a field takes are whole ones."""
    kinds = _number_kinds(name)
    return int in kinds and float not in kinds


def takes_numbers(name: str) -> bool:
    """Whether a field takes numbers at all."""
    return bool(_number_kinds(name))


def _number_kinds(name: str) -> set[Any]:
    options: list[Option] = options_at(RunSpec, tuple(name.split(".")))
    return {option.kind for option in options} & {int, float}


def label(value: Any) -> Label:
    """A value as samplers have it."""
    plain = value is None or isinstance(value, bool | int | float | str)
    return value if plain else json.dumps(_plain(value), sort_keys=True)


def chosen_values(space: Space, labels: Mapping[str, Label]) -> dict[str, Any]:
    """What is set in the run spec."""
    return {name: space[name].value(labels[name]) for name in space}


def grid(space: Space) -> Iterator[dict[str, Label]]:
    """Every combination, the last field changing fastest. Raises ValueError where a field has no end of values."""
    columns: list[Sequence[Label]] = []
    for name, dimension in space.items():
        if dimension.points is None:
            raise ValueError(name)
        columns.append(dimension.points)
    for point in itertools.product(*columns):
        yield dict(zip(space, point, strict=True))


def grid_size(space: Space) -> int:
    """How many combinations there are. Raises ValueError as `grid`."""
    sizes = []
    for name, dimension in space.items():
        if dimension.points is None:
            raise ValueError(name)
        sizes.append(len(dimension.points))
    return math.prod(sizes)


def shown(value: Any) -> str:
    """A value as a person reads it: numbers short, sections as JSON."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int | float):
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    return value if isinstance(value, str) else json.dumps(_plain(value), ensure_ascii=False)


def exact(value: Any) -> str:
    """A value such that no other one is written so: 1 and 1.0 are the same number."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return value if isinstance(value, str) else json.dumps(_plain(value), ensure_ascii=False, sort_keys=True)


def _plain(value: Any) -> Any:
    """Lists and mappings of JSON, whatever pydantic has made of them."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
