"""The package with something added to it, as a contributor adds it: a copy elsewhere, run by processes of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import rankzero


class Package:
    """A copy of rankzero below a folder."""

    def __init__(self, folder: Path) -> None:
        self._root = folder
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(rankzero.__file__).parent, folder / "rankzero", ignore=skipped)

    def add(self, new: Mapping[str, str], changed: Mapping[str, tuple[str, str]]) -> None:
        """Files that are `new`, by path; of those `changed`, a text that is there once, and what takes its place."""
        for name, text in new.items():
            path = self._root / "rankzero" / name
            assert not path.exists(), path
            path.write_text(text)
        for name, (old, put) in changed.items():
            path = self._root / "rankzero" / name
            assert path.read_text().count(old) == 1, name
            path.write_text(path.read_text().replace(old, put))

    def python(self, code: str) -> str:
        """What a program prints that imports the copy."""
        environment = {**os.environ, "PYTHONPATH": str(self._root), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=self._root, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
