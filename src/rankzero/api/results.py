"""Use what a run has made, or any model: ask it, classify texts, merge its adapter. Knows no terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from rankzero.api.arguments import require_count
from rankzero.api.arguments import texts as all_texts
from rankzero.api.places import place, places_told
from rankzero.errors import ConfigError, RankzeroError

if TYPE_CHECKING:
    from rankzero.engine.chat import Chat
    from rankzero.model.merge import Merged
    from rankzero.model.predict import Prediction
    from rankzero.run_dir.result import Result
    from rankzero.spec.sampling import Sampling

Tell = Callable[[tuple[str, ...]], None]
"""Is told which files of a result are not as the run wrote them."""


def warn(names: tuple[str, ...]) -> None:
    """As Python warnings."""
    from rankzero.api import python_warnings

    for name in names:
        python_warnings.warn(f"{name} is not as the run wrote it")


def require_a_base(model: str | None, result: Result, *, base: bool) -> None:
    """Raise UsageError where somebody named a base, and none is used. `base`: it is, whatever the result is."""
    from rankzero.errors import UsageError

    if model is not None and result.adapter is None and not base:
        what = "this is a whole model, which needs no base"
        raise UsageError(what, where=f"--model {model}", hint="leave it out")


@contextmanager
def run_names_told(target: str | os.PathLike[str]) -> Iterator[None]:
    """Around what loads a model: where a single word is none of the Hub's, or none that is here, it may be the name of
    a run with a slip in it, which is said."""
    from rankzero.run_dir.known import run_meant

    try:
        yield
    except RankzeroError as error:
        is_of_name = any(one.where == "model.name" for one in error.problems)
        close = run_meant(os.fspath(target)) if is_of_name else None
        if close is None:
            raise
        said = [replace(one, hint=f"did you mean {close}? Else: {one.hint}") for one in error.problems]
        raise type(error)(said) from error


@places_told()
def generate(
    target: str | os.PathLike[str],
    prompts: Iterable[str],
    *,
    images: Sequence[str] = (),
    max_new_tokens: int = 128,
    base: bool = False,
    model: str | None = None,
    tell: Tell = warn,
) -> list[str]:
    """One greedy reply to each prompt. `target` is a run directory, an adapter's, or any model; `base`: the run's model
    as it was before training; `model` is that, where it is not where the run or the adapter says.

    All prompts are about all `images`, which stand where a prompt has `<image>`, else before it. Raises ConfigError
    where there is no such run or it has no result, StorageError where its weights are damaged, UsageError where the
    prompts are a single text.
    """
    from rankzero.api.installed import require_engine
    from rankzero.run_dir.result import find_result

    asked = all_texts(prompts, "prompts")
    require_count(max_new_tokens, "max_new_tokens")
    result = find_result(os.fspath(target), "writes", base=base, model=model)
    require_a_base(model, result, base=base)
    tell(result.changed)
    require_engine()
    from rankzero.engine.ask import ask

    with run_names_told(target):
        return ask(result, asked, images=[os.path.expanduser(image) for image in images], max_new_tokens=max_new_tokens)


@places_told()
def chat(
    target: str | os.PathLike[str],
    sampling: Sampling | None = None,
    *,
    system: str | None = None,
    base: bool = False,
    compare: bool = False,
    model: str | None = None,
    tell: Tell = warn,
) -> Chat:
    """A conversation with what `target` and `model` stand for, as for `generate`, loaded once: `ask`, `reset`.

    `compare`: also with the run's model before training, each answering for itself. Raises ConfigError where there is
    no such run, or it has no result.
    """
    from rankzero.api.installed import require_engine
    from rankzero.errors import UsageError
    from rankzero.run_dir.result import find_result

    if base and compare:
        raise UsageError("the base alone, or both beside each other", where="compare", hint="leave base out")
    result = find_result(os.fspath(target), "writes", base=base, model=model)
    before = find_result(os.fspath(target), "writes", base=True, model=model) if compare else None
    require_a_base(model, result, base=base or compare)
    tell(result.changed)
    require_engine()
    from rankzero.engine.chat import open_chat
    from rankzero.spec.sampling import Sampling

    with run_names_told(target):
        return open_chat(result, sampling or Sampling(), base=before, system=system)


@places_told()
def predict(
    target: str | os.PathLike[str], texts: Iterable[str], *, model: str | None = None, tell: Tell = warn
) -> Iterator[Prediction]:
    """The class of each text, with the probability of each. `target` is a run of task classify, or a classifier;
    `model` is the base of an adapter, where it is not where the run or the adapter says.

    Raises ConfigError, StorageError where its weights are damaged, DataError for texts without any token, or
    UsageError where they are a single text.
    """
    from rankzero.api.installed import require_engine
    from rankzero.run_dir.result import find_result

    several = all_texts(texts, "texts")
    result = find_result(os.fspath(target), "classifies", model=model)
    require_a_base(model, result, base=False)
    tell(result.changed)
    require_engine()
    from rankzero.engine.ask import put_into_classes

    with run_names_told(target):
        return put_into_classes(result, several)


@places_told()
def merge(
    target: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    base_weights: Literal["trained", "files"] = "trained",
    model: str | None = None,
    tell: Tell = warn,
) -> Merged:
    """Write an adapter and its base as one plain model to `output`, which must not exist. `target` is a run directory,
    or one with an adapter; `model` is its base, where that is not where the adapter says.

    What was written is loaded again and asked about the same texts as base and adapter. Raises ConfigError where there
    is no adapter, `output` exists or lies in a checkpoint, or the two differ by more than rounding, StorageError where
    weights are damaged.
    """
    from rankzero.api.installed import require_engine
    from rankzero.run_dir.intact import verify_result
    from rankzero.run_dir.kept_aside import place_problems
    from rankzero.run_dir.result import find_adapter

    found = find_adapter(place(target), model)
    if problems := place_problems(place(output)):
        raise ConfigError(problems)
    require_engine()
    tell(verify_result(found.directory))
    from rankzero.engine.merging import merge_adapter

    return merge_adapter(found, place(output), base_weights=base_weights)
