"""A run that does not fit is refused before its model is loaded, with what would make it fit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rankzero.engine import place, setup
from rankzero.errors import ConfigError, ExitCode, RankzeroError
from rankzero.model.facts import ModelFacts
from rankzero.model.fitting import GB, Need, require_room, ways_out
from rankzero.model.memory import plan_memory
from rankzero.spec.run_spec import RunSpec
from tests.support.memory import LONGEST, N, full, lora
from tests.support.memory import llama_8b as in_parts
from tests.support.runs import run_here, run_root, small_spec


def llama_8b(spec: RunSpec) -> ModelFacts:
    """As a model of which all logits are there at once: larger passes cost more then."""
    return replace(in_parts(spec), logits_in_parts=False)


def need(spec: RunSpec, limit: float, *, world_size: int = 1, **changes: Any) -> Need:
    """Of Llama 3 8B on a GPU, as planned for `limit` GB."""
    facts = llama_8b(spec)
    made = plan_memory(spec.train, LONGEST, facts, int(limit * GB), "cuda", sharding="ddp", world_size=world_size)
    found = Need(
        spec.train,
        facts,
        longest=LONGEST,
        tokens=made.micro_batch_tokens,
        recomputing=made.gradient_checkpointing,
        offloading=spec.train.activation_offloading,
        sharding="ddp",
        world_size=world_size,
        device_kind="cuda",
        trained_share=1.0,
    )
    return replace(found, **changes)


def test_what_is_needed_is_what_is_planned() -> None:
    spec = lora()
    made = plan_memory(spec.train, LONGEST, llama_8b(spec), 80 * GB, "cuda", sharding="ddp", world_size=1)
    assert round(need(spec, 80).bytes) == made.expected_bytes
    one = full(global_batch_size=1)  # a pass holds no more than a step does
    assert need(one, 800, tokens=65536).bytes == need(one, 800, tokens=LONGEST).bytes


@pytest.mark.parametrize(
    ("spec", "limit", "changes", "expected"),
    [
        (
            lora(gradient_checkpointing=False),
            40,
            {"tokens": 16384},
            [
                "train.gradient_checkpointing: true with train.micro_batch_tokens: 4096 (24.3 GB)",
                "train.activation_offloading: true with train.micro_batch_tokens: 4096 (23.9 GB)",
                "model.quantization: nf4 with train.micro_batch_tokens: 4096 (33.3 GB)",
            ],
        ),
        (
            lora(gradient_checkpointing=False),
            24,
            {},
            [
                "train.activation_offloading: true (23.9 GB)",
                "model.quantization: nf4 with train.gradient_checkpointing: true (14.1 GB)",
                "data.max_length: 2048 with train.gradient_checkpointing: true (20.3 GB)",
            ],
        ),
        (
            lora(),
            24,
            {"longest": 2 * LONGEST},
            [
                "model.quantization: nf4 (22.1 GB)",
                "data.max_length: 4096 with train.activation_offloading: true (23.3 GB)",
            ],
        ),
    ],
)
def test_ways_out(spec: RunSpec, limit: float, changes: dict[str, Any], expected: list[str]) -> None:
    wanted = need(spec, limit, **changes)
    assert wanted.bytes > limit * GB
    packed = partial(llama_8b, lora("nf4"))
    assert ways_out(wanted, int(limit * GB), packed) == f"set {'; or '.join(expected)}"


def test_what_a_step_takes_beyond_what_is_held_between_two() -> None:
    """On a CPU, where a checkpoint's copy lies in the same memory; three more sets of gradients for two passes."""
    on_gpu = need(full(), 800)
    alone = replace(on_gpu, device_kind="cpu")
    held = alone.parts["weights"] + alone.parts["copies"] + alone.parts["optimizer"]
    assert alone.host_bytes_of_a_step == pytest.approx(alone.bytes - held) and alone.host_bytes_of_a_step > 4 * N
    one_more = replace(alone, passes_at_once=2).host_bytes_of_a_step - alone.host_bytes_of_a_step
    of_a_pass = alone.parts["activations"] + alone.parts["logits"]
    assert one_more == pytest.approx(3 * alone.facts.trained_bytes + of_a_pass)
    assert not on_gpu.host_bytes_of_a_step


def test_what_is_said_of_a_full_fine_tune() -> None:
    wanted = need(full(gradient_checkpointing=True, micro_batch_tokens=4096), 80, world_size=8)
    with pytest.raises(ConfigError, match=r"expected to need 1\d\d GB, and there are 80 GB") as caught:
        require_room(wanted, 80 * GB, 0, packed=None, where="gpu")
    hint = caught.value.problems[0].hint
    assert hint.startswith("set train.sharding: fsdp (") and "; or lora: {r: 16} (" in hint
    assert hint.count("; or ") <= 2


def test_a_copy_on_each_node_that_does_not_fit_is_divided_among_all() -> None:
    alone = need(full(gradient_checkpointing=True, micro_batch_tokens=4096), 20, world_size=64)
    wanted = replace(alone, sharding="hsdp", processes_a_node=8)
    with pytest.raises(ConfigError) as caught:
        require_room(wanted, 20 * GB, 0, packed=None, where="gpu")
    assert caught.value.problems[0].hint.startswith("set train.sharding: fsdp (")


def test_where_nothing_helps() -> None:
    wanted = need(lora(), 4)
    hint = ways_out(wanted, 2 * GB, partial(llama_8b, lora("nf4")))
    assert "take a smaller model" in hint and "all together still" in hint


def test_memory_that_others_use_may_be_waited_for() -> None:
    wanted = need(lora(), 80)
    require_room(wanted, 80 * GB, 0, packed=None, where="gpu")  # nobody knows what is free
    require_room(wanted, 80 * GB, 79 * GB, packed=None, where="gpu")
    with pytest.raises(RankzeroError, match=r"are free") as caught:
        require_room(wanted, 80 * GB, 10 * GB, packed=None, where="gpu")
    assert caught.value.exit_code == ExitCode.INTERNAL  # which is tried again
    assert wanted.bytes > 2 * N


def test_it_is_refused_before_the_model_is_loaded(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "memory_limit", lambda *_: 100_000)
    monkeypatch.setattr(setup, "load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    spec = small_spec(tmp_path, tiny)
    with pytest.raises(ConfigError, match="the run is expected to need") as caught:
        run_here(spec)
    assert "GB" in str(caught.value) and caught.value.problems[0].hint
    assert not any((run_root(spec) / "checkpoints").iterdir())
