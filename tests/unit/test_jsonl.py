"""JSON Lines are read by their newlines alone: texts in them may hold U+2028, U+2029 and U+0085 as they are, and
`str.splitlines` would cut there."""

from __future__ import annotations

import ast
from pathlib import Path

import rankzero

OTHERS = {"_torch", "licence_of"}
"""Functions that cut something else, and read some JSON besides: what a process says, the text of a licence."""


def called(function: ast.AST) -> set[str]:
    """The names of the methods that a function calls."""
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {call.attr for call in calls if isinstance(call, ast.Attribute)}


def test_no_function_reads_json_from_lines_that_python_has_cut() -> None:
    found = [
        f"{path.name}:{node.lineno} {node.name}"
        for path in Path(rankzero.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and {"splitlines", "loads"} <= called(node) and node.name not in OTHERS
    ]
    assert not found, r'split("\n")'
