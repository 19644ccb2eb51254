"""Where a run goes when the directory of its name holds another setting's checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rankzero.run_dir import atomic
from rankzero.run_dir.atomic import FORMAT, MANIFEST, SEAL, NotReadError, commit_directory
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.setting import has_moved, is_finished, settled
from rankzero.spec.diff import Change, name_beside
from rankzero.spec.resolve import resolve, spec_hash
from rankzero.spec.run_spec import RunSpec
from tests.support.unreadable import stale


def spec(root: Path, *, resume: str = "new", epochs: int = 1, **more: Any) -> RunSpec:
    value = {"model": {"name": "m"}, "data": {"train": "t.jsonl"}, "train": {"num_train_epochs": epochs}, **more}
    return resolve(RunSpec.model_validate({"name": "r", "output_dir": str(root), "resume": resume, **value}))


def save(run: RunSpec, step: int = 5) -> None:
    """A checkpoint as a run leaves it, as far as this looks."""
    run_dir = RunDir(Path(run.output_dir) / str(run.name))
    staged = run_dir.root / "staged"
    staged.mkdir(parents=True)
    run_dir.checkpoints.mkdir(exist_ok=True)
    commit_directory(staged, run_dir.checkpoint(step), {"spec": run.model_dump(mode="json"), "step": step})


def test_an_empty_place_is_taken(tmp_path: Path) -> None:
    assert settled(spec(tmp_path)).name == "r"


def test_the_same_setting_stays_where_it_is(tmp_path: Path) -> None:
    save(spec(tmp_path, resume="refuse"))
    assert settled(spec(tmp_path)).name == "r"
    assert settled(spec(tmp_path, checkpoint={"every": 7})).name == "r"  # no other training


@pytest.mark.parametrize(
    "change", [{"epochs": 2}, {"data": {"train": "other.jsonl"}}, {"model": {"name": "n"}}, {"lora": {}}]
)
def test_another_setting_goes_beside_it_and_finds_its_place_again(tmp_path: Path, change: dict[str, Any]) -> None:
    save(spec(tmp_path))
    second = settled(spec(tmp_path, **change))
    assert str(second.name).startswith("r-")
    save(second)
    assert settled(spec(tmp_path, **change)).name == second.name
    assert settled(spec(tmp_path)).name == "r"
    assert settled(second).name == second.name, "what is settled stays so"


def test_a_setting_whose_places_have_moved_stays_where_it_is(tmp_path: Path) -> None:
    """Its content is compared when it is read. What is still there is other data than that of its name elsewhere."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "t.jsonl").write_text("{}")
    first, second = ({"train": f"{tmp_path}/{name}/t.jsonl#5"} for name in ("first", "second"))
    save(spec(tmp_path, data=first))
    assert settled(spec(tmp_path, data=second)).name != "r"
    (tmp_path / "first" / "t.jsonl").unlink()
    assert settled(spec(tmp_path, data=second)).name == "r"
    assert settled(spec(tmp_path, data={"train": f"{tmp_path}/second/u.jsonl#5"})).name != "r"
    assert settled(spec(tmp_path, data={"train": f"{tmp_path}/second/t.jsonl#6"})).name != "r"


def test_only_paths_move_and_only_to_where_something_is(tmp_path: Path) -> None:
    """An id or a URL names the same wherever a run is started."""
    here = tmp_path / "here.jsonl"
    here.write_text("{}")
    old, new = "/gone/here.jsonl", str(here)
    for field, was, now, moved in [
        ("data.train", old, new, True),
        (
            "data.train",
            [{"path": f"{old}#5"}, {"path": "org/rows"}],
            [{"path": f"{new}#5"}, {"path": "org/rows"}],
            True,
        ),
        ("data.train", [{"path": old, "weight": 2}], [{"path": new, "weight": 2}], True),
        ("data.train", [{"path": old}, {"path": new}], [{"path": new}, {"path": old}], False),
        ("data.train", [{"path": old}], [{"path": new}, {"path": new}], False),
        ("data.train", [{"path": old}, {"path": "org/here.jsonl"}], [{"path": new}, {"path": new}], False),
        ("data.train", old, "/gone/too/here.jsonl", False),
        ("data.train", "https://host/here.jsonl", new, False),
        ("data.train", "s3://bucket/here.jsonl", new, False),
        ("model.name", "org/here.jsonl", new, False),
        ("model.name", "/gone/llama", "other/llama", False),
        ("model.local_dir", None, new, False),
        ("name", old, new, False),
    ]:
        assert has_moved(Change(field, was, now, harmless=True)) == moved, (field, was, now)


