"""docs/preferences.md: its spec loads, its rows are pairs, and its names are those that the spec's errors tell."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.formats import convert
from rankzero.spec.load import load_run_spec
from rankzero.spec.renames import RENAMES
from rankzero.spec.resolve import resolve
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.tasks import TASKS
from rankzero.spec.unknown_keys import guess

PAGE = (Path(__file__).parents[2] / "docs/preferences.md").read_text(encoding="utf-8")


def test_its_spec_loads(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "run.yaml").write_text(text)
    spec = load_run_spec(tmp_path / "run.yaml", env={}).spec
    assert spec.task == "dpo" and spec.dpo is not None
    assert f"`train.learning_rate: auto` is {resolve(spec).train.learning_rate:.0e}".replace("e-0", "e-") in PAGE


def test_its_rows_say_the_same() -> None:
    rows = [json.loads(line) for line in PAGE.splitlines() if line.startswith('{"')]
    assert len(rows) == 3
    for row in rows:
        _, found = convert(row, 1)
        assert isinstance(found, Conversation)
        assert [turn.content for turn in found.messages] == ["Ping", "Pong"]
        assert [turn.content for turn in found.rejected] == ["No."]


def test_what_is_measured_is_explained() -> None:
    assert all(f"`{name}`" in PAGE for name in TASKS["dpo"].metrics)


@pytest.mark.parametrize(
    "line", [line for line in PAGE.partition("## Names")[2].splitlines() if line.startswith("| `")]
)
def test_names_of_other_tools_are_told_by_the_spec_too(line: str) -> None:
    there, here = line.strip("| ").split(" | ")
    if "rewards/" in there or there == "`max_length`" or there == "`padding_free`":
        return  # no settings, or the same names
    for name in re.findall(r"`(\w+)`", there):
        meant = guess(RunSpec, (name,), RENAMES)
        wanted = re.findall(r"`(\w+\.\w+)`", here)
        assert meant.field in (wanted or [""]) and meant.hint, name
