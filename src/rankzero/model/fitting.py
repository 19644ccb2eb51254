"""Whether a run fits into a device's memory, and what would make it fit: each setting tried on the plan, the cheapest
first. Pure: knows what bytes there are because it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rankzero.errors import ConfigError, RankzeroError
from rankzero.model.facts import ModelFacts, of_a_rank
from rankzero.model.memory import CPU_TOKENS, GPU_TOKENS, computes_in_parts, pass_parts, state_parts
from rankzero.spec.run_spec import Sharding, TrainSpec
from rankzero.spec.shardings import sharding_section

MOST_WAYS = 3
GB = 10**9
_BETWEEN_STEPS = ("weights", "copies", "reference", "optimizer", "buffers")
"""Parts that are held all through a run; the others come and go with each step."""


@dataclass(frozen=True, slots=True)
class Need:
    """What decides how much memory a run takes."""

    train: TrainSpec
    facts: ModelFacts
    longest: int
    """Tokens of the longest row, as many of them as a process has."""
    tokens: int
    """Of a pass, as planned."""
    recomputing: bool
    offloading: bool
    sharding: Sharding
    world_size: int
    device_kind: str
    trained_share: float
    sequences: int = 1
    """That a row becomes."""
    processes_a_node: int | None = None
    """None: all processes are on one."""
    passes_at_once: int = 1
    """Each of `tokens`."""
    pass_scale: float = 1.0
    """What a pass was found to take ÷ the sums of model/memory.py; 1 where none was simulated."""

    @property
    def tokens_at_once(self) -> int:
        """Of the largest pass, which holds no more than a step does."""
        return max(self.longest, min(self.tokens, self.longest * self.train.global_batch_size))

    @property
    def sharers(self) -> int:
        """The processes that have what is divided between them."""
        section = sharding_section(self.sharding)
        return section.sharers(self.world_size, self.processes_a_node or self.world_size)

    @property
    def bytes(self) -> float:
        """At the highest point of a step, on one device."""
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, float]:
        """The same by what it is for."""
        of_pass = {name: part * self.pass_scale for name, part in self._pass().items()}
        return self._held() | of_pass

    @property
    def host_bytes_of_a_step(self) -> float:
        """Of the host's memory, what a step takes beyond what is held between two; none of a GPU's own."""
        if self.device_kind == "cuda":
            return 0.0
        return sum(part for name, part in self.parts.items() if name not in _BETWEEN_STEPS)

    def with_pass(self, found: int) -> Need:
        """Where a pass was found to take `found` bytes beside weights, gradients and optimizer: rounded copies of
        weights and what is unpacked for the moment included, which stay parts of their own."""
        held = self._held()
        of_pass = max(0.0, found - held["copies"] - held["unpacked"]) * self.passes_at_once
        return replace(self, pass_scale=of_pass / sum(self._pass().values()))

    def _held(self) -> dict[str, float]:
        on_device = self.device_kind != "cpu"
        parts = state_parts(self.train, self.facts, self.sharding, self.sharers, offload=on_device)
        if self.passes_at_once > 1:  # of each, until it is added, and of one that is over before its turn
            parts["gradients"] += (self.passes_at_once + 1) * self.facts.trained_bytes
        return parts

    def _pass(self) -> dict[str, float]:
        of_one = pass_parts(
            self.longest,
            of_a_rank(self.facts, self.train.expert_parallel),
            self.tokens_at_once,
            recomputing=self.recomputing,
            offloading=self.offloading and self.device_kind != "cpu",
            trained_share=self.trained_share,
            in_parts_on=self.device_kind if computes_in_parts(self.facts, self.sharding) else None,
            slices=self.train.context_parallel,
        )
        return {name: part * self.passes_at_once for name, part in of_one.items()}


@dataclass(frozen=True, slots=True)
class Way:
    """One setting that takes less, and the run with it."""

    setting: str
    change: Callable[[Need], Need]


def require_room(need: Need, limit: int, free: int, *, packed: Callable[[], ModelFacts] | None, where: str) -> None:
    """Raise ConfigError where `need` is more than `limit`, the bytes that a process may have at all: with up to three
    ways out. Raise RankzeroError, which a restart may cure, where it is more than is `free` now; 0: not known.

    `packed` makes the facts of the model in 4 bits, where that is possible.
    """
    needed = need.bytes
    if needed > limit:
        what = f"the run is expected to need {needed / GB:.3g} GB, and there are {limit / GB:.3g} GB"
        raise ConfigError(what, where=where, hint=ways_out(need, limit, packed))
    if free and needed > free:
        what = f"the run is expected to need {needed / GB:.3g} GB; of {limit / GB:.3g} GB {free / GB:.3g} are free"
        raise RankzeroError(what, where=where, hint="wait for, or end, what else uses this memory; then start it again")


def ways_out(need: Need, limit: int, packed: Callable[[], ModelFacts] | None) -> str:
    """A hint: settings that make it fit, each with the cheaper ones that it takes besides; or what is still needed."""
    ways, found = list(_ways(need, limit, packed)), list[tuple[list[str], float]]()
    for number, way in enumerate(ways):
        changed, settings = way.change(need), [way.setting]
        for cheaper in ways[:number]:
            if changed.bytes > limit:
                changed = cheaper.change(changed)
                settings.append(cheaper.setting)
        dearer_than_one = any(set(known) <= set(settings) for known, _ in found)
        if changed.bytes <= limit and not dearer_than_one:
            found.append((settings, changed.bytes))
    if found:
        words = [f"{' with '.join(settings)} ({size / GB:.3g} GB)" for settings, size in found[:MOST_WAYS]]
        return f"set {'; or '.join(words)}"
    for way in ways:
        need = way.change(need)
    settings = [way.setting for way in ways]
    return f"{', '.join(settings)}: all together still {need.bytes / GB:.3g} GB; take a smaller model or more memory"


def _ways(need: Need, limit: int, packed: Callable[[], ModelFacts] | None) -> Iterator[Way]:
    """Those that are not taken already, the cheapest first: in time, then in what is learned."""
    candidates = CPU_TOKENS if need.device_kind == "cpu" else GPU_TOKENS
    smaller = [max(tokens, need.longest) for tokens in candidates if max(tokens, need.longest) < need.tokens]
    if smaller or need.longest < need.tokens:
        sizes = [*smaller, need.longest]
        tokens = next((size for size in sizes if replace(need, tokens=size).bytes <= limit), need.longest)
        yield Way(f"train.micro_batch_tokens: {tokens}", lambda now: replace(now, tokens=tokens))
    if not need.recomputing:
        yield Way("train.gradient_checkpointing: true", lambda now: replace(now, recomputing=True))
    divisible = need.sharding == "ddp" and need.train.optimizer != "adamw_8bit"
    if need.world_size > 1 and (divisible or need.sharers < need.world_size):
        yield Way("train.sharding: fsdp", lambda now: replace(now, sharding="fsdp"))
    if need.device_kind != "cpu" and not need.offloading:
        yield Way("train.activation_offloading: true", lambda now: replace(now, offloading=True))
    if packed is not None:
        yield Way("model.quantization: nf4", lambda now: replace(now, facts=packed()))
    if not need.facts.adapters:
        yield Way("lora: {r: 16}", lambda now: replace(now, facts=_with_adapters(now.facts)))
    if need.longest > 1:
        yield Way(f"data.max_length: {need.longest * need.train.context_parallel // (2 * need.sequences)}", _halved)


def _halved(need: Need) -> Need:
    return replace(need, longest=need.longest // 2)


def _with_adapters(facts: ModelFacts) -> ModelFacts:
    """The same model with adapters of a hundredth of its weights, more than rank 16 usually has."""
    trainable = facts.total // 100
    changes: dict[str, Any] = {"frozen_bytes": facts.total * facts.compute_bytes, "trained_bytes": 4 * trainable}
    if facts.experts is not None:
        held = facts.experts.weights * facts.compute_bytes
        changes["experts"] = replace(facts.experts, trained=False, bytes=held)
    return replace(facts, adapters=True, keeps_reference=False, trainable=trainable, **changes)