def test_a_run_that_was_begun_beside_another_stays_there_when_that_one_s_data_go(tmp_path: Path) -> None:
    """Until then they are two runs. Pods, each of which may have other volumes, take nothing for moved."""
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "t.jsonl").write_text("{}")
    first, second, third = ({"train": f"{tmp_path}/{name}/t.jsonl"} for name in ("first", "second", "third"))
    save(spec(tmp_path, data=first))
    beside = settled(spec(tmp_path, data=second))
    save(beside)
    (tmp_path / "first" / "t.jsonl").unlink()
    assert settled(spec(tmp_path, data=second)).name == beside.name != "r"
    assert settled(spec(tmp_path, data=third)).name == "r"
    assert settled(spec(tmp_path, data=third), in_pods=True).name == name_beside(spec(tmp_path, data=third))


def test_a_run_that_was_begun_beside_another_is_found_when_its_data_have_moved(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "t.jsonl").write_text("{}")
    first, second = ({"train": f"{tmp_path}/{name}/t.jsonl"} for name in ("first", "second"))
    save(spec(tmp_path, data=first))
    beside = settled(spec(tmp_path, data=first, epochs=2))
    save(beside)
    (tmp_path / "first" / "t.jsonl").unlink()
    assert settled(spec(tmp_path, data=second, epochs=2)).name == beside.name != "r"


@pytest.mark.parametrize("resume", ["refuse", "continue"])
def test_only_new_moves(tmp_path: Path, resume: str) -> None:
    save(spec(tmp_path))
    assert settled(spec(tmp_path, resume=resume, epochs=2)).name == "r"


def test_unnamed_runs_keep_their_names(tmp_path: Path) -> None:
    assert spec_hash(spec(tmp_path, resume="new")) == spec_hash(spec(tmp_path, resume="refuse"))


def test_a_run_that_was_begun_beside_another_goes_on_there_without_it(tmp_path: Path) -> None:
    """As where the other one is removed, or was never here but in an object store."""
    save(spec(tmp_path))
    second = settled(spec(tmp_path, epochs=2))
    save(second)
    shutil.rmtree(tmp_path / "r")
    assert settled(spec(tmp_path, epochs=2)).name == second.name
    assert settled(spec(tmp_path, epochs=3)).name == "r"


def test_what_is_kept_elsewhere_counts_where_nothing_is_here(tmp_path: Path) -> None:
    held = {"spec": spec(tmp_path).model_dump(mode="json")}
    assert settled(spec(tmp_path, epochs=2), lambda: held).name != "r"
    assert settled(spec(tmp_path), lambda: held).name == "r"

    def nobody_asks() -> dict[str, Any]:
        raise AssertionError

    assert settled(spec(tmp_path, resume="refuse"), nobody_asks).name == "r"
    save(spec(tmp_path, epochs=2))
    assert settled(spec(tmp_path, epochs=2), nobody_asks).name == "r"
    save(settled(spec(tmp_path, epochs=3)))
    assert settled(spec(tmp_path, epochs=3), nobody_asks).name != "r"


def test_a_run_is_found_under_the_name_that_another_version_gave_it(tmp_path: Path) -> None:
    """Whose hash was another; what other settings have beside it is not taken for it."""
    save(spec(tmp_path))
    for name, epochs in [("r-000000", 2), ("r-ffffff", 3), ("r-longer", 4)]:
        begun = spec(tmp_path, epochs=epochs)
        save(begun.model_copy(update={"name": name}))
    assert settled(spec(tmp_path, epochs=2)).name == "r-000000"
    assert settled(spec(tmp_path, epochs=3, checkpoint={"keep": 9})).name == "r-ffffff"
    assert settled(spec(tmp_path, epochs=4)).name == name_beside(spec(tmp_path, epochs=4))


def test_a_finished_run_of_an_earlier_version_is_finished(tmp_path: Path) -> None:
    """Whose spec lacks a field that has its default."""
    run = spec(tmp_path)
    save(run)
    run_dir = RunDir(tmp_path / "r")
    run_dir.report.write_text('{"steps": 5}')
    held = run.model_dump(mode="json")
    del held["train"]["micro_batch_tokens"]
    (run_dir.root / "staged").mkdir()
    commit_directory(run_dir.root / "staged", run_dir.final, {"spec": held})
    assert is_finished(run_dir, run)
    assert not is_finished(run_dir, spec(tmp_path, checkpoint={"final": "last"}))


