"""Rows that are good one by one and nothing together: whoever looks at them before training refuses them as it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import architectures
from tests.support.cli import Cli
from tests.support.tiny import chat_rows, write_jsonl

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return architectures.save("distilbert", tmp_path_factory.mktemp("classifier"))


def labelled(*labels: object) -> Rows:
    return [{"text": f"a film {number}", "label": label} for number, label in enumerate(labels)]


def of_one_talk(rows: Rows) -> Rows:
    return [{**row, "conversation_id": "the same"} for row in rows]


CASES: dict[str, tuple[str, Rows, Rows | None, dict[str, Any], str]] = {
    "a label that is no class": (
        *("classify", labelled("neg", "pos", "neutral", "neutral"), None, {"labels": ["neg", "pos"]}),
        "rows.jsonl:3: label 'neutral' is none of the classes (2 rows have it)",
    ),
    "one class": ("classify", labelled("pos", "pos"), None, {}, "the labels of the rows to train on are only one"),
    "one class is left": (
        *("classify", [*labelled("pos", "pos"), {"text": "long " * 200, "label": "neg"}], None),
        *({"over_length": "drop", "max_length": 32}, "the labels of the rows to train on are only one"),
    ),
    "a label of evaluation alone": (
        *("classify", labelled("neg", "pos"), labelled("pos", "other"), {}),
        "eval.jsonl:2: label 'other' is none of the classes",
    ),
    "one group": (
        *("sft", of_one_talk(chat_rows(6)), None, {"eval": {"fraction": 0.2}}),
        "all rows are of one group, which cannot be split",
    ),
    "one row": ("sft", chat_rows(1), None, {"eval": {"fraction": 0.2}}, "one row cannot be split"),
    "no weight": (
        *("sft", chat_rows(2), None, {"train": [{"path": "rows.jsonl", "weight": 0.1}]}),
        "the weights leave no row",
    ),
    "one class, of all that is not held out": (
        *("classify", labelled("pos", "pos", "pos"), None, {"eval": {"fraction": 0.4}}),
        "the labels of the rows to train on are only one",
    ),
}


@pytest.mark.parametrize("command", ["prepare", "check"])
@pytest.mark.parametrize("case", CASES)
def test_what_training_refuses(
    cli: Cli, tiny: Path, classifier: Path, tmp_path: Path, own_cache: Path, monkeypatch: Any, case: str, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    task, rows, evaluation, data, words = CASES[case]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    data = {"train": "rows.jsonl", "max_length": 64, **data}
    if evaluation is not None:
        write_jsonl(tmp_path / "eval.jsonl", evaluation)
        data["eval"] = "eval.jsonl"
    model = classifier if task == "classify" else tiny
    (tmp_path / "run.yaml").write_text(json.dumps({"task": task, "model": {"name": str(model)}, "data": data}))
    done = cli(f"data {command} run.yaml")
    assert done.code == 65 and words in done.err and "\nok: " not in done.out, done.err
