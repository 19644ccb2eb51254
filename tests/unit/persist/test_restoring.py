"""What is brought back from the copy of a run: nothing older than what is here, and each directory whole."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest

from rankzero.errors import StorageError
from rankzero.persist import copying, objects
from rankzero.persist.pulling import pull
from rankzero.persist.sources import ObjectSource
from rankzero.persist.stored_copy import StoredCopy
from rankzero.run_dir import atomic
from rankzero.run_dir.atomic import stage_name, verify_directory
from rankzero.run_dir.named import runs_in
from rankzero.run_dir.paths import RunDir
from tests.support.stored_runs import checkpoint, result, spec_of, store_of
from tests.support.unreadable import stale

WEIGHTS = "model.safetensors"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """At its end, of ten steps."""
    run = RunDir(tmp_path / "here" / "r")
    run.root.mkdir(parents=True)
    run.metrics.write_text("of ten")
    run.spec.write_text(json.dumps(spec_of(run).model_dump(mode="json")))
    checkpoint(run, 10)
    end(run, "of ten", 10)
    return run


def end(run: RunDir, text: str, steps: int) -> None:
    shutil.rmtree(run.final, ignore_errors=True)
    result(run, text)
    run.report.write_text(json.dumps({"steps": steps}))


def test_what_tells_of_more_steps_here_stays(run: RunDir, place: Path) -> None:
    """A copy that lags behind, and a directory whose checkpoints somebody has removed."""
    store_of(run, place.as_uri()).upload()
    run.metrics.write_text("of twenty")
    end(run, "of twenty", 20)
    shutil.rmtree(run.checkpoints)
    (place / "logs").mkdir()
    (place / "logs" / "rank-0.log").write_text("only there")
    said: list[str] = []
    copying.bring_back(run, store_of(run, place.as_uri()), said.append)
    assert run.committed_steps() == [10] and "step 10 brought back" in said[-1]
    assert run.metrics.read_text() == "of twenty" and json.loads(run.report.read_text()) == {"steps": 20}
    assert (run.final / WEIGHTS).read_text() == "of twenty"
    assert run.log(0).read_text() == "only there"


@pytest.mark.parametrize(("part", "number"), [(".", errno.ESTALE), (".", errno.EACCES), ("checkpoints", errno.EACCES)])
def test_a_copy_on_a_mount_that_cannot_be_looked_at_is_no_empty_one(
    part: str, number: int, run: RunDir, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run would begin at step 0, and be sent over it."""
    store_of(run, place.as_uri()).upload()
    shutil.rmtree(run.root)
    stale(monkeypatch, place / part, number)
    with pytest.raises(StorageError, match="so nothing was started"):
        copying.bring_back(run, store_of(run, place.as_uri()), print)
    with pytest.raises(StorageError):
        ObjectSource.find(place.as_uri(), "r").files()


def test_what_is_here_of_the_same_end_stays(run: RunDir, place: Path) -> None:
    """Measured, edited and exported since; the checkpoints were removed to free the disk."""
    run.evaluation.write_text('{"first": 1}')
    store_of(run, place.as_uri()).upload()
    run.evaluation.write_text('{"first": 1, "second": 2}')
    (run.final / "config").write_text("edited")
    (run.final / "mine.gguf").write_text("exported")
    before = {path: path.read_bytes() for path in run.root.rglob("*") if path.is_file()}
    shutil.rmtree(run.checkpoints)
    copying.bring_back(run, store_of(run, place.as_uri()), print)
    for path, data in before.items():
        assert path.read_bytes() == data, path


