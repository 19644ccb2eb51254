"""A run spec from a file or a mapping: checked, with every problem at once. Light; imports no torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from rankzero.api.arguments import require_kind
from rankzero.api.places import place, places_told

if TYPE_CHECKING:
    from rankzero.errors import Problem
    from rankzero.preflight import Part
    from rankzero.spec.load import Reading
    from rankzero.spec.run_spec import RunSpec

SpecSource: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any] | RunSpec"
"""A run.yaml, what would stand in one, or what `load_spec` gave."""


@places_told()
def load_spec(source: SpecSource, overrides: Mapping[str, object] | None = None) -> RunSpec:
    """The run spec in a file or a mapping, with `overrides` on top: its name decided, its paths absolute.

    Paths in a file are relative to it, others to the working directory. `${NAME}` in a text, wherever it is given, is
    the environment's; `$${` stands for `${`. A spec that was loaded is taken as it is.
    What the spec names (data files, the model's directory) is looked at. Raises ConfigError, or the error of the worst
    finding, with every problem; UsageError where an override names no field.

    >>> spec = load_spec({"model": {"name": "Qwen/Qwen3-0.6B"}, "data": {"train": "org/rows"}, "lora": {"r": 8}},
    ...                  {"train.max_steps": 10})
    >>> spec.train.max_steps, spec.lora.r, spec.name[:16]
    (10, 8, 'qwen3-0-6b-lora-')

    What is wrong is said all at once, each with its place:

    >>> load_spec({"model": {"name": "Qwen/Qwen3-0.6B"}, "data": {"train": "org/rows"}}, {"train.max_step": 10})
    Traceback (most recent call last):
    ...
    rankzero.errors.ConfigError: overrides train.max_step: unknown key
      hint: did you mean train.max_steps?
    """
    return checked(read(source, overrides), ("paths",))


def read(
    source: SpecSource, overrides: Mapping[str, object] | None = None, *, for_pods: bool = False
) -> Reading[RunSpec]:
    """As `load_spec`, with what is wrong in the result, and paths as they were written. Raises ConfigError for a file
    that cannot be read at all."""
    from rankzero.spec.load import Setting, read_run_spec
    from rankzero.spec.run_spec import RunSpec

    require_kind(overrides, (Mapping, type(None)), "overrides", "give a mapping: {'train.max_steps': 100}")
    was_loaded = isinstance(source, RunSpec)  # a ${ in it is there because it was written $${
    if isinstance(source, RunSpec):
        source = source.model_dump(mode="json")
    require_kind(source, (str, os.PathLike, Mapping), "spec", "give a run.yaml, or a mapping of what stands in one")
    settings = [Setting(name, value, "overrides", has_variables=True) for name, value in (overrides or {}).items()]
    if isinstance(source, Mapping):
        given = [Setting(str(name), value, "spec", has_variables=not was_loaded) for name, value in source.items()]
        settings = [*given, *settings]
        return read_run_spec(None, settings, env=os.environ, for_pods=for_pods)
    return read_run_spec(place(source), settings, env=os.environ, for_pods=for_pods)


def checked(
    reading: Reading[RunSpec], parts: Sequence[Part], *, warn: Callable[[Problem], None] = lambda _: None
) -> RunSpec:
    """The resolved spec, all paths in it absolute; `parts` is what preflight looks at, `warn` is told what is doubtful.

    Raises the error of preflight's worst finding with all problems.
    """
    from rankzero.preflight import look
    from rankzero.run_dir.setting import settled
    from rankzero.spec.local_paths import absolute
    from rankzero.spec.resolve import resolve

    loaded = look(reading, parts, warn=warn)
    return settled(absolute(resolve(loaded.spec), loaded.base))
