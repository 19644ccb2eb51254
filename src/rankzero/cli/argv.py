"""Command-line words: before the parser sees them, those that are a spec file and overrides of it, and what the parser
complains of. Light; knows the parser's exceptions by their shape only, since their classes have moved."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankzero.errors import UsageError

_SPREAD = {("train",): "--target-modules", ("data", "fire"): "--splits", ("data", "volcano"): "--splits"}
"""By command. Words of other commands are left alone: `dev run` is given somebody's own command line."""


def spread_values(arguments: Sequence[str]) -> list[str]:
    """`--target-modules a b c` as the flag once for each value, which is how the parser takes several; `--splits` too.

    Values end at the next flag, at a spec file or at a key=value.
    """
    flag = next((flag for command, flag in _SPREAD.items() if tuple(arguments[: len(command)]) == command), None)
    spread: list[str] = []
    i = 0
    while i < len(arguments):
        argument = arguments[i]
        i += 1
        if argument == "--":  # what follows is no flag
            return [*spread, *arguments[i - 1 :]]
        if argument != flag:
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
    return SpecArguments(Path(os.path.expanduser(files[0])) if files else None, overrides)


def no_spec(what: str) -> UsageError:
    """That a command was given no run spec, and which one may be meant."""
    start = "`rankzero init` writes a run spec to start from"
    return UsageError(what, hint="did you mean run.yaml, which is here?" if os.path.isfile("run.yaml") else start)


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


_WITH_SPEC = ("train", "render", "submit", "prepare")
"""Commands that take key=value, so that another tool's flag may be a field."""


def is_parser_error(error: Exception) -> bool:
    """Whether it comes from the parser and speaks of the command line."""
    return hasattr(error, "format_message")


def help_asked_for(error: Exception) -> str | None:
    """The help text where a command was given without anything that it needs."""
    return str(error) if type(error).__name__ == "NoArgsIsHelpError" else None


def as_usage_error(error: Exception) -> UsageError:
    """`--nope: no such option`, with what may have been meant and where the help is."""
    message = str(getattr(error, "format_message", lambda: error)()).rstrip(".")
    context = getattr(error, "ctx", None)
    hint = f"{context.command_path} --help" if context is not None else "rankzero --help"
    option = getattr(error, "option_name", None)
    if type(error).__name__ != "NoSuchOption" or not option:
        return UsageError(message, hint=hint)
    near = " or ".join(sorted(set(getattr(error, "possibilities", None) or ()) - {"--help"}))
    meant = f"did you mean {near}?" if near else ""
    if getattr(context, "info_name", None) in _WITH_SPEC:
        taken = _otherwise(option, context.command_path if context is not None else "")
        meant = taken or _field_for(option, known=True) or meant or _field_for(option)
    return UsageError("no such option", where=option, hint=meant or hint)


_OVERRIDES = ("--set", "--override", "--overrides")
_SPEC_FILES = frozenset({"--config", "--config-file", "--config_file", "--spec", "--file", "-c", "-f"})


def _otherwise(option: str, command: str) -> str:
    """What is said here without a flag, where other tools have one: the spec's file, an override, to go on."""
    if option in _OVERRIDES:
        return f"write key=value alone, without {option}"
    if option in _SPEC_FILES and not command.endswith(" submit"):  # which takes a cluster's file, too
        return f"name the spec file alone: {command} RUN.yaml"
    words = "not needed to continue, which the same command does; resume=new, without dashes, begins another run"
    return words if option == "--resume" else ""


def _field_for(option: str, *, known: bool = False) -> str:
    """Flags of other tools are fields here: `--per_device_train_batch_size`. `known`: none that is only similar."""
    from rankzero.spec.fields import all_fields
    from rankzero.spec.renames import RENAMES, normalised
    from rankzero.spec.run_spec import RunSpec
    from rankzero.spec.unknown_keys import guess

    name = normalised(option.lstrip("-"))
    own = [field for field in all_fields(RunSpec) if name in (field, field.rpartition(".")[2])]
    if len(own) == 1:
        return f"write {own[0]}=VALUE, without dashes"
    if known and name not in RENAMES:
        return ""
    meant = guess(RunSpec, (name,), RENAMES)
    if meant.field and name not in RENAMES:
        return f"write {meant.field}=VALUE, without dashes"
    if name not in RENAMES:
        return ""
    return f"{meant.hint}; write {meant.field}=VALUE" if meant.field else meant.hint
