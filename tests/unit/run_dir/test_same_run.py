"""What is said of a directory with another run's checkpoints before torch is imported."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import rankzero
from rankzero.errors import ConfigError, UsageError
from rankzero.run_dir.atomic import commit_directory
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.same_run import others_run, refuse_foreign_directory, two_runs
from rankzero.run_dir.setting import settled
from rankzero.spec import diff
from rankzero.spec.resolve import to_yaml
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from tests.unit.run_dir.test_setting import save, spec


def test_every_change_that_matters_is_named_and_none_that_does_not(tmp_path: Path) -> None:
    before = spec(tmp_path, resume="refuse")
    run_dir = RunDir(tmp_path / "r")
    refuse_foreign_directory(run_dir, before, ())  # there is nothing yet
    save(before)
    refuse_foreign_directory(run_dir, before, ())
    refuse_foreign_directory(run_dir, spec(tmp_path, resume="refuse", checkpoint={"every": 7}), ())
    other = spec(tmp_path, resume="refuse", lora={}, train={"learning_rate": 0.5, "seed": 3})
    with pytest.raises(ConfigError) as caught:
        refuse_foreign_directory(run_dir, other, ("train.seed",))
    first, *rest = caught.value.problems
    assert first.what == "this directory holds checkpoints of another run"
    assert {"train.learning_rate", "lora.r"} <= {problem.where for problem in rest}
    assert "train.seed" not in {problem.where for problem in rest}


def test_training_and_dry_run_refuse_it_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankzero.api import specs, training

    monkeypatch.setattr(training, "run_to_end", lambda *_, **__: pytest.fail("it was about to train"))
    save(spec(tmp_path, resume="refuse"))
    other = spec(tmp_path, resume="refuse", train={"learning_rate": 0.5})
    with pytest.raises(ConfigError, match="holds checkpoints of another run"):
        training.start(other, RunOptions(), 1, in_process=False)
    with pytest.raises(UsageError):
        training.require_same_run(other, RunOptions(allow_changes=("train.nothing",)))
    monkeypatch.setattr(specs, "checked", lambda *_, **__: other)
    with pytest.raises(ConfigError, match="holds checkpoints of another run"):
        rankzero.dry_run(other)


def hold_result(run: RunSpec, **about: str) -> None:
    """A result whose checkpoints somebody has removed, to free the disk."""
    final = RunDir(Path(run.output_dir) / str(run.name)).final
    staged = final.with_name("staged")
    staged.mkdir(parents=True)
    commit_directory(staged, final, {"spec": run.model_dump(mode="json"), "step": 5, **about})


def test_a_result_whose_checkpoints_are_gone_is_another_run_s_too(tmp_path: Path) -> None:
    before, other = (spec(tmp_path, resume="refuse", train={"learning_rate": rate}) for rate in (0.1, 0.5))
    run_dir = RunDir(tmp_path / "r")
    hold_result(before, **{name: name for name in ("model", "tokenizer", "data")})
    refuse_foreign_directory(run_dir, before, ())
    with pytest.raises(ConfigError, match="train.learning_rate"):
        refuse_foreign_directory(run_dir, other, ())
    refuse_foreign_directory(run_dir, other, ("train.learning_rate",))
    beside = spec(tmp_path, resume="new", train={"learning_rate": 0.5})
    assert settled(beside).name != "r"
    longer = spec(tmp_path, resume="refuse", epochs=2)
    longer = longer.model_copy(update={"train": longer.train.model_copy(update={"learning_rate": 0.1})})
    with pytest.raises(ConfigError, match="no checkpoint to go on from") as caught:
        refuse_foreign_directory(run_dir, longer, ())
    assert "name=r-" in str(caught.value) and "--allow-change" not in str(caught.value)
    shutil.rmtree(run_dir.final)
    hold_result(before)  # of a version that did not say by what it was made
    refuse_foreign_directory(run_dir, other, ())


def test_what_somebody_has_put_into_the_directory_is_not_written_over(tmp_path: Path) -> None:
    """As where the results' directory is that of the project."""
    root = tmp_path / "r"
    root.mkdir()
    wanted = spec(tmp_path, data={"train": str(root / "samples.jsonl"), "eval": str(root / "held-out.jsonl")})
    for name in ("samples.jsonl", "held-out.jsonl"):
        (root / name).write_text("{}")
    (root / "run.yaml").write_text("model: {name: m}\ndata: {train: samples.jsonl}\n")
    with pytest.raises(ConfigError) as caught:
        refuse_foreign_directory(RunDir(root), wanted, ())
    assert [problem.where for problem in caught.value.problems] == ["data.train", str(root / "run.yaml")]
    assert caught.value.exit_code == 78
    (root / "environment.json").write_text("{}")  # as beside that of a run, of whatever version
    with pytest.raises(ConfigError) as caught:
        refuse_foreign_directory(RunDir(root), wanted, ())
    assert [problem.where for problem in caught.value.problems] == ["data.train"]
    (root / "run.yaml").write_text(to_yaml(wanted))  # as a run writes it
    elsewhere = spec(tmp_path, data={"train": str(root / "rows.jsonl")})
    refuse_foreign_directory(RunDir(root), elsewhere, ())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("data.json", "{root}/data*.json"),
        ("samples.jsonl", "{root}/**/*.jsonl#4"),
        ("data.json", "file://{root}/data.json"),
        ("metrics.jsonl", "file://{root}/*.jsonl"),
        ("metrics.jsonl", "{root}"),
        ("data.json", "{root}/.."),
        ("pass-limit.json", "{root}/pass-limit.json"),
        ("merge.json", "{root}/*.json"),
        ("stop", "{root}/stop"),
    ],
)
def test_rows_are_not_written_over_however_they_are_named(tmp_path: Path, name: str, text: str) -> None:
    root = tmp_path / "r"
    root.mkdir()
    wanted = spec(tmp_path, data={"train": [{"path": text.format(root=root)}]})
    (root / name).write_text("{}")
    with pytest.raises(ConfigError, match=f"would write over {name}") as caught:
        refuse_foreign_directory(RunDir(root), wanted, ())
    assert [problem.where for problem in caught.value.problems] == ["data.train[0].path"]


