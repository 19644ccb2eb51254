"""The time of an optimizer step, from shapes, the device and its links: what nobody has timed yet.

For each token, with P = weights of the blocks that it meets (of experts the visited ones), V h = the head, a = trained
weights, L = blocks, A = width of attention, s = tokens of its row:

forward      2P, 2Vh where it is trained on, and 2LAs of attention, which is causal        [Kaplan et al. 2020, 2.1]
backward     of inputs as much again, of trained weights 2a; attention 2.5 times its forward  [Dao 2023, 3.1: 5 : 2]
recomputing  the blocks' forward once more
so adapters cost 4N and little more, full fine-tuning 6N, N all weights

products     operations ÷ (dense rate x efficiency), or the weights that they read ÷ memory's bandwidth where that is
             more: the roofline                                                               [Williams et al. 2009]
between      what a block keeps for the backward pass is written and read several times by all that lies between
             products: norms, activations, rotations, residuals. Layers with adapters read and write besides what they
             are given and give. Logits are made, and become gradients         [counted by benchmarks/gpu_outlook.py]
unpacking    weights of 4 or 8 bits are read and written out in the precision of products, for each of these passes
optimizer    weights and its state read and written, gradients read for the norm and for the step
gathering    where weights are divided by Z: all of them for the forward and again for the backward pass
reducing     gradients, once a step or a pass, as the sharding does it
collecting   where S processes share a pass, keys and values of all its tokens in each layer: for the forward, again for
             recomputing, and their gradients in float32; they wait for it
exchanging   where E processes hold experts together: in each layer what a token's experts are given, and what they
             give, forward, backward and for recomputing; they wait for it. Of trained experts gradients are summed by
             the processes that hold the same ones alone. A process sends (E-1)/E of its rows, to all others at once,
             and of them what leaves the node through its share of the network cards       [Thakur et al. 2005, 4.3]
a ring       sends (Z-1)/Z of the bytes for a gather or a reduce-scatter, twice that for an all-reduce, and takes Z-1
             hops for each of them                                         [Thakur, Rabenseifner, Gropp 2005, 3.1, 4.4]
             over nodes as fast as the slower of a GPU's link and all network cards of a node together, since there are
             as many rings as cards. With hsdp a node's processes gather and reduce among themselves, and once a step
             each sums its share over the nodes, through its share of the cards
overlap      fsdp and zero3 send while they compute, so only what is longer than the computing is waited for (assumed to
             be perfect); replicas, and hsdp over nodes, send beside the last backward pass, all but the last bucket or
             block; zero2 when it is over

Left out: loading data, evaluations, saving, uneven rows, launch of kernels, CPU offload, trained vision towers.
Pure; knows no torch, and of devices what `devices.py` says.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from rankzero.forecast.devices import BANDWIDTH_SHARE, EFFICIENCY, EXPERTS_EFFICIENCY, HOP_SECONDS, Device, Network
from rankzero.model.facts import ModelFacts, of_a_rank, without_experts
from rankzero.model.fitting import Need
from rankzero.model.memory import GRADIENT_BUCKET_BYTES, block_bytes, state_parts
from rankzero.spec.shardings import ShardingSection, sharding_section

ATTENTION_BACKWARD = 2.5
KEPT_MOVED, KEPT_MOVED_BELOW_ADAPTERS = 5.4, 6.7
"""How often what a block keeps, inputs of its adapters aside, is moved between memory and products in a forward and a
backward pass. Where weights are trained it is more that is kept."""
ADAPTED_MOVED = 4.0
"""The same of what layers with adapters are given and give."""
LOGIT_MOVED = 50.0
"""Bytes that are moved for a logit."""
RECOMPUTED_SHARE = 0.36
"""What of a block's share is moved in its forward pass."""


