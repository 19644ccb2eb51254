"""What is installed beside the modules: templates, recipes, the schema."""

from __future__ import annotations

import tomllib
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]


def test_every_file_of_the_package_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["rankzero"]
    package = ROOT / "src" / "rankzero"
    installed = {path for pattern in patterns for path in package.glob(pattern) if path.is_file()}
    found = {
        path
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in PurePosixPath(path).parts
    }
    assert found - installed == set() and len(found) > 20
