"""No handler on the way swallows a stop: the rule for every file of the package, and the loading of weights."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import rankzero
from rankzero.errors import RankzeroError, StopNow

SOURCE = Path(rankzero.__file__).parent
OUTERMOST = {"cli/train.py", "cli/serve.py", "cli/undoing.py", "engine/signals.py", "provision/programs.py"}
"""Where a stop becomes what a user reads, or is raised again once a program of others has ended."""
NO_STOPS = {"data/pool.py"}
"""Runs where no signal becomes an exception: in workers, whose parent alone is asked to stop."""


def names_in(node: ast.expr | None) -> set[str]:
    """The exceptions of an `except` or a `suppress`, by their last names; a bare one catches BaseException."""
    if node is None:
        return {"BaseException"}
    if isinstance(node, ast.Tuple):
        return set().union(*(names_in(element) for element in node.elts))
    return {node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", ast.unparse(node))}


def swallowed(file: str, tree: ast.AST) -> list[str]:
    """Every place that would keep a BaseException for itself."""
    found = []
    for node in ast.walk(tree):
        where = f"{file}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ExceptHandler):
            caught = names_in(node.type)
            if "BaseException" in caught and not isinstance(node.body[-1], ast.Raise) and file not in NO_STOPS:
                found.append(f"{where} catches everything and does not raise it again")
            if "StopNow" in caught and file not in OUTERMOST:
                found.append(f"{where} catches a stop")
        elif isinstance(node, ast.Call) and names_in(node.func) == {"suppress"}:
            if any(names_in(argument) & {"BaseException", "StopNow"} for argument in node.args):
                found.append(f"{where} suppresses everything")
        elif isinstance(node, ast.Try):
            leaves = [leaf for part in node.finalbody for leaf in ast.walk(part) if isinstance(leaf, ast.Return)]
            found += [f"{where} returns in a finally"] if leaves else []
    return found


def test_no_handler_keeps_a_stop_for_itself() -> None:
    """An `except Exception` may be as broad as it likes: a stop is none."""
    assert issubclass(StopNow, BaseException) and not issubclass(StopNow, Exception)
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 100
    found = [
        line for path in files for line in swallowed(path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "try: f()\nexcept: pass",
        "try: f()\nexcept BaseException: pass",
        "try: f()\nexcept (OSError, BaseException): pass",
        "try: f()\nexcept StopNow: raise",
        "with contextlib.suppress(BaseException): f()",
        "def f():\n  try: g()\n  finally: return 1",
    ],
)
def test_the_rule_sees_what_would(text: str) -> None:
    assert swallowed("some/file.py", ast.parse(text))


def test_a_stop_while_weights_load_is_no_damaged_file(tiny: Path, tmp_path: Path, monkeypatch: Any) -> None:
    import torch

    from rankzero.model import load
    from rankzero.model.source import locate
    from tests.support.runs import small_spec

    def interrupted(*_arguments: Any, **_named: Any) -> Any:
        raise StopNow

    spec = small_spec(tmp_path, tiny)
    source = locate(spec.model)
    config = load.load_config(source, spec.model)
    monkeypatch.setattr(load._CLASSES["causal"], "from_pretrained", interrupted)
    with pytest.raises(StopNow):
        load.load_model(source, spec.model, config, torch.float32)
    assert not issubclass(StopNow, RankzeroError)
