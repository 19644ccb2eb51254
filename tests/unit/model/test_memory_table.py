"""docs/planning.md has the planner's memory table as it is today."""

from __future__ import annotations

from pathlib import Path

from tests.support.memory_table import table


def test_the_table_in_the_docs_is_current() -> None:
    """`python -m tests.support.memory_table` prints it."""
    page = Path(__file__).parents[3] / "docs/planning.md"
    assert f"\n{table()}\n" in page.read_text(encoding="utf-8")
