"""The forecast as a person reads it: a box on a terminal, plain lines elsewhere, within 80 columns. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rankzero.spec.shardings import sharding_section
from rankzero.wording import counted, duration, in_bytes, printable

if TYPE_CHECKING:
    from rankzero.forecast.cost import StepCost
    from rankzero.forecast.forecast import Forecast

LABEL = 10
"""Columns of a line's name."""
LOG_WIDTH = 62
"""Of a line of a log that has its time and tag before it, on a terminal of 80 columns."""


def lines(forecast: Forecast, width: int = LOG_WIDTH) -> list[str]:
    """`memory    4.02 GB of 16.8 GB …`, wrapped behind its name."""
    return table(rows(forecast), width)


def table(named: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Named texts, each wrapped behind its name."""
    found: list[str] = []
    for name, text in named:
        head = f"{name:<{LABEL}}"
        found += textwrap.wrap(
            f"{head}{printable(text)}",
            width,
            subsequent_indent=" " * LABEL,
            break_on_hyphens=False,
        )
    return found


def boxed(named: Sequence[tuple[str, str]], title: str, width: int) -> list[str]:
    """The same in a frame of at most `width` columns."""
    inside = table(named, width - 4)
    wide = max([len(title) + 2, *map(len, inside)])
    top = f"┌ {title} {'─' * (wide - len(title))}┐"
    return [top, *(f"│ {line:<{wide}} │" for line in inside), f"└{'─' * (wide + 2)}┘"]


def rows(forecast: Forecast) -> list[tuple[str, str]]:
    """All that is known, by name."""
    return [
        ("model", _model(forecast)),
        ("data", _data(forecast)),
        ("steps", _steps(forecast)),
        ("memory", _memory(forecast)),
        ("disk", _disk(forecast)),
        ("time", _time(forecast)),
    ]


def _count(number: int) -> str:
    """`8.03B`, `134.5M`, `4,096`."""
    for unit, scale in (("B", 10**9), ("M", 10**6)):
        if number >= scale:
            return f"{number / scale:.2f}{unit}" if unit == "B" else f"{number / scale:.1f}{unit}"
    return f"{number:,}"


def _model(forecast: Forecast) -> str:
    facts = forecast.facts
    share = 100 * facts.trainable / max(1, facts.total)
    percent = f"{share:.2g}" if share < 10 else f"{share:.0f}"
    trained = "all of them" if facts.trainable == facts.total else f"{_count(facts.trainable)} ({percent} %)"
    name = forecast.model
    if name.startswith("/"):  # a directory of this machine
        name = name.rstrip("/").rpartition("/")[2]
    return (
        f"{name}: {_count(facts.total)} parameters, {trained} trained "
        f"({forecast.method}, computed in {forecast.precision})"
    )


def _data(forecast: Forecast) -> str:
    known, sequences = forecast.rows, forecast.memory.need.sequences
    longest = known.longest // sequences
    if known.rows is None or known.tokens is None:
        of = "" if sequences == 1 else "sequences of "
        return f"rows of {of}up to {longest:,} tokens, not counted yet"
    longest_one = f"the longest {'' if sequences == 1 else 'sequence '}{counted(longest, 'token')}"
    evaluated = "not evaluated" if known.eval_rows is None else f"evaluated on {counted(known.eval_rows, 'row')}"
    trained = f" ({known.trained_tokens:,} trained)" if known.trained_tokens is not None else ""
    return f"{counted(known.rows, 'row')}, {known.tokens:,} tokens{trained}, {longest_one}; {evaluated}"


def _steps(forecast: Forecast) -> str:
    schedule = forecast.schedule
    words = []
    if schedule is None:
        words.append("as many as the rows make")
    else:
        epochs = schedule.total_steps / schedule.steps_per_epoch
        several = f"{epochs:.3g} epochs" if epochs % 1 else counted(round(epochs), "epoch")
        of = f" ({several} of {schedule.steps_per_epoch:,})" if forecast.rows.rows is not None else ""
        words.append(f"{schedule.total_steps:,}{of}")
    if forecast.done:
        words.append(f"{forecast.done:,} of them done")
    words.append(f"{counted(forecast.rows_a_step, 'row')} a step")
    slices = forecast.memory.need.train.context_parallel
    tokens = forecast.memory.plan.micro_batch_tokens * slices
    count = forecast.memory.plan.passes_at_once
    on_each = " on each" if forecast.place.world_size > 1 else ""
    at_once = f", {counted(count, 'pass', 'passes')} at a time{on_each}" if count > 1 else ""
    if forecast.passes is not None:
        passes = "1 pass" if forecast.passes == 1 else f"{forecast.passes:.3g} passes"
        words.append(f"in {passes} of up to {tokens:,} tokens{at_once}")
    else:
        words.append(f"in passes of up to {tokens:,} tokens{at_once}")
    count = forecast.place.world_size
    each = f", each pass on {slices} of them" if slices > 1 else ""
    experts = forecast.memory.need.train.expert_parallel
    each += f", experts over {experts} of them" if experts > 1 else ""
    sharding = forecast.memory.sharding
    if sharding_section(sharding).within is not None:
        sharding += f": each node of {forecast.place.processes_a_node} has all of the model"
    words.append("on one process" if count == 1 else f"on {count} processes ({sharding}{each})")
    return ", ".join(words)


def _memory(forecast: Forecast) -> str:
    need, place = forecast.memory.need, forecast.place
    parts = ", ".join(f"{name} {in_bytes(part)}" for name, part in need.parts.items() if part >= 0.001 * need.bytes)
    each = "" if place.world_size == 1 else " each"
    of = f" of {in_bytes(place.limit)}" if place.limit else ""
    now = f", {in_bytes(place.free)} of it free now" if place.free else ""
    on = f" on {place.name}{now}" if place.limit else f" on {place.name}"
    why = ", for larger passes that gather weights less often" if forecast.memory.for_speed else ""
    less = f"; activations are recomputed{why}" if need.recomputing else ""
    short = "; IT DOES NOT FIT" if place.limit and need.bytes > place.limit else ""
    basis = "" if forecast.memory.basis == "sums" else f" (by {forecast.memory.basis})"
    return f"{in_bytes(need.bytes)}{each}{of}{on}: {parts}{less}{basis}{short}"


def _disk(forecast: Forecast) -> str:
    disk = forecast.disk
    free = f", {in_bytes(disk.free)} free" if disk.free else ""
    short = "; IT DOES NOT FIT" if disk.free and disk.needed > disk.free else ""
    count = counted(disk.checkpoints, "checkpoint")
    each = "" if disk.checkpoints == 1 else " at once"
    saved = f"{count}{each} of {in_bytes(disk.checkpoint)}"
    return f"{in_bytes(disk.needed)}: {saved}, result {in_bytes(disk.result)}{free}{short}"


def _time(forecast: Forecast) -> str:
    unknown = "known after the first steps: no run of this shape was timed here"
    if forecast.seconds is None:
        return unknown
    words = f"about {duration(forecast.seconds)} of steps"
    if forecast.rate is not None:
        return f"{words}, at the {forecast.rate:,.0f} tokens a second of the last run of this shape on this machine"
    return unknown if forecast.estimate is None else f"{words} by shapes, {_by_shapes(forecast.estimate)}"


def _by_shapes(cost: StepCost) -> str:
    """What an estimate takes for granted; that it is one has to be seen."""
    share = f"{100 * cost.efficiency:.0f} %"
    pace = f"{cost.tokens_per_second:,.0f} tokens a second"
    waits = f", {100 * cost.waiting_share:.0f} % of it waiting for the network" if cost.waiting_share >= 0.05 else ""
    return f"on {cost.device}, products at an assumed {share} of its dense rate ({pace}{waits}): nothing was timed"


def printed(forecast: Forecast, *, terminal: bool, width: int, more: Sequence[tuple[str, str]] = ()) -> Iterator[str]:
    """Every line of it, with `more` behind; a frame where a terminal shows it."""
    named = [*rows(forecast), *more]
    columns = min(width, 100)
    yield from boxed(named, forecast.run, columns) if terminal else [forecast.run, *table(named, 80)]
