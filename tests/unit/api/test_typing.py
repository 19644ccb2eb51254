"""What a type checker sees of the public names: all of them, no others, and places as text or paths."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import rankzero

SLIPS = """import rankzero
rankzero.tarin("run.yaml")
rankzero.data.chekc("rows.jsonl")
"""
ROOT = Path(rankzero.__file__).parent


def test_a_slip_in_a_name_is_found_by_a_type_checker(tmp_path: Path) -> None:
    """Of the two modules alone, which takes half a second; what each function takes is its own module's."""
    pytest.importorskip("mypy")
    names = [*(f"rankzero.{name}" for name in rankzero.__all__), "rankzero.data.check", "rankzero.data.show"]
    text = SLIPS + "".join(f"{name}\n" for name in names)
    (tmp_path / "user.py").write_text(text, encoding="utf-8")
    modules = [str(tmp_path / "user.py"), str(ROOT / "__init__.py"), str(ROOT / "data/__init__.py")]
    flags = ["--follow-imports=skip", f"--cache-dir={tmp_path / 'cache'}", "--config-file=", *modules]
    done = subprocess.run([sys.executable, "-m", "mypy", *flags], capture_output=True, text=True, timeout=300)
    found = [line.partition("user.py:")[2] for line in done.stdout.splitlines() if "error:" in line]
    assert [line[0] for line in found] == ["2", "3"], done.stdout + done.stderr
    assert '"tarin"' in found[0] and '"chekc"' in found[1]


@pytest.mark.parametrize("name", ["chat", "evaluate", "export", "export_gguf", "generate", "push"])
def test_a_target_may_be_a_path(name: str) -> None:
    parameter = inspect.signature(getattr(rankzero, name)).parameters["target"]
    assert parameter.annotation == "str | os.PathLike[str]"
