"""What a run was made of is found where it lies now, or said to be gone with what to do."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rankzero.errors import ConfigError
from rankzero.run_dir.places import require_base
from rankzero.run_dir.result import find_adapter, find_result, spec_of
from rankzero.run_dir.setting import has_moved
from rankzero.spec.diff import Change
from rankzero.spec.resolve import to_yaml
from rankzero.spec.run_spec import ModelSpec, RunSpec


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A run beside its base, its rows and a chat template, all named by where they are."""
    place = tmp_path / "project"
    for name in ("base", "tokenizer", "runs/r/final", "parts"):
        (place / name).mkdir(parents=True)
    for name in ("rows.jsonl", "chat.jinja", "parts/a.jsonl", "runs/r/final/adapter_config.json"):
        (place / name).write_text("{}")
    value: dict[str, Any] = {
        "name": "r",
        "output_dir": str(place / "runs"),
        "model": {"name": str(place / "base"), "tokenizer_dir": str(place / "tokenizer")},
        "data": {
            "train": [{"path": f"{place}/rows.jsonl#5"}, {"path": f"{place}/parts/*.jsonl"}, {"path": "org/rows"}],
            "chat_template": str(place / "chat.jinja"),
        },
        "lora": {"r": 4},
    }
    (place / "runs/r/run.yaml").write_text(to_yaml(RunSpec.model_validate(value)))
    (place / "runs/r/environment.json").write_text("{}")
    return place


def places(run: Path) -> list[str | None]:
    spec = spec_of(run)
    assert not isinstance(spec.data.train, str)
    rows = [source.path for source in spec.data.train]
    return [spec.model.name, spec.model.tokenizer_dir, spec.data.chat_template, *rows]


def expected(place: Path) -> list[str]:
    named = ("base", "tokenizer", "chat.jinja", "rows.jsonl#5", "parts/*.jsonl")
    return [*(f"{place}/{name}" for name in named), "org/rows"]


def test_what_moved_along_with_a_run_is_found(project: Path, tmp_path: Path) -> None:
    assert places(project / "runs/r") == expected(project)
    (project / "runs/r").rename(project / "runs/other")
    assert places(project / "runs/other") == expected(project), "the rest is where it was"
    moved = project.rename(tmp_path / "moved")
    (moved / "runs/other").rename(moved / "runs/r")
    assert places(moved / "runs/r") == expected(moved)
    (tmp_path / "link").symlink_to(moved)
    assert places(tmp_path / "link/runs/r") == expected(tmp_path / "link")
    result = find_result(str(moved / "runs/r"), "writes")
    assert result.model.name == f"{moved}/base"


def test_what_moved_along_is_found_where_runs_is_a_link(project: Path, tmp_path: Path) -> None:
    """As to a volume with more room: from the project it lies as before, from the volume it does not."""
    (project / "runs").rename(tmp_path / "scratch")
    (project / "runs").symlink_to(tmp_path / "scratch")
    assert places(project / "runs/r") == expected(project)
    moved = project.rename(tmp_path / "moved")
    assert places(moved / "runs/r") == expected(moved)


def test_a_pattern_is_found_in_directories_whose_names_look_like_one(project: Path, tmp_path: Path) -> None:
    first = project.rename(tmp_path / "p[1]")
    text = (first / "runs/r/run.yaml").read_text()
    text = text.replace(f"{project}/parts", f"{tmp_path}/p[[]1]/parts").replace(str(project), str(first))
    (first / "runs/r/run.yaml").write_text(text)
    assert places(first / "runs/r")[-2] == f"{tmp_path}/p[[]1]/parts/*.jsonl"
    second = first.rename(tmp_path / "q[2]")
    found = places(second / "runs/r")
    assert found[-2] == f"{tmp_path}/q[[]2]/parts/*.jsonl"
    assert [found[0], found[3]] == [f"{second}/base", f"{second}/rows.jsonl#5"]


