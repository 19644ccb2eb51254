"""A save that is killed, at any call or any byte of it: what is committed is whole, or is not there.

The save of one run is made over and over, each time by a child of the training process and in a copy of its run
directory, so that a kill costs a fork and not a start.
"""

from __future__ import annotations

import copy
import json
import os
import resource
import shutil
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rankzero.engine.checkpoint import find_checkpoints, generator_states
from rankzero.engine.saving import Contents, Saver
from rankzero.run_dir.atomic import put_back_displaced, remove_stale
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from tests.faults.scene import CHANGES, COUNTS
from tests.support.forked import in_ranks
from tests.support.runs import small_spec
from tests.support.seeds import SEEDS

pytestmark = [pytest.mark.faults, pytest.mark.distributed]

POINTS = 32 * SEEDS
"""Of each kind: calls, and bytes of a file."""
NEAR_COMMIT = 400
"""The last calls, which half of the kills are among: those around the rename that commits."""
SAVED, SWEPT = 2, 4
"""The step that is saved before, and the one whose save is killed."""


def test_killed_at_points_through_a_save(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny, **{**CHANGES, "eval_rows": 0})
    assert in_ranks(sweep, 1, tmp_path, os.environ["RANKZERO_CACHE"], spec.model_dump_json(), POINTS) == [0], (
        tmp_path / "said-0"
    ).read_text()
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found) == 2 * POINTS
    assert {outcome["newest"] for outcome in found} == {SAVED, SWEPT}, "some before the commit, some after it"
    ended = [outcome for outcome in found if not outcome["killed"]]
    assert len(ended) <= POINTS // 8, "one save makes some calls fewer than another, not many"
    for outcome in ended:
        assert outcome["status"] == 0 and outcome["newest"] == SWEPT, outcome
    for outcome in found:
        assert outcome["damaged"] == [] and outcome["strays"] == [], outcome
        assert outcome["last"] in (SAVED, outcome["newest"]), outcome
    COUNTS["injected"] += len(found)
    COUNTS["kills within a save"] += len(found)


def sweep(directory: Path, cache: str, text: str, points: int) -> None:
    """The rank whose save is made over and over, then once for good."""
    from rankzero.engine import worker

    os.environ["RANKZERO_CACHE"] = cache
    save = Saver.save
    found: list[dict[str, Any]] = []

    def swept(saver: Any, position: Any, **how: Any) -> None:
        def attempt(folder: Path) -> None:
            elsewhere = copy.copy(saver)
            elsewhere._run_dir = RunDir(folder)
            elsewhere.commit(Contents(position, saver._parallel.snapshot(), generator_states()))

        if position.step == SWEPT and not found:
            saver.wait()
            root = saver._run_dir.root
            calls, largest = measure(attempt, root, directory)
            for point in range(points):
                share = (point + 0.5) / points
                near = max(0, calls - NEAR_COMMIT)
                at = int(2 * share * calls) if share < 0.5 else near + int((2 * share - 1) * (calls - near))
                found.append(outcome_of(directory, root, partial(at_call, attempt, at)))
                found.append(outcome_of(directory, root, partial(at_byte, attempt, int(share * largest))))
        save(saver, position, **how)

    patch = pytest.MonkeyPatch()
    patch.setattr(Saver, "save", swept)
    worker.run(RunSpec.model_validate_json(text), RunOptions())
    (directory / "found.json").write_text(json.dumps(found))


def measure(attempt: Any, root: Path, directory: Path) -> tuple[int, int]:
    """How many calls a save makes, and how large its largest file is."""
    counted = directory / "calls"

    def count(folder: Path) -> None:
        calls = 0

        def each(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(each)
        attempt(folder)
        sys.setprofile(None)
        counted.write_text(str(calls))

    measured = directory / "measured"
    assert in_child(count, root, measured) == 0
    files = [path.stat().st_size for path in RunDir(measured).checkpoint(SWEPT).rglob("*") if path.is_file()]
    shutil.rmtree(measured)
    return int(counted.read_text()), max(files)


def at_call(attempt: Any, at: int, folder: Path) -> None:
    """Killed at this call or return, ours or a library's, in Python or in C."""
    calls = 0

    def each(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls > at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(each)
    attempt(folder)


def at_byte(attempt: Any, at: int, folder: Path) -> None:
    """Killed as a file grows beyond so many bytes; the file has those."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (at, at))
    attempt(folder)


def outcome_of(directory: Path, root: Path, suffer: Any) -> dict[str, Any]:
    """What the next start finds where a save has been killed."""
    twin = directory / "copy"
    status = in_child(suffer, root, twin)
    run_dir = RunDir(twin)
    put_back_displaced(run_dir.checkpoints)
    found = find_checkpoints(run_dir, lambda _: None)
    remove_stale(run_dir.checkpoints)
    remove_stale(run_dir.root)
    committed = {f"step-{step}" for step in run_dir.committed_steps()}
    outcome = {
        "killed": os.WIFSIGNALED(status),
        "status": status,
        "newest": None if found.newest is None else found.newest["step"],
        "damaged": list(found.damaged),
        "last": run_dir.read_link("last"),
        "strays": [path.name for path in run_dir.checkpoints.iterdir() if path.name not in committed],
    }
    shutil.rmtree(twin)
    return outcome


def in_child(function: Any, root: Path, twin: Path) -> int:
    """Call it with a copy of the run directory, in a child of this process. Returns the child's status."""
    living = shutil.ignore_patterns(".tmp-*")  # which its owner renames beside this, as each time that it says it lives
    shutil.copytree(root, twin, symlinks=True, ignore=living)
    child = os.fork()
    if child == 0:
        try:
            function(twin)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]
