"""Prompts answered by several processes: as one process answers them, and the run does not notice."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.data.prompts import read_prompts
from rankzero.errors import ExitCode
from rankzero.model.generate import Reply, Speaker, load_speaker, reply
from rankzero.model.load import stop_token_ids
from rankzero.run_dir.result import as_it_was
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from tests.support.architectures import save
from tests.support.forked import in_ranks, run_forked
from tests.support.images import draw
from tests.support.runs import run_root, small_spec
from tests.support.tasks import task_spec
from tests.support.tiny import write_jsonl
from tests.support.tiny_configs import CONFIGS
from tests.unit.engine.test_resume import assert_same_state, final_state

pytestmark = pytest.mark.distributed

LAYOUTS = [
    ("lora", "ddp"),
    ("full", "fsdp"),
    ("vision", "fsdp"),
    pytest.param("lora", "zero3", marks=pytest.mark.deepspeed),
    pytest.param("tensors", "zero3", marks=pytest.mark.deepspeed),
    ("tensors", "fsdp"),
]
TOKENS = 5
TEXTS = ("What is the capital of Peru?", "Name a prime number.", "Hello")


@pytest.mark.parametrize(("method", "sharding"), LAYOUTS)
def test_the_answers_are_those_of_one_process_and_the_run_does_not_notice(
    method: str, sharding: str, tmp_path: Path
) -> None:
    """Three prompts for two processes, so that one has none in the end, and in the first round one that ends early;
    with pictures two kinds of them."""
    plain, asked = specs = pair(method, sharding, tmp_path)
    for spec in specs:
        outcome = run_forked(spec)
        assert outcome.codes == [0, 0], outcome.said
    assert_same_state(final_state(plain), final_state(asked))
    rows = [json.loads(line) for line in (run_root(asked) / "samples.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    expected = alone(asked)
    assert [(row["text"], row["tokens"], row["ended"]) for row in rows[:3]] == [
        (found.text, found.tokens, found.ended) for found in expected
    ]
    if method == "tensors":  # the end of the first answer is that of the second: another process's
        assert [found.tokens for found in expected[:2]] == [2, 1]
    assert method in ("vision", "tensors") or [found.tokens for found in expected[:2]] == [2, TOKENS]


def pair(method: str, sharding: str, root: Path) -> tuple[RunSpec, RunSpec]:
    """The same run of two steps, without prompts and with them."""
    changes: dict[str, Any] = {"train__sharding": sharding, "train__max_steps": 2, "eval__every": 1}
    if method == "full":
        changes["lora"] = None
    if method == "tensors":
        changes["lora__dropout"] = 0.0
    prompts = write_jsonl(root / "prompts.jsonl", rows_of(method, root))
    asking = {"eval__prompts": str(prompts), "eval__max_new_tokens": TOKENS}
    if method == "vision":
        plain, asked = (
            task_spec("vision", root / name, rows=12, **changes, **more)
            for name, more in (("plain", {}), ("asked", asking))
        )
        return plain, asked
    outspoken(root / "model", mixture=method == "tensors")
    plain, asked = (
        small_spec(root / name, root / "model", rows=12, **changes, **more)
        for name, more in (("plain", {}), ("asked", asking))
    )
    end_early(asked)
    return plain, asked


def rows_of(method: str, root: Path) -> list[dict[str, Any]]:
    if method != "vision":
        return [{"prompt": text} for text in TEXTS]
    draw(root / "red.png", "red")
    draw(root / "blue.png", "blue", size=(64, 96))
    return [{"prompt": "Hello"}, *({"prompt": "Which?", "image": f"{name}.png"} for name in ("red", "blue"))]


def outspoken(directory: Path, *, mixture: bool) -> None:
    """A model whose answers differ: weights so large that random numbers have clear favourites. `mixture`: one whose
    layers have adapters on their tensors, since its experts' tensors have the layers' names."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(save("qwen3", directory))
    if mixture:
        words = {name: getattr(config, name) for name in ("vocab_size", "eos_token_id", "pad_token_id")}
        config = CONFIGS["deepseek_v3"]()
        config.update({**words, "max_position_embeddings": 512})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data *= 3
    model.save_pretrained(directory)


def end_early(spec: RunSpec) -> None:
    """The second token of the first answer ends answers from here on."""
    speaker = speaker_of(spec)
    file = Path(spec.model.name) / "generation_config.json"
    config = json.loads(file.read_text())
    ends = stop_token_ids(speaker.model, speaker.tokenizer)
    text = f"<|im_start|>user\n{TEXTS[0]}<|im_end|>\n<|im_start|>assistant\n"
    ids = torch.tensor([speaker.tokenizer(text)["input_ids"]])
    written = speaker.model.generate(ids, max_new_tokens=2, do_sample=False)[0, -1]
    file.write_text(json.dumps(config | {"eos_token_id": [*ends, int(written)]}))


def speaker_of(spec: RunSpec) -> Speaker:
    return load_speaker(as_it_was(spec), torch.float32, torch.device("cpu"))


def alone(spec: RunSpec) -> list[Reply]:
    """What the base answers in this process."""
    speaker = speaker_of(spec)
    stop_ids = stop_token_ids(speaker.model, speaker.tokenizer)
    prompts = read_prompts(spec.eval.prompts or "", seed=spec.train.seed)
    return [reply(speaker, prompt, stop_ids, TOKENS) for prompt in prompts]


def test_a_stop_that_one_process_hears_ends_the_answers_of_all(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(
        tmp_path,
        tiny,
        train__sharding="fsdp",
        train__max_steps=2,
        eval__every=1,
        eval__prompts=list(TEXTS),
        eval__max_new_tokens=300,
    )
    (tmp_path / "ranks").mkdir()
    codes = in_ranks(stopped_in_an_answer, 2, tmp_path / "ranks", os.environ["RANKZERO_CACHE"], spec.model_dump_json())
    assert codes == [ExitCode.STOPPED, ExitCode.STOPPED]
    assert [len((tmp_path / "ranks" / f"asked-{rank}").read_text()) for rank in range(2)] == [3, 3]
    assert not (run_root(spec) / "samples.jsonl").exists()


def stopped_in_an_answer(directory: Path, cache: str, spec: str) -> None:
    """One rank of a run; rank 1 gets SIGTERM at the third token of the first answer."""
    from rankzero.engine import samples, worker

    answered = samples.reply

    def stopping(*arguments: Any, cut_short: Any, **options: Any) -> Any:
        asked = 0

        def counting() -> bool:
            nonlocal asked
            asked += 1
            with (directory / f"asked-{os.environ['RANK']}").open("a") as file:
                file.write("x")
            if asked == 3 and os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGTERM)
            return bool(cut_short())

        return answered(*arguments, cut_short=counting, **options)

    os.environ["RANKZERO_CACHE"] = cache
    samples.reply = stopping
    worker.run(RunSpec.model_validate_json(spec), RunOptions(log_level="WARNING"))