def test_what_may_not_be_looked_at_is_not_gone(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved, real = shutil.copytree(project, tmp_path / "moved"), os.stat

    def denied(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if str(path).startswith(str(project)):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", denied)
    assert places(moved / "runs/r") == expected(project)
    require_base(ModelSpec(name=f"{project}/base"), "run")
    change = Change("model.name", f"{project}/base", f"{moved}/base", harmless=True)
    assert not has_moved(change)


def test_a_place_that_is_still_there_is_meant(project: Path, tmp_path: Path) -> None:
    (tmp_path / "copy/runs").mkdir(parents=True)
    (tmp_path / "copy/base").mkdir()
    run = (project / "runs/r").rename(tmp_path / "copy/runs/r")
    assert places(run) == expected(project)


def test_a_base_that_is_gone_is_said_with_the_way_on(project: Path, tmp_path: Path) -> None:
    (project / "base").rename(tmp_path / "mount")
    run = str(project / "runs/r")
    for look in (lambda: find_result(run, "writes"), lambda: find_adapter(Path(run))):
        with pytest.raises(ConfigError, match=f"there is no {project}/base") as refused:
            look()
        assert "--model" in refused.value.problems[0].hint
    found = find_result(run, "writes", model=str(tmp_path / "mount"))
    assert found.model.name == str(tmp_path / "mount") and found.model.tokenizer_dir == f"{run}/final"
    base = find_result(run, "writes", base=True, model=str(tmp_path / "mount"))
    assert base.model.tokenizer_dir == f"{project}/tokenizer", "which is where it was"


def test_a_tokenizer_that_is_gone_is_not_the_base_s(project: Path) -> None:
    """Whose tokens may be others; the run's own is taken, where its result has it."""
    run = project / "runs/r"
    saved = run / "checkpoints/step-2/model"
    saved.mkdir(parents=True)
    (saved / "adapter_config.json").write_text("{}")
    (project / "tokenizer").rmdir()
    for look in (
        lambda: find_result(str(saved), "writes", model="org/base"),
        lambda: find_result(str(run), "writes", base=True, model="org/base"),
        lambda: find_adapter(saved, "org/base").base,
    ):
        with pytest.raises(ConfigError, match=f"there is no {project}/tokenizer") as refused:
            look()
        assert "model.tokenizer_dir" in refused.value.problems[0].hint
    assert find_result(str(run), "writes", model="org/base").model.tokenizer_dir == f"{run}/final"
    (run / "final/tokenizer.json").write_text("{}")
    assert find_result(str(saved), "writes", model="org/base").model.tokenizer_dir == f"{run}/final"
    assert find_adapter(saved, "org/base").base.tokenizer_dir == f"{run}/final"


def test_a_result_s_own_tokenizer_is_before_another_that_lies_as_that_did(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for name in ("tokenizer", "runs"):
        (other / name).mkdir(parents=True)
    (other / "chat.jinja").write_text("another")
    run = (project / "runs/r").rename(other / "runs/r")
    for name in ("tokenizer.json", "chat_template.jinja"):
        (run / "final" / name).write_text("{}")
    project.rename(tmp_path / "gone")
    (other / "base").mkdir()
    before = find_result(str(run), "writes", base=True)
    assert before.model.tokenizer_dir == f"{run}/final" and before.chat_template == f"{run}/final/chat_template.jinja"
    assert before.model.name == f"{other}/base"


def test_a_result_has_the_tokenizer_and_the_template_that_are_gone(project: Path) -> None:
    run = project / "runs/r"
    (project / "tokenizer").rmdir()
    (project / "chat.jinja").unlink()
    before = find_result(str(run), "writes", base=True)
    assert before.chat_template == f"{project}/chat.jinja", "nothing else is known"
    for name in ("tokenizer.json", "chat_template.jinja"):
        (run / "final" / name).write_text("{}")
    before = find_result(str(run), "writes", base=True)
    assert before.model.tokenizer_dir == f"{run}/final" and before.chat_template == f"{run}/final/chat_template.jinja"


def test_an_adapter_on_what_a_gguf_file_became_names_the_file(tmp_path: Path) -> None:
    """The cache, where the base lay, was pruned. Copied out of its run, the adapter knows the file by its manifest."""
    file, base = tmp_path / "small.gguf", tmp_path / "cache/models/small-0123"
    file.write_text("")
    final = tmp_path / "copied"
    final.mkdir()
    (final / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    (final / "manifest.json").write_text(json.dumps({"spec": {"model": {"name": str(file)}}}))
    for find in (lambda: find_result(str(final), "writes"), lambda: find_adapter(final)):
        with pytest.raises(ConfigError, match="the base is not here any more") as refused:
            find()
        assert refused.value.problems[0].hint.endswith(f"made again by --model {file}")
    assert find_result(str(final), "writes", model=str(file)).model.name == str(file)
    file.unlink()
    with pytest.raises(ConfigError) as refused:
        find_adapter(final)
    assert refused.value.problems[0].hint.endswith("made again by --model small.gguf")
