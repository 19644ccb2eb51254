"""The base is hashed while it is loaded where nothing is compared with it, and before where something is."""

from __future__ import annotations

import json
from concurrent.futures import CancelledError
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from filelock import FileLock

from rankzero.data.read import hashing
from rankzero.engine import worker
from rankzero.errors import ConfigError, StoppedError, StorageError
from rankzero.machine import cache_root
from rankzero.model import fingerprint_beside
from rankzero.model.fingerprint_beside import FingerprintBeside
from rankzero.model.source import ModelSource, weights_fingerprint
from tests.support.runs import run_here, run_root, small_spec, stop_in


def without_end(directory: Path) -> ModelSource:
    """A base whose weights nobody waits for: a terabyte of nothing."""
    (directory / "config.json").write_text("{}")
    with (directory / "model.safetensors").open("wb") as file:
        file.truncate(1 << 40)
    return ModelSource(directory, directory, "endless")


def test_a_new_run_loads_its_base_while_it_is_hashed(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the model would never be loaded, or the hash be found without it."""
    loaded, build = Event(), worker.build_session

    def hashed(*arguments: Any, **options: Any) -> str:
        assert loaded.wait(100), "the model is not loaded before the base is hashed"
        return weights_fingerprint(*arguments, **options)

    def built(*arguments: Any) -> Any:
        session = build(*arguments)
        loaded.set()
        return session

    monkeypatch.setattr(fingerprint_beside, "weights_fingerprint", hashed)
    monkeypatch.setattr(worker, "build_session", built)
    spec = small_spec(tmp_path, tiny, train__max_steps=1)
    run_here(spec)
    manifest = json.loads((run_root(spec) / "checkpoints" / "step-1" / "manifest.json").read_text())
    assert manifest["model"] == weights_fingerprint(tiny)


def test_a_run_that_goes_on_compares_its_base_before_it_is_loaded(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(tmp_path, tiny)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(2))
    monkeypatch.setattr(fingerprint_beside, "weights_fingerprint", lambda *_, **__: "others")
    monkeypatch.setattr(worker, "build_session", lambda *_: pytest.fail("a model is loaded"))
    with pytest.raises(ConfigError, match="the base model's weights changed"):
        run_here(spec)


def test_weights_that_cannot_be_read_end_the_run_as_such(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(directory: Path, **_: Any) -> str:
        raise StorageError("Input/output error", where=str(directory))

    monkeypatch.setattr(fingerprint_beside, "weights_fingerprint", unreadable)
    with pytest.raises(StorageError, match="Input/output error"):
        run_here(small_spec(tmp_path, tiny, train__max_steps=1))


def test_who_leaves_has_the_hashing_stop(tmp_path: Path) -> None:
    with closing(FingerprintBeside(None)) as base:
        base.begin(without_end(tmp_path))
    with pytest.raises(CancelledError):
        base.wait()


@pytest.mark.usefixtures("own_cache")
def test_who_leaves_while_another_process_hashes_waits_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the processes of a node one reads a file, and the others wait for what it finds."""
    source = without_end(tmp_path)
    record = hashing._record(str(tmp_path / "model.safetensors"), cache_root())
    record.parent.mkdir(parents=True)
    monkeypatch.setattr(hashing, "_SETTLED_NS", -1)
    monkeypatch.setattr(hashing, "file_sha256", lambda *_: pytest.fail("it reads what another one is reading"))
    with FileLock(f"{record}.lock"), closing(FingerprintBeside(None)) as base:
        base.begin(source)
    with pytest.raises(CancelledError):
        base.wait()
