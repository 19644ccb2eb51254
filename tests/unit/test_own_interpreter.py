"""No program of ours imports what lies in the user's working directory: a random.py there is not Python's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import rankzero

SOURCE = Path(rankzero.__file__).parent


def commands() -> Iterator[tuple[str, list[str]]]:
    """Where this interpreter is called, and with which words."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            words = [ast.unparse(one) for one in node.elts] if isinstance(node, ast.List) else []
            if words and words[0] == "sys.executable":
                yield f"{path.relative_to(SOURCE)}:{node.lineno}", words[1:]


def test_this_interpreter_starts_modules_without_the_working_directory() -> None:
    found = list(commands())
    assert len(found) > 5
    unsafe = [where for where, words in found if {"'-m'", "'-c'"} & set(words) and words[0] != "'-P'"]
    assert not unsafe
