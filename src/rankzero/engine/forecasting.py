"""The forecast of a run that is about to train, and of one that only asks: from what the engine has loaded and checked.

`forecast/without_torch.py` makes the same where files and cache say enough.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rankzero.data.cache.training_data import TrainingData
from rankzero.engine.checkpoint import Position
from rankzero.engine.console import logger
from rankzero.engine.device import free_memory, pick_device, pick_dtype
from rankzero.engine.distributed import World
from rankzero.engine.goodput import Ledger
from rankzero.engine.inputs import Inputs, read_inputs
from rankzero.engine.layers import keeps_own_dropout
from rankzero.engine.place import hardware, place_of_rank
from rankzero.engine.resume import refuse_before_gpus
from rankzero.engine.setup import Session, length_borders, model_to_be, to_train, weights_dtype
from rankzero.engine.simulation import bytes_of_a_pass
from rankzero.forecast.conditions import conditions_here
from rankzero.forecast.forecast import Forecast, MemoryOutlook, Place, make_forecast, outlook
from rankzero.forecast.rows import facts_of_rows
from rankzero.forecast.text import lines
from rankzero.forecast.timing import LEAST_STEPS, remember_rate, shape_of_work
from rankzero.machine import cache_root
from rankzero.model.attention import choose_attention
from rankzero.model.expert_exchange import require_exchange
from rankzero.model.facts import ModelFacts, fused_of
from rankzero.model.fused_lora import fuse_adapters
from rankzero.model.kernels import require_fusing
from rankzero.model.load import ClassHead, empty_model, kind_of, load_config, settled_libraries, stored_dtype
from rankzero.model.shapes import model_facts
from rankzero.model.source import ModelSource
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.shardings import sharding_section


def say_forecast(spec: RunSpec, session: Session, inputs: Inputs, world: World) -> None:
    """Log what the run will take."""
    place = place_of_rank(session.device, world)
    found = _forecast(spec, inputs, session.planned, place, session.dtype, packed=session.attention.padding_free)
    for line in lines(found):
        logger.info("[PLAN] %s", line)


def note_timing(spec: RunSpec, session: Session, before: Position, after: Position) -> None:
    """Remember how fast the steps of this start were, for the forecast of the next run of this shape."""
    steps, seconds = after.step - before.step, after.seconds - before.seconds
    if steps >= LEAST_STEPS and seconds > 0:
        need, packed = session.planned.need, session.attention.padding_free
        key = shape_of_work(spec, need, hardware(session.device), packed=packed)
        remember_rate(key, (after.tokens - before.tokens) / seconds, cache_root())


@settled_libraries
def dry_run(spec: RunSpec, nproc: int, options: RunOptions | None = None) -> Forecast:
    """The forecast of a run of `nproc` processes on this machine. Rows are tokenised into the cache, no weights are
    loaded, and no run directory is made. Raises what a run would raise before it loads its weights."""
    world, device = World(world_size=nproc, local_world_size=nproc), pick_device(0)
    scaling = sharding_section(spec.train.sharding).scales_losses
    dtype = pick_dtype(spec.model.dtype, device, loss_scaling=scaling)
    inputs = read_inputs(spec, world, Ledger())
    refuse_before_gpus(RunDir(Path(spec.output_dir) / str(spec.name)), spec, inputs, options or RunOptions())
    require_fusing(spec.model.kernels, device.kind)
    made = model_to_be(spec, inputs, device, dtype)
    rows = facts_of_rows(inputs.train, inputs.eval, spec.row_length)
    place = place_of_rank(device, world, free=free_memory(device, nproc))
    planned = outlook(spec, made.facts, rows, place)
    return _forecast(spec, inputs, planned, place, dtype, packed=made.attention.padding_free)


def facts_from_config(spec: RunSpec, directory: Path, precision: str, device_kind: str) -> ModelFacts:
    """Facts of the model that a directory's config describes, as it is trained: read off tensors without memory. Needs
    no weights. Raises ConfigError."""
    eager = "eager" if spec.model.attention == "eager" else None
    shape, config = _from_config(spec, directory, precision, eager)
    dtype: torch.dtype = getattr(torch, precision)
    use = spec.task_section.uses
    quantization, fused = spec.model.quantization, fused_of(spec, device_kind)
    return model_facts(shape, config, dtype, quantization=quantization, use=use, fused=fused)


def simulated(spec: RunSpec, directory: Path, found: Forecast) -> Forecast:
    """A forecast whose memory comes from a pass over tensors without memory, of the model that a directory's config
    describes, instead of from sums. It is of a CPU's kernels, wherever the run will be."""
    need, dtype = found.memory.need, getattr(torch, found.precision)
    if need.train.meets_in_passes:
        basis = "sums, as a pass in which processes meet is not simulated"
        return replace(found, memory=replace(found.memory, basis=basis))
    attention: str | None = "eager"
    if not need.facts.eager:
        source = ModelSource(directory, directory, spec.model.name)
        config = load_config(source, spec.model)
        kind = kind_of(config, spec.task_section.uses)
        drops = keeps_own_dropout(spec)
        attention = choose_attention(kind, config, "cpu", dtype, wanted="auto", free=False, drops=drops).implementation
    in_4_bits, packed = spec.model.quantization == "nf4", spec.model.quantization == "fp8"
    shape, _ = _from_config(spec, directory, found.precision, attention, packed=packed)
    if fused_of(spec, found.place.kind).adapters:
        fuse_adapters(shape)
    size = bytes_of_a_pass(shape, need, spec, dtype)
    if isinstance(size, str):
        return replace(found, memory=replace(found.memory, basis=f"sums, as a pass cannot be simulated: {size}"))
    more = need.facts.unpacked_bytes if in_4_bits else 0
    return replace(found, memory=replace(found.memory, need=need.with_pass(size + more), basis="a simulated pass"))


@settled_libraries
def _from_config(
    spec: RunSpec, directory: Path, precision: str, attention: str | None, *, packed: bool = False
) -> tuple[Any, Any]:
    """The model without memory, as it is trained, and its config. Raises ConfigError."""
    dtype: torch.dtype = getattr(torch, precision)
    source, use = ModelSource(directory, directory, spec.model.name), spec.task_section.uses
    config = load_config(source, spec.model)
    head = ClassHead(spec.data.labels) if use == "classifies" else None
    weights = weights_dtype(spec, dtype)
    empty = empty_model(spec.model, config, weights, attention=attention, head=head, packed=packed)
    if not packed:
        require_exchange(empty, spec.train.expert_parallel, quantization=spec.model.quantization)
    return to_train(empty, spec, base_name=spec.model.name), config


def _forecast(
    spec: RunSpec, inputs: Inputs, planned: MemoryOutlook, place: Place, dtype: torch.dtype, *, packed: bool
) -> Forecast:
    precision = str(dtype).removeprefix("torch.")
    borders = length_borders(spec, inputs)
    value = stored_dtype(inputs.config, inputs.source.weights).itemsize
    conditions = conditions_here(
        spec, planned.need, place.name, precision, packed=packed, result_value=value, borders=borders
    )
    return make_forecast(spec, TrainingData(inputs.train, inputs.eval), planned, place, conditions)
