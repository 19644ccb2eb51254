"""Runs of this machine for a terminal: which one is meant, all as a table, one of them, two beside each other."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rankzero.errors import ConfigError

if TYPE_CHECKING:
    from rankzero.run_dir.view import RunView

SortKey = Literal["age", "name", "loss", "eval_loss"]
LEVELS = "▁▂▃▄▅▆▇█"
STYLES = {"Running": "bold green", "Succeeded": "bold green", "Failed": "bold red", "Killed": "bold red"}


def local_runs(directory: Path, sort: SortKey) -> list[RunView]:
    """The runs in a directory. Unknown values come last. Raises ConfigError where there is no such directory."""
    from rankzero.run_dir.named import runs_in
    from rankzero.run_dir.view import view_run

    if not directory.is_dir():
        raise ConfigError("there is no such directory of runs", where=str(directory), hint="rankzero train makes runs/")
    runs = [view_run(Path(path)) for path in runs_in(directory)]
    if sort == "name":
        return sorted(runs, key=lambda run: run.name)
    if sort == "age":
        return sorted(runs, key=lambda run: -(run.begun or 0.0))

    def value(run: RunView) -> float:
        found = run.eval_loss if sort == "eval_loss" else run.loss
        return math.inf if found is None or math.isnan(found) else found

    return sorted(runs, key=value)


def as_table(runs: Sequence[RunView], width: int, colour: bool) -> str:
    """One row for each run."""
    from rankzero.launch.diagnose.finding import span
    from rankzero.launch.status.run_table import Row, run_table

    def row(run: RunView) -> Row:
        age = "" if run.begun is None else span(time.time() - run.begun)
        facts = (progress(run), number(run.loss), number(run.eval_loss), age)
        return Row(run.name, run.phase, STYLES.get(run.phase, "bold yellow"), facts, verdict(run))

    columns = ("STEP", "LOSS", "EVAL LOSS", "AGE")
    return run_table(columns, ("EVAL LOSS", "AGE", "LOSS"), [row(run) for run in runs], width, colour)


def as_text(run: RunView, width: int, colour: bool) -> str:
    """All that is known of a run, in lines of at most `width` columns, where words allow it."""
    from rankzero.launch.diagnose.finding import span
    from rankzero.launch.status.text import drawn, labelled

    lines = labelled(run.phase, verdict(run), width, STYLES.get(run.phase, "bold yellow"))
    facts: list[tuple[str, str]] = [("results", str(run.root)), ("step", progress(run))]
    if run.loss is not None:
        facts.append(("loss", number(run.loss)))
    if run.eval_loss is not None:
        facts.append(("eval loss", number(run.eval_loss)))
    if run.phase == "Running" and run.tokens_per_second is not None:
        facts.append(("pace", f"{run.tokens_per_second:,.0f} tok/s"))
    if run.eta_seconds is not None:
        facts.append(("left", f"about {span(run.eta_seconds)}"))
    if run.goodput is not None:
        facts.append(("goodput", str(run.goodput)))
    for label, words in facts:
        lines += labelled(label, words, width)
    usable = run.phase == "Succeeded" and run.has_result and not run.result_fault
    for at, command in enumerate(_what_next(run) if usable else ()):
        lines += labelled("" if at else "next", command, sys.maxsize)  # to be copied: in one line
    return drawn(lines, width, colour)


def verdict(run: RunView) -> str:
    """One sentence, with what to do."""
    again = "rankzero train with the same spec"
    saved = f"continues from step {run.resumable}" if run.resumable else "begins again: nothing is saved"
    if run.starts_again:
        return f"{run.error or 'its last start has ended'}; its launcher may start it again, which {saved}"
    match run.phase:
        case "Running":
            return f"step {progress(run)}" if run.step else "no step is done yet"
        case "Succeeded" if run.result_fault:
            anew = "makes it anew of what is kept" if run.resumable else "begins again: nothing else is kept"
            return f"trained to its end, but {run.result_fault}; {again} {anew}"
        case "Succeeded" if not run.has_result:
            return "trained to its end; this copy has no result: rankzero pull brings it, from where the run is"
        case "Succeeded":
            return "the result is in final/"
        case "Stopped":
            return f"stopped; {again} {saved}"
        case "Interrupted":
            return f"a second Ctrl-C ended it after step {run.step}; {again} {saved}"
        case "Failed":
            return f"{run.error or 'failed'}; {again} {saved}"
        case "Killed":
            return f"its process is gone and said nothing; {again} {saved}"
        case "Unknown" if run.unread:
            return run.unread[0]
        case "Unknown":
            return (
                "a process of another host or container has this directory, or it is a copy of one that had not ended"
            )


def _what_next(run: RunView) -> tuple[str, ...]:
    """What its result can be used for; nothing where its report cannot be read."""
    from rankzero.run_dir.paths import RunDir
    from rankzero.spec.tasks import TASKS

    try:
        spec = json.loads(RunDir(run.root).report.read_text(encoding="utf-8"))["spec"]
        return TASKS[spec["task"]].next_commands(str(run.root), adapters=spec.get("lora") is not None)
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def progress(run: RunView) -> str:
    """`12/400`."""
    return f"{run.step}/{run.total_steps}" if run.total_steps else str(run.step)


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def sparkline(values: Sequence[float], width: int) -> str:
    """Values as bars of eight heights, each the mean of its part of them. "" where there is no room for one."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite or width < 1:
        return ""
    columns = min(width, len(finite))
    parts = [finite[at * len(finite) // columns : (at + 1) * len(finite) // columns] for at in range(columns)]
    means = [sum(part) / len(part) for part in parts]
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(LEVELS[round((mean - low) / span * (len(LEVELS) - 1))] for mean in means)


def compared(first: RunView, second: RunView, width: int, colour: bool) -> str:
    """What differs in the specs, how both ended, and their curves."""
    from rankzero.launch.status.text import drawn, plain_table
    from rankzero.run_dir.view import curve
    from rankzero.wording import printable

    table = plain_table(header=True)
    for name in ("", first.name, second.name):
        table.add_column(printable(name), overflow="fold")
    for differs in differences(first, second):
        table.add_row(*map(printable, differs))
    rows: list[tuple[str, str, str]] = [
        ("phase", first.phase, second.phase),
        ("step", progress(first), progress(second)),
        ("loss", number(first.loss), number(second.loss)),
        ("eval loss", number(first.eval_loss), number(second.eval_loss)),
    ]
    if first.goodput and second.goodput:
        rows.append(("goodput", f"{100 * first.goodput.goodput:.1f} %", f"{100 * second.goodput.goodput:.1f} %"))
    for row in rows:
        table.add_row(*row)
    room = max(8, (width - 26) // 2)
    for label, name in (("loss by step", "loss"), ("eval by step", "eval_loss")):
        curves = [[value for _, value in curve(run.root / "metrics.jsonl", name)] for run in (first, second)]
        if all(curves):
            table.add_row(label, *(sparkline(values, room) for values in curves))
    return drawn([table], width, colour)


def differences(first: RunView, second: RunView) -> list[tuple[str, str, str]]:
    """Fields of the specs that differ, besides the name: field, one value, the other. Raises ConfigError."""
    from rankzero.spec.diff import compare
    from rankzero.spec.load import load_run_spec

    specs = [load_run_spec(run.root / "run.yaml", env={}).spec for run in (first, second)]  # with paths as written

    return [
        (change.field, _as_written(change.old), _as_written(change.new))
        for change in compare(*specs)
        if change.field not in ("name", "output_dir")
    ]


def _as_written(value: object) -> str:
    """As a spec has it: null and true, not None and True, also within lists."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
