"""The manifests under examples/ are what the recipes render to today, and every command in their README exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "examples" / "kubernetes"


def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render_examples", FOLDER / "render.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RENDER = _module()
README = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("example", RENDER.EXAMPLES)
def test_manifests_are_current(example: str) -> None:
    there = {path.name: path.read_text(encoding="utf-8") for path in (FOLDER / example / "manifests").iterdir()}
    assert there == RENDER.manifests(example), "python examples/kubernetes/render.py"


def test_every_folder_is_an_example_and_listed() -> None:
    folders = {path.name for path in FOLDER.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert (
        folders == set(RENDER.EXAMPLES) == set(re.findall(r"^\| \[([\w-]+)\]\(\1/manifests\) \|", README, re.MULTILINE))
    )


@pytest.mark.parametrize("example", RENDER.EXAMPLES)
def test_render_writes_the_same_files(example: str, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli(f"init --recipe {example}").code == 0
    for variable, value in RENDER.VARIABLES.get(example, {}).items():
        monkeypatch.setenv(variable, value)
    assert cli("render run.yaml --cluster cluster.yaml -o manifests").code == 0
    written = {path.name: path.read_text(encoding="utf-8") for path in Path("manifests").iterdir()}
    assert written == RENDER.manifests(example)


def test_the_commands(cli: Any) -> None:
    commands = re.findall(r"^rankzero ([a-z]+(?: set)?) ", README, flags=re.MULTILINE)
    assert commands == ["init", "secret set", "render", "submit", "status", "delete"]
    for command in commands:
        assert cli(f"{command} --help").code == 0
