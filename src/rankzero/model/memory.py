"""What a run takes of a device's memory, from shapes, and what follows: sharding, tokens in a pass, recomputing.

Bytes on one device, with a = trained weights, Z = processes that share them, T = tokens of a pass, h, A, I = widths of
a block's hidden state, attention and inside, L = blocks, V = vocabulary, c = bytes of a value in the precision of
matrix products:

weights      frozen as they are held (nf4: 0.516, fp8: 1.0002 bytes for each packed one); trained 4a, or 2a in bfloat16.
             Where float32 ones are computed with in bfloat16, replicas also have copies: 2a
gradients    as the trained weights; under fsdp twice that where those are bfloat16: of a pass, and the sum before it;
             under hsdp three times: what is summed over nodes is in float32, and stays until the pass is over. That
             alone is there where they are offloaded
optimizer    AdamW twice the trained weights; 8 bits: 2a and a scale for each 128 of them; kahan: 2a more.
             DeepSpeed has float32 weights of its own besides: 4a, and computes with bfloat16 ones
sharding     divides weights (fsdp, hsdp, zero3), gradients and optimizer (zero2 too) by Z, under hsdp the processes of
             a node, else all; except that adapters' gradients are summed whole under fsdp and hsdp. Two blocks and what
             is in no block are whole at a time
experts      where E processes hold them together, each has 1 / E of their weights, gradients and optimizer's state; as
             many tokens come to them as go, if routers send them evenly
activations  for each token and block, frozen under adapters: 8h + c(4A + 3I), 2ch instead of 8h where norms are torch's
             kernels, and c for each input of layers with adapters, once for all layers that have the same; c + 1 for
             each layer's where peft computes them. Trained: 16h + c(2h + 4A + 4I), and 3ch more under float32 weights
             that are rounded for products. 2I less where nothing is gated. Recomputed: each block's input, and one
             block's activations
             A block with states in the place of attention keeps 16 for each value of them
             Where S processes share a pass: 2ck(S - 1) more, keys and values of the others' tokens, k their width
logits       12 V for each trained token: as computed, in float32, their softmax, and its gradient. Where they are
             computed for some tokens at a time, those of these alone; where something behind the decoder is trained,
             beside adapters too, of h tokens at least, or 4 V for each and two gradients of what is, 8 for each of its
             weights, if that is more. A head that is copied, since rows of it are trained or it is rounded: c V h more,
             and beside the latter as much again, the copy's gradient

Where the numbers come from: adding up what the backward pass is given by each operation of transformers' blocks; a test
compares them with what torch says it keeps. Pure: knows nothing of devices but how much memory they have.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankzero.model.facts import Blocks, ModelFacts, experts_of_a_rank, of_a_rank, without_experts
from rankzero.spec.run_spec import Sharding, TrainSpec
from rankzero.spec.shardings import sharding_section

CPU_TOKENS = (1024,)
"""On a CPU longer passes win nothing more, and memory is shared with everything else."""
GPU_TOKENS = (65536, 32768, 16384, 8192, 4096, 2048, 1024)
PASSES_AT_ONCE = (2, 3)
"""On a CPU: the first that its threads can be divided by, where a pass has work enough (engine/side_by_side.py)."""
WORTH_A_THREAD = 2**32
"""Weights times tokens of a pass that is worth a thread: some tenths of a second of one core."""
CPU_PASS_COST, GPU_PASS_COST = 32, 512
"""What starting a forward and backward pass costs, in tokens: reading all weights, launching all kernels."""
USABLE = 0.85
"""Share of the memory that is planned with; the rest is for the context, fragmentation and what this leaves out."""
STATE_BYTES = 16
"""What a block without attention keeps for a value of its states: how it decays, what is added and it, in float32."""
STATISTICS = 16
"""What norms of a block keep of a token: means and deviations of two, in float32. Attention has a sum for each head."""
LOGIT_BYTES = 12
LOGITS_AT_ONCE = {"cpu": 3 * 2**21}
"""Logits that exist at once, by kind of device, where a loss is computed in parts; those of one target at least."""
OTHER_LOGITS_AT_ONCE = 2**26
GRADIENT_BUCKET_BYTES = 32 * 2**20
"""Gradients of replicas are added up in flat buckets of at most this size."""
DEEPSPEED_BUCKETS = 2 * 4 * 50_000_000
"""Two float32 buffers that gradients are reduced in, of the size that engine/parallel/zero/config.py sets."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Decisions that change speed and memory, never the maths."""

    micro_batch_tokens: int
    pass_cost_tokens: int
    gradient_checkpointing: bool
    expected_bytes: int
    """What is expected to be in use at the highest point of a step."""
    passes_at_once: int = 1
    """How many passes of a step a process computes at the same time."""


