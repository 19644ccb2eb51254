"""What the copy of a run may lose: nothing that the run itself would still have, wherever it goes on."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from rankzero.engine.checkpoint import prune_checkpoints
from rankzero.persist import copying
from rankzero.run_dir.atomic import MANIFEST
from rankzero.run_dir.paths import RunDir
from tests.support.stored_runs import checkpoint, end, log, logged, store_of


@pytest.fixture
def url() -> str:
    fsspec.filesystem("memory").store.clear()
    return "memory://bucket/r"


def new_run(root: Path) -> RunDir:
    run = RunDir(root / "r")
    run.root.mkdir(parents=True)
    run.metrics.write_text("")
    return run


def steps_in(url: str) -> set[int]:
    file_system, root = fsspec.core.url_to_fs(url)
    paths = file_system.find(f"{root}/checkpoints")
    return {int(path.split("/")[-2].removeprefix("step-")) for path in paths if path.endswith(f"/{MANIFEST}")}


def save(run: RunDir, step: int, keep: int, best: int) -> None:
    """As a run saves: the best is pointed to, and the old ones go."""
    checkpoint(run, step)
    run.set_link("best", min(step, best))
    prune_checkpoints(run, keep=keep, best_step=min(step, best))


@pytest.mark.parametrize("keep", [1, 2, 3, 1000])
@pytest.mark.parametrize("best", [10, 30, 50, 70])
def test_a_run_that_goes_on_elsewhere_keeps_what_it_would_have_kept(
    tmp_path: Path, url: str, keep: int, best: int
) -> None:
    kept = {"checkpoint": {"keep": keep}}
    whole, machine = new_run(tmp_path / "whole"), new_run(tmp_path / "0")
    store = store_of(machine, url, **kept)
    for step in range(10, 130, 10):
        save(whole, step, keep, best)
        save(machine, step, keep, best)
        store.upload()
        assert steps_in(url) >= set(whole.committed_steps())
        if step in (40, 60):
            machine = new_run(tmp_path / str(step))
            store = store_of(machine, url, **kept)
            copying.bring_back(machine, store, print)
            assert machine.committed_steps()[0] == step
            store.upload()
            assert steps_in(url) >= set(whole.committed_steps())
    assert steps_in(url) == set(whole.committed_steps()), "what was pruned since is pruned there"


def test_a_checkpoint_that_only_ends_its_run_takes_no_other_ones_place(tmp_path: Path, url: str) -> None:
    """A longer run goes on from the one before, also where a finished one was given again on another machine."""
    run, kept = new_run(tmp_path / "0"), {"checkpoint": {"keep": 1}}
    for step in (50, 90):
        save(run, step, 2, best=50)
    checkpoint(run, 100, only_ends=True)
    store_of(run, url, **kept).upload()
    assert steps_in(url) == {50, 90, 100}
    again = new_run(tmp_path / "1")
    store = store_of(again, url, **kept)
    copying.bring_back(again, store, print)
    store.upload()
    assert steps_in(url) == {50, 90, 100}


def test_a_run_that_goes_on_beyond_what_only_ended_it_is_sent(tmp_path: Path, url: str) -> None:
    """It is made longer, and goes on from an older checkpoint than is there. Nobody fetches the one of NaN again."""
    run = new_run(tmp_path / "0")
    for step in (50, 90):
        save(run, step, 2, best=50)
    checkpoint(run, 100, only_ends=True)
    end(run, "of fifty", 100)
    log(run, 100)
    store_of(run, url).upload()
    run.set_aside(100)  # as a start does that goes on
    run.set_link("last", 90)
    run.report.unlink()
    log(run, 90)
    store = store_of(run, url)
    copying.bring_back(run, store, print)
    assert run.committed_steps() == [90, 50] and logged(run) == 90
    for step in (94, 96):
        log(run, step)
        checkpoint(run, step)
        store.upload()
        assert steps_in(url) == {50, 90, 94, step}
        other = new_run(tmp_path / str(step))
        copying.bring_back(other, store_of(other, url), print)
        assert (other.committed_steps(), logged(other)) == ([step, 50], step) and not other.report.exists()


def test_what_only_ended_a_run_is_sent_again_where_it_ends_so_again(tmp_path: Path, url: str) -> None:
    run = new_run(tmp_path)
    for step in (90, 100):
        checkpoint(run, step, only_ends=step == 100)
    store = store_of(run, url)
    store.upload()
    run.set_aside(100)
    store.upload()
    assert steps_in(url) == {90}
    checkpoint(run, 100, only_ends=True)
    store.upload()
    assert steps_in(url) == {90, 100}


def test_what_is_set_aside_here_stays_there(tmp_path: Path, url: str) -> None:
    """The copy of a checkpoint that is damaged here is the only one."""
    run, kept = new_run(tmp_path), {"checkpoint": {"keep": 1}}
    store = store_of(run, url, **kept)
    for step in (10, 20):
        save(run, step, 1, best=10)
        store.upload()
    (run.checkpoint(10) / "adapter" / "weights").write_text("rot")
    run.set_aside(10)
    run.set_link("best", 20)
    store.upload()
    save(run, 30, 1, best=20)
    for after in (store, store_of(run, url, **kept)):
        after.upload()
        assert steps_in(url) == {10, 20, 30}