def test_a_finished_run_is_it_without_its_checkpoints(tmp_path: Path) -> None:
    """As a start of the engine has it, where the result says by what it was made."""
    run = spec(tmp_path)
    save(run)
    run_dir = RunDir(tmp_path / "r")
    run_dir.report.write_text('{"steps": 5}')
    for names, wanted in ((("model", "tokenizer", "data"), True), ((), False)):
        (run_dir.root / "staged").mkdir()
        about = {"spec": run.model_dump(mode="json"), **dict.fromkeys(names, "known")}
        commit_directory(run_dir.root / "staged", run_dir.final, about)
        shutil.rmtree(run_dir.checkpoints, ignore_errors=True)
        assert is_finished(run_dir, run) is wanted
        assert not is_finished(run_dir, spec(tmp_path, epochs=2))
    run_dir.report.unlink()
    assert not is_finished(run_dir, run)


@pytest.mark.parametrize("damage", ["none", "edited", "cut off", "lost"])
def test_a_result_that_is_damaged_finishes_no_run(damage: str, tmp_path: Path) -> None:
    run = spec(tmp_path)
    save(run)
    run_dir = RunDir(tmp_path / "r")
    run_dir.report.write_text('{"steps": 5}')
    staged = run_dir.root / "staged"
    staged.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (staged / name).write_text("whole")
    commit_directory(staged, run_dir.final, {"spec": run.model_dump(mode="json")})
    if damage == "cut off":
        (run_dir.final / "model.safetensors").write_text("who")
    elif damage == "edited":
        (run_dir.final / "tokenizer.json").write_text("by somebody")
    elif damage == "lost":
        (run_dir.final / "tokenizer.json").unlink()
    assert is_finished(run_dir, run) is (damage in ("none", "edited"))


def test_what_cannot_be_read_now_moves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another setting's checkpoint: the run would take its place, or be refused there, instead of going beside it."""
    save(spec(tmp_path))
    other = spec(tmp_path, epochs=3)
    beside = settled(other).name
    assert beside != "r"
    with monkeypatch.context() as patch:
        stale(patch, tmp_path / "r" / "checkpoints" / "step-5" / MANIFEST)
        with pytest.raises(NotReadError, match="Stale file handle") as refused:
            settled(other)
    assert "the one before" in refused.value.problems[0].hint
    assert settled(other).name == beside


def test_another_version_s_run_beside_keeps_none_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One beside that cannot be read now may be this run's: that is waited for, and nothing of it is to be moved."""
    save(spec(tmp_path))
    beside, third = settled(spec(tmp_path, epochs=3)), spec(tmp_path, epochs=5)
    save(beside)
    wanted = settled(third).name
    manifest = tmp_path / str(beside.name) / "checkpoints" / "step-5" / MANIFEST
    with monkeypatch.context() as patch:
        stale(patch, manifest)
        with pytest.raises(NotReadError, match="Stale file handle") as refused:
            settled(third)
    hint = refused.value.problems[0].hint
    assert "the one before" not in hint and f"move {tmp_path / str(beside.name)} away, whole" in hint
    of_another_version(manifest)
    assert settled(third).name == wanted


def of_another_version(manifest: Path, **more: Any) -> None:
    value = json.loads(manifest.read_text())
    value.pop(SEAL)
    value |= {"format": FORMAT + 1, **more}
    manifest.write_text(json.dumps({**value, SEAL: atomic._digest(value)}))


def test_another_version_s_run_keeps_its_place_and_others_go_beside(tmp_path: Path) -> None:
    """What it has saved of this very setting is neither gone on from nor trained anew beside it."""
    save(spec(tmp_path))
    manifest = tmp_path / "r" / "checkpoints" / "step-5" / MANIFEST
    of_another_version(manifest)
    with pytest.raises(NotReadError, match="of a newer rankzero"):
        settled(spec(tmp_path))
    other = spec(tmp_path, epochs=3)
    assert settled(other).name == name_beside(other)
    save(settled(other))
    of_another_version(tmp_path / name_beside(other) / "checkpoints" / "step-5" / MANIFEST)
    with pytest.raises(NotReadError, match="of a newer rankzero"):
        settled(other)
    written = json.loads(manifest.read_text())["spec"]
    more = {**written, "train": {**written["train"], "of_the_future": None}, "also": {"new": 1}}
    of_another_version(manifest, spec=more)
    with pytest.raises(NotReadError, match="of a newer rankzero"):
        settled(spec(tmp_path))
    of_another_version(manifest, spec={"of_the_future": 1})
    assert settled(spec(tmp_path)).name == name_beside(spec(tmp_path))
