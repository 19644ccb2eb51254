"""For how long rows a model was made that computes its positions. Reads a config; knows no data and no torch."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankzero.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class Context:
    """How many positions a model was made for."""

    length: int
    """`max_position_embeddings`: tokens of a row."""
    extended: bool
    """The config scales positions (`rope_parameters`: yarn, dynamic, …), so that longer rows are thinkable."""


def computed_context(config: Any) -> Context | None:
    """The context of a model with rotary positions; None of any other, and where the config does not say it."""
    text = config.get_text_config()
    longest = getattr(text, "max_position_embeddings", None)
    kinds = set(_rope_kinds(getattr(text, "rope_parameters", None) or {}))
    return Context(int(longest), not kinds <= _AS_LONG_AS_MADE) if longest and kinds else None


def most_in_training(config: Any) -> int | None:
    """Tokens beyond which nothing is trained, nor asked of a model in training; None where it learned its positions,
    stretches them, or its config does not say it."""
    context = computed_context(config)
    return None if context is None or context.extended else context.length


def most_in_use(config: Any) -> int | None:
    """Tokens beyond which what a model computes is noise; None as in `most_in_training`, and with `dynamic` positions,
    which are stretched in use."""
    return None if _is_dynamic(config) else most_in_training(config)


def beyond_in_use(config: Any, tokens: Sequence[int], places: Sequence[str]) -> list[Problem]:
    """The questions, of so many tokens each, that a model was not made for, by their `places`."""
    most = most_in_use(config)
    what = f"tokens, and the model's context is {most} (max_position_embeddings), with its answer"
    return [
        Problem(f"it has {count} {what}", where, "shorten it")
        for count, where in zip(tokens, places, strict=True)
        if most is not None and count >= most
    ]


def position_borders(config: Any) -> tuple[int, ...]:
    """Tokens of the longest rows whose positions are computed in another way than those of longer rows, ascending.

    `longrope` has frequencies for short rows and others for long ones (Ding et al., "LongRoPE", 2024). transformers
    takes one of the two for a whole pass, by its longest row.
    """
    found = getattr(config.get_text_config(), "rope_parameters", None) or {}
    each = [found, *(inner for inner in found.values() if isinstance(inner, Mapping))]
    return tuple(sorted({int(one[_BORDER]) for one in each if one.get("rope_type") == _LONGROPE}))


def borders_in_use(config: Any) -> Sequence[int]:
    """`position_borders`; and with `dynamic` positions every length beyond the context, each of which has frequencies
    of its own."""
    context = computed_context(config)
    if context is not None and _is_dynamic(config):
        return range(context.length, sys.maxsize)
    return position_borders(config)


def computed_alike(borders: Sequence[int], tokens: int, longest: int) -> tuple[int, int]:
    """What prompts have in common whose answers, of up to `longest` tokens, can be computed together: as many of these
    borders before them; and, where an answer may cross another one, their own length, so that all cross it at once."""
    passed = bisect_left(borders, tokens)
    crosses = bisect_left(borders, tokens + longest - 1) > passed  # the last token is only ever written
    return passed, tokens if crosses else 0


def _is_dynamic(config: Any) -> bool:
    return DYNAMIC in _rope_kinds(getattr(config.get_text_config(), "rope_parameters", None) or {})


DYNAMIC = "dynamic"
_BORDER, _LONGROPE = "original_max_position_embeddings", "longrope"


def stored_context(config: Mapping[str, Any]) -> Context | None:
    """The same of a config.json as it lies in a model's directory, in today's form and in that before `rope_parameters`
    (`rope_theta` with `rope_scaling`); None where it does not say that positions are computed."""
    inner = config.get("text_config")
    text = inner if isinstance(inner, Mapping) else config
    longest = text.get("max_position_embeddings")
    told = text.get("rope_parameters") or text.get("rope_scaling")
    kinds = set(_rope_kinds(told)) if isinstance(told, Mapping) else set()
    if isinstance(told, Mapping) and "type" in told:
        kinds = {str(told["type"])}
    if not kinds and "rope_theta" in text:
        kinds = {"default"}
    if not isinstance(longest, int) or longest < 1 or not kinds:
        return None
    return Context(longest, not kinds <= _AS_LONG_AS_MADE)


def stored_borders(config: Mapping[str, Any]) -> tuple[int, ...]:
    """`position_borders` of a config.json as it lies in a model's directory, in today's form and in that before
    `rope_parameters`."""
    inner = config.get("text_config")
    text = inner if isinstance(inner, Mapping) else config
    told = text.get("rope_parameters") or text.get("rope_scaling")
    if not isinstance(told, Mapping):
        return ()
    each = [told, *(inner for inner in told.values() if isinstance(inner, Mapping))]
    found = [one for one in each if one.get("rope_type", one.get("type")) == _LONGROPE]
    borders = [text.get(_BORDER) or one.get(_BORDER) or text.get("max_position_embeddings") for one in found]
    return tuple(sorted({border for border in borders if isinstance(border, int)}))


_AS_LONG_AS_MADE = frozenset({"default", "mrope", DYNAMIC})
"""Kinds of rotary positions with which no longer rows are trained. mrope: an image's places beside the text's, which
stretches nothing. dynamic: stretches by the longest row that the model has seen so far, so that what is learned from a
row would depend on the rows before it and beside it. In use each length is computed as if it were the first."""


def _rope_kinds(parameters: Mapping[str, Any]) -> Iterator[str]:
    """Of all layers, or of each kind of layers that has parameters of its own."""
    if "rope_theta" in parameters or "rope_type" in parameters:
        yield str(parameters.get("rope_type") or "default")
        return
    for inner in parameters.values():
        if isinstance(inner, Mapping):
            yield from _rope_kinds(inner)


def require_rows_within(
    context: Context | None, lengths: Mapping[str, Any], more: Sequence[Problem] = ()
) -> list[Problem]:
    """What to warn of: rows that are longer than a model's context, where its config stretches positions. `lengths`
    are arrays of tokens of each row, by the field that the rows are of; `more` is as bad. Raises ConfigError where it
    stretches nothing."""
    if context is None:
        return []
    problems = list(more)
    for field, tokens in lengths.items():
        beyond = int((tokens > context.length).sum())
        if beyond:
            problems.append(beyond_context(context, beyond, len(tokens), int(tokens.max()), field))
    if problems and not context.extended:
        raise ConfigError(problems)
    return problems


def beyond_context(context: Context, beyond: int, rows: int, longest: int, where: str) -> Problem:
    """What to say of so many rows that are longer."""
    what = (
        f"{beyond} of {rows} rows are longer than the model's context of {context.length} tokens "
        f"(max_position_embeddings), the longest by {longest - context.length}"
    )
    hint = f"set data.max_length: {context.length}; data.over_length says whether longer rows are cut or dropped"
    return Problem(what, where, hint)
