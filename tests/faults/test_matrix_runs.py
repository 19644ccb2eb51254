"""The rows of the fault matrix that need runs of their own: each ends as if nothing had happened.

A row's faults are drawn by a seed; `make test` draws once, `make faults SEEDS=20` twenty times.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankzero.errors import ExitCode, StorageError
from rankzero.run_dir.atomic import verify_directory
from rankzero.run_dir.goodput import read_starts
from rankzero.spec.run_spec import RunSpec
from tests.faults.injector import Fault
from tests.faults.scene import CHANGES, COUNTS, EVERY, STEPS, Scene
from tests.support.forked import run_forked
from tests.support.runs import metrics, run_root, small_spec
from tests.support.seeds import SEEDS

pytestmark = [pytest.mark.faults, pytest.mark.distributed]

seeds = pytest.mark.parametrize("seed", range(SEEDS))
MakeScene = Callable[..., Scene]
FLIPS = 40 * SEEDS


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all rows: they read the same rows."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def shared_cache(cache: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKZERO_CACHE", str(cache))


@pytest.fixture(scope="module")
def undisturbed(cache: Path, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], RunSpec]:
    """The run that nothing happens to, by its number of ranks."""
    known: dict[int, RunSpec] = {}

    def run(nproc: int) -> RunSpec:
        if nproc not in known:
            known[nproc] = small_spec(tmp_path_factory.mktemp(f"whole-{nproc}"), tiny, **CHANGES)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("RANKZERO_CACHE", str(cache))
                ended = run_forked(known[nproc], nproc)
            assert ended.codes == [0] * nproc, ended.said
        return known[nproc]

    return run


@pytest.fixture
def scene(tmp_path: Path, tiny: Path) -> Iterator[MakeScene]:
    yield lambda seed, nproc=1: Scene(tmp_path, tiny, seed, nproc)


@seeds
def test_sigterm_to_one_rank_in_a_step(seed: int, scene: MakeScene, undisturbed: Callable[[int], RunSpec]) -> None:
    run = scene(seed, 2 + seed % 2)
    step = run.draw.randint(1, STEPS - 1)
    ended = run.start(Fault("SIGTERM", rank=run.draw.randrange(run.nproc), step=step))
    assert ended.codes == [ExitCode.STOPPED] * run.nproc, ended.said
    assert run.saved() == step
    run.lost(step)
    run.continues(undisturbed(run.nproc))


@seeds
def test_killed_in_the_save_that_sigterm_has_asked_for(
    seed: int, scene: MakeScene, undisturbed: Callable[[int], RunSpec]
) -> None:
    """The grace period was too short."""
    run = scene(seed)
    step = run.draw.randint(1, STEPS - 1)
    ended = run.start(Fault("SIGTERM", step=step), Fault("SIGKILL", step=step, activity="save"))
    assert ended.codes == [-signal.SIGKILL], ended.said
    run.lost(step)
    run.continues(undisturbed(1))


@seeds
def test_a_killed_rank_is_noticed_by_the_others(
    seed: int, scene: MakeScene, undisturbed: Callable[[int], RunSpec]
) -> None:
    run = scene(seed, 2 + seed % 2)
    step, rank = run.draw.randint(2, STEPS), run.draw.randrange(run.nproc)
    ended = run.start(Fault("SIGKILL", rank=rank, step=step))
    assert ended.codes.pop(rank) == -signal.SIGKILL
    assert ended.codes == [ExitCode.SERVICE] * (run.nproc - 1), ended.said
    run.lost(step - 1)
    run.continues(undisturbed(run.nproc))


@seeds
def test_a_volume_that_takes_no_more_bytes(seed: int, scene: MakeScene, undisturbed: Callable[[int], RunSpec]) -> None:
    run = scene(seed)
    step = run.draw.choice((2, 4))
    ended = run.start(Fault("full", step=step, activity="save"))
    assert ended.codes == [ExitCode.STORAGE], ended.said
    assert "the checkpoint was not saved; older ones are intact" in ended.said
    assert not list(run.run_dir.checkpoints.glob(".tmp-*"))
    run.lost(step)
    run.continues(undisturbed(1))


@seeds
def test_changed_bytes_of_the_newest_checkpoint(
    seed: int, scene: MakeScene, undisturbed: Callable[[int], RunSpec]
) -> None:
    """Each flipped bit and each byte that is cut off is noticed; the same command goes on from the one before."""
    run = scene(seed)
    assert run.start(Fault("SIGTERM", step=5)).codes == [ExitCode.STOPPED]
    newest = run.run_dir.checkpoint(5)
    files = sorted(path for path in newest.rglob("*") if path.is_file())
    for flip in range(FLIPS // SEEDS):
        path = run.draw.choice(files)
        whole = path.read_bytes()
        at = run.draw.randrange(len(whole) - 1)  # a manifest without its last line feed is whole
        changed = whole[:at] + (bytes([whole[at] ^ 1 << run.draw.randrange(8)]) + whole[at + 1 :] if flip % 2 else b"")
        path.write_bytes(changed)
        COUNTS["bytes changed"] += 1
        with pytest.raises(StorageError):
            verify_directory(newest)
        COUNTS["and noticed"] += 1
        last_one = flip + 1 == FLIPS // SEEDS
        path.write_bytes(changed if last_one else whole)
    ended = run.continues(undisturbed(1))
    assert "checkpoint step-5 is damaged and is not used" in ended.said
    assert "continuing from step 4" in ended.said


@seeds
def test_a_missing_file_of_generators(seed: int, scene: MakeScene, undisturbed: Callable[[int], RunSpec]) -> None:
    run = scene(seed, 2)
    assert run.start(Fault("SIGTERM", rank=-1, step=5)).codes == [ExitCode.STOPPED] * 2
    (run.run_dir.checkpoint(5) / f"rng-rank-{run.draw.randrange(2)}.json").unlink()
    ended = run.continues(undisturbed(2))
    assert "checkpoint step-5 is damaged and is not used" in ended.said


@seeds
def test_a_loss_that_is_no_number(seed: int, scene: MakeScene, undisturbed: Callable[[int], RunSpec]) -> None:
    run = scene(seed)
    step = run.draw.randint(1, STEPS)
    ended = run.start(Fault("nan", step=step))
    assert ended.codes == [ExitCode.INTERNAL], ended.said
    assert f"step {step}: the loss is nan" in ended.said and "train.jsonl:" in ended.said
    run.lost(step - 1)
    run.continues(undisturbed(1))


@seeds
def test_a_slow_rank_is_named(seed: int, scene: MakeScene, undisturbed: Callable[[int], RunSpec]) -> None:
    run = scene(seed, 2)
    rank = run.draw.randrange(2)
    ended = run.start(Fault("slow", rank=rank))
    assert ended.codes == [0, 0] and ended.report is not None, ended.said
    assert [found["rank"] for found in ended.report["stragglers"]] == [rank]
    assert metrics(run.spec)[-1]["straggler"].startswith(f"rank {rank} on ")
    assert metrics(run.spec)[-1]["slowest_rank"] == rank
    assert f"rank {rank} on " in ended.said
    run.is_as(undisturbed(2))


@seeds
def test_a_clock_that_jumps(seed: int, scene: MakeScene, undisturbed: Callable[[int], RunSpec]) -> None:
    """By an hour, forth and back, while it trains; checkpoints get times of change in a drawn order."""
    run = scene(seed)
    ended = run.start(Fault("clock"), Fault("SIGTERM", step=5))
    assert ended.codes == [ExitCode.STOPPED], ended.said
    for step in run.run_dir.committed_steps():
        at = run.draw.uniform(0, 2e9)
        os.utime(run.run_dir.checkpoint(step), (at, at))
    ended = run.start(Fault("clock"))
    assert ended.codes == [0] and "continuing from step 5" in ended.said, ended.said
    run.is_as(undisturbed(1))


def test_killed_in_every_step(scene: MakeScene, undisturbed: Callable[[int], RunSpec]) -> None:
    """One run, killed as its first step begins, as its second does, and so on to the last."""
    run = scene(0)
    for step in range(1, STEPS + 1):
        ended = run.start(Fault("SIGKILL", step=step))
        assert ended.codes == [-signal.SIGKILL], ended.said
        run.lost(step - 1)
    run.continues(undisturbed(1))
    starts = read_starts(run.run_dir.starts)
    assert [start.ended for start in starts] == [None] * STEPS + ["finished"]
    assert [start.step for start in starts] == [*range(STEPS), STEPS]


def test_killed_anywhere_between_here_and_the_end(
    scene: MakeScene, undisturbed: Callable[[int], RunSpec], tmp_path: Path, tiny: Path
) -> None:
    """Ten kills of drawn ranks at drawn activities of one run of two ranks, which answers prompts, saves beside its
    steps and is tracked; only where many seeds are asked for."""
    if SEEDS == 1:
        pytest.skip("make faults draws these")
    draw = random.Random(SEEDS)
    for number in range(SEEDS):
        folder = tmp_path / f"run-{number}"
        folder.mkdir()
        run = Scene(folder, tiny, number, 2, tracking__tensorboard=True)
        for _ in range(10):
            done = run.saved()
            step = draw.randint(done + 1, min(done + EVERY, STEPS))
            activity = "step" if step % EVERY else draw.choice(("step", "save"))
            ended = run.start(Fault("SIGKILL", rank=draw.randrange(2), step=step, activity=activity))
            if ended.codes == [0, 0]:
                break
            assert -signal.SIGKILL in ended.codes, ended.said
        run.continues(undisturbed(2))
        shutil.rmtree(folder)


def test_a_place_that_cannot_be_written(scene: MakeScene, tiny: Path) -> None:
    """A file where the directory of results should be, and a file system that takes nothing: before anything loads."""
    run = scene(0)
    for output_dir in (str(run.folder / "train.jsonl"), "/proc/results"):
        spec = run.spec.model_copy(update={"output_dir": output_dir})
        ended = run.start(spec=spec)
        assert ended.codes == [ExitCode.STORAGE], ended.said
        assert output_dir in ended.said and "[MODEL]" not in ended.said
        assert not run_root(spec).exists()
