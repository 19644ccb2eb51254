"""docs/scale.md has the cost model's tables as they are today, and what it says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.memory_table import facts_of_shape
from tests.support.scale import (
    BATCH,
    COUNTS,
    METHODS,
    NAMES,
    SWIFT,
    TENSOR,
    experts_on_sixteen,
    experts_table,
    scaled,
    swift,
    swift_table,
    table,
    tensor_parallel,
    tensor_table,
)

PAGE = (Path(__file__).parents[3] / "docs/scale.md").read_text(encoding="utf-8")


def test_the_tables_in_the_docs_are_current() -> None:
    """`python -m tests.support.scale` prints them."""
    assert f"\n{table()}\n" in PAGE
    assert f"\n{swift_table()}\n" in PAGE
    assert f"\n{experts_table()}\n" in PAGE
    assert f"\n{tensor_table()}\n" in PAGE


def test_a_token_meets_three_of_thirty_billion_weights() -> None:
    """Qwen3-30B-A3B by its name: 3.3B with embeddings, by its maker's card."""
    for method in METHODS:
        facts = facts_of_shape("Qwen3 30B-A3B", method)
        base = facts.total - (facts.trainable if facts.adapters else 0)
        assert (base - facts.idle) / 1e9 == pytest.approx(3.3, abs=0.06), method


def test_the_share_of_experts_gives_megatrons_step() -> None:
    """It was taken from there: this is no check of it, but keeps both together."""
    cost = swift("A800")
    assert cost.compute + cost.recompute + cost.optimizer == pytest.approx(SWIFT["megatron"], rel=0.15)
    assert swift("A800").seconds < SWIFT["zero3"] / 5, "which neither products nor links explain"


def test_what_the_page_says_of_experts_on_several_processes() -> None:
    for share in (0.10, 0.40):

        def seconds(method: str, sharding: str, together: int, share: float = share) -> float:
            return experts_on_sixteen(method, sharding, together, share)[1].seconds

        assert seconds("full", "fsdp", 1) < seconds("full", "fsdp", 8) < seconds("full", "fsdp", 16)
        faster = seconds("LoRA", "ddp", 1) / seconds("LoRA", "ddp", 2)
        assert faster == pytest.approx(4 / 3 if share == 0.10 else 7 / 6, abs=0.02), "a quarter, a seventh"
        slower = seconds("QLoRA", "ddp", 8) / seconds("QLoRA", "ddp", 1)
        assert slower == pytest.approx(1.03 if share == 0.10 else 1.10, abs=0.01)
    even = experts_on_sixteen("full", "fsdp", 8, 0.114)[1].seconds
    assert even == pytest.approx(experts_on_sixteen("full", "fsdp", 1, 0.10)[1].seconds, rel=0.01)
    on_ethernet = (
        scaled("Qwen3 30B-A3B", "full", 16, rdma=False, train={"sharding": "fsdp", "expert_parallel": together})[1]
        for together in (1, 8)
    )
    assert [cost.seconds for cost in on_ethernet] == pytest.approx([23, 23], abs=0.3)
    megatron = swift("A800", sharding="fsdp", expert_parallel=8)
    assert (megatron.seconds, megatron.waiting) == (pytest.approx(12.0, abs=0.05), pytest.approx(1.9, abs=0.05))
    products = SWIFT["megatron"] - megatron.waiting
    assert 0.12 < 0.10 * (megatron.compute + megatron.recompute) / products < 0.135


def test_splitting_products_pays_for_none_of_these() -> None:
    for name, method, ranks in TENSOR:
        for share in (scaled(name, method, ranks)[1].efficiency, 0.60):
            for ways in (2, 8):
                alone, split = tensor_parallel(name, method, ranks, ways, share)
                assert alone < split, (name, method, ranks, ways, share)


def test_what_the_page_says_breaks() -> None:
    for name in NAMES:
        for method in METHODS:
            costs = [scaled(name, method, ranks)[1] for ranks in COUNTS]
            assert costs[0].seconds > 7 * costs[1].seconds, "eight times the GPUs, while there are rows"
            assert costs[1].seconds < 2.2 * costs[2].seconds, "sixteen times the GPUs, and a row for 128 of them"
            assert all(cost.waiting_share < 0.5 for cost in costs), "with RDMA"
            waits = scaled(name, method, 64, rdma=False)[1].waiting_share
            assert (waits > 0.5) == (method == "full"), (name, method)
    assert COUNTS[-1] > BATCH


def test_what_the_page_says_of_copies_on_nodes() -> None:
    """Adapters on a 70B that no GPU holds, over Ethernet; all of an 8B on 1,024 GPUs with RDMA."""
    for ranks, wanted in ((64, 27.9), (1024, 29.5)):
        hybrid = scaled("Llama 3.1 70B", "LoRA", ranks, rdma=False)
        divided = scaled("Llama 3.1 70B", "LoRA", ranks, rdma=False, train={"sharding": "fsdp"})[1]
        assert hybrid[0].sharding == "hsdp" and divided.seconds == pytest.approx(wanted, abs=0.1)
        assert divided.seconds > 3.6 * hybrid[1].seconds
    many = scaled("Qwen3 8B", "full", 1024)
    divided = scaled("Qwen3 8B", "full", 1024, train={"sharding": "fsdp"})[1]
    assert many[0].sharding == "hsdp" and (divided.seconds, many[1].seconds) == pytest.approx((0.77, 0.47), abs=0.01)
    assert divided.waiting_share == pytest.approx(0.42, abs=0.01)
    full = [
        scaled("Qwen3 8B", "full", 64, rdma=False, train={"sharding": sharding})[1].seconds
        for sharding in ("fsdp", "hsdp")
    ]
    assert full[1] == pytest.approx(full[0], rel=0.15), "gradients over nodes cost as much as gathering"
