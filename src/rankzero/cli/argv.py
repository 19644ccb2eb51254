"""Command-line words: before the parser sees them, and those that are a spec file and overrides of it. Light."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankzero.errors import UsageError

_SPREAD = ("--target-modules", "--splits")


def spread_values(arguments: Sequence[str]) -> list[str]:
    """`--target-modules a b c` as the flag once for each value, which is how the parser takes several; `--splits` too.

    Values end at the next flag, at a spec file or at a key=value.
    """
    spread: list[str] = []
    i = 0
    while i < len(arguments):
        argument = arguments[i]
        i += 1
        if argument not in _SPREAD:
            spread.append(argument)
            continue
        first = i
        while i < len(arguments) and not _ends_values(arguments[i]):
            spread += [argument, arguments[i]]
            i += 1
        if i == first:
            spread.append(argument)  # without a value: the parser says so
    return spread


def _ends_values(argument: str) -> bool:
    return argument.startswith("-") or "=" in argument or argument.endswith((".yaml", ".yml"))


@dataclass(frozen=True, slots=True)
class SpecArguments:
    """`RUN.yaml key=value …`, taken apart."""

    file: Path | None
    overrides: tuple[str, ...]


def spec_arguments(arguments: Sequence[str]) -> SpecArguments:
    """Which argument is the spec file, and which are overrides. Raises UsageError for what can be neither."""
    files = [argument for argument in arguments if "=" not in argument]
    if len(files) > 1 or any(argument.startswith("=") for argument in arguments):
        raise _too_many(arguments, files)
    if files:
        _require_spec(files[0])
    overrides = tuple(argument for argument in arguments if "=" in argument)
    return SpecArguments(Path(files[0]) if files else None, overrides)


def _too_many(arguments: Sequence[str], files: Sequence[str]) -> UsageError:
    for index, word in enumerate(arguments):  # key = value, key =value
        if word.startswith("=") and index:
            value = word[1:] or next(iter(arguments[index + 1 :]), "")
            joined = f"{arguments[index - 1]}={value}"
            return UsageError(f"an override is one word: {joined}", hint=f"write {joined}, without spaces around =")
        if word.endswith("=") and arguments[index + 1 : index + 2] and arguments[index + 1] in files:
            joined = word + arguments[index + 1]
            return UsageError(f"an override is one word: {joined}", hint=f"write {joined}, without spaces around =")
    if not files:
        return UsageError(f"cannot read {arguments[0]!r}", hint="overrides look like key=value")
    return UsageError(f"one run spec, not {len(files)}: {' '.join(files)}", hint="overrides look like key=value")


def _require_spec(name: str) -> None:
    """Raise UsageError for a file that is no spec by its name."""
    from rankzero.spec.data_paths import FILE_SUFFIXES, PACKED_SUFFIXES

    if name.lower().endswith(tuple(suffix for suffix in FILE_SUFFIXES if suffix != ".json") + PACKED_SUFFIXES):
        hint = f"rankzero train RUN.yaml data.train={name}; or, without a spec: --model MODEL --data {name} --lora"
        raise UsageError("this is data, not a run spec", where=name, hint=hint)
    if os.path.isdir(name):
        inside = os.path.join(name, "run.yaml")
        hint = f"did you mean {inside}?" if os.path.isfile(inside) else f"a model is given by model.name={name}"
        raise UsageError("this is a directory, not a run spec", where=name, hint=hint)
