"""docs/architecture.md, "What counts as the same": each place that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTION = (
    (ROOT / "docs/architecture.md")
    .read_text(encoding="utf-8")
    .split("## What counts as the same\n")[1]
    .split("\n## ")[0]
)
ROWS = [line.strip("|").split("|") for line in SECTION.splitlines() if line.startswith("|")][2:]
PLACES = sorted({place for row in ROWS for place in re.findall(r"`([^`]+)`", row[-1])})


def test_each_row_says_where() -> None:
    assert len(ROWS) > 25 and all(len(row) == 5 and "`" in row[-1] for row in ROWS)


@pytest.mark.parametrize("place", PLACES)
def test_the_place_is_there(place: str) -> None:
    module, _, name = place.partition(".")
    path = ROOT / "src/rankzero" / f"{module}.py"
    assert path.is_file()
    assert not name or re.search(rf"\bdef {name}\(", path.read_text(encoding="utf-8"))
