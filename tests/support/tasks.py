"""A small run of each task and method besides LoRA on a language model, for promises that hold for all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rankzero.spec.run_spec import RunSpec
from tests.support.architectures import save
from tests.support.images import picture_rows
from tests.support.recipes import sentiment_rows
from tests.support.runs import small_spec
from tests.support.tiny import preference_rows, write_jsonl

TASKS = ("classify", "vision", "nf4", "moe", "dpo", "dpo in full")
_MODELS = {"classify": "distilbert", "vision": "qwen3_vl", "nf4": "qwen3", "moe": "qwen3_moe"}


def task_spec(task: str, root: Path, *, dropout: float = 0.1, rows: int = 30, **changes: Any) -> RunSpec:
    """A run of 12 steps below `root`; `changes` are dotted with `__`."""
    model = save(_MODELS.get(task, "qwen3"), root / "model")
    if task == "classify":
        _set_dropout(model, dropout)
        changes = {"task": "classify", "lora": None, **_files(root, sentiment_rows(rows + 7), rows), **changes}
        changes = {"data__labels": ["negative", "positive"], "train__learning_rate": 0.002, **changes}
    elif task == "vision":
        pictures = picture_rows(root / "pictures", rows + 7, every=3)
        changes = {**_files(root / "pictures", pictures, rows), "train__micro_batch_tokens": 64, **changes}
    elif task == "nf4":
        changes = {"model__quantization": "nf4", **changes}
    elif task == "moe":
        changes = {"train__parts": ["language", "router"], "train__router_aux_loss_coef": 0.5, **changes}
    elif task.startswith("dpo"):
        changes = {**({"lora": None} if task == "dpo in full" else {}), **changes}
        files = _files(root, preference_rows(rows + 7), rows)
        changes = {"task": "dpo", "dpo": {"beta": 0.5}, **files, "train__learning_rate": 0.002, **changes}
    if changes.get("lora", {}) is not None:
        changes = {"lora__dropout": dropout, **changes}
    return small_spec(root, model, rows=rows, **changes)


def _files(root: Path, rows: list[dict[str, Any]], train: int) -> dict[str, str]:
    return {
        "data__train": str(write_jsonl(root / "task-train.jsonl", rows[:train])),
        "data__eval": str(write_jsonl(root / "task-eval.jsonl", rows[train:])),
    }


def _set_dropout(model: Path, dropout: float) -> None:
    config = json.loads((model / "config.json").read_text())
    config |= {"dropout": dropout, "attention_dropout": dropout, "seq_classif_dropout": dropout}
    (model / "config.json").write_text(json.dumps(config))
