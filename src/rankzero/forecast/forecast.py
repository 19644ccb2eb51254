"""The forecast of a run, as one value: made from the model's facts, the rows and the place where it will run. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rankzero.data.cache.training_data import TrainingData
from rankzero.errors import ConfigError
from rankzero.forecast.conditions import Conditions
from rankzero.forecast.rows import RowFacts, facts_of_rows, passes_a_step
from rankzero.model.facts import ModelFacts
from rankzero.model.fitting import Need
from rankzero.model.memory import MemoryPlan, checkpoint_bytes, choose_sharding, plan_memory
from rankzero.spec.run_spec import Every, RunSpec, Sharding
from rankzero.spec.schedule import Schedule, make_schedule
from rankzero.spec.shardings import sharding_section


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


@dataclass(frozen=True, slots=True)
class MemoryOutlook:
    """How the run lies in memory: decisions, and what they come to."""

    sharding: Sharding
    plan: MemoryPlan
    need: Need
    basis: str = "sums"
    """What the memory of a pass is known by: sums over shapes, or a simulated pass."""


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

    @property
    def seconds(self) -> float | None:
        """Of the steps that are left; evaluations and saving come on top. None where no run of this shape was timed."""
        if self.rate is None or self.schedule is None or not self.rows.rows or self.rows.tokens is None:
            return None
        share = (self.schedule.total_steps - self.done) / self.schedule.steps_per_epoch
        return self.rows.tokens * max(0.0, share) / self.rate

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
            "sharding": memory.sharding,
            "place": asdict(self.place),
            "memory": {name: round(size) for name, size in memory.need.parts.items()},
            "memory_needed": round(memory.need.bytes),
            "memory_basis": memory.basis,
            "disk": {**asdict(self.disk), "needed": self.disk.needed},
            "tokens_per_second": self.rate,
            "seconds": self.seconds,
        }


def method_of(spec: RunSpec) -> str:
    """What is trained, in a few words."""
    if spec.lora is None:
        return "full fine-tuning"
    kind = "DoRA" if spec.lora.use_dora else "LoRA"
    packed = "" if spec.model.quantization == "none" else f" over {spec.model.quantization}"
    return f"{kind} r={spec.lora.r}{packed}"


def outlook(spec: RunSpec, facts: ModelFacts, rows: RowFacts, limit: int, kind: str, world_size: int) -> MemoryOutlook:
    """Sharding, passes and what they need of `limit` bytes, as a run decides them. Raises ConfigError where a single
    process is to offload and cannot."""
    sharding = choose_sharding(spec.train, spec.data.max_length, facts, limit, world_size)
    if world_size == 1:
        sharding = alone(sharding, spec)
    plan = plan_memory(
        spec.train,
        spec.data.max_length,
        facts,
        limit,
        kind,
        sharding=sharding,
        world_size=world_size,
        trained_share=rows.trained_share,
    )
    need = Need(
        spec.train,
        facts,
        longest=rows.longest,
        tokens=plan.micro_batch_tokens,
        recomputing=plan.gradient_checkpointing,
        offloading=spec.train.activation_offloading,
        sharding=sharding,
        world_size=world_size,
        device_kind=kind,
        trained_share=rows.trained_share,
    )
    return MemoryOutlook(sharding, plan, need)


def alone(sharding: Sharding, spec: RunSpec) -> Sharding:
    """What a sharding is on a single process: nothing is spread by fsdp, so a replica. Raises ConfigError where it is
    to offload."""
    instead = sharding_section(sharding).alone
    if instead is not None and spec.train.offload != "none":
        hint = "take train.sharding: zero3, which offloads on one process too, or start several"
        raise ConfigError(f"{sharding} offloads on several processes only", where="train.offload", hint=hint)
    return instead or sharding


def make_forecast(
    spec: RunSpec,
    data: TrainingData | None,
    memory: MemoryOutlook,
    place: Place,
    conditions: Conditions,
) -> Forecast:
    """Put together what is known. `data` is None where rows are not tokenised yet."""
    facts, train = memory.need.facts, None if data is None else data.train
    rows = facts_of_rows(train, None if data is None else data.eval, spec.data.max_length)
    schedule = None
    if rows.rows is not None or spec.train.max_steps is not None:
        schedule = make_schedule(rows.rows, spec.train)
    passes = passes_a_step(
        train,
        spec,
        world_size=place.world_size,
        max_tokens=memory.plan.micro_batch_tokens,
        pass_cost=memory.plan.pass_cost_tokens,
        packed=conditions.packed,
    )
    return Forecast(
        run=str(spec.name),
        model=spec.model.name,
        method=method_of(spec),
        precision=conditions.precision,
        facts=facts,
        rows=rows,
        rows_a_step=spec.train.global_batch_size,
        schedule=schedule,
        passes=passes,
        memory=memory,
        place=place,
        disk=_disk(spec, facts, schedule, conditions.free_disk),
        rate=conditions.rate,
        done=conditions.done,
    )


def _disk(spec: RunSpec, facts: ModelFacts, schedule: Schedule | None, free: int) -> Disk:
    """The newest ones that are kept, the best one besides, and one that is being written."""
    saves = spec.checkpoint.keep + 1 if schedule is None else _saves(spec, schedule)
    best = 1 if spec.data.eval is not None else 0
    at_once = min(saves, spec.checkpoint.keep + best + 1)
    result = facts.trained_bytes if facts.adapters else facts.total * facts.compute_bytes
    return Disk(checkpoint_bytes(spec.train, facts), at_once, result, free)


def _saves(spec: RunSpec, schedule: Schedule) -> int:
    """How many checkpoints a run makes at most: those that are due, its end, and each that an evaluation finds best."""
    due = _times(spec.checkpoint.every, schedule)
    return due if spec.data.eval is None else due + _times(spec.eval.every, schedule)


def _times(every: Every, schedule: Schedule) -> int:
    return -(-schedule.total_steps // (schedule.steps_per_epoch if every == "epoch" else every))
