"""The fault matrix is whole: each row is shown by tests that exist, and the page about it has the same rows."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from tests.faults.matrix import MATRIX, Row, table

TESTS = Path(__file__).parents[1]


@functools.cache
def names_in(file: str) -> frozenset[str]:
    """The names of a file's tests."""
    tree = ast.parse((TESTS / file).read_text())
    return frozenset(n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name.startswith("test_"))


@pytest.mark.parametrize("row", MATRIX, ids=lambda row: row.inject[:40])
def test_each_row_is_shown(row: Row) -> None:
    assert row.proofs
    for proof in row.proofs:
        file, _, name = proof.partition("::")
        assert names_in(file) if name == "*" else name in names_in(file), proof


def test_the_page_has_these_rows() -> None:
    assert len(MATRIX) == 39
    assert table() in (TESTS.parent / "docs/reliability.md").read_text()
