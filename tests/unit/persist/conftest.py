"""Copies of runs without pauses, and where they lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankzero.persist import copying


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "PAUSE_SECONDS", 0.0)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Of a copy whose URL is that of a directory."""
    return tmp_path / "store" / "r"
