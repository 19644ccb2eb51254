"""The manifests under examples/ are what the code renders today, and every command in their READMEs exists."""

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


EXAMPLES = _module()


@pytest.mark.parametrize("example", EXAMPLES.PROFILES)
def test_manifests_are_current(example: str) -> None:
    there = {path.name: path.read_text(encoding="utf-8") for path in (FOLDER / example / "manifests").iterdir()}
    assert there == EXAMPLES.manifests(example), "python examples/kubernetes/render.py"


def test_every_folder_is_an_example() -> None:
    assert {path.name for path in FOLDER.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(
        EXAMPLES.PROFILES
    )


@pytest.mark.parametrize("example", EXAMPLES.PROFILES)
def test_the_four_commands(example: str, cli: Any) -> None:
    text = (FOLDER / example / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^rankzero ([a-z]+(?: set)?) .*--cluster (\S+)", text, flags=re.MULTILINE)
    assert [command for command, _ in commands] == ["secret set", "submit", "status", "delete"]
    assert {profile for _, profile in commands} == {EXAMPLES.PROFILES[example]}
    for command, _ in commands:
        assert cli(f"{command} --help").code == 0
