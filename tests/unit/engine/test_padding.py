"""What a report says of padding: nothing where there is none, whatever the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankzero.spec.tasks import TASKS
from tests.support.recipes import sentiment_rows
from tests.support.runs import run_here, small_spec
from tests.support.tasks import task_spec
from tests.support.tiny import chat_rows, write_jsonl


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("padding_free", [False, "auto"])
def test_rows_of_one_length_have_no_padding(task: str, padding_free: bool | str, tmp_path: Path, tiny: Path) -> None:
    changes: dict[str, Any] = {"data__eval": None, "train__max_steps": 2, "train__padding_free": padding_free}
    rows = [sentiment_rows(8)[0]] * 16 if task == "classify" else [chat_rows(8)[0]] * 16
    changes["data__train"] = str(write_jsonl(tmp_path / "rows.jsonl", rows))
    spec = task_spec(task, tmp_path, **changes) if task == "classify" else small_spec(tmp_path, tiny, **changes)
    assert run_here(spec)["padding_fraction"] == pytest.approx(0)
