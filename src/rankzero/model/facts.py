"""What a model's shapes say about the memory that it takes: weights as they are held, and the widths of its blocks.

Values alone. `shapes.py` reads them off a model without memory, `stored_facts.py` off a directory's headers, without
torch. Knows nothing of devices, processes or the plan that is made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rankzero.spec.run_spec import RunSpec
from rankzero.spec.shardings import sharding_section

PACKED_BYTES = {"none": 0.0, "nf4": 1 / 2 + 1 / 64 + 4 / (64 * 256), "fp8": 1 + 4 / 128**2}
"""Bytes of a packed weight. nf4: 4 bits, an 8-bit scale for 64 weights, a float32 for 256 scales. fp8: 8 bits, a
float32 for 128 x 128 weights."""
IN_SEVERAL_STEPS = ("gelu_new", "gelu_fast", "gelu_accurate")
"""Activations that transformers computes by several operations, which keep four values."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A stack of transformer blocks. Widths are in values for each token (or image patch)."""

    count: int
    hidden: int
    attention: int
    """Query heads x size of a head."""
    intermediate: int
    """Inside of the feed-forward part; in a mixture, of all experts that a token visits together."""
    inside_kept: int = 3
    """How many values so wide an activation keeps: of a gated one three, of GELU its input."""
    normed: int = 0
    """Queries and keys, where these have norms of their own."""
    experts: int = 0
    """How many experts a token visits; 0 in dense blocks."""
    heads: int = 1
    keys: int = 0
    """Heads of keys x size of a head."""
    adapted_bytes: int = 0
    """What the layers of a block that have adapters keep of their inputs."""
    adapted: int = 0
    """How many values for each token these layers are given and give, together."""
    norm_bytes: int = 4
    """What a norm keeps of a value: its copy in float32, or what it was given."""
    remade_bytes: int = 0
    """Weights of a block that adapters make anew in every pass: those of experts that are one tensor."""
    states: int = 0
    """Of a block that has states in the place of attention: their values for each token."""


@dataclass(frozen=True, slots=True)
class Fused:
    """Which layers a run computes in one step each, on the device of its processes."""

    adapters: bool = True
    """With their inputs kept once for all that have the same ones (model/fused_lora.py)."""
    norms: bool = False
    """In torch's kernel (model/norms.py)."""


@dataclass(frozen=True, slots=True)
class Experts:
    """All experts among which a model's routers choose, adapters on them aside."""

    weights: int
    bytes: int
    """As they are held, packed where they are quantised."""
    trained: bool
    unpacked_beside: int = 0
    """The largest packed weight that is none of theirs, unpacked."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model with its adapters, or with what is not trained frozen. All bytes are of the whole model."""

    total: int
    trainable: int
    frozen_bytes: int
    """Frozen weights as they are held, packed where they are quantised."""
    trained_bytes: int
    """Trained weights as they are held."""
    block_bytes: int
    """Weights of the largest block, as they are computed with: what a sharded run has whole at a time."""
    root_bytes: int
    """Weights outside all blocks, likewise: embeddings, heads, projectors."""
    unpacked_bytes: int
    """The largest packed weight, unpacked; 0 where none is packed."""
    adapters: bool
    compute_bytes: int
    """Of one value in the precision of matrix products."""
    text: Blocks
    tower: Blocks | None
    """A vision tower that is trained or has adapters. One that is frozen keeps nothing for a backward pass."""
    patches: int
    """Patches that an image token is made of."""
    logits: int
    """Values that are predicted for a trained token: the vocabulary. 0 for a classifier, which predicts once a row."""
    eager: bool
    """Whether attention keeps its weights, one for each pair of tokens."""
    idle: int = 0
    """Weights of experts that a token does not visit."""
    experts: Experts | None = None
    float16: bool = False
    """Whether it computes in float16, whose range sums between blocks may leave."""
    logits_in_parts: bool = False
    """Whether logits of some targets at a time are enough (model/chunked_loss.py), where a replica computes them."""
    behind: int = 0
    """Trained weights behind the decoder: of the head, of a copy of it, of adapters or single rows on it."""
    head_copied: int = 0
    """Weights of a head that every pass copies: with trained rows in it, or rounded for products."""
    keeps_reference: bool = False
    """Whether trained weights lie there as they were before training, too (engine/reference_weights.py)."""
    kept_frozen: int = 0
    """Weights that are float32 where the rest is computed with in bfloat16, in a full fine-tune; FSDP2 leaves those
    uncut."""
    kept_trained: int = 0
    """Those of them that are trained."""
    head_alone: bool = True
    """Whether nothing behind the decoder has weights but the head: no copy of it (`lora.modules_to_save`) above all."""

    @property
    def float32_masters(self) -> bool:
        """Whether trained weights have more bytes than they are computed with."""
        computed = self.trainable * self.compute_bytes + self.kept_trained * (4 - self.compute_bytes)
        return self.trained_bytes > computed

    @property
    def stream_bytes(self) -> int:
        """Of one value between blocks of a replica: in float16, float32 weights make float32 sums."""
        wide = self.float16 and self.float32_masters and not self.adapters
        return 4 if wide else self.compute_bytes


