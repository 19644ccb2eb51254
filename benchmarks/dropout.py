"""What dropout costs in a step: none, torch's, and rankzero's, whose masks follow from places, in turns.

    python benchmarks/dropout.py [--layers 30] [--steps 10] [--threads 1] [--dtype float32|bfloat16]

adapters   forward and backward pass of SmolLM2-135M's shape with LoRA r=8 and dropout 0.05 on q, k, v and o:
           three rows of 155 tokens, a third of them trained
attention  the same of DistilBERT's shape with its dropout of 0.1 everywhere: sixteen rows of 64 tokens

Random weights, nothing is downloaded. CPU time of the process, which a neighbour's load does not count in.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
)

from rankzero.model import dropout_attention
from rankzero.model.dropout import Places, place_dropout

KINDS = ("none", "torch", "by place")
SMOLLM2 = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "tie_word_embeddings": True}
SMOLLM2 |= {"num_attention_heads": 9, "num_key_value_heads": 3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    dtype = getattr(torch, given.dtype)
    print("| step | dropout | ms of CPU time, median | least | ÷ torch's median |\n|---|---|--:|--:|--:|")
    for name, make in (("adapters", adapters), ("attention", attention)):
        measure(name, {kind: make(kind, given.layers, dtype) for kind in KINDS}, given.steps)


def measure(name: str, steps: dict[str, Callable[[int], None]], count: int) -> None:
    """Run each kind's step in turns and print what they took."""
    taken: dict[str, list[float]] = {kind: [] for kind in steps}
    for number in range(count + 2):
        for kind, step in steps.items():
            before = time.process_time()
            step(number)
            if number >= 2:
                taken[kind].append(1e3 * (time.process_time() - before))
    reference = statistics.median(taken["torch"])
    for kind, times in taken.items():
        median = statistics.median(times)
        print(f"| {name} | {kind} | {median:.0f} | {min(times):.0f} | {median / reference:.3f} |", flush=True)


def adapters(kind: str, layers: int, dtype: torch.dtype) -> Callable[[int], None]:
    """A step of adapters over a language model."""
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**SMOLLM2, num_hidden_layers=layers)).to(dtype)
    rate = 0.0 if kind == "none" else 0.05
    config = LoraConfig(r=8, lora_alpha=16, lora_dropout=rate, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    model = get_peft_model(model, config).train()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    ids = torch.randint(0, 49152, (3, 155))
    predicts = torch.zeros(3, 155, dtype=torch.bool)
    predicts[:, 100:] = True
    begin = placed(model, kind, ids, predicts.flatten().nonzero()[:, 0])
    head = model.base_model.model.lm_head

    def step(number: int) -> None:
        begin(number)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            hidden = model.base_model.model.model(input_ids=ids, use_cache=False).last_hidden_state
            loss = head(hidden[predicts]).float().logsumexp(-1).sum()
        loss.backward()
        model.zero_grad()

    return step


def attention(kind: str, _layers: int, dtype: torch.dtype) -> Callable[[int], None]:
    """A step of all weights of a classifier."""
    torch.manual_seed(0)
    dropout_attention.register()
    rates = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0} if kind == "none" else {}
    config = AutoConfig.for_model("distilbert", **rates)
    config._attn_implementation = dropout_attention.NAME if kind == "by place" else "sdpa"
    model: Any = AutoModelForSequenceClassification.from_config(config).train()
    ids = torch.randint(0, 30000, (16, 64))
    mask = torch.ones_like(ids)
    mask[8:, 50:] = 0
    begin = placed(model, kind, ids, None)

    def step(number: int) -> None:
        begin(number)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            loss = model(input_ids=ids, attention_mask=mask).logits.float().logsumexp(-1).sum()
        loss.backward()
        model.zero_grad()

    return step


def placed(model: Any, kind: str, ids: torch.Tensor, predicts: torch.Tensor | None) -> Callable[[int], None]:
    """What begins each pass."""
    if kind != "by place":
        return lambda _step: None
    places = Places(0)
    place_dropout(model, places)
    dropout_attention.place_attention(model, places)
    rows, positions = torch.arange(ids.shape[0])[:, None], torch.arange(ids.shape[1])[None]
    return lambda step: places.begin_pass(step, rows, positions, predicts)


if __name__ == "__main__":
    main()
