"""The forecast of a run, as one value: made from the model's facts, the rows and the place where it will run. Pure."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from rankzero.data.cache.training_data import TrainingData
from rankzero.errors import ConfigError
from rankzero.forecast.conditions import Conditions
from rankzero.forecast.cost import StepCost, Work, covers, step_cost
from rankzero.forecast.devices import Network, find_device
from rankzero.forecast.rows import RowFacts, facts_of_rows, passes_a_step
from rankzero.model.facts import ModelFacts
from rankzero.model.fitting import Need
from rankzero.model.memory import (
    PASSES_AT_ONCE,
    USABLE,
    WORTH_A_THREAD,
    MemoryPlan,
    checkpoint_bytes,
    choose_sharding,
    plan_memory,
)
from rankzero.spec.run_spec import Every, RunSpec, Sharding
from rankzero.spec.schedule import Schedule, make_schedule
from rankzero.spec.shardings import sharding_section, with_copies

SURELY_FASTER = 0.1
"""Share of a step's time that recomputing has to save by shapes to be chosen: less is within their error."""


@dataclass(frozen=True, slots=True)
class Place:
    """What each process of a run has. Bytes; 0 where nobody knows."""

    kind: str
    """torch's name of the device: cpu, cuda."""
    name: str
    limit: int
    """Memory that a process may have at all."""
    free: int
    """Of that, what is free now."""
    world_size: int
    network: Network | None = None
    """None where nobody knows how many processes a node has, or what lies between nodes."""
    threads: int = 1
    """On a CPU: of each process."""

    @property
    def processes_a_node(self) -> int:
        """All of them where nobody knows."""
        return self.world_size if self.network is None else self.network.processes_a_node


@dataclass(frozen=True, slots=True)
class MemoryOutlook:
    """How the run lies in memory: decisions, and what they come to."""

    sharding: Sharding
    plan: MemoryPlan
    need: Need
    basis: str = "sums"
    """What the memory of a pass is known by: sums over shapes, or a simulated pass."""
    for_speed: bool = False
    """Activations are recomputed though they could stay."""


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes below the output directory."""

    checkpoint: int
    """One of them."""
    checkpoints: int
    """How many there are at once at most."""
    result: int
    free: int
    """0 where nobody knows."""

    @property
    def needed(self) -> int:
        return self.checkpoint * self.checkpoints + self.result


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run will take."""

    run: str
    model: str
    method: str
    precision: str
    """Of matrix products."""
    facts: ModelFacts
    rows: RowFacts
    rows_a_step: int
    schedule: Schedule | None
    """None where rows are not counted yet and no number of steps is set."""
    passes: float | None
    """A step's, of the process that has the most."""
    memory: MemoryOutlook
    place: Place
    disk: Disk
    rate: float | None
    """Tokens a second of the last run of this shape on this machine."""
    done: int = 0
    """Steps that a checkpoint has already."""
    estimate: StepCost | None = None
    """A step's time by shapes, of which nothing was measured; None where they do not say it."""

    @property
    def seconds(self) -> float | None:
        """Of the steps that are left; evaluations and saving come on top. By the rate of the last run of this shape,
        else by shapes; None where neither is known."""
        rate = self.rate or (None if self.estimate is None else self.estimate.tokens_per_second)
        if rate is None or self.schedule is None or not self.rows.rows or self.rows.tokens is None:
            return None
        share = (self.schedule.total_steps - self.done) / self.schedule.steps_per_epoch
        return self.rows.tokens * max(0.0, share) / rate

    def __repr__(self) -> str:
        """The lines that `--dry-run` prints."""
        from rankzero.forecast.text import printed

        return "\n".join(printed(self, terminal=False, width=80))

    def to_json(self) -> dict[str, Any]:
        """For programs: all numbers, bytes and seconds."""
        memory = self.memory
        return {
            "run": self.run,
            "model": self.model,
            "method": self.method,
            "precision": self.precision,
            "parameters": self.facts.total,
            "trainable_parameters": self.facts.trainable,
            "rows": asdict(self.rows),
            "rows_a_step": self.rows_a_step,
            "steps": None if self.schedule is None else self.schedule.total_steps,
            "steps_done": self.done,
            "passes_a_step": self.passes,
            "pass_tokens": memory.plan.micro_batch_tokens,
            "recomputing": memory.need.recomputing,
            "recomputing_for_speed": memory.for_speed,
            "sharding": memory.sharding,
            "place": asdict(self.place),
            "memory": {name: round(size) for name, size in memory.need.parts.items()},
            "memory_needed": round(memory.need.bytes),
            "memory_basis": memory.basis,
            "disk": {**asdict(self.disk), "needed": self.disk.needed},
            "tokens_per_second": self.rate,
            "seconds": self.seconds,
            "step_by_shapes": None if self.estimate is None else self.estimate.to_json(),
        }


