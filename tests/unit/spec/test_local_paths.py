"""What a relative path is relative to: the file that says it, or the directory where it is typed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rankzero.spec.fields import Option, all_fields, options_at
from rankzero.spec.load import load_run_spec
from rankzero.spec.local_paths import absolute, path_fields
from rankzero.spec.nearby import shown
from rankzero.spec.resolve import resolve
from rankzero.spec.run_spec import RunSpec

EVERY_PATH = """
model: {name: weights, tokenizer_dir: ./tok}
data:
  train:
    - {path: rows.jsonl#5, image_root: pictures}
    - {path: 'parts/*.jsonl'}
    - {path: org/name}
    - {path: 's3://bucket/rows.jsonl'}
    - {path: /far/rows.jsonl}
  eval: sub/eval.jsonl
  chat_template: t.jinja
train: {sharding: zero2, deepspeed: ds.json}
eval: {prompts: asked.txt#3}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project directory whose name has what patterns are made of, and a working directory beside it."""
    project = tmp_path / "pro[j]ect#1"
    (project / "weights").mkdir(parents=True)
    (project / "run.yaml").write_text(EVERY_PATH, encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return project


def texts(spec: RunSpec) -> dict[str, str]:
    return {field.field: field.text for field in path_fields(spec)}


def resolved(path: Path | None, *overrides: str) -> RunSpec:
    loaded = load_run_spec(path, overrides, env={})
    return absolute(resolve(loaded.spec), loaded.base)


def test_paths_of_a_file_are_relative_to_the_file(project: Path) -> None:
    escaped = str(project).replace("[", "[[]")
    assert texts(resolved(Path("../pro[j]ect#1/run.yaml"))) == {
        "model.name": f"{project}/weights",
        "model.tokenizer_dir": f"{project}/tok",
        "data.train[0].path": f"{project}/rows.jsonl#5",
        "data.train[0].image_root": f"{project}/pictures",
        "data.train[1].path": f"{escaped}/parts/*.jsonl",
        "data.train[2].path": "org/name",
        "data.train[3].path": "s3://bucket/rows.jsonl",
        "data.train[4].path": "/far/rows.jsonl",
        "data.eval": f"{project}/sub/eval.jsonl",
        "data.chat_template": f"{project}/t.jinja",
        "train.deepspeed": f"{project}/ds.json",
        "eval.prompts": f"{project}/asked.txt#3",
        "output_dir": f"{project}/runs",
    }


def test_every_text_of_a_spec_is_a_path_or_known_to_be_none() -> None:
    """A field that is added later and holds a path must not stay relative to wherever a process runs."""
    everything = RunSpec.model_validate(
        {
            "model": {"name": "m", "tokenizer_dir": "t"},
            "data": dict.fromkeys(("train", "eval"), [{"path": "p", "image_root": "i"}]) | {"chat_template": "c"},
            "train": {"deepspeed": "d"},
            "eval": {"prompts": "p"},
        }
    )
    paths = {re.sub(r"\[\d+\]", "[]", field) for field in texts(everything)}
    paths |= {"model.local_dir", "data.train", "data.eval"}  # each instead of one above
    no_paths = {"name", "model.revision", "output_url"}
    written = {name for name in all_fields(RunSpec) if str in {option.kind for option in options(name)}}
    assert written - no_paths == paths


def options(name: str) -> list[Option]:
    return options_at(RunSpec, tuple(0 if key == "0" else key for key in name.replace("[]", ".0").split(".")))


def test_typed_paths_are_relative_to_where_they_are_typed(project: Path) -> None:
    here = Path.cwd()
    found = texts(resolved(project / "run.yaml", "data.eval=x.jsonl", "output_dir=out", "data.train=[{path: a/b.csv}]"))
    assert (found["data.eval"], found["output_dir"]) == (f"{here}/x.jsonl", f"{here}/out")
    assert found["data.train[0].path"] == f"{here}/a/b.csv"
    assert found["model.name"] == f"{project}/weights"
    assert texts(resolved(None, "model.name=org/m", "data.train=x.jsonl"))["data.train"] == f"{here}/x.jsonl"


def test_the_run_is_the_same_wherever_the_command_is_typed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, typed = set(), set()
    (project / "other.jsonl").touch()
    for place in (project, project.parent, Path.cwd()):
        monkeypatch.chdir(place)
        run, other = os.path.relpath(project / "run.yaml"), os.path.relpath(project / "other.jsonl")
        plain.add(resolved(Path(run)).model_dump_json())
        typed.add(resolved(Path(run), f"data.eval={other}").model_dump_json())
    assert (len(plain), len(typed)) == (1, 1)


def test_another_file_typed_is_another_run(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = set()
    for place in (project, Path.cwd()):
        monkeypatch.chdir(place)
        names.add(resolved(project / "run.yaml", "data.eval=sub/eval.jsonl").name)
    assert len(names) == 2


def test_a_spec_behind_a_link_belongs_to_the_place_of_the_link(tmp_path: Path, project: Path) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/run.yaml").symlink_to(project / "run.yaml")
    assert resolved(tmp_path / "linked/run.yaml").output_dir == f"{tmp_path}/linked/runs"


def test_a_home_directory_is_expanded(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    found = texts(resolved(project / "run.yaml", "data.eval=~/e.jsonl", "model.local_dir=~/w"))
    assert (found["data.eval"], found["model.local_dir"]) == ("/home/me/e.jsonl", "/home/me/w")


def test_what_is_shown_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (shown(tmp_path / "runs/a"), shown("/far/b"), shown("c")) == ("runs/a", "/far/b", "c")
    monkeypatch.chdir("/")
    assert shown("/far/b") == "/far/b"
