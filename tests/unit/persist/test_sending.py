"""What is sent to the copy of a run, in which order, and what a process that is killed in between leaves there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankzero.errors import StorageError
from rankzero.persist import copying
from rankzero.persist.stored_copy import StoredCopy
from rankzero.run_dir.atomic import MANIFEST, verify_directory
from rankzero.run_dir.paths import RunDir
from tests.support.stored_runs import checkpoint, end, everything, log, logged, save, store_of, trained
from tests.support.unreadable import refuse


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return trained(tmp_path / "here", 0)


class Killed(BaseException):
    """Where a process ended."""


@contextmanager
def killed_after(writes: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The store takes so many writes and removals more."""
    left = [writes]

    def counted(work: Callable[..., None]) -> Callable[..., None]:
        def one(*arguments: object) -> None:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            work(*arguments)

        return one

    with monkeypatch.context() as patch:
        for name in ("_commit", "remove"):
            patch.setattr(StoredCopy, name, counted(getattr(StoredCopy, name)))
        yield left


def test_whatever_ended_the_copying_what_is_there_is_whole(
    run: RunDir, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before each write in turn: checkpoints there have all their bytes and are told of by the records, the
    result is the old one, the new one or none, and another start makes all of it good."""
    url = place.as_uri()
    save(run, 5)
    end(run, "old", 5)
    store_of(run, url).upload()
    before = shutil.copytree(place, tmp_path / "before")
    for step in (6, 7, 8, 9):
        save(run, step, keep=2)
    end(run, "new, and longer", 9)
    kept = {"checkpoint": {"keep": 2}}
    ended = False
    for writes in range(100):
        shutil.rmtree(place)
        shutil.copytree(before, place)
        with killed_after(writes, monkeypatch):
            try:
                store_of(run, url, **kept).upload()
                ended = True
            except Killed:
                pass
        back = RunDir(tmp_path / f"back-{writes}" / "r")
        said: list[str] = []
        step = store_of(back, url, **kept).restore(said.append)
        assert step is not None and step <= logged(back) and not said
        verify_directory(back.checkpoint(step))
        if back.final.exists():
            verify_directory(back.final)
            assert (back.final / "model.safetensors").read_text() in ("old", "new, and longer")
        store_of(run, url, **kept).upload()
        assert not (place / "checkpoints" / "step-5").exists()
        assert (place / "final" / "model.safetensors").read_text() == "new, and longer"
        if ended:
            break
    assert ended and writes > 15


def test_a_file_that_cannot_be_read_keeps_nothing_else_from_the_store(
    run: RunDir, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run, 5)
    end(run, "result", 5)
    for name in ("tracking", "events", "logs"):
        (run.root / name).mkdir()
        (run.root / name / "file").write_text("text")
    whole = Path.open

    def closed(path: Path, *arguments: object, **named: object) -> object:
        if path == run.root / "tracking" / "file":
            raise PermissionError(13, "Permission denied")
        return whole(path, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "open", closed)
    with pytest.raises(StorageError, match="Permission denied") as failed:
        store_of(run, place.as_uri()).upload()
    assert str(failed.value).startswith(str(run.root / "tracking" / "file"))
    for name in ("checkpoints/step-5/manifest.json", "final/manifest.json", "report.json", "events/file", "logs/file"):
        assert (place / name).is_file(), name


def test_a_folder_that_cannot_be_read_keeps_no_checkpoint_from_the_store(
    run: RunDir, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run, 5)
    end(run, "result", 5)
    (run.root / "tracking").mkdir()
    refuse(monkeypatch, "tracking")
    with pytest.raises(StorageError, match="Permission denied"):
        store_of(run, place.as_uri()).upload()
    assert (place / "checkpoints/step-5/manifest.json").is_file() and (place / "final/manifest.json").is_file()


def test_what_is_further_there_is_not_replaced(run: RunDir, place: Path, tmp_path: Path) -> None:
    """As where the store did not answer at the start, and the run went on from an older checkpoint."""
    url = place.as_uri()
    save(run, 5)
    old = RunDir(Path(shutil.copytree(run.root, tmp_path / "old" / "r", symlinks=True)))
    save(run, 10)
    end(run, "newer", 10)
    store_of(run, url).upload()
    there = everything(place)
    store = store_of(old, url)
    for step in (None, 7):
        if step is not None:
            save(old, step)
            end(old, "older", step)
        with pytest.raises(StorageError, match=r"at step 10 there, and at step (5|7) here"):
            store.upload()
        assert everything(place) == there
    save(old, 11)
    end(old, "newest", 11)
    store.upload()
    assert (place / "final" / "model.safetensors").read_text() == "newest"


def begun_again(run: RunDir, place: Path) -> RunDir:
    """Of a run that has ended at step 10 nothing is here any more, and its checkpoints are gone there."""
    save(run, 10)
    end(run, "of ten", 10)
    store_of(run, place.as_uri()).upload()
    shutil.rmtree(place / "checkpoints")
    shutil.rmtree(run.root)
    return trained(run.root.parent, 0)


def test_a_result_that_is_further_there_stays_until_the_run_is_as_far(run: RunDir, place: Path) -> None:
    """Its checkpoints are gone here and there."""
    url = place.as_uri()
    run = begun_again(run, place)
    save(run, 5)
    store = store_of(run, url)
    with pytest.raises(StorageError, match="has ended at step 10 there, and is at step 5 here"):
        store.upload()
    assert (place / "checkpoints/step-5" / MANIFEST).is_file()
    assert json.loads((place / "report.json").read_text()) == {"steps": 10}
    assert (place / "final/model.safetensors").read_text() == "of ten"
    assert len((place / "metrics.jsonl").read_text().splitlines()) == 10
    save(run, 10)
    store.upload()
    assert not (place / "report.json").exists(), "it is that of an earlier end"
    assert (place / "final/model.safetensors").read_text() == "of ten", "there is no newer one yet"


def test_an_end_of_fewer_steps_takes_the_place_of_one_of_more(run: RunDir, place: Path) -> None:
    """The checkpoints of the first are gone here and there, and the second has ended early."""
    url = place.as_uri()
    run = begun_again(run, place)
    with copying.copied([store_of(run, url)], print) as failures:
        save(run, 8)
        end(run, "of eight", 8)
    assert not failures
    assert (place / "final/model.safetensors").read_text() == "of eight"
    assert json.loads((place / "report.json").read_text()) == {"steps": 8}


def test_what_a_longer_run_takes_away_goes_there_too(run: RunDir, place: Path) -> None:
    url = place.as_uri()
    save(run, 5)
    run.set_link("best", 5)
    end(run, "first", 5)
    run.error.write_text("{}")
    store_of(run, url).upload()
    assert {"report.json", "error.json", "best", "last"} <= everything(place).keys()
    run.report.unlink()
    run.error.unlink()
    run.drop_link("best")
    store_of(run, url).upload()
    assert not {"report.json", "error.json", "best"} & everything(place).keys()
    assert (place / "final" / MANIFEST).is_file()


def test_the_copy_of_a_best_checkpoint_that_is_lost_here_stays(run: RunDir, place: Path) -> None:
    kept = {"checkpoint": {"keep": 1}}
    save(run, 5)
    run.set_link("best", 5)
    store_of(run, place.as_uri(), **kept).upload()
    shutil.rmtree(run.checkpoint(5))
    store = store_of(run, place.as_uri(), **kept)
    for step in (10, 15):
        save(run, step, keep=1)
        store.upload()
    assert (place / "best").read_text() == "checkpoints/step-5\n"
    verify_directory(place / "checkpoints" / "step-5")


def test_a_result_that_lacks_a_file_here_takes_none_away_there(run: RunDir, place: Path) -> None:
    save(run, 5)
    end(run, "the result", 5)
    store_of(run, place.as_uri()).upload()
    there = everything(place / "final")
    (run.final / "config").unlink()
    with pytest.raises(StorageError, match="final/config: a file .* is missing"):
        store_of(run, place.as_uri()).upload()
    assert everything(place / "final") == there


def test_who_may_put_and_not_delete_has_everything_there(
    run: RunDir, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {"checkpoint": {"keep": 1}}
    save(run, 10, keep=1)
    store = store_of(run, place.as_uri(), **kept)
    store.upload()
    save(run, 20, keep=1)
    end(run, "the result", 20)

    def refused(copy: StoredCopy, name: str) -> None:
        if (place / name).exists():
            raise PermissionError(13, "DeleteObject")

    monkeypatch.setattr(StoredCopy, "remove", refused)
    with pytest.raises(StorageError, match=r"old checkpoints stay there: .*DeleteObject"):
        store.upload()
    assert everything(run.final) == everything(place / "final") and (place / "report.json").is_file()
    verify_directory(place / "checkpoints" / "step-20")


def test_a_step_that_is_made_again_here_is_sent_again(run: RunDir, place: Path) -> None:
    """As after a start has set a damaged checkpoint aside and gone on from the one before."""
    for step in (10, 20):
        save(run, step)
    store = store_of(run, place.as_uri())
    store.upload()
    there = everything(place)
    run.set_aside(20)
    run.set_link("last", 10)
    log(run, 12, "again")
    with pytest.raises(StorageError, match="at step 20 there, and at step 10 here"):
        store.upload()
    assert everything(place) == there
    log(run, 20, "again")
    checkpoint(run, 20, train={"micro_batch_tokens": 4096})
    store.upload()
    assert everything(place / "checkpoints" / "step-20") == everything(run.checkpoint(20))
    assert (place / "metrics.jsonl").read_bytes() == run.metrics.read_bytes()


@pytest.mark.parametrize("what", ["final", "checkpoint"])
def test_what_is_cut_off_here_is_not_sent_over_what_is_whole_there(run: RunDir, place: Path, what: str) -> None:
    url = place.as_uri()
    save(run, 5)
    end(run, "the result", 5)
    store_of(run, url).upload()
    there = everything(place)
    save(run, 10)
    cut = run.final / "model.safetensors" if what == "final" else run.checkpoint(10) / "adapter" / "weights"
    cut.write_text(cut.read_text()[:3])
    with pytest.raises(StorageError, match="3 bytes where") as failed:
        store_of(run, url, checkpoint={"keep": 1}).upload()
    assert str(failed.value).startswith(str(cut)), "all else was sent, and what is damaged is named"
    if what == "final":
        assert (place / "checkpoints/step-10" / MANIFEST).is_file()
        assert {name: data for name, data in everything(place).items() if name.startswith("final/")} == {
            name: data for name, data in there.items() if name.startswith("final/")
        }
    else:
        assert not (place / "checkpoints/step-10" / MANIFEST).exists()
        verify_directory(place / "checkpoints/step-5")
        assert (place / "metrics.jsonl").read_bytes() == run.metrics.read_bytes()


def test_of_the_same_result_only_what_people_edit_is_sent_again(
    run: RunDir, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = place.as_uri()
    save(run, 5)
    end(run, "the result", 5)
    store_of(run, url).upload()
    (run.final / "config").write_text("edited")
    (run.final / "own").write_text("added")
    sent: list[str] = []
    put = StoredCopy.put
    monkeypatch.setattr(StoredCopy, "put", lambda copy, path, name: (sent.append(name), put(copy, path, name)))
    store = store_of(run, url)
    store.upload()
    assert [name for name in sent if name.startswith("final/")] == ["final/config", "final/own"]
    sent.clear()
    store.upload()
    assert not sent
    (run.final / "own").unlink()
    store.upload()
    assert not (place / "final" / "own").exists() and (place / "final" / "config").read_text() == "edited"


def test_a_result_that_is_replaced_while_it_is_sent_is_none_until_the_next_copy(
    run: RunDir, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run, 5)
    end(run, "first", 5)
    store, put = store_of(run, place.as_uri()), StoredCopy.put
    replaced = iter([True])

    def meanwhile(copy: StoredCopy, path: Path, name: str) -> None:
        put(copy, path, name)
        if name == "final/config" and next(replaced, False):
            end(run, "second", 5)

    monkeypatch.setattr(StoredCopy, "put", meanwhile)
    store.upload()
    assert not (place / "final" / MANIFEST).exists()
    store.upload()
    assert everything(place / "final") == everything(run.final)


def test_the_best_checkpoint_that_is_set_aside_here_is_still_the_best_there(run: RunDir, place: Path) -> None:
    save(run, 5)
    run.set_link("best", 5)
    store_of(run, place.as_uri()).upload()
    run.set_aside(5)
    assert run.read_link("best") is None
    save(run, 10)
    store_of(run, place.as_uri()).upload()
    assert (place / "best").read_text() == "checkpoints/step-5\n"


@pytest.mark.parametrize("torn", ["manifest", "weights", "another lineage"])
def test_a_checkpoint_there_that_is_not_the_one_here_is_sent_anew(
    run: RunDir, place: Path, tmp_path: Path, torn: str
) -> None:
    url = place.as_uri()
    for step in (5, 10):
        save(run, step)
    store_of(run, url).upload()
    there = place / "checkpoints" / "step-10"
    if torn == "manifest":
        (there / MANIFEST).write_text((there / MANIFEST).read_text()[:20])
    elif torn == "weights":
        (there / "adapter" / "weights").write_text("")
    else:
        shutil.rmtree(run.checkpoint(10))
        (there / "left").write_text("of the other one")
        checkpoint(run, 10, train={"micro_batch_tokens": 4096})
    back = RunDir(tmp_path / "back" / "r")
    if torn != "another lineage":
        assert store_of(back, url).restore(lambda _said: None) == 5
    store_of(run, url).upload()
    assert everything(there) == everything(run.checkpoint(10))
    again = RunDir(tmp_path / "again" / "r")
    assert store_of(again, url).restore(print) == 10


def test_a_write_into_a_directory_that_is_cut_off_leaves_what_was_there(
    run: RunDir, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = place.as_uri()
    save(run, 5)
    store_of(run, url).upload()
    there = everything(place)
    save(run, 10)

    def half(source: str, target: str) -> None:
        Path(target).write_bytes(Path(source).read_bytes()[:3])
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", half)
        with pytest.raises(Killed):
            store_of(run, url).upload()
    assert {name: everything(place)[name] for name in there if name != ".lease.json"} == {
        name: data for name, data in there.items() if name != ".lease.json"
    }
    (place / "logs").mkdir()
    (place / "logs" / ".tmp-rank-0.log-0123").write_text("of a process that was killed")
    store_of(run, url).upload()
    assert not list(place.rglob(".tmp-*"))
