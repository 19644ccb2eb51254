"""A folder that cannot be looked into, also by root, whom no permission stops."""

from __future__ import annotations

import errno
import io
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


def close(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """From here on a folder is another user's, of mode 0700: what lies in it can neither be seen nor changed."""
    closed = folder.absolute()

    def is_closed(path: Any, *, itself: bool) -> bool:
        if isinstance(path, int):
            return False
        place = Path(os.fsdecode(path)).absolute()
        return closed in place.parents or (itself and place == closed)

    def guard(module: Any, name: str, *, itself: bool) -> None:
        call = getattr(module, name)

        def guarded(path: Any, *arguments: Any, **named: Any) -> Any:
            if is_closed(path, itself=itself):
                raise PermissionError(13, "Permission denied", str(path))
            return call(path, *arguments, **named)

        monkeypatch.setattr(module, name, guarded)

    for name in ("stat", "lstat"):
        guard(os, name, itself=False)
    for name in ("listdir", "scandir", "mkdir"):
        guard(os, name, itself=name != "mkdir")
    guard(io, "open", itself=False)
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not is_closed(path, itself=True) and may(path, mode))


def shut(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """From here on a file cannot be read, nor a folder listed; what lies beside it can."""
    shut_off = os.fspath(place.absolute())

    def guard(module: Any, name: str) -> None:
        call = getattr(module, name)

        def guarded(path: Any, *arguments: Any, **named: Any) -> Any:
            if not isinstance(path, int) and os.path.abspath(os.fsdecode(path)) == shut_off:
                raise PermissionError(13, "Permission denied", shut_off)
            return call(path, *arguments, **named)

        monkeypatch.setattr(module, name, guarded)

    for module, name in ((io, "open"), (os, "listdir"), (os, "scandir")):
        guard(module, name)


def stale(monkeypatch: pytest.MonkeyPatch, place: Path, number: int = errno.ESTALE) -> None:
    """From here on whatever lies at a place or below it answers with this error, as a server that has begun anew."""
    away = os.path.abspath(place)

    def guard(module: Any, name: str) -> None:
        call = getattr(module, name)

        def guarded(path: Any, *arguments: Any, **named: Any) -> Any:
            if isinstance(path, str | bytes | os.PathLike):
                asked = os.path.abspath(os.fsdecode(path))
                if asked == away or asked.startswith(f"{away}/"):
                    raise OSError(number, os.strerror(number), asked)
            return call(path, *arguments, **named)

        monkeypatch.setattr(module, name, guarded)

    for name in ("stat", "lstat", "open", "listdir", "scandir", "readlink"):
        guard(os, name)
    guard(io, "open")
