"""Task dpo beside TRL's DPOTrainer: the same adapter or weights, rows, order and batches, step by step.

    .venv/bin/python benchmarks/preferences.py --trl-python .venv-bench/bin/python [--model DIR] [--full]

Prints a table of both for benchmarks/README.md. Without a model it is a tiny one with random weights. Rows are made up,
adapters begin from the same values, dropout is off, and both compute in float32. In full, TRL copies the model for its
reference.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROWS, EPOCHS, SIZE, BETA = 32, 3, 8, 0.5
RATES = {"adapters": 2e-3, "full": 5e-5}
STEPS = ROWS // SIZE * EPOCHS
OF_STEP = {
    "loss": "loss",
    "train_reward_margin": "rewards/margins",
    "train_reward_chosen": "rewards/chosen",
    "grad_norm": "grad_norm",
}
"""What both tell of a step: our name, and TRL's."""


def make_rows() -> list[dict[str, str]]:
    """Preferences without a chat template, whose answers differ in length."""
    short, long = " Short.", " A longer answer of many words, number {} of them all, about the quick brown fox."
    answers = [(short, long.format(i)) if i % 2 else (long.format(i), f" No, {i}.") for i in range(ROWS)]
    return [
        {"prompt": f"Question {i}?", "chosen": better, "rejected": worse} for i, (better, worse) in enumerate(answers)
    ]


def ours(work: Path, model: Path, *, full: bool) -> list[dict[str, Any]]:
    """Train, and leave the adapter as it began, and the rows in the order of steps. Returns metrics.jsonl."""
    import torch
    from transformers import AutoModelForCausalLM

    from rankzero.data.order import permutation
    from rankzero.engine.setup import to_train
    from rankzero.engine.worker import run
    from rankzero.spec.run_options import RunOptions
    from rankzero.spec.run_spec import RunSpec

    rows = make_rows()
    (work / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    spec = RunSpec.model_validate(
        {
            "name": "ours",
            "task": "dpo",
            "dpo": {"beta": BETA},
            "model": {"name": str(model), "dtype": "float32"},
            "data": {"train": str(work / "rows.jsonl")},
            "lora": None if full else {"r": 8, "alpha": 16, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
            "train": {
                "num_train_epochs": EPOCHS,
                "global_batch_size": SIZE,
                "learning_rate": RATES["full" if full else "adapters"],
                "warmup_steps": 0,
            },
            "tracking": {"tensorboard": False},
            "output_dir": str(work / "runs"),
        }
    )
    if not full:
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        to_train(base, spec, base_name=str(model)).save_pretrained(work / "adapter")
    order = [int(row) for epoch in range(EPOCHS) for row in permutation(ROWS, seed=spec.train.seed, stream=epoch)]
    (work / "ordered.json").write_text(json.dumps([rows[row] for row in order]), encoding="utf-8")
    run(spec, RunOptions(log_level="WARNING"), None)
    lines = (work / "runs/ours/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def theirs(work: Path, model: Path, *, full: bool) -> None:
    """In TRL's environment: print what it logs of each step, with the seconds that the step took."""
    import time

    import torch
    from datasets import Dataset
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import DPOConfig, DPOTrainer

    class Clock(TrainerCallback):  # type: ignore[misc]
        seconds: list[float] = []

        def on_step_begin(self, *_arguments: object, **_more: object) -> None:
            self.begun = time.perf_counter()

        def on_step_end(self, *_arguments: object, **_more: object) -> None:
            self.seconds.append(time.perf_counter() - self.begun)

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    settings = DPOConfig(
        output_dir=str(work / "theirs"),
        use_cpu=True,
        bf16=False,
        beta=BETA,
        per_device_train_batch_size=SIZE,
        gradient_checkpointing=False,
        max_steps=STEPS,
        learning_rate=RATES["full" if full else "adapters"],
        lr_scheduler_type="linear",
        warmup_steps=0,
        max_grad_norm=1.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        train_sampling_strategy="sequential",
        disable_tqdm=True,
    )
    trainer = DPOTrainer(
        model=base if full else PeftModel.from_pretrained(base, work / "adapter", is_trainable=True),
        args=settings,
        train_dataset=Dataset.from_list(json.loads((work / "ordered.json").read_text(encoding="utf-8"))),
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "rewards/margins" in entry]
    print(json.dumps([{**step, "seconds": seconds} for step, seconds in zip(steps, Clock.seconds, strict=True)]))


def table(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> str:
    """Both of each step, and how far they are apart at most."""
    lines = ["| step | loss | TRL | margin | TRL | gradient norm | TRL |", "|--:|--:|--:|--:|--:|--:|--:|"]
    for one, other in zip(found, wanted, strict=True):
        pairs = ("loss", "train_reward_margin", "grad_norm")
        cells = [f"{value:.5f}" for name in pairs for value in (one[name], other[OF_STEP[name]])]
        lines.append(f"| {one['step']} | {' | '.join(cells)} |")
    apart = {
        name: max(abs(one[name] - other[name_there]) for one, other in zip(found, wanted, strict=True))
        for name, name_there in OF_STEP.items()
    }
    seconds = statistics.median(one["tokens"] / one["tokens_per_second"] for one in found[1:])
    their_seconds = statistics.median(other["seconds"] for other in wanted[1:])
    return "\n".join(
        [
            *lines,
            "",
            "Largest differences: " + ", ".join(f"{name} {value:.1e}" for name, value in apart.items()) + ".",
            f"Median step: {seconds:.2f} s, TRL {their_seconds:.2f} s.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trl-python", help="python of an environment with trl")
    parser.add_argument("--model", type=Path, help="model directory; default: a tiny one")
    parser.add_argument("--full", action="store_true", help="all weights instead of adapters")
    parser.add_argument("--theirs", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.theirs is not None:
        theirs(given.theirs, given.model, full=given.full)
        return
    if given.trl_python is None:
        parser.error("--trl-python is needed")
    with tempfile.TemporaryDirectory(prefix="rankzero-bench-") as temporary:
        work = Path(temporary)
        os.environ["RANKZERO_CACHE"] = str(work / "cache")
        model = given.model or tiny_model(work / "model")
        found = ours(work, model, full=given.full)
        command = [given.trl_python, __file__, "--theirs", str(work), "--model", str(model)]
        command += ["--full"] if given.full else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        print(table(found, json.loads(done.stdout.splitlines()[-1])))


def tiny_model(directory: Path) -> Path:
    """A Qwen3 with random weights."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.support.architectures import save

    return save("qwen3", directory)


if __name__ == "__main__":
    main()
