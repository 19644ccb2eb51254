"""Pickles that run code when they are loaded, in the place of every file that is read: refused, or not looked at.

Whoever may write a run directory can also write its manifests, so these say that the payload is what was saved.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.errors import RankzeroError, StoppedError
from rankzero.run_dir.atomic import MANIFEST, SEAL, _sealed, file_sha256
from rankzero.spec.run_spec import RunSpec
from tests.support.runs import run_here, run_root, small_spec, stop_in
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.faults

CHANGES: dict[str, Any] = {"rows": 8, "eval_rows": 0, "checkpoint__every": 1, "train__num_train_epochs": 2}


class Evil:
    """Touches a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self._canary}",)


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "canary"
    assert not (tmp_path / "canary").exists(), "code in a file was run"


@pytest.fixture
def payload(canary: Path) -> bytes:
    return pickle.dumps(Evil(canary))


@pytest.fixture(scope="module")
def begun(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has stopped after its first step."""
    folder = tmp_path_factory.mktemp("begun")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKZERO_CACHE", str(folder / "cache"))
        with pytest.raises(StoppedError):
            run_here(small_spec(folder, tiny, **CHANGES), hooks=stop_in(1))
    return folder


def copy_of(begun: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, tiny: Path) -> RunSpec:
    shutil.copytree(begun, folder, symlinks=True)
    monkeypatch.setenv("RANKZERO_CACHE", str(folder / "cache"))
    return small_spec(folder, tiny, **CHANGES)


def outcome(spec: RunSpec) -> str:
    """What the run says: its error, or nothing. An error that nobody expected is a defect of ours."""
    try:
        run_here(spec)
    except RankzeroError as error:
        assert "internal error" not in str(error)
        return str(error)
    return ""


def test_the_payload_works(canary: Path, payload: bytes) -> None:
    """Else nothing below shows anything."""
    pickle.loads(payload)  # noqa: S301
    assert canary.exists()
    canary.unlink()


def test_in_every_file_of_a_checkpoint_and_of_the_run(
    begun: Path, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, canary: Path, payload: bytes
) -> None:
    files = [path.relative_to(begun) for path in sorted((begun / "runs").rglob("*")) if path.is_file()]
    assert len(files) > 10
    for number, name in enumerate(files):
        spec = copy_of(begun, tmp_path / str(number), monkeypatch, tiny)
        changed = tmp_path / str(number) / name
        changed.write_bytes(payload)
        for manifest in (tmp_path / str(number)).glob(f"runs/*/checkpoints/*/{MANIFEST}"):
            directory = manifest.parent
            if directory in changed.parents and changed != manifest:
                stated = json.loads(manifest.read_text())
                entry = stated["files"][changed.relative_to(directory).as_posix()]
                entry.update(size=len(payload), sha256=file_sha256(changed))
                stated.pop(SEAL)
                manifest.write_text(_sealed(stated))
        said = outcome(spec)
        assert not canary.exists(), name
        if changed.suffix == ".safetensors":
            assert said, f"{name} cannot have been loaded"


def test_in_files_that_stand_beside(
    begun: Path, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, canary: Path, payload: bytes
) -> None:
    """Names under which other trainers keep pickles, in model and checkpoint."""
    spec = copy_of(begun, tmp_path / "beside", monkeypatch, tiny)
    model = tiny_model(tmp_path / "model")
    names = ("pytorch_model.bin", "adapter_model.bin", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng.pth")
    checkpoint = run_root(spec) / "checkpoints/step-1"
    for directory in (model, checkpoint, checkpoint / "model", run_root(spec)):
        for name in (*names, "data.pkl", ".metadata", "__init__.py", "tokenization_tiny.py"):
            (directory / name).write_bytes(payload)
    assert "not in its manifest" in outcome(spec) or run_root(spec).joinpath("report.json").is_file()
    fresh = small_spec(tmp_path / "fresh", model, **CHANGES)
    assert outcome(fresh) == ""


def test_in_every_file_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, canary: Path, payload: bytes
) -> None:
    names = [path.name for path in sorted(tiny_model(tmp_path / "names").iterdir()) if path.is_file()]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(names)
    for name in names:
        model = tiny_model(tmp_path / f"with-{name}")
        (model / name).write_bytes(payload)
        said = outcome(small_spec(tmp_path / f"run-{name}", model, **CHANGES))
        assert not canary.exists(), name
        assert said or name not in {"config.json", "model.safetensors", "tokenizer.json"}, name


@pytest.mark.parametrize(
    "name",
    [f"rows.{ending}" for ending in ("jsonl", "json", "csv", "parquet", "arrow", "pkl", "pt", "npy", "gz", "zip")],
)
def test_as_data(name: str, tmp_path: Path, tiny: Path, canary: Path, payload: bytes) -> None:
    content = tmp_path / name
    if name.endswith(".pt"):
        torch.save(Evil(canary), content)
    else:
        content.write_bytes(payload)
    spec = small_spec(tmp_path, tiny, **CHANGES)
    spec = spec.model_copy(update={"data": spec.data.model_copy(update={"train": str(content)})})
    assert name in outcome(spec)


def test_in_every_file_of_the_cache(
    begun: Path, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, canary: Path, payload: bytes
) -> None:
    files = [path.relative_to(begun) for path in sorted((begun / "cache").rglob("*")) if path.is_file()]
    assert files
    for number, name in enumerate(files):
        spec = copy_of(begun, tmp_path / str(number), monkeypatch, tiny)
        (tmp_path / str(number) / name).write_bytes(payload)
        outcome(spec)
        assert not canary.exists(), name


def test_nothing_of_ours_looks_up_what_a_pickle_names(
    begun: Path, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pickle from a file is opened in a whole run that continues: the interpreter's own record of it."""
    spec = copy_of(begun, tmp_path / "run", monkeypatch, tiny)
    found: list[tuple[str, str]] = []
    listening = True

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if listening and event == "pickle.find_class":
            found.append(arguments)

    sys.addaudithook(hear)  # for the rest of this process; it cannot be taken back
    assert outcome(spec) == ""
    listening = False
    assert found == []
