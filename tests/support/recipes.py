"""What each recipe is run on by tests: a tiny model of its architecture, and rows in the shape of its data.

A case changes what a user with another machine would change: the model's name, paths, sizes, steps and precision, and
the learning rate that goes with so small a model. All else is the recipe's.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.architectures import save
from tests.support.images import COLOURS, draw_many
from tests.support.tiny import write_jsonl
from tests.unit.datasets.support import Turns, fire_row, write_array

Cli = Callable[[str], Any]
Shown = dict[str, str]

SMALL = {
    "model.dtype": "float32",
    "train.max_steps": "16",
    "train.global_batch_size": "8",
    "train.learning_rate": "0.01",
    "train.micro_batch_tokens": "512",
    "eval.every": "8",
    "eval.on_start": "true",
    "checkpoint.every": "8",
}
BY_VARIABLE = ("model.dtype", "train.max_steps", "train.global_batch_size", "train.learning_rate")
FROM_NOTHING = {"train.max_steps": "48", "train.global_batch_size": "16", "train.learning_rate": "0.004"}
"""What an encoder without any pre-training takes to tell two words apart."""
FSDP = {"train.sharding": "fsdp"}
FACTS = {"capital": "The capital of Peru is Lima.", "spider": "A spider has eight legs.", "prime": "Seven is prime."}


@dataclass(frozen=True, slots=True)
class Case:
    """One recipe. `write` makes its data below a directory and returns overrides and environment variables."""

    architecture: str
    write: Callable[[Path, Cli], Inputs]
    nproc: int = 1
    settings: dict[str, str] = field(default_factory=dict)
    """What is other than in SMALL; empty: as the recipe has it."""
    without_deepspeed: dict[str, str] = field(default_factory=dict)

    def overrides(self) -> list[str]:
        """Where DeepSpeed is not installed, FSDP2 does the same."""
        settings = {**SMALL, **self.settings}
        if importlib.util.find_spec("deepspeed") is None:
            settings |= self.without_deepspeed
        return [f"{name}={value}" for name, value in settings.items() if value]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Overrides on the command line, and variables of the recipe."""

    overrides: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    image: str | None = None
    """One of the images, to ask about."""


def model_of(case: Case, directory: Path) -> Path:
    """The tiny model, saved."""
    return save(case.architecture, directory)


ON_THE_CLUSTER = {"lora-jsonl": {"DATA_ROOT": "/mnt/filesystem-o2/d", "CKPT_ROOT": "/mnt/filesystem-o2/c"}}
"""What is set where a recipe's files lie on the cluster."""


