"""tests/gpu in pieces: what matters most first, no test begun when time is up, none repeated that was seen before.

A plugin of pytest (`-p gpu_tests`) that writes each outcome as it comes, and what starts pytest with it.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / "tests" / "gpu"
ORDER = (
    *(
        "attention",
        "images",
        "dropout",
        "rounded_gradients",
        "optimizers",
        "memory_plan",
        "low_bits",
        "preferences",
        "resume",
        "sharding",
    ),
    "compile",
)
"""Files of tests/gpu. What compiles takes longest, so it comes last."""
MOST_SECONDS = 90
"""Of one test, where pytest-timeout is installed."""
LEAST_SECONDS = 20.0
"""Of pytest: importing torch and the first kernel take as long."""
NO_TIME, UNENDED, LOST = "no time was left", "did not end", "failed: the device with it"
DEVICE_ERRORS = ("CUDA error", "cudaError", "device-side assert")
"""After which no other test of that process can use the device."""
SHOWN = 6000
SETTINGS = "RANKZERO_GPU_TESTS"
"""The variable by which the plugin is told where outcomes go, when to be done, and what is known already."""


def files() -> list[Path]:
    """Of tests/gpu, in ORDER; new ones at the end."""
    ranks = {f"test_{name}": at for at, name in enumerate(ORDER)}
    return sorted(FOLDER.glob("test_*.py"), key=lambda path: (ranks.get(path.stem, len(ranks)), path.stem))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one start of pytest."""

    tests: dict[str, str]
    """`passed`, `failed`, LOST, UNENDED, or `skipped: why`, by test."""
    left: int | None
    """Tests that were not begun; None where not even that is known."""
    ended: str
    """How pytest itself ended."""
    lost: bool = False
    """A test has taken the process or the device with it."""


def run(seconds: float, known: Mapping[str, str], *, cpu: bool, log: Path, show: Callable[[str], None]) -> Outcome:
    """Run for about `seconds` what is not `known` to have passed or failed. pytest's whole output goes to `log`.

    Where a test takes the process or its device with it, the others go on in another process.
    """
    if find_spec("pytest") is None:
        return Outcome({}, None, "not run: pytest is not installed")
    ends = time.monotonic() + seconds
    if seconds < LEAST_SECONDS:
        return Outcome({}, None, "not run: no time was left")
    log.unlink(missing_ok=True)
    found = _start(seconds, known, cpu=cpu, log=log)
    while found.left and found.lost and (seconds := ends - time.monotonic()) >= LEAST_SECONDS:
        later = _start(seconds, {**known, **found.tests}, cpu=cpu, log=log)
        found = Outcome(found.tests | later.tests, later.left, later.ended, later.lost)
    show(log.read_text(encoding="utf-8", errors="replace")[-SHOWN:])
    return found


def _start(seconds: float, known: Mapping[str, str], *, cpu: bool, log: Path) -> Outcome:
    """One process of pytest."""
    told = log.with_suffix(".jsonl")
    told.unlink(missing_ok=True)
    settled = [test for test, outcome in known.items() if not outcome.startswith("skipped")]
    settings = {"told": str(told), "until": time.time() + seconds - LEAST_SECONDS / 2, "settled": settled}
    command = [sys.executable, "-m", "pytest", "-p", "gpu_tests", "-p", "no:cacheprovider", "-v", "--tb=short"]
    command += ["--durations=10", "--color=no", "--continue-on-collection-errors"]
    limited = find_spec("pytest_timeout") is not None
    # Without that plugin its line in pyproject.toml would be an error under --strict-config.
    command += [f"--timeout={MOST_SECONDS}"] if limited else ["-o", "addopts=-ra --strict-markers"]
    env = {**os.environ, **({"CUDA_VISIBLE_DEVICES": ""} if cpu else {}), SETTINGS: json.dumps(settings)}
    env |= {"PYTHONPATH": os.pathsep.join([str(HERE), python_path()]), "PYTHONUNBUFFERED": "1"}
    most = seconds + LEAST_SECONDS
    with log.open("a", encoding="utf-8") as output:
        try:
            done = subprocess.run(
                [*command, *map(str, files())],
                cwd=HERE.parent,
                env=env,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=most,
            )
            ended = f"exit code {done.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"killed after {most:.0f} s"
    lines = told.read_text(encoding="utf-8").splitlines() if told.is_file() else []
    told.unlink(missing_ok=True)
    if not lines:
        printed = log.read_text(encoding="utf-8", errors="replace")
        return Outcome({}, None, f"{ended}: {' '.join(printed.split())[-300:]}")
    return read_told([json.loads(line) for line in lines], ended, now=time.time())


