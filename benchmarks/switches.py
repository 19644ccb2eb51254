"""What each switch of a step gives: the step as rankzero makes it by default, and with one switch turned, in turns.

    python benchmarks/switches.py [--layers 30] [--rounds 2] [--threads 2] [--only NAME …]

The model is SmolLM2-135M's shape with random weights, rows and adapters those of smoke.py; nothing is downloaded. Wall
time and CPU time of a step, medians, and how many times the default's wall time that is. Neighbours weigh on the first
and hardly on the second.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from smoke import CPU, SHAPE, Rows, optimizer
from transformers import LlamaConfig, LlamaForCausalLM

from rankzero.data.batches.collators.packed import PackedText
from rankzero.data.batches.collators.text import PaddedText
from rankzero.data.batches.loader import Batches
from rankzero.engine.device import Device, computes_bfloat16
from rankzero.engine.distributed import World
from rankzero.engine.evaluate import evaluate
from rankzero.engine.heads import SupervisedHead
from rankzero.engine.parallel.replicas import Replicated
from rankzero.engine.step import Stepper
from rankzero.engine.tasks import sft
from rankzero.engine.tasks.sft import Perplexity
from rankzero.model import block_attention, varlen
from rankzero.model.compiling import compile_blocks
from rankzero.model.dropout import Places, place_dropout
from rankzero.model.fused_lora import fuse_adapters
from rankzero.model.memory import CPU_PASS_COST, CPU_TOKENS, PASSES_AT_ONCE

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
LINEAR = (*TARGETS, "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Switches:
    """How a step is made."""

    dtype: torch.dtype
    attention: str = "varlen"
    packed: bool = True
    tokens: int = CPU_TOKENS[0]
    at_once: int = 1
    """Passes that are computed at the same time, each of so many tokens."""
    dropout: float = 0.0
    fused: bool = True
    in_parts: bool = True
    recomputing: bool = False
    compiled: bool = False
    targets: tuple[str, ...] = TARGETS
    full: bool = False
    evaluation: bool = False
    """Of the same rows, in place of a step."""


def variants(dtype: torch.dtype, threads: int) -> dict[str, Switches]:
    """The default first."""
    at_once = next((count for count in PASSES_AT_ONCE if threads % count == 0), 1)
    usual = Switches(dtype, at_once=at_once, tokens=CPU_TOKENS[0] // at_once)
    if dtype is torch.float32:
        usual = replace(usual, attention="sdpa", packed=False)
    one = {"at_once": 1, "tokens": CPU_TOKENS[0]}
    padded = {"attention": "sdpa" if dtype is torch.float32 else "blocks", "packed": False}
    found = {
        "the default": usual,
        "`train.padding_free: false`": replace(usual, **padded),  # type: ignore[arg-type]
        "`train.padding_free: true`": replace(usual, attention="varlen", packed=True),
        "`train.padding_free: false`, `model.attention: sdpa`": replace(usual, attention="sdpa", packed=False),
        "passes one by one": replace(usual, **one),  # type: ignore[arg-type]
        "`train.micro_batch_tokens: 256`": replace(usual, tokens=256),
        "`train.micro_batch_tokens: 1024`": replace(usual, tokens=1024),
        "`lora.dropout: 0.05`": replace(usual, dropout=0.05),
        "`lora.target_modules: all-linear`": replace(usual, targets=LINEAR),
        "peft's own adapters": replace(usual, fused=False),
        "logits of a pass at once": replace(usual, in_parts=False),
        "`train.gradient_checkpointing: true`": replace(usual, recomputing=True),
        "`train.torch_compile: true`": replace(usual, compiled=True, **one),  # type: ignore[arg-type]
        "full fine-tuning": replace(usual, full=True),
        "full fine-tuning, passes one by one": replace(usual, full=True, **one),  # type: ignore[arg-type]
        "an evaluation": replace(usual, evaluation=True),
        "an evaluation, passes one by one": replace(usual, evaluation=True, **one),  # type: ignore[arg-type]
    }
    if dtype is not torch.float32:
        found["`model.dtype: float32`"] = replace(usual, dtype=torch.float32, attention="sdpa", packed=False)
    return {name: one for name, one in found.items() if name == "the default" or one != usual}


def make_step(switches: Switches, layers: int) -> Callable[[], None]:
    """A step of it, or an evaluation, on the rows of smoke.py."""
    rows = Rows()
    batches = Batches(
        rows,  # type: ignore[arg-type]
        PackedText() if switches.packed else PaddedText(),
        rank=0,
        world_size=1,
        max_tokens=switches.tokens,
        pass_cost=CPU_PASS_COST,
        same_passes=False,
    )
    work = batches.everything()
    places = Places(0)
    model = make_model(switches, layers, places)
    parallel = Replicated(model, optimizer, world=World(), device=Device("cpu"))
    head = SupervisedHead(model, model, in_parts=switches.in_parts)
    stepper = Stepper(
        head,
        parallel,
        sft.TASK,
        device=CPU,
        dtype=switches.dtype,
        max_grad_norm=1.0,
        places=places,
        balance=None,
    )
    stepper.compute_side_by_side(switches.at_once)

    def evaluation() -> None:
        evaluate(model, stepper, batches, CPU, lambda _rows: None, stop_wanted=lambda: False, meter=Perplexity())

    def step() -> None:
        if stepper.gradients(batches, work, 0, stop_wanted=False, on_pass=lambda *_: None) is None:
            raise MemoryError
        parallel.step()
        parallel.zero_grad()

    return evaluation if switches.evaluation else step


def make_model(switches: Switches, layers: int, places: Places) -> Any:
    """In training, with adapters unless all of it is trained."""
    torch.manual_seed(0)
    config = LlamaConfig(**(SHAPE | {"num_hidden_layers": layers, "vocab_size": 49152}))
    config._attn_implementation = switches.attention
    model: Any = LlamaForCausalLM(config)
    if switches.full:
        model = model.train()
    else:
        model = model.to(switches.dtype)
        wanted = LoraConfig(
            r=8,
            lora_alpha=16,
            lora_dropout=switches.dropout,
            target_modules=list(switches.targets),
            init_lora_weights=False,
        )
        model = get_peft_model(model, wanted).train()
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
        place_dropout(model, places)
        if switches.fused:
            fuse_adapters(model)
    if switches.recomputing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    if switches.compiled:
        compile_blocks(model)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=2, help="measured steps of each, each after one that is not")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", action="append", default=[], help="beside the default, those with this in their name")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    varlen.register()
    block_attention.register()
    dtype = torch.bfloat16 if computes_bfloat16(Device("cpu")) else torch.float32
    wanted = ("the default", *given.only) if given.only else ("",)
    found = {name: how for name, how in variants(dtype, given.threads).items() if any(one in name for one in wanted)}
    steps = {name: make_step(switches, given.layers) for name, switches in found.items()}
    wall: dict[str, list[float]] = {name: [] for name in steps}
    spent: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(given.rounds):
        for name, step in steps.items():
            step()  # what a step before it has left behind weighs a tenth
            before, before_cpu = time.perf_counter(), time.process_time()
            step()
            wall[name].append(time.perf_counter() - before)
            spent[name].append(time.process_time() - before_cpu)
    usual = statistics.median(next(iter(wall.values())))
    print(f"{str(dtype).removeprefix('torch.')}, {given.threads} threads, {given.layers} layers\n")
    print("| | a step | CPU time | ÷ default |\n|---|--:|--:|--:|")
    for name in steps:
        middle = statistics.median(wall[name])
        print(f"| {name} | {middle:.2f} s | {statistics.median(spent[name]):.2f} s | {middle / usual:.2f} |")


if __name__ == "__main__":
    main()
