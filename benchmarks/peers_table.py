"""From samples to markdown. Pure, but for reading a run.yaml back."""

from __future__ import annotations

import shlex
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from peers_contestants import OURS, ROWS, TRL_BEST, TRL_DEFAULTS, Contestant, Settings
from peers_measure import Sample


def markers(precision: str) -> tuple[str, str]:
    """What stands in front of and behind the results in README.md: CPUs with bfloat16 and without have one each."""
    return f"<!-- results in {precision}: start -->", f"<!-- results in {precision}: end -->"


@dataclass(frozen=True, slots=True)
class Target:
    """A promise: the ratio ours / theirs of one figure."""

    figure: str
    field: str
    peer: str
    wanted: float
    at_least: bool

    def met(self, ratio: float) -> bool:
        return ratio >= self.wanted if self.at_least else ratio <= self.wanted


def targets(settings: Settings) -> tuple[Target, ...]:
    """What is promised. bfloat16 on a CPU is where most is, since peers leave most there."""
    best = (2.0, 0.8, 0.35) if settings.on_cpu and settings.precision == "bfloat16" else (1.2, 1.0, 0.5)
    found = []
    for peer, (rate, memory, start) in ((TRL_DEFAULTS, (2.5, 1.0, 0.5)), (TRL_BEST, best)):
        found.append(Target("useful tokens/s", "tokens_per_second", peer, rate, at_least=True))
        if settings.on_cpu:  # elsewhere only the host's memory is seen from outside
            found.append(Target("peak memory", "peak_bytes", peer, memory, at_least=False))
        found.append(Target("time to first step", "first_step_seconds", peer, start, at_least=False))
    return tuple(found)


def median(samples: Iterable[Sample], field: str) -> float:
    return float(statistics.median(getattr(sample, field) for sample in samples))


def ratios(samples: dict[str, list[Sample]], field: str, peer: str) -> list[float]:
    """Ours / theirs, repeat by repeat."""
    pairs = zip(samples[OURS], samples[peer], strict=True)
    return [getattr(ours, field) / getattr(theirs, field) for ours, theirs in pairs]


def figures_table(samples: dict[str, list[Sample]], settings: Settings) -> str:
    """Medians, one contestant a line."""
    memory = "memory" if settings.on_cpu else "memory of the host"
    lines = [
        f"| | useful tokens/s | peak {memory} | time to first step | whole run "
        f"| useful tokens in steps 2…{settings.steps} | loss |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, runs in samples.items():
        lines.append(
            f"| {name} | {median(runs, 'tokens_per_second'):.1f} | {median(runs, 'peak_bytes') / 2**30:.2f} GiB "
            f"| {median(runs, 'first_step_seconds'):.1f} s | {median(runs, 'seconds'):.0f} s "
            f"| {median(runs, 'tokens'):,.0f} | {median(runs, 'loss_first'):.2f} → {median(runs, 'loss_last'):.2f} |"
        )
    return "\n".join(lines)


def targets_table(samples: dict[str, list[Sample]], settings: Settings) -> str:
    """Every promise, what was measured, and whether it holds."""
    lines = ["| rankzero ÷ peer | peer | promised | measured | repeat by repeat | |", "|---|---|--:|--:|--:|---|"]
    for target in targets(settings):
        each = ratios(samples, target.field, target.peer)
        ratio = statistics.median(each)
        bound = f"{'≥' if target.at_least else '≤'} {target.wanted:g}"
        verdict = "met" if target.met(ratio) else "**missed**"
        pairs = ", ".join(f"{value:.2f}" for value in each)
        lines.append(f"| {target.figure} | {target.peer} | {bound} | {ratio:.2f} | {pairs} | {verdict} |")
    return "\n".join(lines)


def commands_text(contestants: Sequence[Contestant], settings: Settings, directory: Path) -> str:
    """The commands as they were started, with the machine's own paths named instead."""
    shown = []
    for contestant in contestants:
        command = shlex.join(contestant.command(settings, directory))
        shown.append(f"# {contestant.name}\n{command}")
    shown.append("# run.yaml\n" + (directory / "run.yaml").read_text(encoding="utf-8").rstrip())
    text = "\n\n".join(shown)
    trl = str(Path(contestants[-1].python).with_name("trl"))
    names = {
        settings.model: "MODEL",
        str(directory): "WORK",
        str(settings.rows): "ROWS",
        trl: "trl",
        sys.executable: "python",
    }
    for path in sorted(names, key=len, reverse=True):
        text = text.replace(path, names[path])
    return text


def render(head: str, samples: dict[str, list[Sample]], settings: Settings, commands: str) -> str:
    """The whole results section in markdown."""
    runs = len(samples[OURS])
    return "\n\n".join(
        [
            head,
            f"{ROWS:,} rows, {settings.steps} steps of 16 rows, **{settings.precision} for every contestant**"
            f"{why(settings)}; medians of {runs} run{'' if runs == 1 else 's'} each, in turns.",
            figures_table(samples, settings),
            targets_table(samples, settings),
            "Exact commands. MODEL is SmolLM2-135M-Instruct in Hugging Face format, ROWS holds `train.jsonl`, WORK is "
            "an empty directory of each run's own:",
            f"```\n{commands}\n```",
        ]
    )


def why(settings: Settings) -> str:
    """Why it is not the bfloat16 of a GPU."""
    slow = settings.on_cpu and settings.precision == "float32"
    return ", as where a CPU only emulates bfloat16, many times slower than float32" if slow else ""


def write_between_markers(text: str, results: str, precision: str) -> str:
    """`text` with everything between the markers of a precision replaced. Raises SystemExit where it has none."""
    start, end = markers(precision)
    before, found, rest = text.partition(start)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise SystemExit(f"benchmarks/README.md lacks the lines {start} and {end}")
    return f"{before}{start}\n\n{results}\n\n{end}{after}"
