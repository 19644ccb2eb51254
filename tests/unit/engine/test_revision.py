"""The commit that is recorded with a run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rankzero.engine.setup import _git_revision


def test_a_repository_without_a_commit_has_no_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """git prints the name that it could not resolve."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert _git_revision() is None
    subprocess.run(["git", "init", "--quiet"], check=True)
    assert _git_revision() is None
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run(["git", *who, "commit", "--quiet", "--allow-empty", "--message=first"], check=True)
    revision = _git_revision()
    assert revision is not None and len(revision) == 40