def method_of(spec: RunSpec) -> str:
    """What is trained, in a few words."""
    if spec.lora is None:
        return "full fine-tuning"
    kind = "DoRA" if spec.lora.use_dora else "LoRA"
    packed = "" if spec.model.quantization == "none" else f" over {spec.model.quantization}"
    return f"{kind} r={spec.lora.r}{packed}"


def outlook(spec: RunSpec, facts: ModelFacts, rows: RowFacts, place: Place) -> MemoryOutlook:
    """Sharding, passes and what they need of a place's memory, as a run decides them. Where weights are spread, two
    things are done if they make a step faster by far: activations that could stay are recomputed for larger passes,
    which gather weights less often; and where the spec leaves it open, each node gets all of a model that fits into
    it. Raises ConfigError where a single process is to offload and cannot."""
    slices, train = spec.train.context_parallel, spec.train
    facts = replace(facts, keeps_reference=spec.keeps_reference)
    max_length = -(-spec.row_length // slices)
    trained_share = min(1.0, rows.trained_share * slices)  # all that is trained of a row may lie on one process
    sharding = at_place(choose_sharding(train, max_length, facts, place.limit, place.world_size), spec, place)

    def laid(recomputing: Literal["auto"] | bool, sharding: Sharding = sharding) -> MemoryOutlook:
        sharers = sharding_section(sharding).sharers(place.world_size, place.processes_a_node)
        plan = plan_memory(
            train.model_copy(update={"gradient_checkpointing": recomputing}),
            max_length,
            facts,
            place.limit,
            place.kind,
            sharding=sharding,
            world_size=sharers,
            trained_share=trained_share,
        )
        need = Need(
            train,
            facts,
            longest=-(-rows.longest // slices),
            tokens=plan.micro_batch_tokens,
            recomputing=plan.gradient_checkpointing,
            offloading=train.activation_offloading,
            sharding=sharding,
            world_size=place.world_size,
            device_kind=place.kind,
            trained_share=trained_share,
            sequences=spec.task_section.sequences,
            processes_a_node=place.processes_a_node,
        )
        return MemoryOutlook(sharding, plan, need)

    def seconds(found: MemoryOutlook) -> float:
        cost = of_equal_rows(found.need, place, rows, train.global_batch_size)
        return math.inf if cost is None else cost.seconds

    def for_speed(kept: MemoryOutlook) -> MemoryOutlook:
        """The same, or with activations recomputed."""
        if train.gradient_checkpointing != "auto" or kept.plan.gradient_checkpointing:
            return kept
        if sharding_section(kept.sharding).whole_weights:
            return kept
        recomputed = replace(laid(True, kept.sharding), for_speed=True)
        return recomputed if surely_faster(recomputed, kept) else kept

    def surely_faster(one: MemoryOutlook, other: MemoryOutlook) -> bool:
        return seconds(one) <= (1 - SURELY_FASTER) * seconds(other) < math.inf

    chosen, copies = for_speed(laid(train.gradient_checkpointing)), with_copies(sharding)
    if train.sharding != "auto" or copies is None or not _has_nodes(place) or train.expert_parallel > 1:
        return _side_by_side(chosen, spec, place)
    in_each_node = for_speed(laid(train.gradient_checkpointing, copies))
    fits = in_each_node.need.bytes <= place.limit * USABLE
    return in_each_node if fits and surely_faster(in_each_node, chosen) else chosen


def _side_by_side(one_by_one: MemoryOutlook, spec: RunSpec, place: Place) -> MemoryOutlook:
    """The same, or on a CPU with several passes at a time, as long in all as one would be; a row that is longer makes
    one alone. Only where nothing but text goes through the model, and there is memory for gradients of each pass; and
    of several processes, which add up gradients beside the last pass, where those are few."""
    need, plan, facts = one_by_one.need, one_by_one.plan, one_by_one.need.facts
    at_once = next((count for count in PASSES_AT_ONCE if place.threads % count == 0), 1)
    may = place.kind == "cpu" and at_once > 1 and one_by_one.sharding == "ddp"
    plain = facts.adapters or place.world_size == 1
    plain = plain and facts.tower is None and facts.experts is None and spec.task_section.sequences == 1
    plain = plain and spec.model.quantization == "none" and not spec.model.trust_remote_code
    if not may or not plain or spec.train.torch_compile or spec.train.meets_in_passes:
        return one_by_one
    tokens = plan.micro_batch_tokens // (at_once if spec.train.micro_batch_tokens == "auto" else 1)
    divided = replace(need, tokens=tokens, passes_at_once=at_once)
    room = min(place.limit * USABLE, place.free or math.inf)
    if facts.total * tokens < WORTH_A_THREAD or divided.bytes > room:
        return one_by_one
    more = round(divided.bytes - need.bytes)
    changed = replace(
        plan,
        micro_batch_tokens=tokens,
        passes_at_once=at_once,
        expected_bytes=plan.expected_bytes + max(0, more),
    )
    return replace(one_by_one, plan=changed, need=divided)


def at_place(sharding: Sharding, spec: RunSpec, place: Place) -> Sharding:
    """What a sharding comes to: on one node it is what it is within each, and on a single process nothing is spread by
    fsdp, so it is a replica. Raises ConfigError where that is to offload."""
    section = sharding_section(sharding)
    if place.world_size > 1:
        return section.within or sharding if place.world_size == place.processes_a_node else sharding
    if section.alone is None:
        return sharding
    if spec.train.offload != "none":
        hint = "take train.sharding: zero3, which offloads on one process too, or start several"
        raise ConfigError(f"{sharding} offloads on several processes only", where="train.offload", hint=hint)
    return section.alone


def _has_nodes(place: Place) -> bool:
    """Whether there are several, of several processes each."""
    return 1 < place.processes_a_node < place.world_size


def make_forecast(
    spec: RunSpec,
    data: TrainingData | None,
    memory: MemoryOutlook,
    place: Place,
    conditions: Conditions,
) -> Forecast:
    """Put together what is known. `data` is None where rows are not tokenised yet."""
    facts, train = memory.need.facts, None if data is None else data.train
    rows = facts_of_rows(train, None if data is None else data.eval, spec.row_length)
    schedule = None
    if rows.rows is not None or spec.train.max_steps is not None:
        schedule = make_schedule(rows.rows, spec.train)
    size = spec.train.global_batch_size if rows.rows is None else min(spec.train.global_batch_size, rows.rows)
    slices = spec.train.context_parallel
    passes = passes_a_step(
        train,
        spec,
        groups=max(1, place.world_size // slices),
        max_tokens=memory.plan.micro_batch_tokens * slices,
        pass_cost=memory.plan.pass_cost_tokens,
        packed=conditions.packed,
        borders=conditions.borders,
        at_once=memory.plan.passes_at_once,
    )
    return Forecast(
        run=str(spec.name),
        model=spec.model.name,
        method=method_of(spec),
        precision=conditions.precision,
        facts=facts,
        rows=rows,
        rows_a_step=size,
        schedule=schedule,
        passes=passes,
        memory=memory,
        place=place,
        disk=_disk(spec, facts, schedule, conditions),
        rate=conditions.rate,
        done=conditions.done,
        estimate=_estimate(memory.need, place, rows, size, passes),
    )


def _estimate(need: Need, place: Place, rows: RowFacts, rows_a_step: int, passes: float | None) -> StepCost | None:
    """A step's time; None where rows are not known either."""
    if passes is None or not rows.rows or not rows.tokens:
        return None
    return _by_shapes(need, place, rows.tokens / rows.rows, rows_a_step, passes)


def of_equal_rows(need: Need, place: Place, rows: RowFacts, rows_a_step: int) -> StepCost | None:
    """A step's time if all rows had the same length; where they are not counted, that of the longest."""
    row = rows.tokens / rows.rows if rows.rows and rows.tokens else float(rows.longest)
    slices = need.train.context_parallel
    busiest = -(-rows_a_step // max(1, place.world_size // slices))
    in_a_pass = max(1.0, need.tokens * slices // row)
    return _by_shapes(need, place, row, rows_a_step, -(-busiest // in_a_pass))


def _by_shapes(need: Need, place: Place, row: float, rows_a_step: int, passes: float) -> StepCost | None:
    """A step's time, of rows of `row` tokens on average; None where device or network are not known, or shapes do not
    say it."""
    device = find_device(place.name)
    network = Network(1, 0.0) if place.world_size == 1 else place.network
    if device is None or network is None or not covers(need):
        return None
    slices = need.train.context_parallel
    busiest = -(-rows_a_step // max(1, place.world_size // slices)) / slices
    return step_cost(need, device, network, Work(busiest * row, passes, row, useful=rows_a_step * row))


def _disk(spec: RunSpec, facts: ModelFacts, schedule: Schedule | None, conditions: Conditions) -> Disk:
    """The newest ones that are kept, the best one besides, and one that is being written."""
    saves = spec.checkpoint.keep + 1 if schedule is None else _saves(spec, schedule)
    best = 1 if spec.data.eval is not None else 0
    at_once = min(saves, spec.checkpoint.keep + best + 1)
    result = facts.trained_bytes if facts.adapters else facts.total * conditions.result_value
    return Disk(checkpoint_bytes(spec.train, facts), at_once, result, conditions.free_disk)


def _saves(spec: RunSpec, schedule: Schedule) -> int:
    """How many checkpoints a run makes at most: those that are due, its end, and each that an evaluation finds best."""
    due = _times(spec.checkpoint.every, schedule)
    return due if spec.data.eval is None else due + _times(spec.eval.every, schedule)


def _times(every: Every, schedule: Schedule) -> int:
    return -(-schedule.total_steps // (schedule.steps_per_epoch if every == "epoch" else every))
