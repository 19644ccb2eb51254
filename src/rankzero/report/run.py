"""A run directory as the values of its page. Reads files and judges how the run is; writes nothing, draws nothing.

What a run has not (yet) got is missing here, too: nothing is guessed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rankzero.errors import StorageError
from rankzero.redaction import Redactor
from rankzero.report.curves import NAMED
from rankzero.report.reading import Reader, as_number, inner, number
from rankzero.report.series import Series, read_series
from rankzero.run_dir.atomic import read_manifest
from rankzero.run_dir.goodput import Goodput, Start
from rankzero.run_dir.paths import LINKS, RunDir
from rankzero.run_dir.view import RunView, view_run
from rankzero.spec.tasks import MEASURES
from rankzero.wording import counted, duration

_MOST_WARNINGS = 50
_MARKED = re.compile(r"(\d\d:\d\d:\d\d) (?:WARNING|ERROR) (.*)")
"""A line of a rank's log that is a warning; see engine/console.py."""

Word = Literal[
    "finished",
    "ended early",
    "without a result",
    "stopped",
    "interrupted",
    "failed",
    "running",
    "killed",
    "not started",
    "unknown",
]


@dataclass(frozen=True, slots=True)
class State:
    """How a run is, and what to do about it."""

    word: Word
    text: str

    @property
    def tone(self) -> Literal["good", "bad", "plain"]:
        """Which colour it has."""
        if self.word in ("finished", "ended early"):
            return "good"
        return "bad" if self.word in ("failed", "killed", "without a result") else "plain"


_UNTOLD = State("unknown", "its directory does not say how it ended")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One directory below checkpoints/. Its bytes are not verified."""

    name: str
    step: int | None
    bytes: int | None
    saved: float | None
    """Unix seconds."""
    names: tuple[str, ...]
    """Which links point at it, and `final` where the result was made of it."""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the model wrote after a step (0: before the first one) when it was asked for it."""

    step: int
    prompt: str
    text: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that went other than planned."""

    where: str
    what: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class RunPage:
    """Everything that a run's page shows, as its files have it."""

    root: Path
    name: str
    read_at: float
    """Unix seconds."""
    seen: RunView
    state: State
    metrics: Mapping[str, Series]
    report: Mapping[str, Any]
    """report.json; empty while there is none."""
    goodput: Goodput | None
    starts: Sequence[Start]
    under_way: Start | None
    """The last of `starts`, where it goes on."""
    spec: Mapping[str, Any]
    spec_text: str
    environment: Mapping[str, Any]
    data: Mapping[str, Any]
    """data.json."""
    checkpoints: Sequence[Checkpoint]
    merge: Mapping[str, Any]
    """merge.json; empty where nothing was merged."""
    samples: Sequence[Sample]
    notices: Sequence[Notice]
    evaluation: Mapping[str, Any]
    """eval.json."""

    @property
    def goes_on(self) -> bool:
        """Whether somebody trains it at this moment, or will by itself, or may do so elsewhere."""
        return not self.seen.is_over and not (self.seen.unread and self.seen.phase == "Unknown")

    @property
    def may_change_unseen(self) -> bool:
        """Whether it may be otherwise though no file has changed: a process that ends without a word changes none, nor
        does a volume that can be read again."""
        return self.seen.phase == "Running" or self.seen.starts_again or bool(self.seen.unread)

    @property
    def model(self) -> str:
        """What was trained, and how, in some words."""
        name, lora = inner(self.spec, "model").get("name"), self.spec.get("lora")
        method = "all parameters" if lora is None else "adapters"
        return f"{name}, {method}" if isinstance(name, str) else ""

    @property
    def compared_from(self) -> int:
        """Evaluations of earlier steps are compared with none: they were of other data, tokens or weights."""
        return _compared_from(self.report, self.starts)

    @property
    def step(self) -> int:
        """Steps that the run has, as far as the directory says: what an earlier start had done beyond the last one's
        beginning is gone."""
        told = number(self.report, "steps")
        if told is not None:
            return int(told)
        logged = max((series.steps[-1] for series in self.metrics.values()), default=0)
        return max(logged, self.starts[-1].step if self.starts else 0)


def _compared_from(report: Mapping[str, Any], starts: Sequence[Start]) -> int:
    """By the report of a run that has ended, or by its last start."""
    told = number(report, "compared_from")
    return int(told) if told is not None else starts[-1].compared_from if starts else 0


def read_run(root: Path, now: float) -> RunPage:
    """Everything that a run directory says. `now`: Unix seconds. What cannot be read is among the notices."""
    view = view_run(root)
    run_dir, reader = RunDir(root), Reader(root, Redactor(os.environ))
    report = reader.object(run_dir.report)
    spec_text = reader.text(run_dir.spec)
    spec = reader.yaml(run_dir.spec)
    metrics = read_series(reader.lines(run_dir.metrics), NAMED)
    for name in metrics.keys() & set(MEASURES):
        metrics[name].apart = _compared_from(report, view.starts)
    checkpoints = [] if any(text.startswith("checkpoints:") for text in view.unread) else _checkpoints(run_dir)
    evaluation = reader.object(run_dir.evaluation)
    samples = _samples(reader, run_dir)
    environment, data = reader.object(run_dir.environment), reader.object(run_dir.data)
    notices = [
        *(Notice("restarts.jsonl", _why_again(one)) for one in reader.lines(run_dir.restarts)),
        *_of_report(report),
        *(Notice(one.name, one.fault) for one in checkpoints if one.fault),
        *_of_logs(run_dir, reader),
        *(Notice("run directory", text) for text in dict.fromkeys((*view.unread, *reader.unread))),
    ]
    if len(notices) > _MOST_WARNINGS:
        rest = len(notices) - _MOST_WARNINGS
        notices = [*notices[:_MOST_WARNINGS], Notice("logs/", f"and {counted(rest, 'more warning')}")]
    return RunPage(
        root=root,
        name=str(spec.get("name") or report.get("name") or root.name),
        read_at=now,
        seen=view,
        state=_state(view, report, began=bool(view.starts), logged=bool(metrics)),
        metrics=metrics,
        report=report,
        goodput=view.goodput,
        starts=view.starts,
        under_way=view.under_way,
        spec=spec,
        spec_text=spec_text,
        environment=environment,
        data=data,
        checkpoints=checkpoints,
        merge=reader.object(run_dir.merge),
        samples=samples,
        evaluation=evaluation,
        notices=notices,
    )


