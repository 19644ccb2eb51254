"""A run spec from a mapping and from overrides, by the rules of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rankzero
from rankzero.api.planning import plan_of
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
    again = rankzero.load_spec(loaded, {"lora.r": 8})
    assert (again.output_dir, again.lora and again.lora.r) == (loaded.output_dir, 8)


def test_what_was_loaded_can_be_sent_where_its_places_are(spec: dict[str, Any], tmp_path: Path) -> None:
    """A cluster's machines may have this one's volumes at the same places; where they do not, that is said."""
    told = {"train": "org/rows", "chat_template_kwargs": {"said": "$${SCRATCH}"}}
    loaded = rankzero.load_spec({**spec, "data": told})
    Path("cluster.yaml").write_text("kind: slurm\ngpu: false\n", encoding="utf-8")
    there = {"storage.outputs": {"mount": str(tmp_path), "host_path": str(tmp_path)}}
    sent = plan_of(loaded, cluster_overrides=there).run
    assert sent.data.chat_template_kwargs == {"said": "${SCRATCH}"}
    assert (sent.model.name, sent.output_dir) == (loaded.model.name, loaded.output_dir)
    Path("cluster.yaml").write_text("kind: docker\ngpu: false\nimage: x\n", encoding="utf-8")
    with pytest.raises(rankzero.ConfigError, match=r"model.name: .*nothing at"):
        plan_of(loaded)
