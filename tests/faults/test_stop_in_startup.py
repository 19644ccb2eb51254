"""SIGTERM at any moment of start-up: every process leaves with 75, and the same command trains as if nothing had been.

Moments are counted in function calls, not in seconds: a profiler sends the signal at the n-th call between the start of
a run and its first step, in our code or in any library's.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from rankzero.errors import ExitCode
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from tests.support.forked import in_ranks
from tests.support.runs import metrics, run_root, small_spec, stop_in
from tests.support.seeds import SEEDS

pytestmark = [pytest.mark.faults, pytest.mark.distributed]

MOMENTS = 3 * SEEDS
STEPS = 4
WAIT_SECONDS = 300.0


def rank_of_a_start(directory: Path, cache: str, text: str, at_call: int, to_stop_in: int) -> None:
    """One rank. `at_call`: where rank 0's start-up asks all ranks to stop, at its end if it has fewer calls; 0: never.
    `to_stop_in`: a step."""
    from rankzero.engine import signals, worker

    os.environ["RANKZERO_CACHE"] = cache
    rank, nproc = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    stop_on_signals, defer = worker.stop_on_signals, signals.StopRequest.defer
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        if event == "call":
            calls += 1
            if calls == at_call:
                sys.setprofile(None)
                stop_all(directory, nproc)

    @contextmanager
    def listening(*arguments: Any, **named: Any) -> Iterator[Any]:
        with stop_on_signals(*arguments, **named) as stop:
            announce(directory, rank)
            if rank == 0:
                sys.setprofile(count)
            yield stop

    def begin(stop: Any, *rest: Any) -> None:
        sys.setprofile(None)
        if rank == 0:
            (directory / "calls").write_text(str(calls))
            if calls < at_call:
                stop_all(directory, nproc)
        defer(stop, *rest)

    worker.stop_on_signals, signals.StopRequest.defer = listening, begin
    worker.run(RunSpec.model_validate_json(text), RunOptions(), stop_in(to_stop_in))


def announce(directory: Path, rank: int) -> None:
    """Leave this process's number: it listens from now on."""
    staged = directory / f"{rank}.staged"
    staged.write_text(str(os.getpid()))
    staged.rename(directory / f"pid-{rank}")


def stop_all(directory: Path, nproc: int) -> None:
    """SIGTERM to every rank, as a launcher passes it on."""
    deadline = time.monotonic() + WAIT_SECONDS
    while len(found := list(directory.glob("pid-*"))) < nproc and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(found) == nproc
    (directory / "asked").touch()
    for path in sorted(found, reverse=True):  # this process last
        os.kill(int(path.read_text()), signal.SIGTERM)


class Starts:
    """Starts of one run under one cache, each in a directory of its own for what its ranks say."""

    def __init__(self, root: Path, tiny: Path, nproc: int) -> None:
        self.root, self.nproc = root, nproc
        self.spec = small_spec(root, tiny, train__num_train_epochs=1)
        self.last = root

    def start(self, *, at_call: int = 0, to_stop_in: int = 0) -> list[int]:
        self.last = self.root / f"start-{len(list(self.root.glob('start-*')))}"
        self.last.mkdir()
        cache = str(self.root / "cache")
        return in_ranks(rank_of_a_start, self.nproc, self.last, cache, self.spec.model_dump_json(), at_call, to_stop_in)

    def said(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.last.glob("said-*")))

    def calls(self) -> int:
        return int((self.last / "calls").read_text())


@pytest.fixture(scope="module")
def measured(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, bool], tuple[int, Starts]]:
    """How many calls a start-up has: of a new run, and of one that continues from step 2; by number of ranks."""
    found = {}
    for nproc in (1, 2):
        starts = Starts(tmp_path_factory.mktemp(f"measured-{nproc}"), tiny, nproc)
        assert starts.start(to_stop_in=2) == [ExitCode.STOPPED] * nproc, starts.said()
        found[nproc, False] = (starts.calls(), starts)
        saved = Starts(tmp_path_factory.mktemp(f"saved-{nproc}"), tiny, nproc)
        shutil.copytree(starts.root / "cache", saved.root / "cache")
        shutil.copytree(run_root(starts.spec), run_root(saved.spec), symlinks=True)
        assert starts.start() == [0] * nproc, starts.said()
        found[nproc, True] = (starts.calls(), saved)
    return found


@pytest.mark.parametrize("moment", range(MOMENTS))
@pytest.mark.parametrize("nproc", [1, 2])
def test_a_stop_at_any_moment_of_start_up_is_a_stop(
    nproc: int, moment: int, measured: dict[tuple[int, bool], tuple[int, Starts]], tmp_path: Path, tiny: Path
) -> None:
    continued = bool(moment % 2)
    total, template = measured[nproc, continued]
    starts = Starts(tmp_path, tiny, nproc)
    if continued:
        shutil.copytree(template.root / "cache", tmp_path / "cache")
        shutil.copytree(run_root(template.spec), run_root(starts.spec), symlinks=True)
    codes = starts.start(at_call=1 + int(0.98 * total * (moment + 0.5) / MOMENTS))
    assert (starts.last / "asked").exists()
    # Either of two ranks tokenises, which takes some calls; one alone has as many calls as were measured.
    assert nproc > 1 or not (starts.last / "calls").exists()
    left = [ExitCode.STOPPED, ExitCode.SERVICE] if nproc > 1 else [ExitCode.STOPPED]  # 69: a peer was faster
    assert ExitCode.STOPPED in codes and all(code in left for code in codes), (codes, starts.said())
    assert starts.start() == [0] * nproc, starts.said()
    assert [row["step"] for row in metrics(starts.spec)] == list(range(1, STEPS + 1))
    assert json.loads((run_root(starts.spec) / "report.json").read_text())["steps"] == STEPS
