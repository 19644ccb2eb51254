"""A run whose results go to an S3 server as they are saved: through outages, and on without its directory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankzero.api.pulling import pull
from rankzero.api.sweeps import load_sweep, run_sweep
from rankzero.api.training import kept_elsewhere
from rankzero.engine.hooks import Hooks
from rankzero.errors import ConfigError, StoppedError
from rankzero.persist import copying, pulling
from rankzero.persist.stored_copy import StoredCopy
from rankzero.run_dir.atomic import MANIFEST, read_manifest, verify_directory
from rankzero.run_dir.goodput import read_starts
from rankzero.run_dir.paths import RunDir
from rankzero.spec.load import load_run_spec
from rankzero.spec.run_spec import RunSpec
from tests.support.runs import metrics, run_here, run_root, small_spec, stop_in
from tests.support.s3 import BUCKET, Store, s3_store
from tests.support.sweeps import written

SAME = ("step", "loss", "grad_norm", "learning_rate")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    import s3fs

    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)  # its own pauses are in nobody's interest here
    for module in (copying, pulling):
        monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)
    with s3_store(monkeypatch) as served:
        yield served


def start(spec: RunSpec, hooks: Hooks | None = None, allow_changes: tuple[str, ...] = ()) -> None:
    """As the command does it, in this process."""
    with kept_elsewhere(spec, allow_changes):
        run_here(spec, hooks=hooks, allow_changes=allow_changes)


def outage_and_stop(store: Store, stop_after: int) -> Hooks:
    """The store is down from the first step on."""
    stop = stop_in(stop_after).step_begins

    def begins(step: int) -> None:
        store.refuse = 10**6
        stop(step)

    return Hooks(step_begins=begins)


def curve(spec: RunSpec) -> list[tuple[object, ...]]:
    return [tuple(step[name] for name in SAME) for step in metrics(spec)]


def weights(run: Path) -> dict[str, str]:
    return {name: entry["sha256"] for name, entry in read_manifest(run / "final")["files"].items() if "model" in name}


def test_through_an_outage_and_without_its_directory(
    store: Store, tmp_path: Path, tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here = small_spec(tmp_path, tiny, name="here")
    there = small_spec(tmp_path, tiny, name="there", output_url=f"s3://{BUCKET}/results")
    run_here(here)
    with pytest.raises(StoppedError):
        start(there, outage_and_stop(store, 6))
    said = capfd.readouterr().err
    assert "not all of the run is in s3://rows/results/there" in said and "the same command copies" in said
    assert not store.objects() and RunDir(run_root(there)).committed_steps()
    store.refuse = 0
    with pytest.raises(StoppedError):
        start(there, stop_in(8))
    assert f"results/there/checkpoints/step-8/{MANIFEST}" in store.objects()
    shutil.rmtree(run_root(there))
    start(there)
    assert "step 8 brought back from s3://rows/results/there" in capfd.readouterr().err
    assert curve(there) == curve(here)
    assert weights(run_root(there)) == weights(run_root(here))
    assert "results/there/report.json" in store.objects()

    pulled = RunDir(tmp_path / "pulled")
    store.refuse, store.cut = 1, 1
    done = pull("there", f"s3://{BUCKET}/results", output=pulled.root, checkpoints="last")
    assert done.result and store.failed > 0 and (store.refuse, store.cut) == (0, 0)
    assert weights(pulled.root) == weights(run_root(here))
    verify_directory(pulled.final)
    verify_directory(pulled.checkpoint(12))


def test_what_is_removed_there_is_that_alone(store: Store) -> None:
    """Names there are no patterns, which a store's own `rm` takes them for."""
    copy = StoredCopy(f"s3://{BUCKET}/a[1]/r")
    for name in ("final/a1", "final/a[1]", "final/a*", "checkpoints/step-5/weights", "checkpoints/step-55/weights"):
        copy.write(name, name)
    copy.remove("final/a[1]")
    copy.remove("final/a*")
    copy.remove("checkpoints/step-5")
    copy.remove("checkpoints/step-7")
    assert sorted(copy.names()) == ["checkpoints/step-55/weights", "final/a1"]


@pytest.mark.parametrize("steps", [1, 3])
def test_another_run_of_this_name_stays_as_it_is(store: Store, tmp_path: Path, tiny: Path, steps: int) -> None:
    """In the store, where it was trained for less or for longer, and so does the one here."""
    url = f"s3://{BUCKET}/results"
    start(small_spec(tmp_path, tiny, output_url=url, output_dir=str(tmp_path / "a"), train__max_steps=2))
    there = store.objects()
    changes = {"output_dir": str(tmp_path / "b"), "train__max_steps": steps, "train__learning_rate": 0.003}
    run_here(small_spec(tmp_path, tiny, **changes))
    here = {path: path.stat().st_mtime_ns for path in (tmp_path / "b").rglob("*")}
    again = small_spec(tmp_path, tiny, output_url=url, **changes)
    with pytest.raises(ConfigError, match=r"train\.learning_rate: 0\.01 in the checkpoint, 0\.003 now"):
        start(again)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "b").rglob("*")} == here
    assert store.objects() == there


def test_a_change_that_is_allowed_goes_on_from_the_store(store: Store, tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny, output_url=f"s3://{BUCKET}/results", train__max_steps=1)
    start(spec)
    shutil.rmtree(run_root(spec))
    longer = spec.model_copy(update={"train": spec.train.model_copy(update={"max_steps": 2})})
    with pytest.raises(ConfigError, match="a run of another length"):
        start(longer)
    start(longer, allow_changes=("train.max_steps",))
    assert f"results/small/checkpoints/step-2/{MANIFEST}" in store.objects()


def test_a_sweeps_trials_are_copied_under_its_name(store: Store, tmp_path: Path, tiny: Path) -> None:
    """Trials of two sweeps have the same names. One that is in the store and not here is not trained again."""
    asked = {"train__max_steps": 1, "output_url": f"s3://{BUCKET}/results"}
    run = small_spec(tmp_path, tiny, **asked).model_dump(mode="json", exclude={"name"})
    file = written(tmp_path / "sweep", run, name="search", trials=1)
    sweep = load_sweep(file)
    first = run_sweep(sweep, say=print)
    there = "results/search/trial-000"
    assert {f"{there}/run.yaml", f"{there}/final/{MANIFEST}", f"{there}/checkpoints/step-1/{MANIFEST}"} <= set(
        store.objects()
    )
    best = load_run_spec(sweep.directory / "best.yaml", env={}).spec
    assert best.output_url == run["output_url"], "that is a run of its own"
    shutil.rmtree(sweep.directory)
    said: list[str] = []
    again = run_sweep(sweep, say=said.append)
    assert [trial.value for trial in again.trials] == [trial.value for trial in first.trials]
    assert "[COPY] trial-000: step 1 brought back from s3://rows/results/search/trial-000" in said
    (start,) = read_starts(RunDir(sweep.directory / "trials/trial-000").starts)
    assert (start.ended, start.step, start.world_size) == ("finished", 1, 1)