def targets_at_once(device_kind: str, vocabulary: int, trained_width: int) -> int:
    """Of how many targets there are logits at once, where a loss is computed in parts.

    Where weights behind the decoder are trained, each part adds to a gradient of their size: that takes as many targets
    as a hidden state has values (`trained_width`, else 0) to be worth it.
    """
    return max(1, LOGITS_AT_ONCE.get(device_kind, OTHER_LOGITS_AT_ONCE) // vocabulary, trained_width)


def choose_sharding(train: TrainSpec, max_length: int, facts: ModelFacts, limit: int, world_size: int) -> Sharding:
    """`train.sharding`, and for auto ddp where a replica and a row of `max_length` fit in `limit` bytes, else fsdp.

    A replica has to fit by recomputing activations at most; adamw_8bit works on whole weights, so it stays with ddp.
    `max_length` is what a process has of the longest row.
    """
    if train.sharding != "auto":
        return train.sharding
    recomputing = train.gradient_checkpointing is not False
    tokens = max(CPU_TOKENS[0] if train.micro_batch_tokens == "auto" else train.micro_batch_tokens, max_length)
    own = of_a_rank(facts, train.expert_parallel)
    of_pass = pass_bytes(max_length, own, tokens, recomputing=recomputing, slices=train.context_parallel)
    needed = state_bytes(train, facts, "ddp", 1) + of_pass
    fits = needed <= limit * USABLE
    return "ddp" if fits or world_size == 1 or train.optimizer == "adamw_8bit" else "fsdp"


def plan_memory(
    train: TrainSpec,
    max_length: int,
    facts: ModelFacts,
    limit: int,
    device_kind: str,
    *,
    sharding: Sharding,
    world_size: int,
    trained_share: float = 1.0,
) -> MemoryPlan:
    """Fill in what `train` leaves to `auto`, for rows of which a process has up to `max_length` tokens, and `limit`
    bytes of memory on the device of each process.

    `sharding` is a decided one; `world_size` as of `state_parts`. `trained_share`: the largest share of a row's
    tokens that are trained, since only those have logits. Activations are recomputed where they would not fit on the
    device, whether or not they are offloaded: what travels should be little.
    """
    held = state_bytes(train, facts, sharding, world_size, offload=device_kind != "cpu")
    wanted, choice = train.micro_batch_tokens, train.gradient_checkpointing
    candidates = GPU_TOKENS if device_kind != "cpu" else CPU_TOKENS

    def needed(tokens: int, *, recomputing: bool, offloading: bool) -> float:
        return held + pass_bytes(
            max_length,
            of_a_rank(facts, train.expert_parallel),
            max(tokens, max_length),  # a row that is longer than a pass makes a pass alone
            recomputing=recomputing,
            offloading=offloading and device_kind != "cpu",
            trained_share=trained_share,
            in_parts_on=device_kind if computes_in_parts(facts, sharding) else None,
            slices=train.context_parallel,
        )

    least = candidates[-1] if wanted == "auto" else wanted
    room = limit * USABLE
    recomputing = needed(least, recomputing=False, offloading=False) > room if choice == "auto" else choice
    offloading = train.activation_offloading
    fitting = (t for t in candidates if needed(t, recomputing=recomputing, offloading=offloading) <= room)
    tokens = next(fitting, least) if wanted == "auto" else wanted
    return MemoryPlan(
        micro_batch_tokens=tokens,
        pass_cost_tokens=CPU_PASS_COST if device_kind == "cpu" else GPU_PASS_COST,
        gradient_checkpointing=recomputing,
        expected_bytes=round(needed(tokens, recomputing=recomputing, offloading=offloading)),
    )


def computes_in_parts(facts: ModelFacts, sharding: Sharding) -> bool:
    """Whether the loss of a pass is computed some targets at a time: of heads that are whole for the moment only, those
    that are called once for all of them."""
    return facts.logits_in_parts and (facts.head_alone or sharding_section(sharding).head_stays)


def state_bytes(
    train: TrainSpec, facts: ModelFacts, sharding: Sharding, world_size: int, *, offload: bool = True
) -> float:
    """What is on a process's device all through a step: the sum of `state_parts`."""
    return sum(state_parts(train, facts, sharding, world_size, offload=offload).values())


def state_parts(
    train: TrainSpec, facts: ModelFacts, sharding: Sharding, world_size: int, *, offload: bool = True
) -> dict[str, float]:
    """Bytes of weights, their copies in the precision of products, what they are compared with as they were, gradients
    and the optimizer's state, by these names.

    With what sharding has whole at a time, its buffers, and the weight that is unpacked. `world_size`: how many
    processes have what is divided between them. `offload`: whether train.offload takes anything off the device.
    """
    section, together = sharding_section(sharding), train.expert_parallel
    if together > 1 and section.divides:  # the rest is divided among all, and experts are not
        alone = train.model_copy(update={"expert_parallel": 1})
        rest = state_parts(alone, without_experts(facts), sharding, world_size, offload=offload)
        own = state_parts(alone, experts_of_a_rank(facts, together), "ddp", 1, offload=offload)
        return {name: part + own[name] for name, part in rest.items()}
    facts = of_a_rank(facts, together)
    kept_off = train.offload if offload else "none"
    weights, gradients, optimizer = (
        float(facts.trained_bytes),
        float(facts.trained_bytes),
        _optimizer_bytes(train, facts),
    )
    copies, frozen = 0.0, float(facts.frozen_bytes)
    if section.own_masters and not facts.adapters:
        weights, gradients = float(facts.trainable * facts.compute_bytes), 4.0 * facts.trainable
    if section.own_masters:
        optimizer = 4.0 * facts.trainable + 8.0 * facts.trainable
    elif not section.divides and facts.float32_masters and not facts.adapters:
        copies = float(facts.trainable * facts.compute_bytes)
        frozen *= 1 if facts.float16 else facts.compute_bytes / 4  # engine/parallel/masters.py
    reference = 0.0
    if facts.keeps_reference:  # of what is computed with, which in float16 is rounded in each pass
        reference = copies if copies and not facts.float16 else weights
    weights += frozen
    if "weights" in section.divides:
        weights, reference = weights / world_size, reference / world_size
    if "gradients" in section.divides and (section.divides_adapters_gradients or not facts.adapters):
        gradients /= world_size
        if _in_bfloat16(facts) and not section.own_masters:
            gradients *= 2 if section.within is None else 3
    if "optimizer" in section.divides:
        optimizer /= world_size
    if kept_off != "none":
        optimizer = 0.0
        gradients = 0.0 if section.within is None or facts.adapters else 4.0 * facts.trainable / world_size
    if kept_off == "all":
        weights = 0.0
    # What is kept in float32 each process has whole, on its device, and what that is compared with as well.
    uncut = (1.0 if kept_off == "all" else 1 - 1 / world_size) if section.cut_by_block else 0.0
    whole = 0.0 if section.whole_weights else _whole_bytes(facts)
    buckets = DEEPSPEED_BUCKETS if section.buckets else 0.0
    return {
        "weights": weights + uncut * 4 * (facts.kept_frozen + facts.kept_trained),
        "copies": copies,
        "reference": reference + (uncut * 4 * facts.kept_trained if facts.keeps_reference else 0),
        "gradients": gradients + uncut * 4 * facts.kept_trained,
        "optimizer": optimizer + uncut * 8 * facts.kept_trained,
        "gathered": whole,
        "buffers": buckets,
        "unpacked": float(facts.unpacked_bytes),
    }


def pass_bytes(
    max_length: int,
    facts: ModelFacts,
    tokens: int,
    *,
    recomputing: bool,
    offloading: bool = False,
    trained_share: float = 1.0,
    in_parts_on: str | None = None,
    slices: int = 1,
) -> float:
    """What a forward and backward pass over `tokens` adds, all of them in rows of `max_length` at most: the sum of
    `pass_parts`."""
    parts = pass_parts(
        max_length,
        facts,
        tokens,
        recomputing=recomputing,
        offloading=offloading,
        trained_share=trained_share,
        in_parts_on=in_parts_on,
        slices=slices,
    )
    return sum(parts.values())


def pass_parts(
    max_length: int,
    facts: ModelFacts,
    tokens: int,
    *,
    recomputing: bool,
    offloading: bool = False,
    trained_share: float = 1.0,
    in_parts_on: str | None = None,
    slices: int = 1,
) -> dict[str, float]:
    """Bytes of activations and logits, by these names.

    `offloading` leaves the activations of two blocks on the device, or the inputs of two. `in_parts_on` is the kind of
    device, where the loss is computed some targets at a time; None: all at once. `slices`: so many processes have as
    many tokens of the same pass each.
    """
    row, total = min(tokens, max_length), 0.0
    for blocks, share in ((facts.text, 1), (facts.tower, facts.patches)):
        if blocks is None:
            continue
        one = tokens * share * (block_bytes(blocks, facts, row) + 2 * facts.compute_bytes * blocks.keys * (slices - 1))
        given = tokens * share * blocks.hidden * facts.stream_bytes
        stay = min(2, blocks.count) if offloading else blocks.count
        total += given * stay + one if recomputing else one * stay
        total += blocks.remade_bytes * (1 + (1 if recomputing else blocks.count)) if blocks.remade_bytes else 0
    return {"activations": total, "logits": _logit_bytes(facts, tokens * trained_share, in_parts_on)}


def _logit_bytes(facts: ModelFacts, targets: float, in_parts_on: str | None) -> float:
    """Of the logits of so many targets, with copies and gradients of weights that make them."""
    gradients = 0
    if in_parts_on is not None and facts.logits:
        at_once = targets_at_once(in_parts_on, facts.logits, facts.text.hidden if facts.behind else 0)
        if targets > at_once:
            targets, gradients = at_once, 8 * facts.behind
    copy = facts.compute_bytes * facts.head_copied
    return max(LOGIT_BYTES * facts.logits * targets + copy, 4 * facts.logits * targets + 2 * copy + gradients)


def block_bytes(blocks: Blocks, facts: ModelFacts, row: int) -> float:
    """What one block keeps for the backward pass of one token, in a row of `row` tokens."""
    c, h = facts.compute_bytes, blocks.hidden
    if facts.adapters:
        kept = blocks.norm_bytes * (2 * h + blocks.normed) + blocks.adapted_bytes
        kept += c * (4 * blocks.attention + blocks.inside_kept * blocks.intermediate)
        kept += STATISTICS + 4 * blocks.heads
    else:
        wide = facts.stream_bytes > c
        rounded = 5 * h if wide else 2 * h
        inner = facts.stream_bytes if blocks.experts else c  # experts' weights are not rounded for their products
        # A trained norm keeps its input and what it multiplies with its weight; in one kernel it keeps its input alone.
        held = 4 if wide else blocks.norm_bytes
        normed = held * (2 * h + blocks.normed)
        kept = (normed + STATISTICS if held < 4 else 2 * normed) + c * (rounded + 4 * blocks.attention)
        kept += inner * (blocks.inside_kept + 1) * blocks.intermediate
    kept += 2 * blocks.experts * h * facts.stream_bytes  # each expert is given a token, and gives one
    kept += STATE_BYTES * blocks.states
    return kept + (blocks.heads * row * (4 + c) if facts.eager else 0)


def checkpoint_bytes(train: TrainSpec, facts: ModelFacts) -> int:
    """What a checkpoint takes on disk: weights as they are held, without a frozen base beneath adapters, and the
    optimizer's state. DeepSpeed's has all weights in float32."""
    whole = sharding_section(train.sharding).own_masters
    frozen = 4 * (facts.total - facts.trainable) if whole else facts.frozen_bytes
    masters = 4 * facts.trainable if whole else 0
    return round(facts.trained_bytes + _optimizer_bytes(train, facts)) + masters + (0 if facts.adapters else frozen)


def _optimizer_bytes(train: TrainSpec, facts: ModelFacts) -> float:
    if train.optimizer == "adamw_8bit":
        return facts.trainable * (2 + 2 * 4 / 256)
    compensation = facts.trained_bytes if train.master_weights == "kahan" and _in_bfloat16(facts) else 0
    return 2.0 * facts.trained_bytes + compensation


def _in_bfloat16(facts: ModelFacts) -> bool:
    """Whether trained weights are held so."""
    return facts.trained_bytes < 4 * facts.trainable


def _whole_bytes(facts: ModelFacts) -> float:
    """What a sharded run gathers: two blocks, one of them ahead, and what is in none; where trained, gradients too."""
    weights = 2 * facts.block_bytes + facts.root_bytes
    return weights if facts.adapters else weights + facts.block_bytes + facts.root_bytes
