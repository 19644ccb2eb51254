"""What a page says in words and rows, made of a run's values. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations
from os.path import commonprefix
from typing import Any

from rankzero.report.curves import written
from rankzero.report.reading import inner, leaves, number
from rankzero.report.run import RunPage, Sample
from rankzero.report.series import Series
from rankzero.report.ticks import memory, plain
from rankzero.run_dir.goodput import KINDS, START_UP, Start, held_seconds
from rankzero.spec.tasks import MEASURES
from rankzero.wording import counted, duration

Row = tuple[str, ...]
_LONGEST_VALUE, _LEAD = 300, 100
"""Characters of a value, and of them those before the first that differs."""
_NOTHING = object()
"""A field that one of several objects has not."""


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the whole time."""

    name: str
    part: float
    """From 0 to 1."""
    start: float
    """Where it begins, from 0 to 1."""
    colour: int


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt, and what was written at the first and the last step that it was asked at, and between."""

    prompt: str
    first: Sample
    last: Sample | None
    between: tuple[Sample, ...]


def facts(run: RunPage) -> list[tuple[str, str]]:
    """What a person wants to know first."""
    found = [("Loss", _from_to(*_ends(run.metrics.get("loss")))), *_evaluated(run)]
    found.append(("Steps", f"{run.step:,}" if run.step else ""))
    tokens = number(run.report, "total_tokens") or _total(run.metrics.get("tokens"))
    found.append(("Tokens", _large(tokens) if tokens else ""))
    speed = number(run.report, "tokens_per_second") or _middle(run.metrics.get("tokens_per_second"))
    found.append(("Tokens a second", f"{speed:,.0f}" if speed else ""))
    if run.goodput is not None:
        found.append(("Wall time", duration(run.goodput.wall_seconds)))
        found.append(("In new steps", f"{100 * run.goodput.goodput:.1f} %"))
    elif (seconds := number(run.report, "elapsed_seconds")) is not None:
        found.append(("Time", duration(seconds)))
    # a report of before has the last start's alone, and a run that has not ended well has none
    peak = max(number(run.report, "peak_memory_bytes") or 0.0, _highest(run.metrics.get("peak_memory_bytes")))
    found.append(("Peak memory", memory(peak) if peak else ""))
    return [(name, value) for name, value in found if value]


def cost(run: RunPage) -> list[Row]:
    """Device time, and what came of it."""
    found: list[Row] = []
    device, sizes, held = run.environment.get("device"), _processes(run), held_seconds(run.starts)
    if sizes and device:
        fewest, most = min(sizes), max(sizes)
        found.append(("Devices", f"{fewest if fewest == most else f'{fewest} to {most}'} × {device}"))
    if held:
        found.append(("Held for", f"{duration(sum(held))}, without the time between two starts"))
    if sizes and device and any(held):
        hours = sum(size * seconds for size, seconds in zip(sizes, held, strict=True)) / 3600
        found.append(("Device-hours", f"{hours:.4g}"))
        if tokens := _total(run.metrics.get("tokens")):
            found.append(("Tokens for a device-hour", f"{tokens / hours:,.0f}"))
    padding, first = number(run.report, "padding_fraction"), number(run.report, "time_to_first_step_seconds")
    if first is not None:
        found.append(("From the command to the first step", f"{first:.1f} s"))
    if padding is not None:
        found.append(("Padding in what was computed", f"{100 * padding:.1f} %"))
    return found


def _processes(run: RunPage) -> list[int]:
    """How many each start had; empty where one does not say. environment.json is the last start's."""
    last = number(run.environment, "world_size")
    if len(run.starts) == 1 and not run.starts[0].world_size and last:
        return [int(last)]
    sizes = [start.world_size for start in run.starts]
    return sizes if all(sizes) else []


def times(run: RunPage) -> tuple[list[Share], list[Row]]:
    """The wall time by kind: the parts of a bar, and rows of all kinds with what they mean."""
    total = run.goodput
    if total is None or not total.wall_seconds:
        return [], []
    rows: list[Row] = [
        (kind.replace("_", " "), f"{spent:,.1f}", f"{100 * spent / total.wall_seconds:.1f} %", KINDS.get(kind, ""))
        for kind, spent in sorted(total.seconds.items(), key=lambda item: -item[1])
        if spent >= 0.05
    ]
    grouped = {"new steps": total.seconds.get("step", 0.0), "start-up": sum(total.seconds.get(k, 0) for k in START_UP)}
    rest = {kind: spent for kind, spent in total.seconds.items() if kind != "step" and kind not in START_UP}
    most = sorted(rest, key=rest.__getitem__, reverse=True)[:3]
    grouped |= {kind.replace("_", " "): rest[kind] for kind in most}
    grouped["other"] = sum(spent for kind, spent in rest.items() if kind not in most)
    shares, start = [], 0.0
    for colour, (name, spent) in enumerate(grouped.items()):
        part = spent / total.wall_seconds
        if part > 0.0005:
            shares.append(Share(name, part, start, colour))
        start += part
    return shares, rows


