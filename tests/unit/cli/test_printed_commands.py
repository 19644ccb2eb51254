"""Commands that are printed to be typed next: a shell gives them the paths that were meant."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import rankzero
from rankzero.spec.tasks import TASKS

SOURCE = Path(rankzero.__file__).parent
NAMES = re.compile(r"(.*\.)?(run|run_name|name|node|DEFAULT_OUTPUT|RUN_FILE|user|number)")
"""Expressions for names that are checked to be plain where they are given, and for numbers."""
QUOTED_BEFORE = {("cli/serve.py", "model"), ("cli/submit.py", "place")}
NO_PATHS = {
    ("launch/diagnose/network.py", "f' --node {absent[0]}' if absent else ''"),
    ("launch/node/code.py", "self.digest[:8]"),
}


@pytest.mark.parametrize("task", TASKS)
def test_what_is_done_with_a_result_is_done_with_this_one(task: str) -> None:
    command, _ = TASKS[task].next_commands("my runs/ä b's", adapters=True)
    assert shlex.split(command)[:3:2] == ["rankzero", "my runs/ä b's"]


def printed() -> Iterator[tuple[str, str]]:
    """The module in which an f-string has a value behind `rankzero …`, and the value's expression."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ""
            for part in node.values if isinstance(node, ast.JoinedStr) else ():
                if isinstance(part, ast.Constant):
                    text += str(part.value)
                elif isinstance(part, ast.FormattedValue):
                    if re.search(r"(^|[`\s;:])rankzero [a-z]+( [^`\n;,]*)?$", text):
                        yield path.relative_to(SOURCE).as_posix(), ast.unparse(part.value)
                    text += "x"


def test_paths_in_printed_commands_are_quoted() -> None:
    found = set(printed())
    assert found >= QUOTED_BEFORE | NO_PATHS and len(found) > 20
    others = found - QUOTED_BEFORE - NO_PATHS
    assert not [(where, value) for where, value in others if "shlex." not in value and not NAMES.fullmatch(value)]
