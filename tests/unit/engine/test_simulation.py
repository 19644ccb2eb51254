"""What a simulated pass takes, against what torch allocates in a real one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DistilBertConfig, GPT2Config, LlamaConfig, PretrainedConfig, Qwen3MoeConfig

from rankzero.data.batches.collators.text import MicroBatch, padded_places
from rankzero.engine.parallel.masters import Masters, copies_in
from rankzero.engine.simulation import LiveBytes, _pass_of, bytes_of_a_pass
from rankzero.model.fitting import Need
from rankzero.model.memory import pass_parts, state_parts
from rankzero.spec.run_spec import RunSpec
from tests.support.memory import BF16, FP32, facts_of, make_model, make_spec

ROWS, LONGEST, SHARE = 4, 128, 0.25
LLAMA = {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 2}
MIXTURE = {**LLAMA, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 192, "head_dim": 64}
CONFIGS: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**LLAMA, num_hidden_layers=4, vocab_size=8000),
    "qwen3_moe": lambda: Qwen3MoeConfig(**MIXTURE, num_hidden_layers=3, vocab_size=2000),
    "gpt2": lambda: GPT2Config(n_embd=192, n_head=4, n_layer=4, vocab_size=3000),
    "distilbert": lambda: DistilBertConfig(dim=192, hidden_dim=768, n_heads=4, n_layers=4, vocab_size=3000),
}
ADAPTERS: dict[str, Any] = {"lora": {"r": 8, "dropout": 0.1, "target_modules": "all-linear"}}
CASES = {
    "adapters": ("llama", ADAPTERS, BF16, False),
    "adapters, recomputed": ("llama", ADAPTERS, BF16, True),
    "everything": ("llama", {}, BF16, False),
    "everything in float32": ("llama", {}, FP32, False),
    "experts": ("qwen3_moe", ADAPTERS, BF16, False),
    "dropout everywhere": ("gpt2", {}, FP32, False),
    "classes": ("distilbert", {"task": "classify"}, FP32, False),
}


def need_of(spec: RunSpec, config: PretrainedConfig, dtype: torch.dtype, *, recomputing: bool) -> Need:
    facts = facts_of(spec, config, dtype)
    return Need(spec.train, facts, LONGEST, ROWS * LONGEST, recomputing, False, "ddp", 1, "cpu", SHARE)


def real_batch(spec: RunSpec) -> MicroBatch:
    ids = torch.randint(3, 60, (ROWS, LONGEST))
    places = padded_places(np.arange(ROWS), [LONGEST] * ROWS, ids)
    if spec.task == "classify":
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return MicroBatch(np.arange(ROWS), inputs, None, torch.zeros(ROWS, dtype=torch.int64), ids.numel(), **places)
    predicts = torch.zeros((ROWS, LONGEST), dtype=torch.bool)
    predicts[:, -round(LONGEST * SHARE) :] = True
    targets = torch.randint(3, 60, (int(predicts.sum()),))
    chosen = torch.from_numpy(np.flatnonzero(predicts.numpy()))
    return MicroBatch(np.arange(ROWS), {"input_ids": ids}, predicts, targets, ids.numel(), predicts_N=chosen, **places)


def allocated(one_pass: Any, trace: Path) -> int:
    """The most bytes that torch's CPU allocator had handed out since the beginning and had not got back."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        one_pass()
    profiler.export_chrome_trace(str(trace))
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("name") == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event["ts"]):
        now += event["args"]["Bytes"]
        most = max(most, now)
    assert len(events) > 100
    return most


SHOWN_BY_OTHERS = "adapters"
"""Experts have them, too."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow) if case == SHOWN_BY_OTHERS else case for case in CASES]
)
def test_a_simulated_pass_takes_what_torch_allocates(case: str, tmp_path: Path) -> None:
    """Within 5 %."""
    family, settings, dtype, recomputing = CASES[case]
    spec, config = make_spec(**settings), CONFIGS[family]()
    config.use_cache = False
    need = need_of(spec, config, dtype, recomputing=recomputing)
    simulated = bytes_of_a_pass(make_model(spec, config, dtype), need, spec, dtype)
    model = make_model(spec, config, dtype, empty=False)
    Masters({name: p for name, p in model.named_parameters() if p.requires_grad}, copies_in(model, dtype))
    one_pass = _pass_of(model, need, spec, dtype, real_batch(spec))
    one_pass()  # gradients are there, and what is made once
    real = allocated(one_pass, tmp_path / "trace.json")
    assert simulated == pytest.approx(real, rel=0.05), f"{simulated / real:.3f}"


def test_what_is_simulated_scales_the_sums() -> None:
    """The parts keep their names, and together they are what was found; the ways out are judged by the same scale."""
    spec, config = make_spec(**ADAPTERS), CONFIGS["llama"]()
    need = need_of(spec, config, BF16, recomputing=False)
    sums = sum(pass_parts(LONGEST, need.facts, ROWS * LONGEST, recomputing=False, trained_share=SHARE).values())
    state = state_parts(need.train, need.facts, "ddp", 1)
    found = need.with_pass(round(2 * sums) + round(state["copies"] + state["unpacked"]))
    assert found.bytes - sum(state.values()) == pytest.approx(2 * sums)
    assert found.parts.keys() == need.parts.keys()
    assert replace(found, tokens=LONGEST).bytes < found.bytes


def test_a_storage_is_counted_once_and_until_it_is_gone() -> None:
    counter = LiveBytes()
    with counter:
        one = torch.zeros(1000)
        view = one[10:].view(2, 495)
        two = view + 1
        assert counter.now == 4000 + 2 * 495 * 4
        del one
        assert counter.now == 4000 + 2 * 495 * 4, "a view keeps it"
        del view
        assert counter.now == 2 * 495 * 4
        two.add_(1)
    assert counter.now == 2 * 495 * 4 and counter.most == 4000 + 2 * 495 * 4


def test_a_model_that_looks_at_values_is_not_simulated() -> None:
    spec, config = make_spec(**ADAPTERS), CONFIGS["llama"]()
    config.use_cache = False
    shape = make_model(spec, config, BF16)
    shape.get_base_model().model.norm.register_forward_hook(
        lambda _module, _inputs, output: output * output.max().item()
    )
    need = need_of(spec, config, BF16, recomputing=False)
    before = torch.get_rng_state()
    assert bytes_of_a_pass(shape, need, spec, BF16) == "the model looks at the values of its tensors"
    assert torch.equal(torch.get_rng_state(), before)
