"""What the spec knows of each way to lay a model over processes: what it divides, offloads, and cannot do. Pure.

A sharding is its section here and the module in engine/parallel/ that has its function `spread`. Everything else asks
what a sharding does, never which one it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Divided = Literal["weights", "gradients", "optimizer"]


@dataclass(frozen=True, slots=True)
class ShardingSection:
    """One sharding. `Refusal` values are what an error says, and its hint."""

    module: str
    """Where `spread` is, in engine/parallel/."""
    divides: frozenset[Divided] = frozenset()
    """What each process holds its share of alone."""
    divides_adapters_gradients: bool = True
    """Of a run with adapters, gradients are divided too."""
    own_masters: bool = False
    """It keeps float32 copies of trained weights itself, and casts what it computes with."""
    scales_losses: bool = True
    """float16 can be trained in."""
    packed_weights: bool = True
    """Weights in 4 or 8 bits may be spread."""
    reads_deepspeed_file: bool = False
    cut_by_block: bool = False
    """Each block is placed, cut and let go before the next one, in the precision that it is trained in."""
    buckets: bool = False
    """It gathers gradients in buffers of its own."""
    gathered_by_call: bool = False
    """A layer's weights are there while it is called: no other layer computes with them."""
    head_stays: bool = True
    """What a model computes with behind its decoder is whole from its forward pass to its backward pass."""
    overlaps: Literal["nothing", "the last backward pass", "every pass"] = "nothing"
    """Beside what it sends weights and gradients."""
    gradients_in_float32: bool = False
    """Gradients are summed over processes in float32, whatever trained weights are held in."""
    beside_experts: str | None = None
    """Where `spread` is for all but experts, which then lie on some processes whole; None: they are spread with the
    rest."""
    within: str | None = None
    """What it is within a node, where each node has all of the model; None: what is divided, all processes divide."""
    alone: str | None = None
    """What it is on one process, where that is something else."""
    refused_offload: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def whole_weights(self) -> bool:
        """Each process has all weights all the time."""
        return "weights" not in self.divides

    def sharers(self, processes: int, processes_a_node: int) -> int:
        """How many of so many processes have what is divided between them."""
        return processes if self.within is None else min(processes, processes_a_node)


_NEEDS = "set train.sharding to fsdp, zero2 or zero3, or leave offload out"
_UNSPREAD = {offload: ("offload needs sharding, which is {sharding}", _NEEDS) for offload in ("optimizer", "all")}
_ALL = frozenset[Divided](("weights", "gradients", "optimizer"))

_FSDP = ShardingSection(
    "fsdp",
    divides=_ALL,
    divides_adapters_gradients=False,
    cut_by_block=True,
    beside_experts="fsdp",
    overlaps="every pass",
    gradients_in_float32=True,
    alone="ddp",
    refused_offload={
        "optimizer": (
            "{sharding} cannot offload the optimizer's state alone",
            "it keeps all of it there (offload: all); zero2 and zero3 can keep the optimizer's state alone",
        )
    },
)

SHARDINGS: dict[str, ShardingSection] = {
    "ddp": ShardingSection(
        "replicas", overlaps="the last backward pass", beside_experts="experts", refused_offload=_UNSPREAD
    ),
    "fsdp": _FSDP,
    "hsdp": replace(_FSDP, module="hsdp", beside_experts=None, within="fsdp"),
    "zero2": ShardingSection(
        "zero.parallel",
        divides=frozenset(("gradients", "optimizer")),
        own_masters=True,
        scales_losses=False,
        reads_deepspeed_file=True,
        buckets=True,
        gradients_in_float32=True,
        refused_offload={"all": ("ZeRO-2 has whole weights on every GPU", "take offload: optimizer, or zero3")},
    ),
    "zero3": ShardingSection(
        "zero.parallel",
        divides=_ALL,
        own_masters=True,
        gathered_by_call=True,
        head_stays=False,
        scales_losses=False,
        packed_weights=False,
        reads_deepspeed_file=True,
        buckets=True,
        overlaps="every pass",
        gradients_in_float32=True,
    ),
}
UNDECIDED = ShardingSection("", beside_experts="experts", refused_offload=_UNSPREAD)
"""Of `auto`, until memory has decided."""


def with_copies(name: str) -> str | None:
    """The sharding that is this one within each node; None where there is none."""
    return next((other for other, section in SHARDINGS.items() if section.within == name), None)


def sharding_section(name: str) -> ShardingSection:
    """The section of a sharding, or of `auto`."""
    return SHARDINGS.get(name, UNDECIDED)
