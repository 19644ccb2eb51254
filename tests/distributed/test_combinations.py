"""Settings that each have a test of their own, drawn together: the run is that of one process, in bfloat16 as far as
its first gradients, and one that is stopped ends bit for bit as one that is not.

`make combinations` draws COMBINATIONS of each (60); `make test` draws one.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from rankzero.errors import ExitCode
from rankzero.spec.checks import check
from rankzero.spec.run_spec import RunSpec
from tests.support import architectures, vision_families
from tests.support.forked import Ordeal, Outcome, run_forked
from tests.support.images import picture_rows
from tests.support.recipes import sentiment_rows
from tests.support.runs import final_weights, metrics, small_spec
from tests.support.tiny import tiny_tokenizer, write_jsonl
from tests.support.tiny_configs import CONFIGS

pytestmark = [pytest.mark.faults, pytest.mark.distributed, pytest.mark.usefixtures("bfloat16_computed")]

SEEDS = range(int(os.environ.get("COMBINATIONS", "1")))
MIXTURES = ("deepseek_v3", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe")
SEEING = ("internvl", "qwen3_vl", "smolvlm")
NAMES = (*MIXTURES, "gpt2", "gpt_oss", "llama", "llama", "distilbert", *SEEING)
WITH_DEEPSPEED = ("zero2", "zero3") if len(SEEDS) > 1 and find_spec("deepspeed") else ()
OVER_NODES = ("hsdp",) if len(SEEDS) > 1 else ()
DRAWS = 60
"""A draw of settings that are refused together is followed by another."""
TOLERANCE = 2e-4
"""Of a weight that steps of 0.003 have moved, in float32."""
IN_BFLOAT16 = 0.03
"""Of a norm of all gradients, relative: what a layout may change by the order in which it rounds."""


@dataclass(frozen=True)
class Draw:
    """A run: what it computes, how that lies over processes, and when it is stopped."""

    name: str
    tied: bool
    what: dict[str, Any]
    how: dict[str, Any]
    processes: int
    stop: int

    @property
    def a_node(self) -> int | None:
        return 2 if self.how.get("train__sharding") in OVER_NODES else None

    def spec(self, root: Path, models: Path) -> RunSpec:
        root.mkdir()
        base = saved(self.name, models, tied=self.tied)
        return small_spec(root, base, **rows_for(self.name, root), **self.what, **self.how)

    def __str__(self) -> str:
        return f"{self.name}, tied {self.tied}: {self.what}, {self.how}, {self.processes} processes, {self.stop}"


def drawn(chance: random.Random, *, dtype: str) -> Draw:
    """Any of it may be refused with the rest."""
    name = chance.choice(NAMES)
    what: dict[str, Any] = {"model__dtype": dtype, "lora": None, "train__num_train_epochs": 2}
    what |= {"train__learning_rate": 0.003, "train__seed": chance.randrange(99)}
    what |= {"train__weight_decay": chance.choice([0.0, 0.1]), "checkpoint__final": chance.choice(["best", "last"])}
    if chance.random() < 0.7:
        adapters: dict[str, Any] = {"r": 4, "target_modules": chance.choice(["all-linear", "auto"])}
        adapters["dropout"] = chance.choice([0.0, 0.0, 0.1])
        adapters["use_dora"] = chance.random() < 0.2
        if chance.random() < 0.5:
            adapters["modules_to_save"] = [chance.choice(["lm_head", "embed_tokens", "norm"])]
        elif chance.random() < 0.3:
            adapters["trainable_token_indices"] = [5, 9]
        what["lora"] = adapters
        what["model__quantization"] = chance.choice(["none", "none", "none", "nf4", "fp8"])
        if name in MIXTURES and chance.random() < 0.4:
            what["train__parts"] = ["language", "experts"]
        if name in SEEING and chance.random() < 0.6:
            what["train__parts"] = chance.choice([["vision_tower"], ["language", "projector", "vision_tower"]])
            adapters["dropout"] = 0.0  # which nothing places in a tower
    elif dtype == "bfloat16":
        what["train__master_weights"] = chance.choice(["float32", "kahan", "stochastic_rounding"])
        what["train__optimizer"] = chance.choice(["adamw", "adamw_8bit"])
    if name != "distilbert" and chance.random() < 0.3:
        what |= {"eval__every": 3, "eval__prompts": ["Say alpha"], "eval__max_new_tokens": 5}
    how: dict[str, Any] = {"train__sharding": chance.choice(["ddp", "fsdp", "fsdp", *WITH_DEEPSPEED, *OVER_NODES])}
    how |= {"train__gradient_checkpointing": chance.random() < 0.5, "checkpoint__every": chance.choice([1, 2, 3])}
    how |= {"train__micro_batch_tokens": chance.choice([64, 128, 300])}
    how |= {"train__activation_offloading": chance.random() < 0.2}
    if chance.random() < 0.3:
        how["train__padding_free"] = chance.random() < 0.5
    if chance.random() < 0.2:
        how["train__context_parallel"] = 2
    if name in MIXTURES and chance.random() < 0.3:
        how["train__expert_parallel"] = 2
    together = {"train__context_parallel", "train__expert_parallel"} & how.keys()
    processes = 2 if together else chance.choice([2, 2, 3])
    if how["train__sharding"] in OVER_NODES:
        processes = 4
    return Draw(name, chance.random() < 0.4, what, how, processes, chance.choice([2, 3, 5]))


def saved(name: str, models: Path, *, tied: bool) -> Path:
    """The architecture with random weights, norms and biases too, and room for all rows."""
    directory = models / f"{name}-{'tied' if tied else 'apart'}"
    if name in SEEING or name == "distilbert":
        if not directory.exists():
            (vision_families if name in vision_families.FAMILIES else architectures).save(name, directory)
        return directory
    if not directory.exists():
        config = CONFIGS[name]()
        config.vocab_size, config.max_position_embeddings, config.tie_word_embeddings = 384, 256, tied
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            for parameter in model.parameters():
                parameter.data += 0.03 * torch.randn(parameter.shape)
        model.save_pretrained(directory)
        tiny_tokenizer().save_pretrained(directory)
    return directory


def rows_for(name: str, root: Path) -> dict[str, Any]:
    """What a spec says of them; nothing where it is about chats."""
    if name == "distilbert":
        rows, more = sentiment_rows(37), {"task": "classify", "data__labels": ["negative", "positive"]}
    elif name in SEEING:
        rows, more = picture_rows(root, 37, every=3), {}
    else:
        return {}
    parts = {"data__train": rows[:30], "data__eval": rows[30:]}
    return more | {field: str(write_jsonl(root / f"{field}.jsonl", part)) for field, part in parts.items()}


def trained(spec: RunSpec, draw: Draw, stop: int | None = None) -> Outcome | None:
    """The end of a run, which goes on where it was stopped. None where every process has refused it."""
    ordeal = Ordeal() if stop is None else Ordeal(stop_in_step=stop)
    outcome = run_forked(spec, draw.processes, ordeal, a_node=draw.a_node)
    if stop is not None and set(outcome.codes) == {ExitCode.STOPPED}:
        outcome = run_forked(spec, draw.processes, a_node=draw.a_node)
    return None if set(outcome.codes) == {ExitCode.CONFIG} else outcome


def is_valid(draw: Draw, root: Path, models: Path) -> bool:
    try:
        return not check(draw.spec(root, models))
    except ValidationError:
        return False


def pair(first: Draw, second: Draw, root: Path, models: Path, *, stopping: bool = True) -> list[RunSpec] | None:
    """Both to their ends, of which the second is stopped on its way if so said; None where one is refused."""
    found = []
    for number, draw in enumerate((first, second)):
        if not is_valid(draw, root / f"check-{number}", models):
            return None
        spec = draw.spec(root / f"run-{number}", models)
        outcome = trained(spec, draw, draw.stop if number and stopping else None)
        if outcome is None:
            return None
        assert outcome.codes == [ExitCode.DONE] * draw.processes, f"{draw}\n{outcome.said}"
        found.append(spec)
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_run_is_that_of_one_process(seed: int, models: Path, tmp_path: Path) -> None:
    chance = random.Random(seed)
    for number in range(DRAWS):
        draw, root = drawn(chance, dtype="float32"), tmp_path / str(number)
        root.mkdir()
        found = pair(replace(draw, how={}, processes=1), draw, root, models)
        if found is not None:
            one, several = map(final_weights, found)
            assert one.keys() == several.keys(), draw
            for name, tensor in one.items():
                assert torch.allclose(several[name], tensor, atol=TOLERANCE, rtol=0), f"{draw}: {name}"
            return
    pytest.fail("everything that was drawn is refused")


@pytest.mark.parametrize("seed", SEEDS)
def test_first_gradients_in_bfloat16_are_those_of_one_process(seed: int, models: Path, tmp_path: Path) -> None:
    """Gradients that a pass loses, or brings a step late, are no matter of rounding."""
    chance = random.Random(20_000 + seed)
    for number in range(DRAWS):
        draw, root = drawn(chance, dtype="bfloat16"), tmp_path / str(number)
        root.mkdir()
        draw = replace(draw, what=draw.what | {"train__max_steps": 1})
        found = pair(replace(draw, how={}, processes=1), draw, root, models, stopping=False)
        if found is not None:
            one, several = (metrics(spec)[0] for spec in found)
            assert several["loss"] == pytest.approx(one["loss"], rel=0.01), draw
            assert several["grad_norm"] == pytest.approx(one["grad_norm"], rel=IN_BFLOAT16), draw
            return
    pytest.fail("everything that was drawn is refused")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_that_is_stopped_ends_as_one_that_is_not(seed: int, models: Path, tmp_path: Path) -> None:
    chance = random.Random(10_000 + seed)
    for number in range(DRAWS):
        draw, root = drawn(chance, dtype=chance.choice(["bfloat16", "bfloat16", "float32"])), tmp_path / str(number)
        root.mkdir()
        found = pair(draw, draw, root, models)
        if found is not None:
            whole, stopped = map(final_weights, found)
            assert whole.keys() == stopped.keys(), draw
            assert [name for name in whole if not torch.equal(whole[name], stopped[name])] == [], draw
            return
    pytest.fail("everything that was drawn is refused")