@pytest.mark.parametrize("best", [10, 15])
@pytest.mark.parametrize("text", ["", "weights 1S"])
def test_a_checkpoint_that_is_damaged_here_comes_whole_from_there(
    run: RunDir, place: Path, best: int, text: str
) -> None:
    checkpoint(run, 15)
    run.set_link("best", best)
    store_of(run, place.as_uri()).upload()
    (run.checkpoint(15) / "adapter" / "weights").write_text(text)
    said: list[str] = []
    copying.bring_back(run, store_of(run, place.as_uri()), said.append)
    verify_directory(run.checkpoint(15))
    assert run.steps_set_aside() == {15} and run.committed_steps() == [15, 10]
    assert (run.read_link("last"), run.read_link("best")) == (15, best)
    assert "is damaged; it is now" in said[0] and "step 15 brought back" in said[-1]


def test_a_disk_here_that_cannot_be_read_for_a_moment_damages_nothing(
    run: RunDir, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what was fetched, which would be replaced there by what the run does anew, nor what is here."""
    checkpoint(run, 20)
    store_of(run, place.as_uri()).upload()
    run.metrics.write_text("of twenty-three")
    own = atomic.file_sha256

    def read(path: Path) -> str:
        if "step-20" in str(path):
            raise OSError(errno.ESTALE, "Stale file handle")
        return own(path)

    said: list[str] = []
    empty = RunDir(tmp_path / "elsewhere" / "r")
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "file_sha256", read)
        copying.bring_back(run, store_of(run, place.as_uri()), said.append)
        with pytest.raises(StorageError, match="Stale file handle(.|\n)*so nothing was started"):
            copying.bring_back(empty, store_of(empty, place.as_uri()), print)
    assert run.committed_steps() == [20, 10] and not run.steps_set_aside()
    assert run.metrics.read_text() == "of twenty-three" and "Stale file handle" in said[-1]
    assert not empty.committed_steps()
    copying.bring_back(empty, store_of(empty, place.as_uri()), print)
    assert empty.committed_steps() == [20] and empty.read_link("last") == 20


def test_with_a_checkpoint_that_only_ends_the_run_comes_the_one_before(run: RunDir, place: Path) -> None:
    """From which a longer run goes on. A restore that is cut off between the two is made again."""
    for step in (50, 80, 90):
        checkpoint(run, step)
    checkpoint(run, 100, only_ends=True)
    run.set_link("best", 10)
    store_of(run, place.as_uri()).upload()
    (place / "checkpoints/step-90/adapter/weights").write_text("rot")
    shutil.rmtree(run.root)
    run.root.mkdir()
    copying.bring_back(run, store_of(run, place.as_uri()), print)
    assert run.committed_steps() == [100, 80, 10] and (run.read_link("last"), run.read_link("best")) == (100, 10)
    shutil.rmtree(run.checkpoint(100))
    copying.bring_back(run, store_of(run, place.as_uri()), print)
    assert run.committed_steps() == [100, 80, 10]


@pytest.mark.parametrize("linked", ["best", "none"])
def test_of_a_damaged_newest_one_there_the_one_before_comes(
    run: RunDir, place: Path, tmp_path: Path, linked: str
) -> None:
    """Also where it was the best one: it is no checkpoint that is here."""
    checkpoint(run, 15)
    if linked == "best":
        run.set_link("best", 15)
    store_of(run, place.as_uri()).upload()
    (place / "checkpoints/step-15/adapter/weights").write_text("weights 1S")
    back, said = RunDir(tmp_path / "back" / "r"), []
    assert store_of(back, place.as_uri()).restore(said.append) == 10
    assert back.committed_steps() == [10]
    assert (back.read_link("last"), back.read_link("best")) == (10, None)
    assert len([line for line in said if "step-15" in line]) == 1


def test_a_disk_that_is_full_for_a_checkpoint_damages_none(
    run: RunDir, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for damage, the run would go on from an older one, or begin again."""
    checkpoint(run, 15)
    store_of(run, place.as_uri()).upload()
    back, said, sync = RunDir(tmp_path / "back" / "r"), [], objects.fsync_path

    def full(path: Path) -> None:
        if "step-15" in str(path):
            raise OSError(28, "No space left on device")
        sync(path)

    monkeypatch.setattr(objects, "fsync_path", full)
    with pytest.raises(StorageError, match="No space left on device"):
        copying.bring_back(back, store_of(back, place.as_uri()), said.append)
    assert not back.committed_steps() and not [line for line in said if "is damaged" in line]


def test_a_disk_that_is_full_is_no_fault_of_the_store(
    run: RunDir, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_of(run, place.as_uri()).upload()
    back = RunDir(tmp_path / "back" / "r")

    def full(_path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(objects, "fsync_path", full)
    with pytest.raises(StorageError, match="No space left on device") as failed:
        copying.bring_back(back, store_of(back, place.as_uri()), lambda _said: None)
    told = failed.value.problems[0]
    assert told.where.startswith(str(back.root)) and "free space on this volume" in told.hint
    assert "leave the copy" not in failed.value.problems[-1].hint


def test_a_result_that_has_lost_its_checkpoints_is_told_of(run: RunDir, place: Path, tmp_path: Path) -> None:
    store_of(run, place.as_uri()).upload()
    shutil.rmtree(place / "checkpoints")
    back, said = RunDir(tmp_path / "back" / "r"), []
    copying.bring_back(back, store_of(back, place.as_uri()), said.append)
    assert "has a result of this run and no checkpoint" in said[0] and "rankzero pull" in said[1]
    said.clear()
    copying.bring_back(run, store_of(run, place.as_uri()), said.append)
    assert not said, "its checkpoints are here"


def test_a_result_comes_as_it_is_there(run: RunDir, place: Path, tmp_path: Path) -> None:
    (run.final / "own").write_text("added by somebody")
    (run.final / "config").write_text("edited")
    store_of(run, place.as_uri()).upload()
    back = RunDir(tmp_path / "back" / "r")
    store_of(back, place.as_uri()).restore(print)
    here = {path.name: path.read_text() for path in back.final.iterdir()}
    assert here == {path.name: path.read_text() for path in run.final.iterdir()}


def test_a_result_that_is_here_is_not_fetched(
    run: RunDir, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_of(run, place.as_uri()).upload()
    shutil.rmtree(run.checkpoints)
    run.report.write_text(json.dumps({"steps": 10}))
    asked: list[str] = []
    fetch = StoredCopy.fetch
    monkeypatch.setattr(StoredCopy, "fetch", lambda copy, name, local: (asked.append(name), fetch(copy, name, local)))
    store_of(run, place.as_uri()).restore(print)
    assert run.committed_steps() == [10] and not [name for name in asked if name.startswith("final/")]


@pytest.mark.parametrize("how", ["its weights are others", "its manifest is missing", "a file is missing"])
def test_a_result_that_is_not_whole_there_is_not_brought_and_keeps_no_checkpoint_away(
    run: RunDir, place: Path, tmp_path: Path, how: str
) -> None:
    store_of(run, place.as_uri()).upload()
    if how == "its weights are others":
        (place / "final" / WEIGHTS).write_text("of tex")
    else:
        (place / "final" / ("manifest.json" if how == "its manifest is missing" else "config")).unlink()
    back, said = RunDir(tmp_path / "back" / "r"), []
    assert store_of(back, place.as_uri()).restore(said.append) == 10
    assert not back.final.exists() and not list(back.root.glob(".tmp-*"))
    assert len(said) == (how != "its manifest is missing")
    assert all("the result in" in line and "damaged" in line for line in said)


def test_what_a_restore_that_was_killed_has_left_is_put_right(run: RunDir, place: Path, tmp_path: Path) -> None:
    store_of(run, place.as_uri()).upload()
    back = RunDir(tmp_path / "back" / "r")
    back.checkpoints.mkdir(parents=True)
    for left in (back.root / stage_name("final"), back.checkpoints / stage_name("step-10")):
        left.mkdir()
        (left / "half").write_text("of a process that was killed")
    result(back, "was being replaced")
    back.final.rename(back.root / stage_name("old-final"))
    (place / "final" / "manifest.json").unlink()
    copying.bring_back(back, store_of(back, place.as_uri()), print)
    assert (back.final / WEIGHTS).read_text() == "was being replaced"
    assert not list(back.root.rglob(".tmp-*"))
    verify_directory(back.checkpoint(10))


def test_a_checkpoint_that_is_cut_off_there_is_seen_before_it_is_fetched(
    run: RunDir, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(run, 15)
    store_of(run, place.as_uri()).upload()
    (place / "checkpoints/step-15/adapter/weights").write_text("")
    asked: list[str] = []
    fetch = StoredCopy.fetch
    monkeypatch.setattr(StoredCopy, "fetch", lambda copy, name, local: (asked.append(name), fetch(copy, name, local)))
    said: list[str] = []
    assert store_of(RunDir(tmp_path / "back" / "r"), place.as_uri()).restore(said.append) == 10
    assert "step-15" in said[0] and not [name for name in asked if "step-15" in name]


def test_a_result_that_people_have_edited_can_be_pulled(run: RunDir, place: Path, tmp_path: Path) -> None:
    (run.final / "config").write_text("edited, and longer than it was")
    store_of(run, place.as_uri()).upload()
    said: list[str] = []
    here = RunDir(tmp_path / "pulled")
    pull(ObjectSource(place.as_uri()), here.root, said.append)
    assert (here.final / "config").read_text() == "edited, and longer than it was"
    assert [line for line in said if "final/config was changed since the run wrote it" in line]
    (place / "final" / WEIGHTS).write_text("of tex")
    with pytest.raises(StorageError, match="sha256 differs"):
        pull(ObjectSource(place.as_uri()), tmp_path / "another", print)


@pytest.mark.parametrize("by", ["restore", "pull"])
def test_what_people_put_into_a_result_is_kept_where_another_one_comes(
    by: str, run: RunDir, place: Path, tmp_path: Path
) -> None:
    back, said = RunDir(tmp_path / "back" / "r"), []
    result(back, "of five")
    (back.final / "config").write_text("edited")
    (back.final / "merged").mkdir()
    (back.final / "merged" / WEIGHTS).write_text("a day of work")
    (run.final / "own").write_text("added by somebody there")
    store_of(run, place.as_uri()).upload()
    if by == "restore":
        store_of(back, place.as_uri()).restore(said.append)
    else:
        pull(ObjectSource(place.as_uri()), back.root, said.append)
    assert (back.final / WEIGHTS).read_text() == "of ten"
    verify_directory(back.final)
    (kept,) = back.root.glob("final-kept-*")
    assert (kept / "config").read_text() == "edited"
    assert (kept / "merged" / WEIGHTS).read_text() == "a day of work"
    assert (kept / WEIGHTS).read_text() == "of five"
    assert [line for line in said if line.startswith(str(kept)) and line.endswith(f": config, merged/{WEIGHTS}")]
    again: list[str] = []
    pull(ObjectSource(place.as_uri()), back.root, again.append)
    assert len(list(back.root.glob("final-kept-*"))) == 1


def test_what_is_kept_of_an_older_result_stays_on_its_machine(run: RunDir, place: Path, tmp_path: Path) -> None:
    """Nothing would take it away in the copy, and it would come back wherever that is read. It is no run, either."""
    shutil.copytree(run.final, run.root / "final-kept-0")
    store_of(run, place.as_uri()).upload()
    assert (place / "final" / WEIGHTS).is_file() and not list(place.glob("final-kept-*"))
    shutil.copytree(run.final, place / "final-kept-1")
    back, pulled = RunDir(tmp_path / "back" / "r"), RunDir(tmp_path / "pulled")
    store_of(back, place.as_uri()).restore(print)
    pull(ObjectSource(place.as_uri()), pulled.root, print)
    for there in (back, pulled):
        assert there.final.is_dir() and not list(there.root.glob("final-kept-*"))
    assert runs_in(run.root.parent) == [str(run.root)] and runs_in(run.root) == []
