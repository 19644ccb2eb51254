"""Pages of runs: one, several beside each other, a list. Renders; what they say is in the templates, tables and curves.

Names, samples, warnings and specs are others' words: everything is escaped and without secrets, whatever it is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankzero.html.page import environment
from rankzero.redaction import Redactor
from rankzero.report import tables
from rankzero.report.curves import HEIGHT, WIDTH, bars, charts
from rankzero.report.run import RunPage, read_run
from rankzero.run_dir.atomic import write_text
from rankzero.run_dir.evaluation import measured
from rankzero.run_dir.paths import RunDir

_LONGEST_SHOWN = 20_000
REFRESH_SECONDS, OVER_SECONDS = 5, 30
"""Between two looks at what goes on, and at what is over: that may be started again."""


@dataclass(frozen=True, slots=True)
class Live:
    """Of a page that is served while runs go on."""

    refresh: int
    """Seconds after which it is loaded again, and again; 0: never, since somebody is filling it in."""
    home: str = ""
    """Where the list of runs is, as a relative URL."""


def refreshed(runs: Iterable[RunPage], home: str) -> Live:
    """Of a page of these runs."""
    return Live(REFRESH_SECONDS if any(run.goes_on for run in runs) else OVER_SECONDS, home)


def write_page(run_dir: RunDir) -> Path:
    """Write report.html of a run, whatever it is doing. Returns where it is. Raises StorageError."""
    write_text(run_dir.page, run_page(read_run(run_dir.root, time.time())))
    return run_dir.page


def run_page(run: RunPage, live: Live | None = None) -> str:
    """The page of one run."""
    shares, kinds = tables.times(run)
    heads, rows = tables.data_rows(run)
    later = [start.from_step for start in run.starts[1:] if start.from_step]
    drawn, undrawn = charts([(run.name, run.metrics)], later)
    return _render(
        "run.html.jinja",
        live,
        title=run.name,
        run=run,
        facts=tables.facts(run),
        charts=drawn,
        undrawn=undrawn,
        samples=tables.asked(run.samples),
        shares=shares,
        kinds=kinds,
        cost=tables.cost(run),
        started=tables.started(run),
        data_heads=heads,
        data_rows=rows,
        lengths=[(name, found) for name, part in run.data.items() if (found := bars(part)) is not None],
        saved=tables.saved(run),
        measured=measured(run.evaluation),
        merged=tables.merged(run),
        environment=tables.table_of(run.environment),
        read_at=tables.when(run.read_at),
    )


def compare_page(runs: Sequence[RunPage], live: Live | None = None, *, left_out: Sequence[str] = ()) -> str:
    """Several runs beside each other: curves in one chart, results, and the fields in which their specs differ.
    `left_out` are names of others that were asked for."""
    names = _unique([run.name for run in runs])
    drawn, undrawn = charts([(name, run.metrics) for name, run in zip(names, runs, strict=True)])
    return _render(
        "compare.html.jinja",
        live,
        title=" and ".join(names) if len(names) == 2 else f"{len(names)} runs",
        names=names,
        runs=runs,
        left_out=left_out,
        charts=drawn,
        undrawn=undrawn,
        results=tables.results(runs),
        spec=tables.differences([run.spec for run in runs]),
        environment=tables.differences([run.environment for run in runs]),
        read_at=tables.when(max(run.read_at for run in runs)),
    )


def index_page(title: str, runs: Sequence[tuple[str, RunPage]], live: Live) -> str:
    """A list of runs; where it is not refreshed, some can be chosen. `runs`: (name in a URL, run)."""
    rows = [(url, os.path.basename(os.path.realpath(run.root)), run.state, tables.summary(run)) for url, run in runs]
    return _render("index.html.jinja", live, title=title, rows=rows)


def _unique(names: Sequence[str]) -> list[str]:
    """Runs of one name in several places are told apart by a number."""
    return [
        name if names.count(name) == 1 else f"{name} ({names[: place + 1].count(name)})"
        for place, name in enumerate(names)
    ]


def render_page(template: str, **values: Any) -> str:
    """A page that nothing refreshes, from its template."""
    return _render(template, None, **values)


def _render(template: str, live: Live | None, **values: Any) -> str:
    made = environment(__package__ or "", longest=_LONGEST_SHOWN, redact=Redactor(os.environ))
    made.globals |= {
        "width": WIDTH,
        "height": HEIGHT,
        "live": live,
    }
    return made.get_template(template).render(**values)
