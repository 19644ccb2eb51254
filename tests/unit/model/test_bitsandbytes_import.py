"""What the import of bitsandbytes does to a process that may never call it."""

from __future__ import annotations

import importlib
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.model import bitsandbytes_import


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """What torch has been asked to compile, and with which settings."""
    asked: list[tuple[Any, dict[str, Any]]] = []

    def compile_(function: Any, **settings: Any) -> Any:
        asked.append((function, settings))
        return lambda *arguments, **named: ("compiled", function(*arguments, **named))

    monkeypatch.setattr(torch, "compile", compile_)
    return asked


SOURCE = """
import torch

@torch.compile
def plain(a, b=1):
    "Adds."
    return a + b

@torch.compile(dynamic=False)
def with_settings(a):
    return -a
"""


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[Any]) -> Any:
    """A module where bitsandbytes has its backends, as imported."""
    package = tmp_path / "bitsandbytes" / "backends"
    package.mkdir(parents=True)
    for directory in (package, package.parent):
        (directory / "__init__.py").touch()
    (package / "some.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "bitsandbytes"]:
        monkeypatch.delitem(sys.modules, name)
    yield importlib.import_module("bitsandbytes.backends.some")
    for name in [name for name in sys.modules if name.partition(".")[0] == "bitsandbytes"]:
        del sys.modules[name]


def test_compiled_once_when_called(backend: Any, compiled: list[tuple[Any, dict[str, Any]]]) -> None:
    assert compiled == []
    assert (backend.plain.__name__, backend.plain.__doc__) == ("plain", "Adds.")
    assert [backend.plain(1), backend.plain(1, b=3)] == [("compiled", 2), ("compiled", 4)]
    assert [(function.__name__, settings) for function, settings in compiled] == [("plain", {})]
    assert backend.with_settings(4) == ("compiled", -4)
    assert compiled[1][1] == {"dynamic": False}


def test_torch_compiles_as_before_afterwards(backend: Any, compiled: list[Any]) -> None:
    torch.compile(len)
    assert [function for function, _ in compiled] == [len]


def test_a_module_that_fails_leaves_torch_as_it_was(backend: Any, tmp_path: Path, compiled: list[Any]) -> None:
    (tmp_path / "bitsandbytes" / "backends" / "broken.py").write_text("raise OSError('no library')")
    before = torch.compile
    with pytest.raises(OSError, match="no library"):
        importlib.import_module("bitsandbytes.backends.broken")
    assert torch.compile is before


def test_arranged_once() -> None:
    def arranged() -> list[MetaPathFinder]:
        return [finder for finder in sys.meta_path if type(finder).__module__ == bitsandbytes_import.__name__]  # type: ignore[misc]

    assert len(arranged()) == 1
    bitsandbytes_import.arrange()
    assert len(arranged()) == 1
