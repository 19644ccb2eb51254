"""The cost model: sums by hand, and what was measured or published. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rankzero.forecast.cost import ATTENTION_BACKWARD, StepCost, Work, breaks, covers, operations, step_cost
from rankzero.forecast.devices import (
    BANDWIDTH_SHARE,
    DEVICES,
    EFFICIENCY,
    HOP_SECONDS,
    Device,
    Network,
    assumed_network,
    find_device,
)
from rankzero.forecast.timing import shape_of_work
from rankzero.model.facts import Blocks, Experts, ModelFacts
from rankzero.model.fitting import Need
from rankzero.model.memory import block_bytes
from rankzero.spec.run_spec import RunSpec

# Llama 3 8B: head, embeddings and last norm lie outside its blocks; adapters of rank 16 on q, k, v and o.
N, HIDDEN, LAYERS, VOCABULARY = 8_030_261_248, 4096, 32, 128256
HEAD = VOCABULARY * HIDDEN
IN_BLOCKS = N - 2 * HEAD - HIDDEN
ADAPTERS = 13_631_488
ROW = 4096
SLOW = Device("by hand", matrix=1e12, memory=1e12, link=1e9)


def llama(*, adapters: bool) -> ModelFacts:
    return ModelFacts(
        total=N + ADAPTERS if adapters else N,
        trainable=ADAPTERS if adapters else N,
        frozen_bytes=2 * N if adapters else 0,
        trained_bytes=4 * (ADAPTERS if adapters else N),
        block_bytes=2 * IN_BLOCKS // LAYERS,
        root_bytes=2 * (2 * HEAD + HIDDEN),
        unpacked_bytes=0,
        adapters=adapters,
        compute_bytes=2,
        text=Blocks(LAYERS, HIDDEN, attention=HIDDEN, intermediate=14336, heads=32),
        tower=None,
        patches=1,
        logits=VOCABULARY,
        eager=False,
    )


def need(facts: ModelFacts, sharding: Any = "ddp", world_size: int = 1, **train: Any) -> Need:
    spec = RunSpec.model_validate(
        {"model": {"name": "m"}, "data": {"train": "t"}, "train": {"sharding": sharding, **train}}
    )
    return Need(
        spec.train,
        facts,
        longest=ROW,
        tokens=2 * ROW,
        recomputing=False,
        offloading=False,
        sharding=sharding,
        world_size=world_size,
        device_kind="cuda",
        trained_share=1.0,
    )


def one_row(useful: float = ROW, passes: float = 1) -> Work:
    return Work(tokens=ROW, passes=passes, row=ROW, useful=useful)


def device(name: str) -> Device:
    found = find_device(name)
    assert found is not None
    return found


def test_operations_are_4n_of_adapters_and_6n_of_all_weights() -> None:
    """Beside attention; embeddings are looked up, and the input of the first block needs no gradient of them."""
    adapters, full = (operations(llama(adapters=some), ROW, 1.0) for some in (True, False))
    multiplied = IN_BLOCKS + HEAD
    attention = (1 + ATTENTION_BACKWARD) * 2 * LAYERS * HIDDEN * ROW
    assert adapters.trained == pytest.approx(4 * multiplied + 6 * ADAPTERS + attention)
    assert full.trained == pytest.approx(6 * multiplied + attention)
    assert full.recomputed == pytest.approx(2 * IN_BLOCKS + attention / (1 + ATTENTION_BACKWARD))
    prompts = operations(llama(adapters=True), ROW, 0.25)
    assert adapters.trained - prompts.trained == pytest.approx(4 * 0.75 * HEAD)


def test_experts_that_are_not_visited_cost_nothing() -> None:
    dense = llama(adapters=False)
    idle = IN_BLOCKS // 2
    mixture = replace(dense, idle=idle)
    saved = operations(dense, ROW, 1.0).trained - operations(mixture, ROW, 1.0).trained
    assert saved == pytest.approx(6 * idle, rel=1e-6)


@pytest.mark.parametrize(
    ("measured_rate", "trained_share", "seconds_a_token"),
    [
        pytest.param(2 * 93e9, 0.2, 3.4e-3, id="two cores, long prompts"),
        pytest.param(2 * 93e9, 0.9, 3.4e-3, id="two cores, long answers"),
        pytest.param(93e9, 55 / 155, 2.918 / (3 * 155), id="one thread"),
    ],
)
def test_a_token_on_a_cpu_costs_what_was_measured(
    measured_rate: float, trained_share: float, seconds_a_token: float
) -> None:
    """SmolLM2-135M with adapters in float32, by benchmarks/README.md.

    Two cores: "a pass costs 0.19 s + 3.4 ms a token"; one thread: 2,918 ms for 3 x 155 tokens ("Dropout"). "Four fifths
    of a step are matrix products", and these reach 93 GFLOP/s in one thread ("Steps on a CPU"), of an EPYC as in the
    second case; the first is of another EPYC, and the share of trained tokens was not written down: it changes little.
    """
    products = 0.8
    head = 49152 * 576
    smollm = replace(
        llama(adapters=True),
        total=134_515_008 + 921_600,
        trainable=921_600,
        root_bytes=4 * (head + 576),
        compute_bytes=4,
        text=Blocks(30, 576, attention=576, intermediate=1536, heads=9),
        logits=49152,
    )
    seconds = operations(smollm, 155, trained_share).trained / (measured_rate * products)
    assert seconds == pytest.approx(seconds_a_token, rel=0.15)


def test_an_8b_with_adapters_is_as_fast_as_nvidia_publishes() -> None:
    """NeMo AutoModel: LoRA of Llama 3 8B on one H100, rows of 4,096: 12,473 tokens a second. Nothing was taken from
    there: the share that products reach is what an H200 was measured at here."""
    cost = step_cost(need(llama(adapters=True)), device("NVIDIA H100 80GB HBM3"), Network(1, 0.0), one_row())
    assert cost.efficiency == EFFICIENCY
    assert cost.tokens_per_second == pytest.approx(12_473, rel=0.05)
    assert cost.communication == cost.waiting == cost.recompute == cost.unpack == 0


def test_replicas_wait_for_a_ring_that_sums_their_gradients() -> None:
    cost = step_cost(need(llama(adapters=True), "ddp", 8), SLOW, Network(8, 0.0), one_row())
    by_hand = 2 * 7 * (4 * ADAPTERS / 8 / (1e9 * BANDWIDTH_SHARE) + HOP_SECONDS)
    assert cost.communication == pytest.approx(by_hand) and cost.waiting == cost.communication


def test_replicas_send_whole_gradients_beside_the_last_backward_pass() -> None:
    """All but the last of 32 GB in buckets of 32 MiB, and no longer than that pass takes."""
    facts = llama(adapters=False)
    one, four = (step_cost(need(facts, "ddp", 8), SLOW, Network(8, 0.0), one_row(passes=passes)) for passes in (1, 4))
    assert one.waiting == pytest.approx(one.communication / (4 * facts.trainable // 2**25))
    fast = step_cost(need(facts, "ddp", 8), replace(SLOW, matrix=1e14), Network(8, 0.0), one_row())
    assert fast.communication - fast.waiting == pytest.approx(0.68 * (fast.compute + fast.between), rel=0.03), (
        "two thirds, and attention"
    )
    assert four.waiting >= one.waiting


def test_over_nodes_the_network_cards_count() -> None:
    inside, between = (
        step_cost(need(llama(adapters=True), "ddp", 16), SLOW, Network(8, rate), one_row()) for rate in (9e9, 1e8)
    )
    assert between.communication > 9 * inside.communication, "a GPU's own link is the slower one, then the cards"


@pytest.mark.parametrize("sharding", ["fsdp", "zero3"])
def test_what_is_divided_is_gathered_twice_and_summed_in_float32(sharding: str) -> None:
    """Each pass again; and what computing hides is not waited for."""
    facts = llama(adapters=False)
    cost = step_cost(need(facts, sharding, 8), SLOW, Network(8, 0.0), one_row(passes=2))
    by_hand = 2 * (2 * 2 * N + 4 * N) * 7 / 8 / (1e9 * BANDWIDTH_SHARE)
    assert cost.communication == pytest.approx(by_hand, rel=1e-3)
    assert cost.waiting == 0 < cost.communication < cost.compute, "a teraflop a second hides much"
    fast = replace(SLOW, matrix=1e15)
    waits = step_cost(need(facts, sharding, 8), fast, Network(8, 0.0), one_row(passes=2))
    assert waits.waiting == pytest.approx(waits.communication - waits.compute - waits.between) and waits.waiting > 0


def test_under_fsdp_adapters_are_summed_once_a_step() -> None:
    facts = llama(adapters=True)
    once, twice = (
        step_cost(need(facts, "fsdp", 8), SLOW, Network(8, 0.0), one_row(passes=passes)).communication
        for passes in (1, 2)
    )
    gathered = 2 * 7 * ((2 * N + 4 * ADAPTERS) / 8 / (1e9 * BANDWIDTH_SHARE) + (LAYERS + 1) * HOP_SECONDS)
    assert twice - once == pytest.approx(gathered)


def test_zero2_sends_gradients_each_pass_and_new_weights_once_and_waits() -> None:
    cost = step_cost(need(llama(adapters=False), "zero2", 8), SLOW, Network(8, 0.0), one_row(passes=3))
    by_hand = (3 * 4 * N + 2 * N) * 7 / 8 / (1e9 * BANDWIDTH_SHARE)
    assert cost.waiting == cost.communication == pytest.approx(by_hand, rel=1e-3)


def test_processes_that_share_passes_wait_for_keys_and_values() -> None:
    """Of a pass of four times a device's tokens: gathered in 16 bits, again where activations are recomputed, and their
    gradients scattered in float32; among four, although eight have replicas."""
    facts = replace(llama(adapters=True), text=replace(llama(adapters=True).text, keys=1024))
    alone, shared = (need(facts, "ddp", 8, context_parallel=slices) for slices in (1, 4))
    without, plain, again = (
        step_cost(one, SLOW, Network(8, 0.0), one_row(passes=2))
        for one in (alone, shared, replace(shared, recomputing=True))
    )
    values = LAYERS * 2 * 1024 * 4 * ROW
    gathers, scatters = (
        3 * (values * size / 4 / (1e9 * BANDWIDTH_SHARE) + 2 * LAYERS * HOP_SECONDS) for size in (2, 4)
    )
    assert plain.waiting - without.waiting == pytest.approx(gathers + scatters)
    assert again.communication - without.communication == pytest.approx(2 * gathers + scatters)


def mixture(*, adapters: bool) -> ModelFacts:
    """Three quarters of its weights are experts', of which a token visits two."""
    facts = llama(adapters=adapters)
    experts = Experts(3 * N // 4, 3 * N // 4 * (2 if adapters else 4), trained=not adapters)
    return replace(facts, text=replace(facts.text, experts=2), experts=experts)


@pytest.mark.parametrize(
    ("together", "a_node", "network"), [(4, 8, 0.0), (8, 2, 4e8)], ids=["in a node", "over four nodes"]
)
def test_processes_that_hold_experts_together_wait_for_tokens(together: int, a_node: int, network: float) -> None:
    """There and back; in 16 bits under adapters; forward, backward, and again where activations are recomputed."""
    alone, shared = (need(mixture(adapters=True), "ddp", 8, expert_parallel=size) for size in (1, together))
    without, plain, again = (
        step_cost(one, SLOW, Network(a_node, network), one_row(passes=2))
        for one in (alone, shared, replace(shared, recomputing=True))
    )
    rows = LAYERS * ROW * 2 * HIDDEN * 2
    slowest = rows * 3 / 4 / 1e9 if together == 4 else rows * 6 / 8 / (network / 2)
    once = 2 * slowest / BANDWIDTH_SHARE
    hops = 2 * LAYERS * (together - 1) * HOP_SECONDS
    # Adapters travel behind the last pass.
    assert plain.communication - without.communication == pytest.approx(2 * once + 5 * hops)
    assert again.communication - without.communication == pytest.approx(3 * once + 8 * hops)
    assert plain.waiting == plain.communication


def test_gradients_of_experts_are_summed_by_those_that_hold_them() -> None:
    """Two of each among eight, in float32; those of the rest by all."""
    one = need(mixture(adapters=False), "ddp", 8, expert_parallel=4)
    none = Work(tokens=0, passes=0, row=ROW, useful=0)
    found = step_cost(one, SLOW, Network(8, 0.0), none).communication
    experts, rest = 4 * 3 * N // 4 / 4, 4 * N / 4
    assert found == pytest.approx((2 * rest * 7 / 8 + 2 * experts / 2) / (1e9 * BANDWIDTH_SHARE), rel=1e-3)
    assert step_cost(one, SLOW, Network(2, 1e9), none).communication == pytest.approx(
        (2 * rest * 7 / 8 + 2 * experts / 2 * 2) / (1e9 * BANDWIDTH_SHARE), rel=1e-3
    ), "two different experts of a node share its cards"


def test_short_passes_are_as_slow_as_their_weights_are_read() -> None:
    """The roofline: two passes over the blocks' weights, forward and backward."""
    work = Work(tokens=1, passes=1, row=1, useful=1)
    cost = step_cost(need(llama(adapters=True)), device("H100"), Network(1, 0.0), work)
    assert cost.compute == pytest.approx(2 * 2 * IN_BLOCKS / (3.35e12 * BANDWIDTH_SHARE))


def test_what_lies_between_products_is_moved() -> None:
    """By hand: below adapters 6.7 times what a block keeps besides their inputs, and these and what they give 4 times;
    50 bytes a logit. Of a block 36 % again where it is recomputed."""
    facts = llama(adapters=True)
    plain = need(replace(facts, text=replace(facts.text, adapted_bytes=9000, adapted=30000)))
    kept = block_bytes(plain.facts.text, plain.facts, ROW) - 9000
    assert 20 * HIDDEN < kept < 80 * HIDDEN
    blocks = ROW * LAYERS * (6.7 * kept + 4 * 2 * 30000) / (1e12 * BANDWIDTH_SHARE)
    logits = ROW * 50 * VOCABULARY / (1e12 * BANDWIDTH_SHARE)
    costs = [
        step_cost(one, SLOW, Network(1, 0.0), one_row())
        for one in (plain, replace(plain, trained_share=0.5), replace(plain, recomputing=True))
    ]
    assert [cost.between for cost in costs] == pytest.approx([blocks + logits, blocks + logits / 2, blocks + logits])
    products = operations(plain.facts, ROW, 1.0).recomputed * ROW / (1e12 * EFFICIENCY)
    assert [cost.recompute for cost in costs] == pytest.approx([0, 0, products + 0.36 * blocks])


def test_of_experts_it_is_in_their_efficiency() -> None:
    facts = llama(adapters=False)
    experts = replace(facts, text=replace(facts.text, experts=8))
    assert step_cost(need(experts), SLOW, Network(1, 0.0), one_row()).between == 0


def test_packed_weights_are_written_out_for_each_pass_and_when_recomputing() -> None:
    packed = replace(llama(adapters=True), unpacked_bytes=1, frozen_bytes=IN_BLOCKS // 2 + 2 * (2 * HEAD + HIDDEN))
    plain, again = need(packed), replace(need(packed), recomputing=True)
    costs = [step_cost(one, SLOW, Network(1, 0.0), one_row()) for one in (plain, again)]
    assert [cost.unpack for cost in costs] == pytest.approx(
        [times * 2.5 * IN_BLOCKS / (1e12 * BANDWIDTH_SHARE) for times in (2, 3)], rel=1e-6
    )
    assert costs[0].recompute == 0 < costs[1].recompute < costs[1].compute


def test_the_optimizer_moves_its_state_and_the_weights() -> None:
    """AdamW in float32: weights, two moments read and written, gradients read twice: 32 bytes, divided under fsdp."""
    alone, divided = (
        step_cost(need(llama(adapters=False), sharding, 8), SLOW, Network(8, 0.0), one_row()).optimizer
        for sharding in ("ddp", "fsdp")
    )
    assert alone == pytest.approx(32 * N / (1e12 * BANDWIDTH_SHARE)) and divided == pytest.approx(alone / 8)


def test_the_parts_are_the_whole() -> None:
    cost = step_cost(need(llama(adapters=False), "zero2", 8), SLOW, Network(8, 0.0), one_row(useful=8 * ROW))
    parts = (cost.compute, cost.recompute, cost.between, cost.unpack, cost.optimizer, cost.waiting)
    assert cost.seconds == pytest.approx(sum(parts))
    assert cost.tokens_per_second == 8 * ROW / cost.seconds
    assert cost.to_json()["seconds"] == cost.seconds


def test_what_it_does_not_cover() -> None:
    wanted = need(llama(adapters=True))
    assert covers(wanted)
    others = [
        replace(wanted, device_kind="cpu"),
        replace(wanted, offloading=True),
        replace(wanted, facts=replace(wanted.facts, compute_bytes=4)),
        replace(wanted, facts=replace(wanted.facts, tower=wanted.facts.text)),
        need(llama(adapters=False), "zero3", 8, offload="optimizer"),
    ]
    for other in others:
        assert not covers(other)
        with pytest.raises(ValueError, match="does not cover"):
            step_cost(other, SLOW, Network(1, 0.0), one_row())


def test_what_breaks_first() -> None:
    full = need(llama(adapters=False), "zero2", 8)
    cost = step_cost(full, device("H100"), Network(8, 0.0), one_row())
    assert breaks(full, cost, 8, 1 << 50) == []
    assert breaks(full, cost, 8, 1) == ["memory"]
    assert breaks(full, cost, 5, 1 << 50) == ["3 GPUs without a row"]
    slow: StepCost = replace(cost, waiting=2 * cost.seconds)
    assert breaks(full, slow, 8, 1 << 50) == ["communication"]


def test_devices_are_found_by_the_names_that_drivers_and_nodes_give() -> None:
    names = {
        "NVIDIA H100 80GB HBM3": "H100",
        "NVIDIA-H100-80GB-HBM3": "H100",
        "NVIDIA H100 PCIe": "H100 PCIe",
        "NVIDIA-H100-NVL": "H100 NVL",
        "NVIDIA H200": "H200",
        "NVIDIA H20": "H20",
        "NVIDIA GH200 480GB": "GH200",
        "NVIDIA A100-SXM4-80GB": "A100",
        "NVIDIA A100-SXM4-40GB": "A100 SXM4 40GB",
        "NVIDIA A800-SXM4-80GB": "A800",
        "Tesla L4": "L4",
        "NVIDIA L40S": "L40S",
        "NVIDIA GeForce RTX 4090": "RTX 4090",
    }
    assert {name: device(name).name for name in names} == names
    slices = (
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
    )
    assert not any(map(find_device, slices)), "they are others than the whole GPU, or the desktop's, of that name"
    assert find_device("NVIDIA RTX A1000") is find_device("a GPU (assumed: no node says what its GPUs have)") is None
    assert all(find_device(one.name) is one for one in DEVICES), "none stands before a longer name"


def test_a_network_is_assumed_by_whether_pods_have_rdma() -> None:
    assert assumed_network(8, rdma=True) == Network(8, 400e9)
    assert assumed_network(8, rdma=False) == Network(8, 12.5e9)


@pytest.mark.parametrize("adapters", [False, True])
def test_copies_on_nodes_send_only_gradients_between_them_once_a_step(adapters: bool) -> None:
    """Eight nodes of eight on Ethernet, by sums by hand; in three passes as in one."""
    facts, network, h100 = llama(adapters=adapters), Network(8, 12.5e9), device("H100")
    hybrid = replace(need(facts, "hsdp", 64), processes_a_node=8)
    trained = ADAPTERS if adapters else N
    between = 2 * 7 * (4 * trained / 8 / 8 / (12.5e9 / 8 * 0.8) + HOP_SECONDS * (LAYERS + 1))
    frozen = 2 * (N - ADAPTERS) + 4 * ADAPTERS if adapters else 2 * N
    ring = 7 * (frozen / 8 / (h100.link * 0.8) + HOP_SECONDS * (LAYERS + 1))
    reduced = 7 * (4 * trained / 8 / (h100.link * 0.8) + HOP_SECONDS * (LAYERS + 1))
    for passes in (1, 3):
        cost = step_cost(hybrid, h100, network, one_row(passes=passes))
        sums = 1 if adapters else passes
        assert cost.communication == pytest.approx(between + 2 * passes * ring + sums * reduced, rel=0.01)
    everywhere = step_cost(need(facts, "fsdp", 64), h100, network, one_row(passes=3))
    assert cost.waiting < 0.9 * everywhere.waiting
    one_node = step_cost(replace(hybrid, world_size=8), h100, network, one_row())
    assert one_node.communication == pytest.approx(2 * ring + reduced, rel=0.01), "nothing leaves it"


def test_a_copy_on_each_node_takes_what_one_node_alone_takes_and_the_sums_over_nodes() -> None:
    facts = llama(adapters=False)
    hybrid = replace(need(facts, "hsdp", 64), processes_a_node=8)
    assert hybrid.parts == need(facts, "fsdp", 8).parts
    assert hybrid.bytes > need(facts, "fsdp", 64).bytes
    in_bfloat16 = replace(facts, trained_bytes=2 * N)
    for sharding, each in (("fsdp", 4), ("hsdp", 6)):
        found = replace(need(in_bfloat16, sharding, 64), processes_a_node=8)
        assert found.parts["gradients"] == each * N / found.sharers
    for sharding, each in (("fsdp", 0), ("hsdp", 4)):
        found = replace(need(facts, sharding, 64, offload="all"), processes_a_node=8)
        assert found.parts["gradients"] == each * N / found.sharers and found.parts["optimizer"] == 0
    adapted = replace(need(llama(adapters=True), "hsdp", 64, offload="all"), processes_a_node=8)
    assert adapted.parts["gradients"] == 0


def test_what_is_remembered_of_a_shape_knows_how_many_share_the_model() -> None:
    spec = RunSpec.model_validate({"model": {"name": "m"}, "data": {"train": "t"}})
    hybrid = need(llama(adapters=True), "hsdp", 64)
    keys = {shape_of_work(spec, replace(hybrid, processes_a_node=size), "H100", packed=True) for size in (4, 8)}
    assert len(keys) == 2


def test_what_is_remembered_of_a_shape_knows_how_many_passes_are_computed_at_once() -> None:
    """Two of 512 tokens at a time are faster than one by one."""
    spec = RunSpec.model_validate({"model": {"name": "m"}, "data": {"train": "t"}})
    alone = replace(need(llama(adapters=True), "ddp", 1), tokens=512)
    keys = {shape_of_work(spec, replace(alone, passes_at_once=count), "cpu", packed=True) for count in (1, 2, 3)}
    assert len(keys) == 3
