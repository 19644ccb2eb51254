"""Results in an object store: whole or not there, and back again."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import fsspec
import pytest

import rankzero.persist.stored_copy
from rankzero.engine.checkpoint import prune_checkpoints
from rankzero.errors import ConfigError, StorageError
from rankzero.launch.node.mirror import mirrored, settled_there
from rankzero.launch.node.settings import Mirror, NodeSettings
from rankzero.persist import copying
from rankzero.persist.run_store import OtherRunError, RunStore
from rankzero.run_dir.atomic import MANIFEST, commit_directory, verify_directory, write_text
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.setting import settled
from rankzero.spec.diff import name_beside
from rankzero.spec.run_spec import RunSpec
from tests.support.stored_runs import checkpoint, result, spec_of, store_of
from tests.support.unreadable import refuse


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/store"
    fsspec.filesystem("memory").store.clear()
    return "memory://bucket/prefix"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "runs" / "r")
    run.root.mkdir(parents=True)
    run.metrics.write_text('{"step": 1}\n')
    (run.root / "lease.json").write_text("{}")
    (run.root / "logs").mkdir()
    run.log(0).write_text("hello")
    return run


def test_there_and_back(run: RunDir, url: str, tmp_path: Path) -> None:
    for step in (5, 10):
        checkpoint(run, step)
    store_of(run, url).upload()
    back = RunDir(tmp_path / "elsewhere")
    assert store_of(back, url).restore(print) == 10
    assert back.committed_steps() == [10]
    assert (back.checkpoint(10) / "adapter" / "weights").read_text() == "weights 10"
    assert back.read_link("last") == 10
    assert back.metrics.read_text() == run.metrics.read_text()
    assert not (back.root / "lease.json").exists()


def test_a_checkpoint_without_its_manifest_is_not_there(run: RunDir, url: str, tmp_path: Path) -> None:
    checkpoint(run, 5)
    checkpoint(run, 10)
    store_of(run, url).upload()
    store, root = fsspec.core.url_to_fs(url)
    store.rm(f"{root}/checkpoints/step-10/{MANIFEST}")
    back = RunDir(tmp_path / "elsewhere")
    assert store_of(back, url).restore(print) == 5


def test_pruned_ones_go_once_newer_ones_are_there(run: RunDir, url: str) -> None:
    checkpoint(run, 5)
    store = store_of(run, url, checkpoint={"keep": 1})
    store.upload()
    checkpoint(run, 10)
    prune_checkpoints(run, keep=1, best_step=None)
    store.upload()
    file_system, root = fsspec.core.url_to_fs(url)
    assert not file_system.exists(f"{root}/checkpoints/step-5")
    assert file_system.exists(f"{root}/checkpoints/step-10/{MANIFEST}")


def test_a_run_that_saves_meanwhile_is_copied(run: RunDir, url: str) -> None:
    """Directories that get their names, and lose them, while the run directory is gone through."""
    checkpoint(run, 1)
    ended, failures = Event(), []

    def save() -> None:
        for step in range(2, 150):
            checkpoint(run, step)
            write_text(run.root / "status.json", str(step))
            checkpoint(RunDir(run.root / "elsewhere"), 1)
            prune_checkpoints(run, keep=1, best_step=None)
        ended.set()

    with ThreadPoolExecutor(1) as trains:
        saving = trains.submit(save)
        store = store_of(run, url)
        while not ended.is_set() and not saving.done():
            try:
                store.upload()
            except StorageError as error:
                failures.append(error)
        saving.result()
    assert not failures, failures[0]
    store.upload()
    file_system, root = fsspec.core.url_to_fs(url)
    assert file_system.exists(f"{root}/checkpoints/step-149/{MANIFEST}")


def test_what_cannot_be_read_of_a_run_is_an_error(run: RunDir, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "logs")
    with pytest.raises(StorageError, match="Permission denied"):
        store_of(run, url).upload()


def test_nothing_to_bring_back(tmp_path: Path, url: str) -> None:
    assert store_of(RunDir(tmp_path / "new"), url).restore(print) is None


def test_a_store_without_its_library(run: RunDir) -> None:
    with pytest.raises(ConfigError, match="cannot open it"):
        store_of(run, "nosuchstore://bucket")


class Broken:
    """Fails whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        raise PermissionError("no")


