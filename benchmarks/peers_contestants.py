"""The rows everyone trains on, each contestant's command line, and how its steps are read. Starts nothing."""

from __future__ import annotations

import ast
import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

OURS, TRL_DEFAULTS, TRL_BEST = "rankzero", "TRL, defaults", "TRL, best flags"

Line = tuple[float, str]
"""When a line was printed, in Unix seconds, and its text."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What all contestants share."""

    model: str
    rows: Path
    steps: int
    precision: str
    on_cpu: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One finished optimizer step: when it ended, in Unix seconds, and how many useful tokens it took."""

    ended: float
    tokens: int
    loss: float


@dataclass(frozen=True, slots=True)
class Contestant:
    """A command line, and how its steps are read."""

    name: str
    python: str
    command: Callable[[Settings, Path], list[str]]
    read_steps: Callable[[Path, list[Line]], list[Step]]


ROWS, ROWS_SEED = 1000, 1
_WORDS = """the of and to in a is that it for as with on by this be are from at or an have which one you were all we
when there can more if about out up into time some could them other than then its only new my over such our most made
also after did many before must through years where much your way well down should because each just those people how
too little state good very make world still own see men work long get here between both life being under never day same
another know while last might us great old year off come since against go came right used take three"""


def make_rows(count: int, seed: int) -> list[dict[str, list[dict[str, str]]]]:
    """Instruction rows of log-normal lengths. With SmolLM2's template: 48 to 484 tokens, median 131, mean 155."""
    draw, vocabulary = random.Random(seed), _WORDS.split()

    def words(median: int, sigma: float, least: int, most: int) -> str:
        wanted = min(most, max(least, round(draw.lognormvariate(math.log(median), sigma))))
        return " ".join(draw.choice(vocabulary) for _ in range(wanted)).capitalize()

    def row() -> dict[str, list[dict[str, str]]]:
        question, answer = words(14, 0.6, 4, 80) + "?", words(75, 0.85, 3, 380) + "."
        turn = {"role": "user", "content": question}, {"role": "assistant", "content": answer}
        return {"prompt": [turn[0]], "completion": [turn[1]]}

    return [row() for _ in range(count)]


RUN_YAML = """\
name: bench
model: {{name: {model}, dtype: {precision}}}
data: {{train: {rows}, max_length: 512}}
lora: {{r: 8, alpha: 16, dropout: 0.05, target_modules: [q_proj, k_proj, v_proj, o_proj]}}
train:
  max_steps: {steps}
  global_batch_size: 16
  learning_rate: 2.0e-4
  lr_scheduler_type: linear
  warmup_steps: 0
  seed: 42
tracking: {{tensorboard: false}}
output_dir: {output}
"""


def rankzero_command(settings: Settings, directory: Path) -> list[str]:
    """Write run.yaml and name it."""
    text = RUN_YAML.format(
        model=json.dumps(settings.model),
        precision=settings.precision,
        rows=json.dumps(str(settings.rows / "train.jsonl")),
        steps=settings.steps,
        output=json.dumps(str(directory)),
    )
    (directory / "run.yaml").write_text(text, encoding="utf-8")
    return [sys.executable, "-m", "rankzero", "train", str(directory / "run.yaml")]


def read_metrics(directory: Path, _lines: list[Line]) -> list[Step]:
    """Steps from metrics.jsonl."""
    text = (directory / "bench" / "metrics.jsonl").read_text(encoding="utf-8")
    objects = [json.loads(line) for line in text.splitlines()]
    return [Step(value["time"], value["tokens"], value["loss"]) for value in objects]


def trl_command(python: str, settings: Settings, directory: Path, own: Sequence[str]) -> list[str]:
    """`trl sft` with what is the same for all, then the contestant's own flags."""
    shared = f"""--max_length 512 --use_peft --lora_r 8 --lora_alpha 16 --lora_dropout 0.05
        --lora_target_modules q_proj k_proj v_proj o_proj --learning_rate 2e-4 --lr_scheduler_type linear --seed 42
        --max_steps {settings.steps} --save_strategy no --report_to none --logging_steps 1 --disable_tqdm true"""
    return [
        str(Path(python).with_name("trl")),
        "sft",
        *("--model_name_or_path", settings.model, "--dataset_name", str(settings.rows)),
        *("--output_dir", str(directory / "trl")),
        *shared.split(),
        *(["--use_cpu"] if settings.on_cpu else []),
        *own,
    ]


def trl_defaults(settings: Settings) -> list[str]:
    """8 rows a pass, 2 passes a step, activations recomputed, float32 weights; bfloat16 autocast unless unavailable."""
    return ["--gradient_accumulation_steps", "2", *(["--bf16", "false"] if settings.precision == "float32" else [])]


def trl_best(settings: Settings) -> list[str]:
    """2 rows a pass, 8 passes a step, rows of like length together, nothing recomputed, weights as computed with."""
    bf16 = "false" if settings.precision == "float32" else "true"
    return f"""--per_device_train_batch_size 2 --gradient_accumulation_steps 8
        --train_sampling_strategy group_by_length --gradient_checkpointing false
        --bf16 {bf16} --dtype {settings.precision}""".split()


def read_trl_log(_directory: Path, lines: list[Line]) -> list[Step]:
    """Steps from the objects that `--logging_steps 1 --disable_tqdm true` prints as each step ends.

    `num_tokens` is TRL's running sum of the attention masks: tokens that are not padding, to four digits.
    """
    steps: list[Step] = []
    before = 0.0
    for at, line in lines:
        if line.startswith("{") and "num_tokens" in line:
            values = ast.literal_eval(line)
            total = float(values["num_tokens"])
            steps.append(Step(at, round(total - before), float(values["loss"])))
            before = total
    return steps


def make_contestants(trl_python: str) -> list[Contestant]:
    """Ours first: ratios are taken to it."""

    def trl(name: str, own: Callable[[Settings], list[str]]) -> Contestant:
        def command(settings: Settings, directory: Path) -> list[str]:
            return trl_command(trl_python, settings, directory, own(settings))

        return Contestant(name, trl_python, command, read_trl_log)

    ours = Contestant(OURS, sys.executable, rankzero_command, read_metrics)
    return [ours, trl(TRL_DEFAULTS, trl_defaults), trl(TRL_BEST, trl_best)]
