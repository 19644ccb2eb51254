"""A run spec from a mapping and from overrides, by the rules of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rankzero
from rankzero.spec.run_spec import RunSpec
from tests.support.paper_model import paper_model

SPEC: dict[str, Any] = {
    "name": "r",
    "lora": {"r": 4},
    "data": {"train": "org/rows"},
    "tracking": {"tensorboard": False},
}


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    return {**SPEC, "model": {"name": str(paper_model(tmp_path / "m"))}}


def test_variables_are_the_environments_wherever_they_are_given(spec: dict[str, Any], tmp_path: Path) -> None:
    made = str(tmp_path / "scratch/runs")
    assert rankzero.load_spec({**spec, "output_dir": "${SCRATCH}/runs"}).output_dir == made
    assert rankzero.load_spec(spec, {"output_dir": "${SCRATCH}/runs"}).output_dir == made
    assert rankzero.load_spec(spec, {"data.train": [{"path": "org/${NO_SUCH:-rows}"}]}).data.train[0].path == "org/rows"
    for given, source in (({**spec, "output_dir": "${NO_SUCH}"}, "spec"), ({**spec}, "overrides")):
        overrides = {"output_dir": "${NO_SUCH}"} if source == "overrides" else {}
        with pytest.raises(rankzero.ConfigError, match=f"{source} output_dir: the environment variable NO_SUCH"):
            rankzero.load_spec(given, overrides)


def test_what_was_loaded_is_not_read_for_variables_again(
    spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RunSpec] = []
    monkeypatch.setattr("rankzero.api.training.run_to_end", lambda spec, *_, **__: seen.append(spec))
    monkeypatch.setattr("rankzero.api.forecasts.forecast_here", lambda spec, *_: seen.append(spec))
    loaded = rankzero.load_spec({**spec, "output_dir": "$${SCRATCH}/runs"})
    assert loaded.output_dir == str(tmp_path / "${SCRATCH}/runs")
    rankzero.train(loaded, nproc_per_node=1)
    rankzero.dry_run(loaded)
    rankzero.dry_run(loaded, {"output_dir": "${SCRATCH}"})
    assert [one.output_dir for one in seen] == [loaded.output_dir, loaded.output_dir, str(tmp_path / "scratch")]