def read_told(lines: Sequence[Mapping[str, Any]], ended: str, *, now: float) -> Outcome:
    """What the plugin has told. A test that was killed before its whole time is left for the next piece."""
    first, *others = lines
    cut = now - MOST_SECONDS if ended.startswith("killed") else math.inf
    outcomes = {one["test"]: one["outcome"] for one in others if one.get("begun", 0.0) < cut}
    left = sum(test not in outcomes for test in first["collected"])
    return Outcome(outcomes, left, ended, any(outcome in (UNENDED, LOST) for outcome in outcomes.values()))


def python_path() -> str:
    """PYTHONPATH for a process that works elsewhere."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(str(Path(path).resolve()) for path in given if path)


def summary(tests: Mapping[str, str], left: int, ended: str) -> str:
    """What tests/gpu has come to, in markdown: counts, what failed, why the others were skipped."""
    counts = Counter(outcome.partition(":")[0] for outcome in tests.values())
    words = [f"{count} {name}" for name, count in sorted(counts.items())] + ([f"{left} left"] if left else [])
    lines = [f"{', '.join(words) or 'nothing'} ({ended})"]
    lines += [f"- {outcome}: `{test}`" for test, outcome in tests.items() if outcome in ("failed", UNENDED, LOST)]
    reasons = Counter(outcome for outcome in tests.values() if outcome.startswith("skipped"))
    return "\n".join(lines + [f"- {reason} ({count})" for reason, count in sorted(reasons.items())])


class Pieces:
    """The plugin."""

    def __init__(self, told: str, until: float, settled: list[str]) -> None:
        self.told, self.until, self.settled = Path(told), until, set(settled)
        self.session: Any = None
        self.broken: list[str] = []
        """Files that cannot even be imported."""

    def tell(self, line: dict[str, Any]) -> None:
        with self.told.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.broken.append(report.nodeid)

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        known = [item for item in items if item.nodeid in self.settled]
        items[:] = [item for item in items if item.nodeid not in self.settled]
        config.hook.pytest_deselected(items=known)
        self.told.write_text(json.dumps({"collected": [item.nodeid for item in items]}) + "\n", encoding="utf-8")
        for file in self.broken:
            self.tell({"test": file, "outcome": "failed"})

    def pytest_sessionstart(self, session: Any) -> None:
        self.session = session

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.tell({"test": nodeid, "outcome": UNENDED, "begun": time.time()})

    def pytest_runtest_logfinish(self) -> None:
        if time.time() > self.until:
            self.session.shouldstop = NO_TIME

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.skipped:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.tell({"test": report.nodeid, "outcome": f"skipped: {why.removeprefix('Skipped: ')}"})
            return
        if report.failed:  # now: a process that is ended later prints no summary
            print(f"\n{report.longreprtext[-SHOWN:]}", file=sys.__stdout__, flush=True)
        if report.failed and any(error in report.longreprtext for error in DEVICE_ERRORS):
            self.tell({"test": report.nodeid, "outcome": LOST})
            self.session.shouldstop = LOST
        elif report.failed or report.when == "call":
            self.tell({"test": report.nodeid, "outcome": report.outcome})


def pytest_configure(config: Any) -> None:
    """Named by `-p gpu_tests`."""
    config.pluginmanager.register(Pieces(**json.loads(os.environ[SETTINGS])), "gpu-pieces")