NOT_ON_A_GPU = Fused()


def fused_of(spec: RunSpec, device_kind: str) -> Fused:
    """Of a run on such devices. Compiled blocks choose for themselves what they keep."""
    compiled, lora = spec.train.torch_compile, spec.lora
    by_peft = sharding_section(spec.train.sharding).gathered_by_call or (lora is not None and lora.use_dora)
    return Fused(adapters=not compiled and not by_peft, norms=device_kind == "cuda" and not compiled)


def adapted_bytes(inputs: Mapping[str, int], blocks: int, compute: int, fused: Fused, rank: int) -> int:
    """What the layers of one of so many blocks keep, from the widths of their inputs by name: these, and `rank` values
    each. Layers side by side whose inputs are as wide have the same one."""
    if fused.adapters:
        together = {(name.rpartition(".")[0], width): width for name, width in inputs.items()}
        kept = compute * (sum(together.values()) + rank * len(inputs))
    else:
        kept = (compute + 1) * sum(inputs.values())
    return -(-kept // max(blocks, 1))


def of_a_rank(facts: ModelFacts, ranks: int) -> ModelFacts:
    """Of a model of which a rank has one of `ranks` equal parts of the experts, and all of the rest."""
    experts = facts.experts
    if experts is None or ranks == 1:
        return facts
    # A packed tensor of experts is unpacked as far as it is here.
    unpacked = max(facts.unpacked_bytes // ranks, experts.unpacked_beside)
    remade = facts.text.remade_bytes // ranks
    away = experts.weights - experts.weights // ranks, experts.bytes - experts.bytes // ranks
    return _less(facts, experts, *away, unpacked=unpacked, remade=remade)


def without_experts(facts: ModelFacts) -> ModelFacts:
    """What a model has beside its experts."""
    experts = facts.experts
    if experts is None:
        return facts
    return _less(facts, experts, experts.weights, experts.bytes, unpacked=experts.unpacked_beside, remade=0)


def experts_of_a_rank(facts: ModelFacts, ranks: int) -> ModelFacts:
    """What `of_a_rank` has more than `without_experts`: a rank's part of the experts, and nothing else."""
    own, beside = of_a_rank(facts, ranks), without_experts(facts)
    return replace(
        own,
        total=own.total - beside.total,
        trainable=own.trainable - beside.trainable,
        trained_bytes=own.trained_bytes - beside.trained_bytes,
        frozen_bytes=own.frozen_bytes - beside.frozen_bytes,
        unpacked_bytes=own.unpacked_bytes - beside.unpacked_bytes,
        block_bytes=own.block_bytes - beside.block_bytes,
        root_bytes=0,
    )


def _less(facts: ModelFacts, experts: Experts, weights: int, held: int, *, unpacked: int, remade: int) -> ModelFacts:
    """Without so many weights of experts, and the bytes that they are held in."""
    computed = held if facts.adapters else weights * facts.compute_bytes
    return replace(
        facts,
        total=facts.total - weights,
        trainable=facts.trainable - (weights if experts.trained else 0),
        trained_bytes=facts.trained_bytes - (held if experts.trained else 0),
        frozen_bytes=facts.frozen_bytes - (0 if experts.trained else held),
        block_bytes=facts.block_bytes - computed // facts.text.count,
        unpacked_bytes=unpacked,
        text=replace(facts.text, remade_bytes=remade),
    )
