"""What `import rankzero` gives, and what it costs."""

from __future__ import annotations

import doctest
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import rankzero
from rankzero import errors

HEAVY = ("torch", "transformers", "peft", "numpy", "pandas", "pydantic", "lightkube", "typer", "rich", "yaml")
IMPORTED = """
import json, sys
import rankzero
first = sorted(sys.modules)
names = rankzero.__all__
for name in names:
    getattr(rankzero, name)
rankzero.data.check, rankzero.data.show
print(json.dumps([first, sorted(sys.modules), names]))
"""


def test_importing_is_light_and_so_is_every_name() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True, timeout=300)
    first, later, names = json.loads(done.stdout)
    assert not {name for name in first if name.split(".")[0] in HEAVY}
    assert [name for name in first if name.startswith("rankzero")] == ["rankzero"]
    assert not {"torch", "transformers", "peft", "numpy", "pandas"} & set(later), "a name alone computes nothing"
    assert {"train", "submit", "status", "load_spec", "Run", "RunSpec", "data", "StoppedError"} <= set(names)


def test_no_name_is_that_of_a_module() -> None:
    """Which would take its place as soon as somebody imports it. `data` is meant to be one."""
    modules = {module.name for module in pkgutil.iter_modules(rankzero.__path__)}
    assert {"forecast", "engine"} <= modules
    assert modules & set(rankzero.__all__) == {"data"}


def test_every_error_is_public() -> None:
    tree = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert tree and all(getattr(rankzero, one.__name__) is one for one in tree)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        _ = rankzero.tarin
    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        _ = rankzero.data.chekc
    assert {name for name in dir(rankzero) if not name.startswith("__")} == set(rankzero.__all__) - {"__version__"}
    assert {"train", "data"} <= set(dir(rankzero)) and {"check", "show"} <= set(dir(rankzero.data))


def test_examples_of_docstrings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankzero.api import specs

    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(specs).attempted >= 2
    assert doctest.testmod(specs).failed == 0