def questions(count: int) -> list[tuple[str, str]]:
    """Questions in varied words, with their answers."""
    facts = list(FACTS.items())
    polite = ("Please tell me", "I ask you", "Say what you know")
    picked = [(facts[i % len(facts)], polite[i // len(facts) % len(polite)]) for i in range(count)]
    return [(f"{words}: {topic}?" + " Now." * (i % 4), fact) for i, ((topic, fact), words) in enumerate(picked)]


def chat_files(root: Path, cli: Cli) -> Inputs:
    """Seed 1: messages, and prompt + completion in one file."""
    chats = [
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]}
        for asked, told in questions(30)
    ]
    pairs = [{"prompt": asked, "completion": f" {told}"} for asked, told in questions(6)]
    write_jsonl(root / "data/train.jsonl", chats + pairs)
    write_jsonl(root / "data/val.jsonl", chats[:7])
    return Inputs(env={"DATA_ROOT": str(root / "data"), "CKPT_ROOT": str(root / "runs")})


def alpaca_file(root: Path) -> str:
    """Alpaca rows with the column `text` that the recipe's data set has besides."""
    rows = [
        {"instruction": asked, "input": "Briefly." if i % 3 == 0 else "", "output": told, "text": f"{asked} {told}"}
        for i, (asked, told) in enumerate(questions(40))
    ]
    return str(write_jsonl(root / "alpaca.jsonl", rows))


def llama_files(root: Path, cli: Cli) -> Inputs:
    """Seed 2: its two variables."""
    return Inputs(("data.eval.fraction=0.2",), {"DATASET_REPO_ID": alpaca_file(root)})


def alpaca_variables(root: Path, cli: Cli) -> Inputs:
    """Seed 3: all of its variables; the batch is what they multiply to."""
    env = {"DATASET_ID": f"{alpaca_file(root)}#32", "MAX_LEN": "256", "BATCH": "1", "GRAD_ACC": "4", "NPROC": "2"}
    env |= {"EPOCHS": "2", "LR": "0.01", "LORA_RANK": "4", "LORA_ALPHA": "8", "DTYPE": "float32"}
    return Inputs(("data.eval.fraction=0.2",), env)


def pair_files(root: Path, cli: Cli) -> Inputs:
    """Pairs with the columns of UltraFeedback: the better answer is there once more, to be learnt."""
    wrong = {"capital": "It is Cusco.", "spider": "Six, I think.", "prime": "Nine."}
    worse = {FACTS[topic]: answer for topic, answer in wrong.items()}
    rows: list[dict[str, Any]] = []
    for i, (asked, told) in enumerate(questions(52)):
        chosen, rejected = (
            [{"role": "user", "content": asked}, {"role": "assistant", "content": text}] for text in (told, worse[told])
        )
        scores = {"score_chosen": 8.0, "score_rejected": 4.5}
        row = {"prompt": asked, "prompt_id": str(i), "chosen": chosen, "rejected": rejected}
        rows.append({**row, "messages": chosen, **scores})
    train, held_out = write_jsonl(root / "pairs.jsonl", rows[:40]), write_jsonl(root / "held-out.jsonl", rows[40:])
    return Inputs(env={"TRAIN_DATA": str(train), "EVAL_DATA": str(held_out)})


def fire_files(root: Path, cli: Cli) -> Inputs:
    """Seed 3: raw trajectories and drawn images through `rankzero data fire`."""
    names = [f"coco/train2017/{i:012d}.jpg" for i in range(12)]
    shown = draw_many(root / "store", names)
    raw = root / "raw"
    raw.mkdir()
    rows = [
        fire_row(f"r{i}", name, _attempts(shown[name], rounds=1 + i % 3), "Which colour is it?", shown[name])
        for i, name in enumerate(names)
    ]
    write_array(raw / "FIRE-train-100K.json", rows[:9])
    write_array(raw / "FIRE-test.json", rows[9:])
    out, images = root / "outputs/fire_bc", root / "cache/fire_images"
    _ok(cli(f"data fire --output_dir {out} --image_dir {images} --input {raw} --images {root / 'store'} --workers 1"))
    train, test = out / "fire_bc_train.jsonl", out / "fire_bc_test.jsonl"
    sources = [
        f"data.{part}=[{{path: {path}, image_root: {images}}}]" for part, path in (("train", train), ("eval", test))
    ]
    return Inputs(tuple(sources), image=str(root / "store" / names[0]))


def volcano_files(root: Path, cli: Cli) -> Inputs:
    """Seed 3: answers, critiques and revisions, some without an image, through `rankzero data volcano`."""
    names = [f"gqa/images/{i}.jpg" for i in range(12)]
    shown = draw_many(root / "store", names)
    rows = [row for i, name in enumerate(names) for row in _volcano_rows(i, name, shown)]
    write_array(root / "volcano-train.json", rows)
    out, images = root / "outputs/volcano", root / "cache/volcano_images"
    given = f"--input {root / 'volcano-train.json'} --images {root / 'store'} --workers 1"
    _ok(cli(f"data volcano --output_dir {out} --image_dir {images} --split train {given}"))
    sources = f"data.train=[{{path: {out / 'volcano_train.jsonl'}, image_root: {images}}}]"
    return Inputs((sources, "data.eval.fraction=0.2"), image=str(root / "store" / names[0]))


def sst2_files(root: Path, cli: Cli) -> Inputs:
    """Seed 4: sentences with 0 or 1, as GLUE has them; its two variables draw a sample."""
    rows = sentiment_rows(152)
    train, held_out = write_jsonl(root / "train.jsonl", rows[:130]), write_jsonl(root / "validation.jsonl", rows[130:])
    train_source = f"data.train=[{{path: {train}, sample: 120}}]"
    return Inputs((train_source, f"data.eval=[{{path: {held_out}}}]"))


def openorca_file(root: Path, cli: Cli) -> Inputs:
    """Seed 5: system prompt, question and response."""
    systems = ("", "You are a helpful assistant.", "Answer briefly.")
    rows = [
        {"id": f"niv.{i}", "system_prompt": systems[i % 3], "question": asked, "response": told}
        for i, (asked, told) in enumerate(questions(40))
    ]
    path = write_jsonl(root / "openorca.jsonl", rows)
    return Inputs((f"data.train={path}", "data.eval.fraction=0.2"))


def shipped_rows(root: Path, cli: Cli) -> Inputs:
    """The quickstart's own rows, which lie beside its run.yaml."""
    return Inputs()


def sentiment_rows(count: int) -> list[dict[str, Any]]:
    """Sentences whose class follows from one word, as rows of SST-2: 0 is negative, 1 positive."""
    words = (("dull", "awful", "boring", "a mess"), ("warm", "superb", "moving", "a delight"))
    subjects = ("the film", "this story", "the cast", "the plot", "the ending", "every scene")
    frames = ("{0} is {1} .", "honestly , {0} is {1} from start to end .", "{0} , i must say , is {1} .")
    rows = []
    for i in range(count):
        label = i % 2
        word, subject = words[label][i // 2 % 4], subjects[i // 3 % 6]
        rows.append({"sentence": frames[i // 5 % 3].format(subject, word), "label": label, "idx": i})
    return rows


def _attempts(colour: str, *, rounds: int) -> Turns:
    """Wrong colours, told so, and the right one at last."""
    others = [other for other in COLOURS if other != colour]
    said = [*others[: rounds - 1], colour]
    turns: Turns = []
    for number, answer in enumerate(said, start=1):
        right = answer == colour
        feedback = "That is right." if right else f"It is not {answer}. Look again."
        turns += [("s", f"Thought: I look at the picture.\nAnswer: {answer}")]
        turns += [("t", f"Score: {10 if right else number}.\nFeedback: {feedback}")]
    return turns


def _volcano_rows(number: int, name: str, shown: Shown) -> list[dict[str, Any]]:
    colour = shown[name]
    asked = "Which colour is it?"
    critique = f"Generate the feedback given initial answer referring to question and image.\nQuestion: {asked}"
    revise = f"Adjust the initial response considering the feedback and image.\nQuestion: {asked}"
    pairs = [
        (f"<image>\n{asked}", f"It is {colour}."),
        (f"<image>\n{critique}\nInitial answer: It is grey.", f"It is not grey, it is {colour}."),
        (f"<image>\n{revise}\nInitial answer: It is grey.\nFeedback: No.", f"It is {colour}."),
    ]
    rows: list[dict[str, Any]] = [
        {"id": f"v{number}", "image": name, "conversations": _said(question, reply)} for question, reply in pairs
    ]
    if number % 3 == 0:
        rows.append({"id": f"t{number}", "conversations": _said(*questions(number + 1)[-1])})
    return rows


def _said(question: str, reply: str) -> list[dict[str, str]]:
    return [{"from": "human", "value": question}, {"from": "gpt", "value": reply}]


def _ok(done: Any) -> None:
    assert done.code == 0, done.err


CASES = {
    "quickstart": Case("smollm2", shipped_rows, settings={"train.max_steps": "24"}),
    "lora-jsonl": Case("qwen2", chat_files),
    "llama-pytorchjob": Case("llama", llama_files),
    "qwen3-8b-alpaca-2gpu": Case("qwen3", alpaca_variables, settings=dict.fromkeys(BY_VARIABLE, "")),
    "dpo": Case("qwen3", pair_files),
    "qwen3-vl-32b-fire-4gpu": Case("qwen3_vl", fire_files, nproc=2),
    "qwen3-vl-32b-volcano-4gpu": Case("qwen3_vl", volcano_files, nproc=2),
    "distilbert-sst2": Case("distilbert", sst2_files, settings=FROM_NOTHING),
    "qwen3-30b-qlora-2x8": Case("qwen3_moe", openorca_file, nproc=2, without_deepspeed=FSDP),
    "qwen3-30b-full-2x8": Case("qwen3_moe", openorca_file, nproc=2, without_deepspeed=FSDP),
}
"""Every recipe that ships, by name."""