@dataclass(frozen=True, slots=True)
class Work:
    """Of a step, on the process that has the most."""

    tokens: float
    passes: float
    row: float
    """Tokens of a row, on average."""
    useful: float
    """Tokens of the whole step, on all processes."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step by what they are for, on the process that has the most."""

    device: str
    efficiency: float
    """Share of the device's dense rate that was assumed."""
    compute: float
    """Products of forward and backward passes."""
    recompute: float
    """Blocks once more."""
    between: float
    """What lies between products of forward and backward passes, in memory; with experts it is in their efficiency."""
    unpack: float
    optimizer: float
    communication: float
    """All of it."""
    waiting: float
    """What of it computing does not hide."""
    useful: float
    """Tokens of the step, on all processes."""

    @property
    def seconds(self) -> float:
        return self.compute + self.recompute + self.between + self.unpack + self.optimizer + self.waiting

    @property
    def tokens_per_second(self) -> float:
        """On all processes."""
        return self.useful / self.seconds

    @property
    def waiting_share(self) -> float:
        return self.waiting / self.seconds

    def to_json(self) -> dict[str, Any]:
        """For programs: seconds by part, and what follows."""
        more = {"seconds": self.seconds, "tokens_per_second": self.tokens_per_second}
        return asdict(self) | more


@dataclass(frozen=True, slots=True)
class Operations:
    """Floating point operations of one token."""

    blocks: float
    """Forward, without attention's own products."""
    attention: float
    head: float
    weights: float
    """Gradients of trained weights."""

    @property
    def trained(self) -> float:
        """Forward and backward."""
        return 2 * (self.blocks + self.head) + (1 + ATTENTION_BACKWARD) * self.attention + self.weights

    @property
    def recomputed(self) -> float:
        return self.blocks + self.attention

    @property
    def backward_share(self) -> float:
        return 1 - (self.blocks + self.attention + self.head) / self.trained


def operations(facts: ModelFacts, row: float, trained_share: float) -> Operations:
    """Of one token in a row of `row`, of which `trained_share` have logits."""
    head = 2.0 * facts.logits * facts.text.hidden * trained_share
    added = 2.0 * facts.trainable if facts.adapters else 0.0
    trained = added if facts.adapters else (2.0 * _visited(facts) + head) * facts.trainable / facts.total
    return Operations(
        blocks=2.0 * _visited(facts) + added,
        attention=2.0 * facts.text.count * facts.text.attention * row,
        head=head,
        weights=trained,
    )


