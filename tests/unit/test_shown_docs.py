"""What pages say was shown by tests: the tests are there, and the page of all parts is linked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", PAGES)
def test_tests_that_a_page_names_are_there(page: str) -> None:
    named = re.findall(r"`(tests/[\w./-]+)(?:::(\w+))?`", (ROOT / page).read_text(encoding="utf-8"))
    for path, name in named:
        assert (ROOT / path).exists(), path
        assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), name


def test_every_part_has_its_row() -> None:
    text = (ROOT / "docs/shown.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`" in line]
    for part in ("Sweeps", "Katib", "Warm pods", "Smoke", "Doctor", "Provisioning", "Storage", "Slurm", "Clusters"):
        assert [row for row in rows if row.startswith(f"| {part}")], part
    assert "shown.md" in (ROOT / "README.md").read_text(encoding="utf-8")
