"""A volume that takes nothing more while a result is written: 74, and nothing of it stays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from safetensors import SafetensorError

from rankzero.engine import exporting, finish
from rankzero.errors import StorageError
from rankzero.model import merge as merging
from rankzero.spec.run_spec import ModelSpec
from tests.support.adapters import tiny_adapter
from tests.support.runs import run_here, run_root, small_spec

pytestmark = pytest.mark.faults

ADAPTER = ["adapter_model.safetensors", "adapter_config.json"]
WHOLE = ["model.safetensors", "config.json", "generation_config.json"]
BESIDE = ["tokenizer.json", "tokenizer_config.json", "README.md", "manifest.json"]


def full_at(name: str, patch: pytest.MonkeyPatch, module: Any, writer: str) -> None:
    """What `module` writes first, into a directory, finds a device that is always full in the place of one file. In
    that of weights safetensors says so itself, which replaces what stands there."""
    write = getattr(module, writer)
    if name.endswith(".safetensors"):
        patch.setattr(safetensors.torch, "serialize_file", no_room)
        return

    def planted(*given: Any, **named: Any) -> Any:
        [staged] = [one for one in given if isinstance(one, Path) and one.name.startswith(".tmp-")]
        (staged / name).symlink_to("/dev/full")
        return write(*given, **named)

    patch.setattr(module, writer, planted)


def no_room(*_given: Any, **_named: Any) -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def left_over(directory: Path) -> list[str]:
    return [entry.name for entry in directory.iterdir() if entry.name.startswith(".tmp-")]


@pytest.fixture(scope="module", params=["adapter", "whole"])
def trained(request: pytest.FixtureRequest, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run whose last checkpoint is there; each start writes the result again."""
    root = tmp_path_factory.mktemp("trained")
    changes = {} if request.param == "adapter" else {"lora": None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKZERO_CACHE", str(root / "cache"))
        spec = small_spec(root, tiny, rows=8, eval_rows=0, train__max_steps=1, **changes)
        run_here(spec)
    return spec, {*(ADAPTER if request.param == "adapter" else WHOLE), *BESIDE}


def test_a_result_that_finds_no_room(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each file of it; then the same command writes it."""
    spec, names = trained
    root = run_root(spec)
    assert names <= {file.name for file in (root / "final").iterdir()}
    for name in sorted(names):
        (root / "report.json").unlink(missing_ok=True)
        with monkeypatch.context() as patch:
            full_at(name, patch, finish, "export_final")
            with pytest.raises(StorageError, match="(?s)No space left on device.*free space") as ended:
                run_here(spec)
        assert ended.value.exit_code == 74 and not left_over(root), name
    assert run_here(spec)["steps"] == 1


def test_a_result_that_would_not_fit_is_not_begun(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, _ = trained
    (run_root(spec) / "report.json").unlink(missing_ok=True)
    asked: list[int] = []
    check = finish.check_space

    def nearly_full(place: Path, needed: int, *words: str) -> None:
        asked.append(needed)
        check(place, needed + 10**18, *words)

    with monkeypatch.context() as patch:
        patch.setattr(finish, "check_space", nearly_full)
        patch.setattr(finish, "export_final", None)
        with pytest.raises(StorageError, match="the result takes 1e\\+09 GB, and this volume has"):
            run_here(spec)
    assert not left_over(run_root(spec)) and run_here(spec)["steps"] == 1
    weights = sum(file.stat().st_size for file in (run_root(spec) / "final").glob("*.safetensors"))
    assert 0.7 * weights < asked[0] <= weights


@pytest.mark.parametrize("name", [*WHOLE, "tokenizer.json", "manifest.json"])
def test_a_merged_model_that_finds_no_room(
    name: str, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = tiny_adapter(tiny, tmp_path / "adapter")
    spec = ModelSpec(name=str(tiny), dtype="float32")
    with monkeypatch.context() as patch:
        full_at(name, patch, merging, "save_whole")
        with pytest.raises(StorageError) as ended:
            merging.merge(spec, adapter, tmp_path / "merged")
    assert ended.value.exit_code == 74 and os.strerror(28) in str(ended.value)
    assert not left_over(tmp_path) and not (tmp_path / "merged").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "manifest.json"])
def test_an_export_that_finds_no_room(name: str, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        full_at(name, patch, exporting, "copy_in_shards")
        with pytest.raises(StorageError) as ended:
            exporting.export_safetensors((tiny, None), tmp_path / "out", shard_bytes=10**9, base_weights="trained")
    assert ended.value.exit_code == 74 and os.strerror(28) in str(ended.value)
    assert not left_over(tmp_path) and not (tmp_path / "out").exists()
