"""docs/sweeps.md: its file is a sweep, its commands parse, and the tests that it names are there."""

from __future__ import annotations

import re
from pathlib import Path

from rankzero.spec.sweep_load import read_sweep
from tests.unit.test_recipe_docs import ROOT, blocks, parse, typed

TEXT = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
COMMANDS = typed(re.sub(r"^```yaml\n.*?^```\n", "", TEXT, flags=re.DOTALL | re.MULTILINE))


def test_the_file_on_the_page_is_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("model: {name: o/m}\ndata: {train: o/r, eval: {fraction: 0.1}}\nlora: {}\n")
    (block,) = blocks(TEXT, "yaml")
    (tmp_path / "sweep.yaml").write_text(block)
    reading = read_sweep(tmp_path / "sweep.yaml", env={})
    assert reading.sweep is not None, reading.problems
    assert (reading.sweep.trials, reading.sweep.name) == (12, "sweep")


def test_commands_parse() -> None:
    assert {words[0] for words in COMMANDS} == {"sweep", "train"} and len(COMMANDS) == 8
    for words in COMMANDS:
        parse(words)


def test_what_it_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", TEXT)
    assert named and all((ROOT / name).is_file() for name in named)
    assert "sweep-kills:" in (ROOT / "Makefile").read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert target.startswith("https://") or (ROOT / "docs" / target).exists(), target
