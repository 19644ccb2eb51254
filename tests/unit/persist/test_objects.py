"""Directories brought from an object store, by its real protocol, as its other users leave them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rankzero.persist.following import NOTES, download_tree
from rankzero.persist.pulling import pull
from rankzero.persist.run_store import RunStore
from rankzero.persist.sources import ObjectSource
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec
from tests.support.s3 import BUCKET, Store, s3_store

SPEC = RunSpec.model_validate({"name": "r", "model": {"name": "m"}, "data": {"train": "t"}})


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A run in a bucket whose folders were made by hand: a console makes an empty object for each."""
    with s3_store(monkeypatch) as served:
        for folder in ("runs/r/", "runs/r/logs/", "runs/r/empty/"):
            served.put(folder, b"")
        served.put("runs/r/run.yaml", b"name: r\n")
        served.put("runs/r/logs/rank-0.log", b"a line\n")
        yield served


@pytest.mark.parametrize("way", ["download", "pull", "restore"])
def test_folders_that_a_console_made_are_no_files(store: Store, tmp_path: Path, way: str) -> None:
    here, url = RunDir(tmp_path / "here"), f"s3://{BUCKET}/runs/r"
    here.root.mkdir()
    if way == "download":
        assert download_tree(url, here.root, lambda: False) == 2
    elif way == "pull":
        assert pull(ObjectSource(url), here.root, print).fetched == 2
    else:
        RunStore(here, url, SPEC).restore(print)
    files = {path.relative_to(here.root).as_posix() for path in here.root.rglob("*") if path.is_file()}
    files = {name for name in files if not name.startswith(NOTES)}
    assert files == {"run.yaml", "logs/rank-0.log"}
