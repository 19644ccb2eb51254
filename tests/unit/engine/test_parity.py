"""On the same batches, without dropout and in float32, the losses are those of the stock transformers.Trainer.

Without a warm-up too: theirs begins with a step that trains nothing. test_optim has what schedules have in common.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.data.cache.tokenize import TokenRules, prepare
from rankzero.data.order import permutation
from rankzero.engine.setup import to_train
from rankzero.machine import cache_root
from rankzero.model.load import load_tokenizer
from rankzero.model.source import locate
from rankzero.spec.run_spec import RunSpec, SourceSpec
from tests.support.runs import metrics, run_here, small_spec

STEPS = 20


class InOurOrder(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """The run's rows in the run's order, labelled -100 where nothing is trained."""

    def __init__(self, spec: RunSpec) -> None:
        source = locate(spec.model)
        tokenizer = load_tokenizer(source, spec.model, None)
        rules = TokenRules(spec.data.max_length, spec.data.over_length, spec.data.assistant_only_loss)
        self.rows = prepare([SourceSpec(path=str(spec.data.train))], tokenizer, rules, cache_root())
        epochs = int(spec.train.num_train_epochs)
        self.order = [
            int(i) for e in range(epochs) for i in permutation(len(self.rows), seed=spec.train.seed, stream=e)
        ]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, i: int) -> dict[str, Any]:
        ids, mask = self.rows.row(self.order[i])
        labels = torch.tensor(ids).clone()
        labels[~torch.tensor(mask)] = -100
        return {"input_ids": torch.tensor(ids), "labels": labels}


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad([row["input_ids"] for row in rows], batch_first=True)
    mask = pad([torch.ones_like(row["input_ids"]) for row in rows], batch_first=True)
    return {
        "input_ids": ids.long(),
        "attention_mask": mask.long(),
        "labels": pad([row["labels"] for row in rows], batch_first=True, padding_value=-100).long(),
    }


@pytest.mark.parametrize("method", ["lora", "full"])
def test_losses_equal_the_stock_trainers(method: str, tmp_path: Path, tiny: Path) -> None:
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    lora = {"r": 4, "dropout": 0.0, "target_modules": "all-linear"} if method == "lora" else None
    spec = small_spec(
        *(tmp_path, tiny),
        rows=40,
        eval_rows=0,
        lora=lora,
        train__num_train_epochs=4,
        train__global_batch_size=8,
        train__warmup_steps=0,
        train__weight_decay=0.01,
    )
    run_here(spec)
    ours = [row["loss"] for row in metrics(spec)]

    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    if spec.lora is not None:
        model = to_train(model, spec, base_name="tiny")
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "theirs"),
        use_cpu=True,
        per_device_train_batch_size=8,
        max_steps=STEPS,
        learning_rate=0.01,
        lr_scheduler_type="linear",
        warmup_steps=0,
        weight_decay=0.01,
        max_grad_norm=1.0,
        logging_steps=1,
        logging_first_step=True,
        save_strategy="no",
        report_to="none",
        train_sampling_strategy="sequential",
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=InOurOrder(spec), data_collator=collate)
    trainer.train()
    theirs = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(ours) == len(theirs) == STEPS
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert ours[-1] < ours[0]
