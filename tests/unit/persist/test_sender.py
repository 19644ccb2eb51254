"""A copy has one sender at a time: the start that came last, for as long as it lasts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankzero.errors import StorageError
from rankzero.persist import copying
from rankzero.persist.run_store import RunStore
from rankzero.persist.stored_copy import StoredCopy
from rankzero.run_dir.atomic import MANIFEST
from rankzero.run_dir.paths import RunDir
from tests.support.stored_runs import checkpoint, end, everything, log, save, store_of, trained


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return trained(tmp_path / "here", 0)


def two_starts(run: RunDir, tmp_path: Path, url: str) -> tuple[RunDir, RunStore, RunDir, RunStore]:
    other = trained(tmp_path / "there", 0)
    first, second = store_of(run, url), store_of(other, url, train={"learning_rate": 0.5})
    for store, here in ((first, run), (second, other)):
        copying.bring_back(here, store, print)
    return run, first, other, second


def brought_back(tmp_path: Path, url: str) -> tuple[RunDir, RunStore]:
    """The run on another machine, before it trains there."""
    other = RunDir(tmp_path / "there" / "r")
    other.root.mkdir(parents=True)
    store = store_of(other, url)
    copying.bring_back(other, store, print)
    return other, store


def test_of_two_runs_with_one_name_the_later_one_has_the_place(run: RunDir, place: Path, tmp_path: Path) -> None:
    """Neither has a checkpoint, so that neither knows of the other by what is there."""
    run, first, other, second = two_starts(run, tmp_path, place.as_uri())
    log(run, 1, "first")
    first.upload()
    log(other, 2, "second")
    second.upload()
    for step in (5, 10):
        log(run, step, "first")
        checkpoint(run, step)
        with pytest.raises(StorageError, match="another start of a run with this name"):
            first.upload()
    assert json.loads((place / "metrics.jsonl").read_text().splitlines()[0])["by"] == "second"
    assert not (place / "checkpoints").exists()
    checkpoint(other, 5, train={"learning_rate": 0.5})
    second.upload()
    assert everything(place / "checkpoints" / "step-5") == everything(other.checkpoint(5))


def test_who_comes_to_its_first_copy_late_looks_again(run: RunDir, place: Path, tmp_path: Path) -> None:
    run, first, other, second = two_starts(run, tmp_path, place.as_uri())
    checkpoint(other, 5, train={"learning_rate": 0.5})
    second.upload()
    there = everything(place)
    checkpoint(run, 5)
    with pytest.raises(StorageError, match=r"learning_rate"):
        first.upload()
    assert everything(place) == there


def test_who_had_the_place_before_has_it_again_when_the_other_ends(run: RunDir, place: Path, tmp_path: Path) -> None:
    """A second start that was refused, or was a mistake."""
    url = place.as_uri()
    save(run, 10)
    first = store_of(run, url)
    first.upload()
    other, second = brought_back(tmp_path, url)
    with copying.copied([second], print) as failures:
        second.upload()
        save(run, 20)
        with pytest.raises(StorageError, match="another start"):
            first.upload()
    assert not failures
    first.upload()
    assert (place / "checkpoints" / "step-20" / MANIFEST).is_file()
    first.release()
    assert not (place / ".lease.json").exists()


def test_nothing_is_mixed_where_the_place_is_taken_in_the_middle_of_a_copy(
    run: RunDir, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = place.as_uri()
    save(run, 10)
    hung = store_of(run, url)
    hung.upload()
    other, store = brought_back(tmp_path, url)
    save(run, 20)
    end(run, "of the one that hung", 20)
    log(other, 20)
    checkpoint(other, 20, train={"micro_batch_tokens": 4096})
    put, taken = StoredCopy.put, iter([True])

    def slow(copy: StoredCopy, path: Path, name: str) -> None:
        if path == run.checkpoint(20) / "adapter" / "weights":
            put(copy, path, name)
            if next(taken, False):
                store.upload()
            return
        put(copy, path, name)

    monkeypatch.setattr(StoredCopy, "put", slow)
    with pytest.raises(StorageError, match="another start"):
        hung.upload()
    assert everything(place / "checkpoints" / "step-20") == everything(other.checkpoint(20))
    assert not (place / "final").exists()


def test_who_was_replaced_on_another_machine_sends_nothing_more(run: RunDir, place: Path, tmp_path: Path) -> None:
    url = place.as_uri()
    save(run, 5)
    hung = store_of(run, url)
    hung.upload()
    other, store = brought_back(tmp_path, url)
    assert other.committed_steps() == [5] and not (other.root / ".lease.json").exists()
    save(other, 10)
    store.upload()
    there = everything(place)
    save(run, 15)
    with pytest.raises(StorageError, match="another start"):
        hung.upload()
    assert everything(place) == there
    save(other, 20)
    store.upload()
    assert (place / "checkpoints" / "step-20" / MANIFEST).is_file()
