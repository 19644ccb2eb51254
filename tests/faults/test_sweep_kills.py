"""A sweep that is killed again and again tries the same and finds the same best trial as one that nobody disturbs.

SIGKILL at chosen moments of the sweep's own process, and of a trial's; make sweep-kills does it with the quickstart.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from rankzero.errors import ExitCode, RankzeroError, StoppedError
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.sweep_load import read_sweep
from rankzero.sweep import run as loop
from rankzero.sweep.here import Finished
from rankzero.sweep.record import Record, Trial
from rankzero.sweep.trainer import Known, TrialStart
from tests.support.forked import in_ranks
from tests.support.runs import small_spec
from tests.support.sweeps import Formula, written

pytestmark = pytest.mark.faults


class Forked:
    """Real runs, in processes that have imported everything. One of them may be killed at its first evaluation."""

    def __init__(self, kill: str) -> None:
        self.kill = kill

    def start(self, spec: RunSpec, slot: int, known: Known) -> TrialStart | None:
        kill, self.kill = self.kill == spec.name, "" if self.kill == spec.name else self.kill
        return _ForkedStart(spec, kill=kill)

    def saved(self, spec: RunSpec) -> int | None:
        return None


class _ForkedStart(Finished):
    def __init__(self, spec: RunSpec, *, kill: bool) -> None:
        super().__init__(spec)
        self._kill, self._code, parent = kill, None, os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            self._train(parent)

    def _train(self, parent: int) -> None:
        from rankzero.engine import process, worker

        code = 70
        try:
            for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
                os.environ.pop(name, None)
            os.environ["RANKZERO_PARENT"] = str(parent)
            process.die_with_parent()
            worker.run(self._spec, RunOptions(log_level="WARNING"))
            code = 0
        except RankzeroError as error:
            code = int(error.exit_code)
        finally:
            os._exit(code)

    def running(self) -> bool:
        if self._kill and self.evaluations():
            os.kill(self._pid, signal.SIGKILL)
            self._kill = False
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code is None

    def stop(self) -> None:
        if self._code is None:
            os.kill(self._pid, signal.SIGTERM)

    def failure(self) -> RankzeroError | None:
        if self._code == ExitCode.STOPPED:
            return StoppedError("stopped")
        return RankzeroError(f"ended with {self._code}") if self._code else None

    def close(self) -> None:
        if self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def sweep_on(directory: Path, file: str, die_at: int, kill: str, real: bool) -> None:
    """One start of the sweep, in a process of its own. It dies by SIGKILL when it says its `die_at`th line; `kill`
    names a trial that does at its first evaluation."""
    from rankzero.api.sweeps import run_sweep

    loop.POLL_SECONDS = 0.02 if real else 0.0
    loop.PAUSE_SECONDS = (0.0,)
    sweep = read_sweep(Path(file), env={}).sweep
    assert sweep is not None
    said = 0

    def say(line: str) -> None:
        nonlocal said
        said += 1
        with (directory / "said").open("a") as file:
            file.write(f"{line}\n")
        if said == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    run_sweep(sweep, say=say, trainer=lambda _: Forked(kill) if real else Formula(evaluations=2))


def history_of(file: Path) -> list[Trial]:
    """What the record of a sweep has."""
    sweep = read_sweep(file, env={}).sweep
    assert sweep is not None
    return Record(sweep, sweep.directory / "study.db").trials


def started(directory: Path, file: Path, *, die_at: int = 0, kill: str = "", real: bool = False) -> int:
    """Its exit code."""
    directory.mkdir(exist_ok=True)
    return in_ranks(sweep_on, 1, directory, str(file), die_at, kill, real)[0]


def test_twelve_trials_killed_three_times_are_those_of_an_undisturbed_sweep(tmp_path: Path) -> None:
    files = [written(tmp_path / name, trials=12, pruner="median", name="s") for name in ("undisturbed", "killed")]
    assert started(tmp_path / "one", files[0]) == 0
    for line in (3, 9, 14):  # while one is tried, between two, at an evaluation
        assert started(tmp_path / "two", files[1], die_at=line) == -signal.SIGKILL
    assert started(tmp_path / "two", files[1]) == 0
    undisturbed, killed = map(history_of, files)
    assert killed == undisturbed
    assert len(killed) == 12 and {trial.state for trial in killed} == {"complete", "pruned"}
    best = [(file.parent / "sweeps/s/best.yaml").read_text().splitlines()[0] for file in files]
    assert best[0] == best[1]


def test_trials_that_were_killed_go_on_in_their_own_run_directories(tmp_path: Path, tiny: Path) -> None:
    """The first trial is killed by itself at an evaluation, and the sweep at one of the second."""
    train = {"max_steps": 4, "global_batch_size": 4, "micro_batch_tokens": 128}
    run = small_spec(tmp_path, tiny, rows=8, eval_rows=3, train=train, eval={"every": 2}, name=None)
    value = yaml.safe_load(yaml.safe_dump(run.model_dump(mode="json")))
    parameters = {"train.learning_rate": {"min": 1e-3, "max": 1e-1, "log": True}, "lora.r": {"values": [2, 4]}}
    files = [
        written(tmp_path / name, value, trials=2, name="s", parameters=parameters) for name in ("undisturbed", "killed")
    ]
    assert started(tmp_path / "one", files[0], real=True) == 0
    assert started(tmp_path / "two", files[1], die_at=7, kill="trial-000", real=True) == -signal.SIGKILL
    half = history_of(files[1])
    assert [trial.state for trial in half] == ["complete", "running"] and len(half[1].evaluations) == 1
    assert started(tmp_path / "two", files[1], real=True) == 0
    assert "[TRIAL 0] is started again, 1 of 3" in (tmp_path / "two/said").read_text()
    assert history_of(files[1]) == history_of(files[0])
    root = files[1].parent / "sweeps/s"
    starts = [(root / f"trials/trial-00{number}/starts.jsonl").read_text().splitlines() for number in range(2)]
    assert [len(lines) for lines in starts] == [2, 2]
    assert (root / "report.html").is_file() and (root / "best.yaml").is_file()


@pytest.mark.demo
@pytest.mark.sweep_kills
@pytest.mark.timeout(2 * 3600)
def test_the_quickstarts_search_killed_three_times_finds_the_same_best_trial(tmp_path: Path) -> None:
    """By the command itself, with the real model. An hour or more on two cores."""
    from rankzero.engine.quickstart import RECIPE, find_model

    run = yaml.safe_load((RECIPE / "run.yaml").read_text(encoding="utf-8"))
    run = {key: value for key, value in run.items() if key != "name"}
    run["model"] = {"name": find_model()}
    run["data"] |= {key: str(RECIPE / run["data"][key]) for key in ("train", "eval", "chat_template")}
    parameters = {
        "train.learning_rate": {"min": 1e-4, "max": 3e-3, "log": True},
        "lora.r": {"values": [4, 8, 16]},
    }
    files = [
        written(tmp_path / name, run, trials=12, pruner="median", name="s", parameters=parameters)
        for name in ("undisturbed", "killed")
    ]
    for trial in (1, 5, 9):
        kill_at_an_evaluation_of(trial, files[1], tmp_path / f"killed-{trial}")
    for file in files:
        subprocess.run([*SWEEP, str(file)], check=True)
    undisturbed, killed = map(history_of, files)
    assert len(killed) == 12 and killed == undisturbed


SWEEP = [sys.executable, "-m", "rankzero", "sweep"]


def kill_at_an_evaluation_of(trial: int, file: Path, said: Path) -> None:
    """Start the sweep, and end it by SIGKILL when this trial, or a later one, was evaluated."""
    with said.open("wb") as stderr:
        process = subprocess.Popen([*SWEEP, str(file)], stderr=stderr)
    try:
        while process.poll() is None:
            numbers = re.findall(r"\[TRIAL (\d+)\] evaluation", said.read_text())
            if any(int(number) >= trial for number in numbers):
                break
            time.sleep(0.1)
    finally:
        process.kill()
        assert process.wait() == -signal.SIGKILL