def _state(view: RunView, report: Mapping[str, Any], *, began: bool, logged: bool) -> State:
    """In words; `began`: a start has noted how it does, `logged`: there are metrics."""
    again = "give its command again to continue"
    if view.phase == "Running":
        total = f"step {view.step:,} of {view.total_steps:,}" if view.total_steps else ""
        left = "" if view.eta_seconds is None else f", {duration(view.eta_seconds)} left at this pace"
        return State("running", total + left)
    if view.unread:
        return State("unknown", view.unread[0])
    if not began and not report:
        return _UNTOLD if logged else State("not started", "nothing was trained yet")
    if view.result_fault:
        return State("without a result", f"{view.result_fault}; {again}")
    if view.phase == "Succeeded":
        return State("ended early", "no new best") if report.get("ended_early") else State("finished", "")
    if view.phase == "Failed":
        return State("failed", f"{view.error}; {again}" if view.error else again)
    if view.phase == "Interrupted":
        return State("interrupted", f"by a second Ctrl-C, after step {view.step:,}; {again}")
    if view.phase == "Killed":
        return State("killed", f"its last start ended without a word; {again}")
    if view.phase == "Stopped":
        return State("stopped", again)
    return State("unknown", "it belongs to another host or container, or is a copy of one that had not ended")


def _checkpoints(run_dir: RunDir) -> list[Checkpoint]:
    links = {name: run_dir.read_link(name) for name in LINKS}
    result = _read_checkpoint(run_dir.final, ("final/",)) if run_dir.final.is_dir() else None
    found = []
    for step in run_dir.committed_steps():
        names: list[str] = [name for name, at in links.items() if at == step]
        if result is not None and result.step == step:
            names.append("made into final/")
        found.append(_read_checkpoint(run_dir.checkpoint(step), tuple(names)))
    if run_dir.checkpoints.is_dir():
        aside = sorted(run_dir.checkpoints.glob("damaged-step-*"))
        words = "damaged; set aside, and not counted"
        found += [Checkpoint(path.name, None, None, None, (), words) for path in aside]
    return [*found, *([result] if result is not None else [])]


def _read_checkpoint(path: Path, names: tuple[str, ...]) -> Checkpoint:
    try:
        manifest = read_manifest(path)
        saved = path.stat().st_mtime
    except (StorageError, OSError) as error:
        what = error.problems[0].what if isinstance(error, StorageError) else str(error)
        return Checkpoint(path.name, None, None, None, names, what)
    step = as_number(manifest.get("step"))
    size = sum(entry["size"] for entry in manifest["files"].values())
    return Checkpoint(path.name, None if step is None else int(step), size, saved, names)


def _samples(reader: Reader, run_dir: RunDir) -> list[Sample]:
    """samples.jsonl: {"step": …, "prompt": …, "text": …} a line; a later line of the same step and prompt counts."""
    found: dict[tuple[int, str], Sample] = {}
    for line in reader.lines(run_dir.samples):
        step, prompt, text = line.get("step"), line.get("prompt"), line.get("text")
        if isinstance(step, int) and isinstance(prompt, str) and isinstance(text, str):
            found[step, prompt] = Sample(step, prompt, text)
    return list(found.values())


def _why_again(restart: Mapping[str, Any]) -> str:
    where = f"{restart['where']}: " if restart.get("where") else ""
    step = restart.get("from_step")
    again = "from the beginning" if step is None else f"from step {step}"
    return f"started again {again} after: {where}{restart.get('what', 'a failure')} ({restart.get('time', 'no time')})"


def _of_report(report: Mapping[str, Any]) -> list[Notice]:
    found = []
    skipped, overflows = number(report, "nonfinite_steps"), number(report, "overflows")
    if skipped:
        found.append(Notice("report.json", f"{skipped:.0f} steps were skipped: their loss or gradient was not finite"))
    if overflows:
        found.append(Notice("report.json", f"{overflows:.0f} times the gradients overflowed float16"))
    slow = report.get("stragglers")
    for rank in slow if isinstance(slow, list) else ():
        if isinstance(rank, dict):
            times = number(rank, "slowdown") or 0.0
            text = f"rank {rank.get('rank')} on {rank.get('host')} was {times:.1f} times as slow as the others"
            found.append(Notice("report.json", f"{text}, in {rank.get('steps')} steps"))
    return found


def _of_logs(run_dir: RunDir, reader: Reader) -> list[Notice]:
    """What ranks have warned of; the same words of several starts and ranks once."""
    counts: dict[str, tuple[str, int]] = {}
    for log in run_dir.logs():
        for line in reader.text(log).splitlines():
            match = _MARKED.match(line)
            if match is not None:
                where, times = counts.get(match[2], (f"{log.stem.replace('-', ' ')}, {match[1]}", 0))
                counts[match[2]] = (where, times + 1)
    return [Notice(where, what, times) for what, (where, times) in counts.items()]
