"""A folder that cannot be looked into, also by root, whom no permission stops."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


def refuse(monkeypatch: pytest.MonkeyPatch, folder: str, error: type[OSError] = PermissionError) -> None:
    """From here on, listing any folder of this name raises `error`."""
    scan = os.scandir
    words = {PermissionError: (13, "Permission denied"), FileNotFoundError: (2, "No such file or directory")}

    def refused(path: Any) -> Any:
        if Path(path).name == folder:
            raise error(*words[error], str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refused)
