"""No test passes on a quick machine only: what a clock has measured is never held against a number."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tests

TESTS = Path(tests.__file__).parent
CLOCKS = {"time.time", "time.monotonic", "time.perf_counter", "time.process_time", "time.thread_time", "os.times"}


def measured(tree: ast.AST, names: set[str]) -> bool:
    """Whether an expression has a clock in it, or what came of one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names:
            return True
        function = node.func if isinstance(node, ast.Call) else None
        if function is not None and ast.unparse(function) in CLOCKS:
            return True
    return False


def of_clocks(function: ast.AST) -> set[str]:
    """The names in a function whose values come of a clock: assigned, put into a list, or returned."""
    names: set[str] = set()
    while True:
        before = len(names)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if measured(node.value, names):
                    names |= {leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
                if isinstance(node.func.value, ast.Name) and any(measured(value, names) for value in node.args):
                    names.add(node.func.value.id)
            elif isinstance(node, ast.FunctionDef) and node is not function:
                returned = [leaf.value for leaf in ast.walk(node) if isinstance(leaf, ast.Return) and leaf.value]
                if any(measured(value, names) for value in returned):
                    names.add(node.name)
        if len(names) == before:
            return names


def too_slow_elsewhere(file: str, tree: ast.AST) -> list[str]:
    """Every assertion that something takes less than some number of seconds."""
    found = []
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        names = of_clocks(function)
        for node in ast.walk(function):
            if not isinstance(node, ast.Assert):
                continue
            for compared in (leaf for leaf in ast.walk(node.test) if isinstance(leaf, ast.Compare)):
                sides = [compared.left, *compared.comparators]
                for left, how, right in zip(sides, compared.ops, sides[1:], strict=False):
                    less, more = (right, left) if isinstance(how, ast.Gt | ast.GtE) else (left, right)
                    ordered = isinstance(how, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
                    if ordered and measured(less, names) and not measured(more, names):
                        found.append(f"{file}:{node.lineno}: {ast.unparse(compared)}")
    return sorted(set(found))


def test_no_assertion_holds_a_clock_against_a_number() -> None:
    files = sorted(TESTS.rglob("*.py"))
    assert len(files) > 300
    found = [
        line
        for path in files
        for line in too_slow_elsewhere(path.relative_to(TESTS).as_posix(), ast.parse(path.read_text()))
    ]
    assert found == [], "count calls (tests/support/work.py), or measure something beside it in the same run"


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("begun = time.monotonic(); work(); assert time.monotonic() - begun < 2", True),
        ("begun = time.monotonic(); work(); took = time.monotonic() - begun; assert 2 > took", True),
        ("took = []; took.append(os.times()); assert max(took) <= limit", True),
        ("def clock():\n  return time.process_time()\n assert 0 < clock() < 3", True),
        ("begun = time.monotonic(); work(); assert time.monotonic() - begun >= 2", False),
        ("end = time.monotonic() + 60\n while work(): assert time.monotonic() < end", False),
        ("a = time.process_time(); b = time.process_time(); assert a < 3 * b", False),
    ],
)
def test_the_rule_sees_them(text: str, bad: bool) -> None:
    assert bool(too_slow_elsewhere("x.py", ast.parse("def test():\n " + text))) is bad
