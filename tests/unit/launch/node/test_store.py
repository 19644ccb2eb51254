"""Results in an object store: whole or not there, and back again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsspec
import pytest

import rankzero.launch.node.mirror
from rankzero.errors import ConfigError, StorageError
from rankzero.launch.node.mirror import downloaded, mirrored
from rankzero.launch.node.settings import Mirror, NodeSettings
from rankzero.launch.node.store import RunStore, download_tree
from rankzero.run_dir.atomic import MANIFEST, commit_directory
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/store"
    fsspec.filesystem("memory").store.clear()
    return "memory://bucket/prefix"


def checkpoint(run: RunDir, step: int) -> None:
    staged = run.root / "staged"
    (staged / "adapter").mkdir(parents=True)
    (staged / "adapter" / "weights").write_text(f"weights {step}")
    run.checkpoints.mkdir(exist_ok=True)
    commit_directory(staged, run.checkpoint(step), {"step": step})
    run.set_link("last", step)


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
    RunStore(run, url).upload()
    back = RunDir(tmp_path / "elsewhere")
    assert RunStore(back, url).restore() == 10
    assert back.committed_steps() == [10]
    assert (back.checkpoint(10) / "adapter" / "weights").read_text() == "weights 10"
    assert back.read_link("last") == 10
    assert back.metrics.read_text() == run.metrics.read_text()
    assert not (back.root / "lease.json").exists()


def test_a_checkpoint_without_its_manifest_is_not_there(run: RunDir, url: str, tmp_path: Path) -> None:
    checkpoint(run, 5)
    checkpoint(run, 10)
    RunStore(run, url).upload()
    store, root = fsspec.core.url_to_fs(url)
    store.rm(f"{root}/checkpoints/step-10/{MANIFEST}")
    back = RunDir(tmp_path / "elsewhere")
    assert RunStore(back, url).restore() == 5


def test_pruned_ones_go_once_newer_ones_are_there(run: RunDir, url: str) -> None:
    import shutil

    checkpoint(run, 5)
    store = RunStore(run, url)
    store.upload()
    shutil.rmtree(run.checkpoint(5))
    checkpoint(run, 10)
    store.upload()
    file_system, root = fsspec.core.url_to_fs(url)
    assert not file_system.exists(f"{root}/checkpoints/step-5")
    assert file_system.exists(f"{root}/checkpoints/step-10/{MANIFEST}")


def test_nothing_to_bring_back(tmp_path: Path, url: str) -> None:
    assert RunStore(RunDir(tmp_path / "new"), url).restore() is None


def test_a_tree_is_fetched_once(tmp_path: Path, url: str) -> None:
    store, root = fsspec.core.url_to_fs(url)
    store.makedirs(f"{root}/a", exist_ok=True)
    store.pipe_file(f"{root}/a/x", b"1")
    store.pipe_file(f"{root}/y", b"22")
    assert download_tree(url, tmp_path / "d") == 2
    assert (tmp_path / "d" / "a" / "x").read_bytes() == b"1"
    assert download_tree(url, tmp_path / "d") == 0
    said: list[str] = []
    settings = NodeSettings(run="r", mirrors=(Mirror(url, str(tmp_path / "d2"), "download"),))
    downloaded(settings, said.append)
    assert "2 files fetched" in said[0]


def test_a_store_without_its_library(run: RunDir) -> None:
    with pytest.raises(ConfigError, match="cannot open it"):
        RunStore(run, "nosuchstore://bucket")


class Broken:
    """Fails whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        raise PermissionError("no")


def settings_for(run: RunDir, url: str) -> tuple[RunSpec, NodeSettings]:
    spec = RunSpec.model_validate(
        {"name": "r", "model": {"name": "m"}, "data": {"train": "t"}, "output_dir": str(run.root.parent)}
    )
    return spec, NodeSettings(run="r", mirrors=(Mirror(url, str(run.root.parent), "upload"),))


def test_around_a_run(run: RunDir, url: str, tmp_path: Path) -> None:
    import shutil

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

    monkeypatch.setattr(rankzero.launch.node.mirror.RunStore, "upload", fail)
    with pytest.raises(StorageError, match="no room"), mirrored(spec, settings, 0, said.append):
        checkpoint(run, 5)
    assert len([line for line in said if "attempt" in line]) == 3
