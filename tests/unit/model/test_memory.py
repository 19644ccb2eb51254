"""The memory plan: against sums made by hand, and against a simulated step of Llama-3-8B."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rankzero.model.facts import PACKED_BYTES
from rankzero.model.memory import (
    CPU_TOKENS,
    GPU_TOKENS,
    USABLE,
    MemoryPlan,
    block_bytes,
    choose_sharding,
    computes_in_parts,
    pass_bytes,
    pass_parts,
    plan_memory,
    state_bytes,
    state_parts,
)
from rankzero.spec.run_spec import RunSpec
from tests.support.memory import (
    ADAPTERS,
    BLOCK_LINEAR,
    FP32,
    INNER,
    LAYERS,
    LINEAR,
    LONGEST,
    REST,
    H,
    N,
    V,
    full,
    llama_8b,
    lora,
    make_spec,
)

MIB, GB = 2**20, 10**9


# Bytes for each weight: held, its gradient, AdamW's state; for float32 weights the bfloat16 copies too.
@pytest.mark.parametrize(
    ("train", "bytes_each"),
    [
        ({}, 4 + 4 + 8 + 2),
        ({"optimizer": "adamw_8bit"}, 4 + 4 + (2 + 2 * 4 / 256) + 2),
        ({"master_weights": "kahan"}, 2 + 2 + (4 + 2)),
        ({"master_weights": "stochastic_rounding"}, 2 + 2 + 4),
    ],
)
def test_state_of_a_full_fine_tune(train: dict[str, Any], bytes_each: float) -> None:
    spec = full(**train)
    assert state_bytes(spec.train, llama_8b(spec), "ddp", 8) == bytes_each * N


def test_state_in_float32_throughout() -> None:
    """Nothing is rounded, so there are no copies; and nothing to compensate for."""
    for spec in (full(), full(master_weights="kahan")):
        assert state_bytes(spec.train, llama_8b(spec, FP32), "ddp", 1) == (4 + 4 + 8) * N


@pytest.mark.parametrize(
    ("quantization", "base"),
    [
        ("none", 2 * N),
        ("nf4", (0.5 + 1 / 64 + 4 / 16384) * LINEAR + 2 * REST + 2 * H * INNER),
        ("fp8", (1 + 4 / 16384) * LINEAR + 2 * REST + 2 * H * INNER),
    ],
)
def test_state_of_adapters(quantization: str, base: float) -> None:
    """Over a packed base one layer is unpacked at a time; the largest has 4096 x 14336 weights."""
    spec = lora(quantization)
    found = state_bytes(spec.train, llama_8b(spec), "ddp", 1)
    assert found == pytest.approx(base + (4 + 4 + 8) * ADAPTERS, rel=1e-6)
    assert PACKED_BYTES["nf4"] == pytest.approx(0.516, abs=2e-4)


BUCKETS = 2 * 4 * 50_000_000
BLOCK, ROOT = 2 * (BLOCK_LINEAR + 2 * H), 2 * (2 * V * H + H)
WHOLE = 2 * BLOCK + ROOT + BLOCK + ROOT
"""Of a sharded full fine-tune: two blocks and what is in none; gradients of a block and of what is in none."""
ADAPTED_WHOLE = 2 * (BLOCK + 4 * ADAPTERS // LAYERS) + ROOT


@pytest.mark.parametrize(
    ("sharding", "train", "expected"),
    [
        ("fsdp", {}, (4 + 4 + 8) * N / 8 + WHOLE),
        ("fsdp", {"master_weights": "kahan"}, (2 + 4 + 6) * N / 8 + WHOLE),
        ("fsdp", {"sharding": "fsdp", "offload": "all"}, WHOLE),
        ("zero2", {}, 2 * N + (4 + 4 + 8) * N / 8 + BUCKETS),
        ("zero2", {"sharding": "zero2", "offload": "optimizer"}, 2 * N + BUCKETS),
        ("zero3", {}, (2 + 4 + 4 + 8) * N / 8 + WHOLE + BUCKETS),
        ("zero3", {"sharding": "zero3", "offload": "optimizer"}, 2 * N / 8 + WHOLE + BUCKETS),
        ("zero3", {"sharding": "zero3", "offload": "all"}, WHOLE + BUCKETS),
    ],
)
def test_state_of_a_full_fine_tune_over_eight_processes(sharding: Any, train: Any, expected: float) -> None:
    spec = full(**train)
    assert state_bytes(spec.train, llama_8b(spec), sharding, 8) == expected


@pytest.mark.parametrize(
    ("sharding", "train", "more"),
    [
        ("ddp", {}, 2 * N),
        ("ddp", {"master_weights": "kahan"}, 2 * N),
        ("fsdp", {}, 4 * N / 8),
        ("fsdp", {"master_weights": "kahan"}, 2 * N / 8),
    ],
)
def test_a_reference_lies_beside_what_is_computed_with(sharding: Any, train: Any, more: float) -> None:
    spec = full(**train)
    facts = llama_8b(spec)
    without, beside = (
        state_bytes(spec.train, replace(facts, keeps_reference=kept), sharding, 8) for kept in (False, True)
    )
    assert beside - without == more


@pytest.mark.parametrize(("sharding", "more"), [("ddp", 0), ("fsdp", 4 * 800 * 7 / 8), ("hsdp", 4 * 800 * 7 / 8)])
def test_a_reference_of_what_is_kept_in_float32_is_whole_too(sharding: Any, more: float) -> None:
    spec = full()
    facts = replace(llama_8b(spec), keeps_reference=True)
    cut, kept = (
        state_parts(spec.train, of, sharding, 8)["reference"] for of in (facts, replace(facts, kept_trained=800))
    )
    assert kept - cut == more


@pytest.mark.parametrize(("offload", "more"), [("none", 7 / 8), ("all", 1.0)])
def test_what_is_kept_in_float32_is_whole_on_each_device(offload: str, more: float) -> None:
    spec = full(sharding="fsdp", offload=offload)
    facts = llama_8b(spec)
    kept = replace(facts, kept_frozen=1000, kept_trained=100)
    added = more * (4 * 1100 + 4 * 100 + 8 * 100)
    wanted = state_bytes(spec.train, facts, "fsdp", 8) + added
    assert state_bytes(spec.train, kept, "fsdp", 8) == pytest.approx(wanted, abs=1)
    assert state_bytes(spec.train, kept, "ddp", 8) == state_bytes(spec.train, facts, "ddp", 8)


def test_offloading_frees_nothing_where_the_device_is_the_machine() -> None:
    spec = full(sharding="fsdp", offload="all")
    assert state_bytes(spec.train, llama_8b(spec), "fsdp", 8, offload=False) == (4 + 4 + 8) * N / 8 + WHOLE


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        ("fsdp", (2 * N + 4 * ADAPTERS) / 8 + 4 * ADAPTERS + 8 * ADAPTERS / 8 + ADAPTED_WHOLE),
        ("zero2", 2 * N + 4 * ADAPTERS + (4 + 4 + 8) * ADAPTERS / 8 + BUCKETS),
        ("zero3", (2 * N + 4 * ADAPTERS) / 8 + (4 + 4 + 8) * ADAPTERS / 8 + ADAPTED_WHOLE + BUCKETS),
    ],
)
def test_state_of_adapters_over_eight_processes(sharding: Any, expected: float) -> None:
    assert state_bytes(lora().train, llama_8b(lora()), sharding, 8) == expected


def test_activations_by_hand() -> None:
    """A pass of 4,096 tokens with adapters on q, k, v and o. Logits alone are 6 GiB where every token is trained."""
    spec, tokens = lora(), 4096
    facts = llama_8b(spec)
    # q, k and v have one input, that of o is attention's output, which is as wide.
    block = 8 * H + 2 * (4 * H + 3 * INNER) + 2 * (H + 4 * 16) + 16 + 4 * 32
    logits = 12 * V
    assert pass_bytes(LONGEST, facts, tokens, recomputing=False) == tokens * (LAYERS * block + logits)
    recomputed = tokens * (2 * H * LAYERS + block + logits)
    assert pass_bytes(LONGEST, facts, tokens, recomputing=True) == recomputed
    assert tokens * logits == pytest.approx(6.0 * 2**30, rel=0.03)
    half = pass_bytes(LONGEST, facts, tokens, recomputing=True, trained_share=0.5)
    assert recomputed - half == tokens * logits / 2
    offloaded = pass_bytes(LONGEST, facts, tokens, recomputing=True, offloading=True)
    assert recomputed - offloaded == tokens * 2 * H * (LAYERS - 2)
    kept = pass_bytes(LONGEST, facts, tokens, recomputing=False, offloading=True)
    assert kept == tokens * (2 * block + logits)


def test_activations_of_a_full_fine_tune_by_hand() -> None:
    facts = llama_8b(full())
    kept = 16 * H + 2 * (2 * H + 4 * H + 4 * INNER)
    assert block_bytes(facts.text, facts, 4096) == kept
    assert (
        pass_bytes(LONGEST, facts, 1, recomputing=True) == 2 * H * LAYERS + block_bytes(facts.text, facts, 1) + 12 * V
    )
    rounded = llama_8b(full(master_weights="kahan"))
    assert block_bytes(rounded.text, rounded, 4096) == kept
    in_float16 = replace(facts, float16=True)
    assert block_bytes(in_float16.text, in_float16, 4096) == kept + 2 * 3 * H
    one_kernel = replace(facts.text, norm_bytes=2)
    assert block_bytes(one_kernel, facts, 4096) == kept - 12 * H + 16


def test_a_simulated_step_of_llama_8b_fits_the_estimate() -> None:
    """torch's memory tracker over fake tensors found 22,978.6 MiB: adapters of rank 16, recomputing, one row of 4,096
    tokens, float32 logits of all of them. The estimate must not be 3 % below that, nor far above."""
    spec = lora(gradient_checkpointing=True)
    facts = llama_8b(spec)
    found = (state_bytes(spec.train, facts, "ddp", 1) + pass_bytes(LONGEST, facts, 4096, recomputing=True)) / MIB
    assert 0.97 * 22_978.6 < found < 1.05 * 22_978.6


@pytest.mark.parametrize(
    ("spec", "limit", "world_size", "expected"),
    [
        (lora(), 80 * GB, 8, "ddp"),
        (lora(), 24 * GB, 8, "fsdp"),
        (lora("nf4"), 24 * GB, 8, "ddp"),
        (full(), 80 * GB, 8, "fsdp"),
        (full(master_weights="stochastic_rounding"), 141 * GB, 8, "ddp"),
        (full(), 80 * GB, 1, "ddp"),
        (full(optimizer="adamw_8bit"), 24 * GB, 8, "ddp"),
        (full(sharding="zero3"), 1000 * GB, 8, "zero3"),
        (lora(gradient_checkpointing=False), 40 * GB, 8, "fsdp"),
        (lora(gradient_checkpointing=True), 40 * GB, 8, "ddp"),
        (lora(micro_batch_tokens=65536), 40 * GB, 8, "fsdp"),
    ],
)
def test_a_replica_where_it_fits_else_fsdp(spec: RunSpec, limit: int, world_size: int, expected: str) -> None:
    assert choose_sharding(spec.train, LONGEST, llama_8b(spec), limit, world_size) == expected


def plan(spec: RunSpec, limit: int, kind: str = "cuda", share: float = 1.0) -> Any:
    facts = llama_8b(spec)
    return plan_memory(spec.train, LONGEST, facts, limit, kind, sharding="ddp", world_size=1, trained_share=share)


def test_recomputing_only_where_it_has_to_be() -> None:
    assert plan(lora(), 80 * GB).gradient_checkpointing is False
    assert plan(lora(), 40 * GB).gradient_checkpointing is True
    assert plan(lora(gradient_checkpointing=True), 80 * GB).gradient_checkpointing is True
    assert plan(lora(gradient_checkpointing=False), 24 * GB).gradient_checkpointing is False
    assert plan(lora(activation_offloading=True), 40 * GB).gradient_checkpointing is True


@pytest.mark.parametrize("gigabytes", [24, 40, 48, 80, 96, 141, 192])
@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_the_longest_pass_that_fits_is_taken(quantization: Any, gigabytes: int) -> None:
    spec, limit = lora(quantization), gigabytes * GB
    made = plan(spec, limit)
    tokens = made.micro_batch_tokens
    assert tokens in GPU_TOKENS and made.pass_cost_tokens == 512
    if made.expected_bytes > limit * USABLE:  # nothing fits: the least that there is
        assert (tokens, made.gradient_checkpointing) == (GPU_TOKENS[-1], True)
        return
    longer = 2 * max(tokens, LONGEST)
    more = pass_bytes(LONGEST, llama_8b(spec), longer, recomputing=made.gradient_checkpointing)
    assert state_bytes(spec.train, llama_8b(spec), "ddp", 1) + more > limit * USABLE


def test_what_is_given_is_kept() -> None:
    made = plan(lora(micro_batch_tokens=300, gradient_checkpointing=False), 10 * GB)
    assert (made.micro_batch_tokens, made.gradient_checkpointing) == (300, False)
    assert made.expected_bytes > 10 * GB  # and it is known that it will not fit


def test_a_row_may_be_longer_than_a_pass() -> None:
    """Four rows of 1,024 tokens and one of 4,096 need the same."""
    assert (
        plan(lora(micro_batch_tokens=1024), 80 * GB).expected_bytes
        == plan(lora(micro_batch_tokens=4096), 80 * GB).expected_bytes
    )


def test_less_is_trained_so_more_fits() -> None:
    """Where all logits of a pass are there at once: not where its loss is computed in parts."""
    spec = lora(gradient_checkpointing=True)
    shares = (0.1, 1.0)
    longer, shorter = (spread_plan(spec, 80 * GB, share).micro_batch_tokens for share in shares)
    assert longer > shorter
    assert len({plan(spec, 80 * GB, share=share).micro_batch_tokens for share in shares}) == 1


def spread_plan(spec: RunSpec, limit: int, share: float) -> MemoryPlan:
    facts = replace(llama_8b(spec), head_alone=False)
    return plan_memory(spec.train, LONGEST, facts, limit, "cuda", sharding="zero3", world_size=8, trained_share=share)


def test_logits_of_some_targets_at_a_time() -> None:
    """Of 2^26 values on a GPU and 3 x 2^21 on a CPU; of as many targets as a hidden state has values where the head is
    trained, for which there are two gradients of it."""
    frozen, trained = llama_8b(lora()), llama_8b(full())
    for kind, values in (("cuda", 2**26), ("cpu", 3 * 2**21)):
        whole, part = (
            pass_parts(LONGEST, frozen, 65536, recomputing=True, in_parts_on=on)["logits"] for on in (None, kind)
        )
        assert (whole, part) == (12 * V * 65536, 12 * V * (values // V))
    found = pass_parts(LONGEST, trained, 65536, recomputing=True, in_parts_on="cpu")["logits"]
    assert found == V * max(12 * H, 4 * H + 8 * H)
    few = pass_parts(LONGEST, trained, 100, recomputing=True, in_parts_on="cpu")["logits"]
    assert few == 12 * V * 100, "one part needs no gradients of its own"
    copied = llama_8b(make_spec(lora={"r": 16, "modules_to_save": ["lm_head"]}))
    assert (frozen.head_alone, copied.head_alone) == (True, False)
    for kind in ("ddp", "fsdp", "zero2", "zero3"):
        found = [computes_in_parts(facts, kind) for facts in (frozen, trained, copied)]
        assert found == [True, True, kind != "zero3"], "a head and its copy are gathered one by one"


@pytest.mark.parametrize(("float16", "bytes_each"), [(False, 2), (True, 4)])
def test_what_is_not_trained_in_full_is_held_as_it_is_computed_with(float16: bool, bytes_each: int) -> None:
    """In bfloat16; float16 keeps float32 weights."""
    without = replace(llama_8b(full()), float16=float16)
    beside = replace(without, frozen_bytes=4 * 1000)
    one, two = (state_bytes(full().train, facts, "ddp", 1) for facts in (without, beside))
    assert two - one == bytes_each * 1000


def test_a_cpu_has_passes_of_its_own() -> None:
    made = plan(lora(), 32 * GB, "cpu")
    assert (made.micro_batch_tokens, made.pass_cost_tokens) == (CPU_TOKENS[0], 32)


def test_a_pass_of_several_processes_keeps_keys_and_values_of_all_of_it() -> None:
    """Each layer those of the tokens that lie elsewhere: 8 heads of keys of 128 values in bfloat16."""
    facts = llama_8b(lora())
    alone, shared = (pass_parts(LONGEST, facts, 4096, recomputing=False, slices=n)["activations"] for n in (1, 4))
    assert shared - alone == LAYERS * 4096 * 3 * 2 * 1024 * 2
    again, at_once = (pass_parts(LONGEST, facts, 4096, recomputing=True, slices=n)["activations"] for n in (1, 4))
    assert at_once - again == 4096 * 3 * 2 * 1024 * 2