def started(run: RunPage) -> list[Row]:
    """A row for each start."""
    return [
        (
            str(count),
            when(start.begun),
            f"{start.from_step:,}",
            f"{start.step:,}",
            duration(sum(start.seconds.values())),
            start.ended or _without_a_word(run, start),
        )
        for count, start in enumerate(run.starts, 1)
    ]


def _without_a_word(run: RunPage, start: Start) -> str:
    """How one is that has not said how it ended; "" where nobody can tell."""
    if start is run.under_way:
        return "running"
    return "" if run.seen.may_go_on and start is run.starts[-1] else "killed"


def saved(run: RunPage) -> list[Row]:
    """A row for each checkpoint, and one for the result."""
    scores = run.metrics.get("eval_loss", Series())
    rows: list[Row] = []
    for one in run.checkpoints:
        score = None if one.step is None else scores.at(one.step)
        apart = ", not compared" if one.step is not None and one.step < run.compared_from else ""
        rows.append(
            (
                one.name,
                "" if one.step is None else f"{one.step:,}",
                "" if score is None else f"{written(score)}{apart}",
                "" if one.bytes is None else memory(one.bytes),
                "" if one.saved is None else when(one.saved),
                ", ".join(name for name in one.names if name != "final/") or one.fault,
            )
        )
    return rows


def merged(run: RunPage) -> list[Row]:
    """What the proof of the last merged model has found."""
    found = run.merge
    asked = [
        counted(int(count), word)
        for name, word in (("prompts", "prompt"), ("images", "image"), ("tokens", "token"))
        if (count := number(found, name))
    ]
    rows: list[Row] = [("Asked about", ", ".join(asked))]
    for name, words in (
        ("logits_largest", "Largest difference of logits"),
        ("logits_tolerance", "What rounding explains"),
        ("adapter_changes", "What the adapter itself changes"),
        ("from_trained", "Difference from the base in fewer bits that it was trained on"),
    ):
        value = number(found, name)
        rows.append((words, "" if value is None else f"{value:.3g}"))
    for name in ("directory", "base", "base_weights", "dtype"):
        value = found.get(name)
        rows.append((name.replace("_", " ").capitalize(), value if isinstance(value, str) else ""))
    return [row for row in rows if row[1]]


def asked(samples: Sequence[Sample]) -> list[Asked]:
    """By prompt, in the order in which they were first asked."""
    by_prompt: dict[str, list[Sample]] = {}
    for sample in samples:
        by_prompt.setdefault(sample.prompt, []).append(sample)
    found = []
    for prompt, several in by_prompt.items():
        first, *rest = sorted(several, key=lambda sample: sample.step)
        found.append(Asked(prompt, first, rest[-1] if rest else None, tuple(rest[:-1])))
    return found


_DATA_WORDS = (
    ("rows", "Rows"),
    ("rows_in", "Rows in the files"),
    ("tokens", "Tokens"),
    ("supervised_tokens", "Trained tokens"),
    ("longest", "Longest row, in tokens"),
    ("truncated", "Truncated"),
)


def data_rows(run: RunPage) -> tuple[tuple[str, ...], list[Row]]:
    """Heads and rows of what is in data.json: a column for each part, train and eval."""
    parts = [(name, value) for name, value in run.data.items() if isinstance(value, dict)]
    rows: list[Row] = []
    for key, word in _DATA_WORDS:
        rows.append((word, *(_whole(number(part, key)) for _, part in parts)))
    for group, prefix in (("dropped", "Dropped: "), ("notes", "")):
        reasons = dict.fromkeys(reason for _, part in parts for reason in inner(part, group))
        for reason in reasons:
            values = (_whole(number(inner(part, group), reason)) for _, part in parts)
            rows.append((prefix + reason.replace("_", " "), *values))
    return ("", *(name for name, _ in parts)), [row for row in rows if any(row[1:])]


def table_of(values: Mapping[str, Any]) -> list[Row]:
    """Every field of nested objects, as `train.max_steps`, `10`."""
    return [(name, short(value)) for name, value in leaves(values) if value is not None]


def results(runs: Sequence[RunPage]) -> list[Row]:
    """The facts of several runs beside each other; a run without one has an empty cell."""
    columns = [dict(facts(run)) for run in runs]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [("State", *(run.state.word for run in runs))]
    return rows + [(name, *(column.get(name, "") for column in columns)) for name in names]