def test_what_a_run_wrote_itself_keeps_it_from_nothing(tmp_path: Path) -> None:
    """Where runs are in the directory of the rows, their files are found among those."""
    root = tmp_path / "r"
    root.mkdir()
    (root / "rows.jsonl").write_text("{}")
    beside, below = (spec(tmp_path, data={"train": text}) for text in (f"{tmp_path}/*.jsonl", f"{tmp_path}/**/*.jsonl"))
    refuse_foreign_directory(RunDir(root), below, ())
    (root / "metrics.jsonl").write_text("{}")
    refuse_foreign_directory(RunDir(root), beside, ())
    with pytest.raises(ConfigError):
        refuse_foreign_directory(RunDir(root), below, ())
    (root / "lease.json").write_text("{}")
    refuse_foreign_directory(RunDir(root), below, ())


def test_the_settings_of_deepspeed_are_not_written_over(tmp_path: Path) -> None:
    root = tmp_path / "r"
    root.mkdir()
    (root / "deepspeed.json").write_text("{}")
    train = {"sharding": "zero2", "deepspeed": str(root / "deepspeed.json")}
    with pytest.raises(ConfigError) as caught:
        refuse_foreign_directory(RunDir(root), spec(tmp_path, train=train), ())
    assert [problem.where for problem in caught.value.problems] == ["train.deepspeed"]


