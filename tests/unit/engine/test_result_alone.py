"""A run whose checkpoints somebody has removed, to free the disk: what is said of it, and what is kept."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rankzero.errors import ConfigError, StorageError
from rankzero.run_dir.intact import verify_result
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec
from tests.support.runs import metrics, run_here, run_root, small_spec
from tests.support.unreadable import stale


@pytest.fixture
def spec(tmp_path: Path, tiny: Path) -> RunSpec:
    """Finished, of two steps."""
    spec = small_spec(tmp_path, tiny, eval__every=1, train__max_steps=2)
    run_here(spec)
    shutil.rmtree(RunDir(run_root(spec)).checkpoints)
    return spec


def changed(spec: RunSpec, **sections: dict[str, Any]) -> RunSpec:
    return RunSpec.model_validate(
        {**spec.model_dump(), **{name: {**spec.model_dump()[name], **values} for name, values in sections.items()}}
    )


def test_a_longer_one_is_refused_and_replaces_nothing(spec: RunSpec) -> None:
    """Whatever is accepted: it would begin from its first step."""
    run_dir = RunDir(run_root(spec))
    final, report = run_dir.final.stat().st_ino, run_dir.report.read_bytes()
    longer = changed(spec, train={"max_steps": 3})
    with pytest.raises(ConfigError, match="no checkpoint to go on from") as refused:
        run_here(longer)
    assert "name=small-" in str(refused.value) and "--allow-change" not in str(refused.value)
    more = "more, or another result, is asked for than was made here"
    for spec_now, accepted, why in (
        (longer, ("train.max_steps",), more),
        (changed(spec, checkpoint={"final": "last"}), (), more),
        (changed(spec, data={"eval": spec.data.train}), ("eval_data", "data.eval"), "eval_data changed since"),
    ):
        with pytest.raises(ConfigError, match="no checkpoint to go on from") as refused:
            run_here(spec_now, allow_changes=accepted)
        assert why in refused.value.problems[0].what and "another name" in refused.value.problems[0].hint
        assert run_dir.final.stat().st_ino == final and run_dir.report.read_bytes() == report
        assert len(metrics(spec)) == 2
    shorter = changed(spec, train={"max_steps": 1})
    assert run_here(shorter, allow_changes=("train.max_steps",))["steps"] == 2, "it is further than that"
    shutil.rmtree(run_dir.final)  # as it says
    assert run_here(longer, allow_changes=("train.max_steps",))["steps"] == 3


def test_no_checkpoint_is_promised(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = RunDir(run_root(spec))
    run_here(spec, log_level="INFO")
    assert "this run is finished, and its checkpoints are gone; another name trains again" in capfd.readouterr().err
    for place in (run_dir.report, run_dir.final / "adapter_model.safetensors", run_dir.final / "manifest.json"):
        with monkeypatch.context() as patch:
            stale(patch, place)
            with pytest.raises(StorageError) as refused:
                run_here(spec)
        assert refused.value.problems[0].hint.endswith("and the run begins again: it has no checkpoint")
    (run_dir.final / "adapter_model.safetensors").write_bytes(b"damaged")
    with pytest.raises(StorageError) as refused:
        verify_result(run_dir.final)
    assert "it has no checkpoint, and begins again" in refused.value.problems[0].hint


def test_what_is_there_is_promised(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_spec(tmp_path, tiny, eval_rows=0, train__max_steps=1)
    run_here(spec)
    run_dir = RunDir(run_root(spec))
    for place in (run_dir.report, run_dir.final):
        with monkeypatch.context() as patch:
            stale(patch, place)
            with pytest.raises(StorageError) as refused:
                run_here(spec)
        assert refused.value.problems[0].hint.endswith(f"move {place} away: it is made anew from the checkpoint")
    (run_dir.final / "adapter_model.safetensors").write_bytes(b"damaged")
    with pytest.raises(StorageError) as refused:
        verify_result(run_dir.final)
    assert "writes a damaged result anew from its checkpoint" in refused.value.problems[0].hint