def step_cost(need: Need, device: Device, network: Network, work: Work, *, efficiency: float | None = None) -> StepCost:
    """The time of a step of a run that lies in memory as `need` says. `efficiency` is the share of the device's dense
    rate that products reach, where it was measured; else an assumed one.

    Raises ValueError where the model is of no use: see `covers`.
    """
    if not covers(need):
        raise ValueError("the cost model does not cover this run")
    facts, section = need.facts, sharding_section(need.sharding)
    share = efficiency or (EXPERTS_EFFICIENCY if facts.text.experts else EFFICIENCY)
    bandwidth = device.memory * BANDWIDTH_SHARE
    one, own = operations(facts, work.row, need.trained_share), of_a_rank(facts, need.train.expert_parallel)
    read = work.passes * _block_weights(own) * facts.compute_bytes / bandwidth
    compute = max(work.tokens * one.trained / (device.matrix * share), 2 * read)
    recompute = max(work.tokens * one.recomputed / (device.matrix * share), read) if need.recomputing else 0.0
    blocks = work.tokens * _moved_bytes(facts, work.row) / bandwidth
    logits = work.tokens * need.trained_share * LOGIT_MOVED * facts.logits / bandwidth
    between = 0.0 if facts.text.experts else blocks + logits
    if need.recomputing and not facts.text.experts:
        recompute += RECOMPUTED_SHARE * blocks
    unpack = 0.0
    if facts.unpacked_bytes:
        unpack = work.passes * (3 if need.recomputing else 2) * _unpacking_bytes(own) / bandwidth
    parts = state_parts(need.train, facts, need.sharding, need.sharers)
    communication = _communication(need, section, device, network, work.passes)
    over_nodes = _over_nodes(need, device, network)
    meeting = _collecting(need, device, network, work) + _exchanging(need, device, network, work)
    last_backward = (compute + between) * one.backward_share / max(1.0, work.passes)
    waiting = communication
    if section.overlaps == "every pass":
        waiting = max(0.0, communication - (compute + recompute + between + unpack))
        waiting += max(over_nodes / (facts.text.count + 1), over_nodes - last_backward)
    elif section.overlaps == "the last backward pass" and not need.train.meets_in_passes:
        buckets = max(1.0, 4.0 * facts.trainable // GRADIENT_BUCKET_BYTES)
        waiting -= min(communication * (1 - 1 / buckets), last_backward)
    return StepCost(
        device=device.name,
        efficiency=share,
        compute=compute,
        recompute=recompute,
        between=between,
        unpack=unpack,
        # Weights as many as gradients; both once read and once written or read again.
        optimizer=(2 * parts["optimizer"] + 4 * parts["gradients"]) / bandwidth,
        communication=communication + over_nodes + meeting,
        waiting=waiting + meeting,
        useful=work.useful,
    )


def covers(need: Need) -> bool:
    """Whether shapes say how long a step of a run takes: on GPUs, in 16 bits, with nothing offloaded or looked at, and
    without a reference that passes are made of too."""
    plain = need.facts.tower is None and need.facts.compute_bytes == 2 and need.sequences == 1
    return need.device_kind == "cuda" and plain and need.train.offload == "none" and not need.offloading


def breaks(need: Need, cost: StepCost, rows_a_step: int, limit: float) -> list[str]:
    """What keeps more processes from being of use, in words; nothing where all is well. `limit`: bytes of a device."""
    found = []
    if need.bytes > limit:
        found.append("memory")
    busy = rows_a_step * need.train.context_parallel
    if need.world_size > busy:
        found.append(f"{need.world_size - busy:,} GPUs without a row")
    if cost.waiting_share > 0.5:
        found.append("communication")
    return found


def _communication(need: Need, section: ShardingSection, device: Device, network: Network, passes: float) -> float:
    """Seconds of a step that something is on its way. The model's sums travel in float32, as engine/parallel has it."""
    ranks, facts = need.sharers, _beside_experts(need)
    if ranks == 1:
        return 0.0
    ring = partial(_ring, ranks, device, network)
    units = facts.text.count + 1
    reduced = 4.0 * facts.trainable if section.gradients_in_float32 or facts.adapters else float(facts.trained_bytes)
    if section.whole_weights:
        if "gradients" not in section.divides:
            return 2 * ring(reduced, 1)
        again = float(facts.trainable * (4 if facts.adapters else facts.compute_bytes))
        return passes * ring(reduced, 1) + ring(again, 1)
    weights = float(facts.frozen_bytes + 4 * facts.trainable)
    if not facts.adapters:
        weights = float(facts.frozen_bytes + facts.trainable * facts.compute_bytes)
    sums = 1.0 if facts.adapters and not section.divides_adapters_gradients else passes
    return 2 * passes * ring(weights, units) + sums * ring(reduced, units)


def _over_nodes(need: Need, device: Device, network: Network) -> float:
    """Seconds of the all-reduce of gradients over nodes that each have all of the model, once a step."""
    nodes = need.world_size // need.sharers
    if nodes == 1:
        return 0.0
    share = 4.0 * need.facts.trainable / need.sharers
    rate = min(device.link, network.between / need.sharers) * BANDWIDTH_SHARE
    hops = HOP_SECONDS * (need.facts.text.count + 1)
    return 2 * (nodes - 1) * (share / nodes / rate + hops)


def _collecting(need: Need, device: Device, network: Network, work: Work) -> float:
    """Seconds of a step in which processes that share passes wait for keys and values, or for gradients of these."""
    slices, facts = need.train.context_parallel, need.facts
    if slices == 1:
        return 0.0
    values = 2.0 * facts.text.count * facts.text.keys * work.tokens * slices
    forward = _ring(slices, device, network, values * facts.compute_bytes, work.passes * facts.text.count)
    backward = _ring(slices, device, network, 4 * values, work.passes * facts.text.count)
    return forward * (2 if need.recomputing else 1) + backward


def _exchanging(need: Need, device: Device, network: Network, work: Work) -> float:
    """Seconds of a step in which processes that hold experts together wait for tokens, for what becomes of them, and
    for the gradients of their experts in other groups."""
    size, facts = need.train.expert_parallel, need.facts
    if size == 1 or facts.experts is None:
        return 0.0
    inside = min(size, network.processes_a_node)
    sent = work.tokens * facts.text.experts * facts.text.hidden * _row_bytes(need) * facts.text.count
    slowest = sent * (inside - 1) / size / (device.link * BANDWIDTH_SHARE)
    if size > inside:
        card = min(device.link, network.between / network.processes_a_node)
        slowest = max(slowest, sent * (size - inside) / size / (card * BANDWIDTH_SHARE))
    hops = work.passes * facts.text.count * (size - 1) * HOP_SECONDS
    # There and back; forward, numbers of tokens go ahead of them.
    forward, backward = 2 * slowest + 3 * hops, 2 * slowest + 2 * hops
    return forward * (2 if need.recomputing else 1) + backward + _sum_of_experts(need, device, network)


def _sum_of_experts(need: Need, device: Device, network: Network) -> float:
    """Seconds of the all-reduce over the processes that hold the same trained experts, once a step."""
    size, facts = need.train.expert_parallel, need.facts
    copies = need.world_size // size
    if facts.experts is None or not facts.experts.trained or copies == 1:
        return 0.0
    rate = device.link
    if need.world_size > network.processes_a_node:  # as many rings as a node has different experts share its cards
        rate = min(rate, network.between / min(size, network.processes_a_node))
    held = facts.experts.bytes / size
    return 2 * (copies - 1) * (held / copies / (rate * BANDWIDTH_SHARE) + HOP_SECONDS)


def _row_bytes(need: Need) -> int:
    """Of one value of a token on its way to an expert: as blocks pass them on."""
    whole = sharding_section(need.sharding).whole_weights
    return need.facts.stream_bytes if whole else need.facts.compute_bytes


def _beside_experts(need: Need) -> ModelFacts:
    """The model as it is spread over all processes: without experts that lie on some of them."""
    facts = need.facts
    if need.train.expert_parallel == 1 or facts.experts is None:
        return facts
    return without_experts(facts)


def _ring(ranks: int, device: Device, network: Network, size: float, collectives: float) -> float:
    """Seconds of gathers or reduce-scatters of `size` bytes in all among neighbouring ranks."""
    rate = device.link
    if ranks > network.processes_a_node:
        rate = min(rate, network.between)
    return (ranks - 1) * (size / ranks / (rate * BANDWIDTH_SHARE) + collectives * HOP_SECONDS)


def _block_weights(facts: ModelFacts) -> float:
    """How many there are, adapters aside."""
    base = facts.total - (facts.trainable if facts.adapters else 0)
    return max(0.0, base - facts.root_bytes / facts.compute_bytes)


def _visited(facts: ModelFacts) -> float:
    """Weights of the blocks that a token is multiplied with, adapters aside."""
    return max(0.0, _block_weights(facts) - facts.idle)


def _moved_bytes(facts: ModelFacts, row: float) -> float:
    """Of a token, in all blocks, between products."""
    kept = block_bytes(facts.text, facts, round(row))
    if not facts.adapters:
        return facts.text.count * KEPT_MOVED * kept
    adapted = ADAPTED_MOVED * facts.text.adapted * facts.compute_bytes
    return facts.text.count * (KEPT_MOVED_BELOW_ADAPTERS * (kept - facts.text.adapted_bytes) + adapted)


def _unpacking_bytes(facts: ModelFacts) -> float:
    """Packed weights are read, and written in the precision of products."""
    packed = max(0.0, facts.frozen_bytes - facts.root_bytes)
    return packed + _block_weights(facts) * facts.compute_bytes