def test_every_place_in_a_run_directory_is_one_that_it_writes(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    named = {name: getattr(run_dir, name) for name, of in vars(RunDir).items() if isinstance(of, property)}
    places = {name: place for name, place in named.items() if name != "root" and isinstance(place, Path)}
    assert len(places) > 20 and all(run_dir.writes(str(place)) for place in places.values())


IDENTITIES = {"model": "m1", "tokenizer": "t1", "data": "d1", "eval_data": None}
PLACES: dict[str, dict[str, Any]] = {
    "data": {"data": {"train": "/data/other.jsonl"}},
    "model": {"model": {"name": "meta-llama/Llama-3.2-1B"}},
    "tokenizer": {"data": {"train": "/data/mine.jsonl", "chat_template": "plain"}},
    "eval_data": {"data": {"train": "/data/mine.jsonl", "eval": {"fraction": 0.5}}},
}


def placed(root: Path, **changes: Any) -> RunSpec:
    value = {"model": {"name": "Qwen/Qwen3-0.6B"}, "data": {"train": "/data/mine.jsonl"}}
    return spec(root, **{"resume": "refuse", **value, **changes})


@pytest.mark.parametrize("identity", PLACES)
@pytest.mark.parametrize("knows", ["the copy", "this directory", "neither"])
def test_what_cannot_be_compared_by_content_is_compared_by_place(tmp_path: Path, identity: str, knows: str) -> None:
    there = {"spec": placed(tmp_path).model_dump(mode="json")} | (IDENTITIES if knows == "the copy" else {})
    here = IDENTITIES if knows == "this directory" else None
    assert others_run(there, here, placed(tmp_path), ()) == []
    other = placed(tmp_path, **PLACES[identity])
    (found,) = others_run(there, here, other, ())
    assert found.where.startswith(diff.PLACES[identity]) and found.hint.endswith(f"--allow-change {identity}")
    assert others_run(there, here, other, (identity,)) == others_run(there, here, other, (found.where,)) == []
    assert others_run(there, here, placed(tmp_path, **{**PLACES[identity], "resume": "continue"}), ()) == []


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ({"data": {"train": "/home/a/mine.jsonl"}}, {"data": {"train": "/mnt/mine.jsonl"}}),
        ({"data": {"train": [{"path": "/home/a/x"}]}}, {"data": {"train": [{"path": "/home/b/x/"}]}}),
        ({"model": {"name": "Qwen/Qwen3-0.6B"}}, {"model": {"name": "/models/Qwen3-0.6B"}}),
        ({"model": {"name": "Qwen/Q"}}, {"model": {"name": "Qwen/Q", "local_dir": "/models/q"}}),
    ],
)
def test_the_same_names_at_another_place_may_be_this_runs(
    tmp_path: Path, there: dict[str, Any], here: dict[str, Any]
) -> None:
    manifest = {"spec": placed(tmp_path, **there).model_dump(mode="json"), **IDENTITIES}
    assert others_run(manifest, None, placed(tmp_path, **here), ()) == []


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ({"data": {"train": [{"path": "/a/x"}]}}, {"data": {"train": [{"path": "/a/x"}, {"path": "/a/y"}]}}),
        ({"model": {"name": "one/tiny"}}, {"model": {"name": "other/tiny"}}),
    ],
)
def test_places_that_are_no_paths_are_the_same_or_not(
    tmp_path: Path, there: dict[str, Any], here: dict[str, Any]
) -> None:
    manifest = {"spec": placed(tmp_path, **there).model_dump(mode="json"), **IDENTITIES}
    assert others_run(manifest, None, placed(tmp_path, **here), ())


def test_content_that_both_know_in_different_ways_is_compared_by_place(tmp_path: Path) -> None:
    """As before and after an upgrade that knows data otherwise."""
    before, now = {**IDENTITIES, "data": "d1"}, {**IDENTITIES, "data": "rows:d1"}
    there, ours = {"spec": placed(tmp_path).model_dump(mode="json"), **before}, placed(tmp_path)
    other = placed(tmp_path, **PLACES["data"])
    assert others_run(there, now, ours, ()) == two_runs(ours, ours, now, before, begun_alike=False) == []
    assert [found.where for found in others_run(there, now, other, ())] == ["data.train"]
    assert [found.where for found in two_runs(other, ours, now, before, begun_alike=False)] == ["data.train"]


def test_content_that_both_know_counts_wherever_it_lies(tmp_path: Path) -> None:
    moved = placed(tmp_path, data={"train": "/mnt/rows.jsonl"}, model={"name": "/models/base"})
    there = {"spec": placed(tmp_path).model_dump(mode="json"), **IDENTITIES}
    assert others_run(there, IDENTITIES, moved, ()) == []
    (found,) = others_run(there, {**IDENTITIES, "data": "d2"}, placed(tmp_path), ())
    assert found.where == "data"
