"""What a step costs beside a loop that is written by hand: the same model, rows, passes and precision, in one process.

    python benchmarks/smoke.py [--rounds 3] [--fail-above 1.5]

The loop by hand is a page of torch: peft's adapters, each pass's rows padded, logits of trained tokens only, cross
entropy, AdamW. Both take turns and are measured in CPU time in one thread, so that neighbours on the machine weigh
little; the ratio of the medians is printed, and it is an error above a bound that only a gross loss can reach. Small
enough for every test run: a model of four layers, without any download.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from peft import LoraConfig, get_peft_model
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from rankzero.data.batches.collators.text import PaddedText
from rankzero.data.batches.loader import Batches, Work
from rankzero.engine.device import Device, computes_bfloat16
from rankzero.engine.distributed import World
from rankzero.engine.heads import SupervisedHead
from rankzero.engine.parallel.replicas import Replicated
from rankzero.engine.step import Stepper
from rankzero.engine.tasks import sft
from rankzero.model.attention import choose_attention
from rankzero.model.dropout import Places
from rankzero.model.fused_lora import fuse_adapters

CPU = torch.device("cpu")
GOAL = 1.05
SHAPE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 16384,
    "tie_word_embeddings": True,
}
"""SmolLM2-135M's, with four of its thirty layers and a third of its vocabulary."""


class Rows:
    """A data set in memory: 16 rows of log-normal lengths around 130 tokens, of which the last two thirds are
    trained."""

    rejected_from = None

    def __init__(self) -> None:
        draw = random.Random(1)
        lengths = [min(480, max(48, round(draw.lognormvariate(4.87, 0.6)))) for _ in range(16)]
        self._rows = [np.array([draw.randrange(SHAPE["vocab_size"]) for _ in range(n)], np.int32) for n in lengths]
        self.lengths = np.array(lengths, np.int32)
        self.supervised = np.array([int(self.row(i)[1][1:].sum()) for i in range(16)], np.int32)
        self.loss_weights = self.supervised.astype(np.float64)

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, i: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        ids = self._rows[i]
        return ids, np.arange(len(ids)) >= len(ids) // 3

    def weights(self, _i: int) -> None:
        return None


def make_model(dtype: torch.dtype, attention: str | None) -> Any:
    """The model with LoRA r=8 on q, k, v and o, in training."""
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPE)
    config._attn_implementation = attention or "sdpa"
    model = LlamaForCausalLM(config).to(dtype)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    adapted = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=targets, init_lora_weights=False))
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return adapted.train()


def ours(batches: Batches, work: Work, dtype: torch.dtype) -> Callable[[], float]:
    """A step as rankzero makes it; returns its loss."""
    # Padded, as the loop by hand is: a token computed is compared with one of a pass like it.
    attention = choose_attention("causal", LlamaConfig(**SHAPE), "cpu", dtype, wanted="auto", free=False)
    model = make_model(dtype, attention.implementation)
    fuse_adapters(model)
    parallel = Replicated(model, optimizer, world=World(), device=Device("cpu"))
    head = SupervisedHead(model, model, in_parts=True)
    options = {"device": CPU, "dtype": dtype, "max_grad_norm": 1.0, "places": Places(0)}
    stepper = Stepper(head, parallel, sft.TASK, **options)  # type: ignore[arg-type]

    def step() -> float:
        result = stepper.gradients(batches, work, 0, stop_wanted=False, on_pass=lambda *_: None)
        if result is None:
            raise MemoryError
        parallel.step()
        parallel.zero_grad()
        return result.loss

    return step


def by_hand(rows: Rows, work: Work, dtype: torch.dtype) -> Callable[[], float]:
    """The same step in plain torch; returns its loss."""
    model = make_model(dtype, None)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    adamw = optimizer(trained)

    def step() -> float:
        total = 0.0
        for numbers in work.passes:
            chosen = [rows.row(int(i)) for i in numbers]
            width = max(len(ids) for ids, _ in chosen) - 1
            given, labels = torch.zeros(len(chosen), width, dtype=torch.long), torch.full((len(chosen), width), -100)
            for i, (ids, mask) in enumerate(chosen):
                given[i, : len(ids) - 1] = torch.from_numpy(ids[:-1])
                labels[i, : len(ids) - 1] = torch.from_numpy(np.where(mask[1:], ids[1:], -100))
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
                base = model.get_base_model()
                hidden = base.model(input_ids=given, use_cache=False).last_hidden_state
                logits = base.lm_head(hidden[labels != -100])
            loss = cross_entropy(logits.float(), labels[labels != -100], reduction="sum") / work.loss_weight
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        return total

    return step


def optimizer(named: dict[str, torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(list(named.values()), lr=1e-4)


def cpu_seconds(step: Callable[[], float]) -> tuple[float, float]:
    """Of one step, and its loss."""
    gc.collect()
    before = time.process_time()
    loss = step()
    return time.process_time() - before, loss


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="measured steps of each, after one that is not")
    parser.add_argument("--fail-above", type=float, default=0.0, help="exit 1 where the ratio is larger; 0: never")
    given = parser.parse_args()
    torch.set_num_threads(1)
    dtype = torch.bfloat16 if computes_bfloat16(Device("cpu")) else torch.float32
    rows = Rows()
    batches = Batches(
        rows,  # type: ignore[arg-type]
        PaddedText(),
        rank=0,
        world_size=1,
        max_tokens=1024,
        pass_cost=32,
        same_passes=False,
    )
    work = batches.everything()
    contestants = {"rankzero": ours(batches, work, dtype), "by hand": by_hand(rows, work, dtype)}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(given.rounds + 1):
        found = {name: cpu_seconds(step) for name, step in contestants.items()}
        mine, theirs = (loss for _, loss in found.values())
        if abs(mine - theirs) > 0.02 * abs(theirs):
            raise SystemExit(f"the two compute different things: losses {mine:.4f} and {theirs:.4f}")
        for name, (spent, _) in found.items():
            if number:
                seconds[name].append(spent)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = medians["rankzero"] / medians["by hand"]
    tokens = int(rows.lengths.sum())
    listed = ", ".join(f"{name} {1e3 * median / tokens:.2f} ms a token" for name, median in medians.items())
    print(f"bench-smoke ({str(dtype).removeprefix('torch.')}, CPU time): {listed}; ratio {ratio:.2f}, goal {GOAL}")
    if given.fail_above and ratio > given.fail_above:
        sys.exit(f"a step costs {ratio:.2f} times a loop by hand: more than {given.fail_above}")


if __name__ == "__main__":
    main()