def differences(values: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The fields in which several objects differ, with what of each one's value tells it apart: whole where that is
    short, else of lists those of their items that differ, and of texts the parts that do."""
    flat = [dict(leaves(one)) for one in values]
    names = dict.fromkeys(name for one in flat for name in one)
    return [row for name in names for row in _beside(name, [one.get(name, _NOTHING) for one in flat])]


def _beside(name: str, values: Sequence[Any]) -> Iterator[Row]:
    there = [value for value in values if value is not _NOTHING]
    same = [json.dumps(None if value is _NOTHING else value, sort_keys=True, default=str) for value in values]
    if len(set(same)) == 1:
        return
    texts = ["" if value is _NOTHING else _as_text(value) for value in values]
    if len(set(zip(texts, same, strict=True))) > len(set(texts)):  # a text and a number, a text of nothing and none
        texts = ["" if value is _NOTHING else json.dumps(value, ensure_ascii=False, default=str) for value in values]
    is_long = max(map(len, texts)) > _LONGEST_VALUE
    if is_long and len(there) > 1 and all(isinstance(value, list) for value in there):
        for at in range(max(map(len, there))):
            items = [value[at] if value is not _NOTHING and at < len(value) else _NOTHING for value in values]
            yield from _beside(f"{name}[{at}]", items)
    elif is_long and len(there) > 1 and all(isinstance(value, dict) for value in there):
        for key in dict.fromkeys(key for value in there for key in value):
            items = [_NOTHING if value is _NOTHING else value.get(key, _NOTHING) for value in values]
            yield from _beside(f"{name}.{key}", items)
    else:
        yield name, *_told_apart(texts)


def _told_apart(texts: Sequence[str]) -> list[str]:
    """Parts of texts of which at least one is too long, the same of each, in which those that differ do."""
    starts: list[int] = []
    for one, other in combinations(dict.fromkeys(texts), 2):
        if all(one[start : start + _LONGEST_VALUE] == other[start : start + _LONGEST_VALUE] for start in starts):
            alike = len(commonprefix((one, other)))
            starts.append(alike - _LEAD if alike > _LONGEST_VALUE - _LEAD else 0)
    return ["".join(_part(text, start) for start in sorted(starts)) for text in texts]


def _part(text: str, start: int) -> str:
    end = start + _LONGEST_VALUE
    return ("…" if start else "") + text[start:end] + ("…" if len(text) > end else "")


def short(value: object) -> str:
    """A value of a spec as YAML would have it, in one line."""
    return _part(_as_text(value), 0)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def when(seconds: float) -> str:
    """`2026-11-22 06:10:01 UTC`."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return ""


def _evaluated(run: RunPage) -> list[tuple[str, str]]:
    found = []
    for name in MEASURES:
        first, last = _ends(run.metrics.get(name), run.compared_from)
        final = number(run.report, name)
        words = name.replace("_", " ").capitalize()
        step = number(run.report, "final_step")
        of = "" if final is None or step is None or final == last else f" (step {step:.0f})"
        found.append((words, _from_to(first, last if final is None else final) + of))
    return found


def _ends(series: Series | None, since: int = 0) -> tuple[float | None, float | None]:
    """The first finite value, and the last one as it is."""
    points = zip(series.steps, series.values, strict=True) if series is not None else ()
    values = [value for step, value in points if step >= since]
    finite = (value for value in values if math.isfinite(value))
    return next(finite, None), values[-1] if values else None


def _from_to(first: float | None, last: float | None) -> str:
    if last is None:
        return ""
    return written(last) if first is None or first == last else f"{written(first)} → {written(last)}"


def _total(series: Series | None) -> float | None:
    return sum(value for _, value in series.finite()) if series is not None else None


def _highest(series: Series | None) -> float:
    return max((value for _, value in series.finite()), default=0.0) if series is not None else 0.0


def _middle(series: Series | None) -> float | None:
    values = sorted(value for _, value in series.finite()) if series is not None else []
    return values[len(values) // 2] if values else None


def _large(value: float) -> str:
    """`19,041`, `1.25M`."""
    return f"{value:,.0f}" if value < 1e6 else plain(value, 10.0 ** (math.floor(math.log10(value)) - 2))


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def summary(run: RunPage) -> str:
    """One line of a list of runs."""
    parts = [counted(run.step, "step") if run.step else ""]
    for name, words, since in (("loss", "loss", 0), ("eval_loss", "eval loss", run.compared_from)):
        span = _from_to(*_ends(run.metrics.get(name), since))
        parts.append(f"{words} {span}" if span else "")
    parts.append(run.state.text if run.state.word == "unknown" else "")
    return ", ".join(part for part in parts if part)