def settings_for(run: RunDir, url: str) -> tuple[RunSpec, NodeSettings]:
    return spec_of(run), NodeSettings(run="r", mirrors=(Mirror(url, str(run.root.parent), "upload"),))


def test_around_a_run(run: RunDir, url: str, tmp_path: Path) -> None:
    spec, settings = settings_for(run, url)
    with mirrored(spec, settings, 0, lambda _text: None):
        checkpoint(run, 5)
    shutil.rmtree(run.root)
    with mirrored(spec, settings, 0, lambda _text: None):
        assert run.committed_steps() == [5]
        assert json.loads((run.checkpoint(5) / MANIFEST).read_text())["step"] == 5
    with mirrored(spec, settings, 1, lambda _text: pytest.fail("only node 0 copies")):
        pass


def test_a_last_copy_that_fails_is_no_success(run: RunDir, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, settings = settings_for(run, url)
    said: list[str] = []

    def fail(_self: RunStore) -> None:
        raise StorageError("no room", where=url)

    monkeypatch.setattr(RunStore, "upload", fail)
    with pytest.raises(StorageError, match="no room"), mirrored(spec, settings, 0, said.append):
        checkpoint(run, 5)
    assert len([line for line in said if "attempt" in line]) == 2


def test_the_best_checkpoint_comes_back_too_and_stays_in_the_store(run: RunDir, url: str) -> None:
    for step in (5, 10, 15):
        checkpoint(run, step)
    run.set_link("best", 5)
    spec, settings = settings_for(run, url)
    with mirrored(spec, settings, 0, lambda _text: None):
        pass
    shutil.rmtree(run.root)
    with mirrored(spec, settings, 0, lambda _text: None):
        assert run.committed_steps() == [15, 5]
        assert (run.read_link("best"), run.read_link("last")) == (5, 15)
    store, root = fsspec.core.url_to_fs(f"{url}/r")
    assert store.exists(f"{root}/checkpoints/step-5/{MANIFEST}")


def test_a_restore_that_was_cut_off_is_made_again(run: RunDir, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint(run, 5)
    spec, settings = settings_for(run, url)
    with mirrored(spec, settings, 0, lambda _text: None):
        pass
    shutil.rmtree(run.root)
    whole = rankzero.persist.stored_copy.fetch

    def cut(file_system: Any, remote: str, local: Path) -> None:
        if remote.endswith("weights"):
            raise OSError("cut off")
        whole(file_system, remote, local)

    with monkeypatch.context() as patch:
        patch.setattr(rankzero.persist.stored_copy, "fetch", cut)
        with pytest.raises(StorageError, match="cut off"), mirrored(spec, settings, 0, lambda _text: None):
            pytest.fail("trained without its checkpoint")
    assert run.committed_steps() == []
    with mirrored(spec, settings, 0, lambda _text: None):
        assert verify_directory(run.checkpoint(5))["step"] == 5


def test_what_is_newer_in_the_store_is_brought_back(run: RunDir, url: str, tmp_path: Path) -> None:
    elsewhere = RunDir(tmp_path / "elsewhere")
    for step in (5, 10):
        checkpoint(run, step)
    store_of(run, url).upload()
    checkpoint(elsewhere, 5)
    said: list[str] = []
    copying.bring_back(elsewhere, store_of(elsewhere, url), said.append)
    assert elsewhere.committed_steps() == [10, 5] and elsewhere.read_link("last") == 10
    assert "step 10 brought back" in said[-1]
    checkpoint(elsewhere, 15)
    elsewhere.metrics.write_text("newer")
    copying.bring_back(elsewhere, store_of(elsewhere, url), said.append)
    assert elsewhere.metrics.read_text() == "newer" and len(said) == 1


def test_a_store_that_is_down_keeps_only_a_run_without_checkpoints_from_starting(
    run: RunDir, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(run, url)
    monkeypatch.setattr(store._copy, "_store", Broken())
    said: list[str] = []
    with pytest.raises(StorageError, match="nothing was started"):
        copying.bring_back(run, store, said.append)
    checkpoint(run, 5)
    copying.bring_back(run, store, said.append)
    assert "goes on from step 5, which is here" in said[-1]


def test_a_store_that_fails_for_a_while_is_spoken_of_once_and_made_up_for(
    run: RunDir, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "INTERVAL_SECONDS", 0.01)
    store, tries, said = store_of(run, url), iter(range(100)), []
    upload, recovered = store.upload, Event()

    def failing_at_first() -> None:
        if next(tries) < 3:
            raise StorageError("no route to host", where=url)
        upload()
        recovered.set()

    monkeypatch.setattr(store, "upload", failing_at_first)
    with copying.copied([store], said.append) as failures:
        checkpoint(run, 5)
        assert recovered.wait(300)
    assert not failures
    assert [line for line in said if "no route" in line] == said[:1]
    assert store_of(run, url).newest_step() == 5


def test_an_interrupt_does_not_wait_for_a_slow_store(run: RunDir, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(run, url)
    monkeypatch.setattr(store, "upload", lambda: pytest.fail("it waited for the store"))
    with pytest.raises(KeyboardInterrupt), copying.copied([store], lambda _text: None):
        raise KeyboardInterrupt


def test_a_damaged_copy_is_spoken_of_and_made_again(run: RunDir, url: str, tmp_path: Path) -> None:
    checkpoint(run, 5)
    checkpoint(run, 10)
    store_of(run, url).upload()
    file_system, root = fsspec.core.url_to_fs(url)
    weights = f"{root}/checkpoints/step-10/adapter/weights"
    file_system.pipe_file(weights, b"weights 1x")
    back = RunDir(tmp_path / "elsewhere")
    store = store_of(back, url)
    said: list[str] = []
    assert store.restore(said.append) == 5
    assert back.committed_steps() == [5]
    assert "step-10" in said[0] and "damaged" in said[0]
    checkpoint(back, 10)
    store.upload()
    assert file_system.cat_file(weights) == b"weights 10"


def test_pods_copy_to_the_url_of_the_run_spec_too(run: RunDir, url: str) -> None:
    spec, _ = settings_for(run, url)
    settings = NodeSettings(run="r")
    with mirrored(spec.model_copy(update={"output_url": url}), settings, 0, lambda _text: None):
        checkpoint(run, 5)
    shutil.rmtree(run.root)
    with mirrored(spec.model_copy(update={"output_url": url}), settings, 0, lambda _text: None):
        assert run.committed_steps() == [5]


def saved_as(spec: RunSpec, step: int) -> RunDir:
    """A checkpoint of this setting, with the spec in its manifest as runs leave it."""
    run = RunDir(Path(spec.output_dir) / str(spec.name))
    staged = run.root / "staged"
    staged.mkdir(parents=True)
    run.checkpoints.mkdir(exist_ok=True)
    commit_directory(staged, run.checkpoint(step), {"step": step, "spec": spec.model_dump(mode="json")})
    return run


def test_changes_that_were_accepted_before_are_no_other_run(run: RunDir, url: str, tmp_path: Path) -> None:
    """The copy lags behind a start that was killed; and this directory behind one on another machine."""
    checkpoint(run, 5)
    RunStore(run, f"{url}/r", spec_of(run)).upload()
    other = RunDir(Path(shutil.copytree(run.root, tmp_path / "elsewhere" / "r", symlinks=True)))
    changed = {"train": {"learning_rate": 3e-3}}
    checkpoint(run, 10, data="more", **changed)
    RunStore(run, f"{url}/r", spec_of(run, **changed)).require_ours()
    checkpoint(other, 20, data="more", **changed)
    RunStore(other, f"{url}/r", spec_of(other, **changed)).upload()
    RunStore(run, f"{url}/r", spec_of(run, **changed)).require_ours()
    shutil.rmtree(run.checkpoint(5))
    with pytest.raises(OtherRunError):
        RunStore(run, f"{url}/r", spec_of(run)).require_ours()


@pytest.mark.parametrize("way", ["other places", "the same places"])
def test_the_result_of_another_run_is_not_written_over(run: RunDir, url: str, tmp_path: Path, way: str) -> None:
    """Of another base and data with the same settings, without checkpoints: by place at once, by content later."""
    result(run, "theirs", data="theirs")
    store_of(run, url).upload()
    file_system, root = fsspec.core.url_to_fs(url)
    names = set(file_system.find(root))
    own = RunDir(tmp_path / "elsewhere" / "r")
    own.root.mkdir(parents=True)
    own.metrics.write_text("own")
    changes = {"model": {"name": "o"}} if way == "other places" else {}
    store = store_of(own, url, **changes)
    if way == "other places":
        with pytest.raises(OtherRunError, match="another run"):
            store.require_ours()
    else:
        store.require_ours()
        with pytest.raises(StorageError, match="may be another run's"):
            store.upload()
        checkpoint(own, 5, data="own")
        with pytest.raises(StorageError, match="the training data .* not the same"):
            store.upload()
    assert set(file_system.find(root)) == names
    assert file_system.cat_file(f"{root}/final/model.safetensors") == b"theirs"


def test_a_runs_own_result_is_replaced_by_its_next_one(run: RunDir, url: str) -> None:
    """Its checkpoints are gone here and there."""
    result(run, "first", data="d")
    store_of(run, url).upload()
    shutil.rmtree(run.root)
    run.root.mkdir()
    store = store_of(run, url)
    copying.bring_back(run, store, print)
    checkpoint(run, 5)
    shutil.rmtree(run.root / "final", ignore_errors=True)
    result(run, "second", data="d")
    store.upload()
    file_system, root = fsspec.core.url_to_fs(url)
    assert file_system.cat_file(f"{root}/final/model.safetensors") == b"second"


@pytest.mark.parametrize("data", ["/mnt/t", "o/other"])
def test_only_what_may_be_this_run_is_brought_back(run: RunDir, url: str, tmp_path: Path, data: str) -> None:
    checkpoint(run, 5)
    store_of(run, url).upload()
    own = RunDir(tmp_path / "elsewhere" / "r")
    store = store_of(own, url, data={"train": data})
    if data == "/mnt/t":  # the same data on another machine, as far as names tell
        copying.bring_back(own, store, print)
        assert own.committed_steps() == [5]
    else:
        with pytest.raises(OtherRunError, match=r"data\.train"):
            copying.bring_back(own, store, print)
        assert not own.root.exists()
        copying.bring_back(own, store_of(own, url, ("data",), data={"train": data}), print)
        assert own.committed_steps() == [5]


def test_a_copy_of_an_unknown_version_is_another_setting(run: RunDir) -> None:
    spec = spec_of(run).model_copy(update={"resume": "new"})
    held = {"spec": {**spec.model_dump(mode="json"), "of_the_future": 1}}
    assert settled(spec, lambda: held).name == name_beside(spec)


@pytest.mark.parametrize("by", ["the spec", "the cluster"])
def test_a_run_goes_beside_the_one_that_only_the_store_has(run: RunDir, url: str, by: str) -> None:
    """With `resume: new`; brought back into its place, the other setting's run would be in the way."""
    spec, settings = settings_for(run, url)
    shutil.rmtree(run.root)
    spec = spec.model_copy(update={"resume": "new"})
    if by == "the spec":
        spec, settings = spec.model_copy(update={"output_url": url}), NodeSettings(run="r")
    other = spec.model_copy(update={"train": spec.train.model_copy(update={"max_steps": 3})})
    assert settled_there(spec, settings, print) == spec, "nothing is there yet"
    RunStore(saved_as(other, 5), f"{url}/r", other).upload()
    shutil.rmtree(run.root)
    found = settled_there(spec, settings, print)
    assert found.name == name_beside(spec) and settled_there(other, settings, print) == other
    with mirrored(found, settings, 0, lambda _text: None):
        saved_as(found, 7)
    assert not run.root.exists()
    shutil.rmtree(run.root.parent)
    assert settled_there(spec, settings, print) == found
    with mirrored(found, settings, 0, lambda _text: None):
        assert RunDir(run.root.parent / str(found.name)).committed_steps() == [7]


def test_a_store_that_does_not_answer_is_asked_only_where_nothing_is_here(
    run: RunDir, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, settings = settings_for(run, url)
    spec = spec.model_copy(update={"resume": "new"})

    def down(_self: RunStore) -> None:
        raise StorageError("it does not answer", where=url)

    monkeypatch.setattr(RunStore, "newest_manifest", down)
    with pytest.raises(StorageError, match="so nothing was started"):
        settled_there(spec, settings, lambda _text: None)
    saved_as(spec, 5)
    assert settled_there(spec, settings, print) == spec


def test_results_outside_of_what_is_copied_are_refused(run: RunDir, url: str, tmp_path: Path) -> None:
    spec, _ = settings_for(run, url)
    settings = NodeSettings(run="r", mirrors=(Mirror(url, str(tmp_path / "outputs"), "upload"),))
    with pytest.raises(ConfigError, match="is not in"), mirrored(spec, settings, 0, print):
        pytest.fail("trained though nothing would be copied")
