"""From checked inputs to a Session: weights, adapters, their place, and everything that moves with them.

The order is the promise: whatever can be refused is refused before a model is loaded (engine/inputs.py), and a run
directory appears only once the spec, the model's files and the data have passed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch

from rankzero.data.batches.collators.sliced import SlicedText
from rankzero.data.batches.collators.text import Collator
from rankzero.data.batches.loader import Batches, Epochs, Steps, Streamed
from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.cache.joined import Rows
from rankzero.data.cache.stream.plan import Stream
from rankzero.engine.balance import Balance
from rankzero.engine.console import logger
from rankzero.engine.context_group import ContextGroup, context_group
from rankzero.engine.device import Device, free_memory
from rankzero.engine.distributed import World, broadcast_object, gather_objects
from rankzero.engine.goodput import Ledger
from rankzero.engine.inputs import Inputs
from rankzero.engine.layers import fit_layers, keeps_own_dropout
from rankzero.engine.optim import make_optimizer
from rankzero.engine.parallel.base import Parallel
from rankzero.engine.parallel.placing import keep_as_stored
from rankzero.engine.passes import PassMemory, remembered, ways_to_less
from rankzero.engine.place import place_of_all, require_like_nodes
from rankzero.engine.samples import Samples
from rankzero.engine.step import Stepper
from rankzero.engine.streams import open_stream
from rankzero.engine.tasks.protocol import Meter
from rankzero.engine.unreached import AdapterWatch
from rankzero.forecast.forecast import MemoryOutlook, outlook
from rankzero.forecast.rows import facts_of_rows
from rankzero.model.ahead import brings_code, require_not_ahead
from rankzero.model.attention import Attention, choose_attention
from rankzero.model.context import position_borders
from rankzero.model.dropout import Places
from rankzero.model.facts import ModelFacts, fused_of
from rankzero.model.files import stored_precision
from rankzero.model.fitting import require_room
from rankzero.model.kernels import apply_kernels
from rankzero.model.load import STORED, ClassHead, empty_model, load_model, padding_counts, stop_token_ids
from rankzero.model.lora import apply_lora, token_numbers
from rankzero.model.memory import MemoryPlan
from rankzero.model.parts import freeze_as, freeze_to, wanted_parts
from rankzero.model.quantize import packed_while_read
from rankzero.model.recomputing import begin_at_embeddings, recompute_blocks
from rankzero.model.routers import Routers
from rankzero.model.shapes import model_facts
from rankzero.model.tower_attention import attend_to_images_at_once
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec, Sharding
from rankzero.spec.schedule import Schedule, make_schedule
from rankzero.spec.shardings import sharding_section


@dataclass(frozen=True, slots=True)
class ModelToBe:
    """The model of a run before there is memory for it."""

    attention: Attention
    shape: Any
    """The model with its adapters, without weights."""
    facts: ModelFacts


def model_to_be(spec: RunSpec, inputs: Inputs, device: Device, dtype: torch.dtype) -> ModelToBe:
    """What will be loaded. Raises ConfigError with what cannot be had."""
    wanted, free = spec.model.attention, spec.train.padding_free
    sliced, drops = spec.train.context_parallel > 1, keeps_own_dropout(spec)
    attention = choose_attention(
        inputs.kind, inputs.config, device.kind, dtype, wanted=wanted, free=free, sliced=sliced, drops=drops
    )
    shape = make_model(spec, inputs, device, dtype, attention, empty=True)
    quantization, use = spec.model.quantization, spec.task_section.uses
    fused = fused_of(spec, device.kind)
    facts = model_facts(shape, inputs.config, dtype, quantization=quantization, use=use, fused=fused)
    return ModelToBe(attention, shape, facts)


@dataclass(frozen=True, slots=True)
class Session:
    """Everything the loop works with."""

    parallel: Parallel
    stepper: Stepper
    train: Steps
    eval: Batches | None
    schedule: Schedule
    new_meter: Callable[[], Meter]
    """What an evaluation measures besides its loss."""
    labels: tuple[str, ...] | None
    stop_ids: list[int]
    device: Device
    dtype: torch.dtype
    memory: MemoryPlan
    passes: PassMemory
    attention: Attention
    compiled: str | None
    """Under which key the model's compiled blocks are kept; None where they are not compiled."""
    samples: Samples | None
    """None where the run has no prompts."""
    planned: MemoryOutlook
    """How the run lies in memory."""
    adapters: AdapterWatch | None
    """None where nothing is adapted, and with DeepSpeed, which keeps its gradients to itself."""


def build_session(
    spec: RunSpec, inputs: Inputs, world: World, device: Device, dtype: torch.dtype, run_dir: RunDir, ledger: Ledger
) -> Session:
    """Load the weights, add adapters, spread them over the processes, and make everything that moves with them.

    `run_dir` knows how small passes have to be, where an earlier start has found out. A collective.
    """
    with ledger.phase("model"):
        logger.info("[STEP] load the model")
        made = model_to_be(spec, inputs, device, dtype)
        attention, shape, facts = made.attention, made.shape, made.facts
        # Asked of all ranks alike, before one of them spreads this very model: FSDP gives it a class of its own.
        asks_ahead = inputs.kind != "classifier" and brings_code(shape)  # of others their configs tell
        quantization, use = spec.model.quantization, spec.task_section.uses
        # All ranks decide alike: one that went on alone would wait for the others.
        now_free = min(gather_objects(free_memory(device, world.local_world_size)))
        place = replace(place_of_all(device, world), free=now_free)
        if sharding_section(spec.train.sharding).within is not None:
            require_like_nodes(world)
        rows = facts_of_rows(inputs.train, inputs.eval, spec.row_length)
        planned = outlook(spec, facts, rows, place)
        sharding, memory, need = planned.sharding, planned.plan, planned.need
        may_pack = spec.lora is not None and quantization == "none" and sharding_section(sharding).packed_weights
        in_4_bits = partial(
            model_facts, shape, inputs.config, dtype, quantization="nf4", use=use, fused=fused_of(spec, device.kind)
        )
        require_room(need, place.limit, now_free, packed=in_4_bits if may_pack else None, where=device.describe())
        passes = pass_memory(spec, run_dir, world, device, sharding, memory)
        memory = remembered(run_dir, memory, passes.setting)
        model = own_model(spec, inputs, device, dtype, attention, shape, sharding=sharding, is_main=world.is_main)
        apply_kernels(model, spec.model.kernels, device_kind=device.kind, local_files_only=spec.model.local_files_only)
        if memory.gradient_checkpointing:
            recompute_blocks(model)
        elif sharding_section(sharding).gathered_by_call:
            # Else nothing tells DeepSpeed when it may take the weights of layers before the first that is trained, and
            # it takes those of layers behind it.
            begin_at_embeddings(model)
        attend_to_images_at_once(model, attention.implementation, device.kind, dtype)
        places = Places(spec.train.seed)
        compiled = fit_layers(model, spec, device, attention, places)
        name = type(model).__name__
        parallel = spread(sharding, model.train(), spec, world, device, dtype)
    logger.info(
        "[MODEL] %s: %.1fM parameters, %.1fM of them trained, %s%s",
        name,
        facts.total / 1e6,
        facts.trainable / 1e6,
        str(dtype).removeprefix("torch."),
        "" if world.world_size == 1 else f", {sharding}",
    )
    logger.debug(
        "[MODEL] trainable parameters: %d of %d (%.3f%%); attention %s%s",
        facts.trainable,
        facts.total,
        100 * facts.trainable / facts.total,
        attention.implementation or "auto",
        ", rows end to end" if attention.padding_free else "",
    )
    schedule = make_schedule(inputs.n_rows, spec.train)
    logger.info(
        "[MODEL] optimizer %s, learning rate %g, schedule %s with %d warm-up steps",
        spec.train.optimizer,
        learning_rate(spec),
        spec.train.lr_scheduler_type,
        schedule.warmup_steps,
    )
    task = inputs.task
    collator = _collator(inputs, attention, parallel, context_group(world, spec.train.context_parallel))

    borders = length_borders(spec, inputs)

    def batches(dataset: Rows) -> Batches:
        made = Batches(
            dataset,
            collator,
            rank=world.rank,
            world_size=world.world_size,
            max_tokens=memory.micro_batch_tokens,
            pass_cost=memory.pass_cost_tokens,
            same_passes=parallel.same_passes,
            slices=spec.train.context_parallel,
        )
        made.cut_by(borders, memory.passes_at_once)
        return made

    balance = None
    if inputs.balance is not None:
        balance = Balance(Routers(parallel.module), inputs.balance, device.torch_device)
        more = "; each step has its forward passes twice" if inputs.balance else ""
        logger.info("[MODEL] routers are trained, their load balancing loss times %g%s", inputs.balance, more)
    seed_ranks(spec.train.seed, world.rank)
    stepper = Stepper(
        task.head(parallel, spec),
        parallel,
        task,
        device=device.torch_device,
        dtype=dtype,
        max_grad_norm=spec.train.max_grad_norm,
        places=places,
        balance=balance,
    )
    stepper.compute_side_by_side(memory.passes_at_once)
    if asks_ahead:
        with stepper.autocast():
            require_not_ahead(parallel.model, device.torch_device)
    # Of the main rank's model: others may have one that was never read, with a generation_config.json.
    known = stop_token_ids(parallel.module, inputs.tokenizer)
    taught = {inputs.taught_stop} - {None, *known}
    if taught:
        words = "[DATA] answers end with %s, at which the base does not stop: the result does"
        logger.info(words, inputs.tokenizer.convert_ids_to_tokens(inputs.taught_stop))
    stop_ids = broadcast_object(sorted({*known, *taught}))
    samples = None
    if inputs.prompts:
        samples = Samples(
            inputs.prompts,
            replace(inputs.speaker, model=parallel.module, device=device.torch_device),
            tuple(stop_ids),
            spec.eval,
            schedule,
            parallel,
            world,
            device.torch_device,
            stepper.autocast,
        )
    return Session(
        parallel=parallel,
        stepper=stepper,
        train=steps_of(inputs.train, spec, schedule, world, batches),
        eval=None if inputs.eval is None else batches(inputs.eval),
        schedule=schedule,
        new_meter=partial(task.meter, inputs.labels, device.torch_device),
        labels=inputs.labels,
        stop_ids=stop_ids,
        device=device,
        dtype=dtype,
        memory=memory,
        passes=passes,
        attention=attention,
        compiled=compiled,
        samples=samples,
        planned=replace(planned, plan=memory, need=replace(need, tokens=memory.micro_batch_tokens)),
        adapters=watch_adapters(spec, parallel, device, dtype),
    )


def watch_adapters(spec: RunSpec, parallel: Parallel, device: Device, dtype: torch.dtype) -> AdapterWatch | None:
    """What looks for adapters without a gradient; None where `Session.adapters` is None."""
    if spec.lora is None or sharding_section(parallel.name).reads_deepspeed_file:
        return None
    return AdapterWatch(parallel, device.torch_device, may_vanish=dtype is torch.float16)


def length_borders(spec: RunSpec, inputs: Inputs) -> Sequence[int]:
    """Lengths that rows of a pass are on one side of, so that each is computed as if it were alone."""
    if inputs.kind != "classifier":  # their last token is only ever a target
        return [border + 1 for border in position_borders(inputs.config)]
    return range(1, spec.data.max_length) if padding_counts(inputs.config) else position_borders(inputs.config)


def _collator(inputs: Inputs, attention: Attention, parallel: Parallel, group: ContextGroup | None) -> Collator:
    """What makes this rank's tensors of the rows of a pass, or of its slice of them."""
    if group is not None:
        return SlicedText(number=group.number, slices=group.size, gather=group.gather)
    return inputs.task.collator(inputs, padding_free=attention.padding_free, always_image=parallel.same_passes)


def pass_memory(
    spec: RunSpec, run_dir: RunDir, world: World, device: Device, sharding: Sharding, plan: MemoryPlan
) -> PassMemory:
    """What is done where a pass runs out of memory."""
    section = sharding_section(sharding)
    ways = ways_to_less(
        recomputing=plan.gradient_checkpointing,
        offloading=spec.train.activation_offloading,
        divided=(bool(section.divides) and section.within is None) or world.world_size == 1,
        packed=spec.lora is None or spec.model.quantization != "none",
    )
    setting = {"device": device.name, "sharding": sharding, "processes": world.world_size}
    setting |= {"gradient_checkpointing": plan.gradient_checkpointing, "quantization": spec.model.quantization}
    if section.within is not None:
        setting |= {"processes_a_node": world.local_world_size}
    for field in ("context_parallel", "expert_parallel"):
        setting |= {field: size} if (size := getattr(spec.train, field)) > 1 else {}
    return PassMemory(
        run_dir,
        world,
        device,
        planned=plan.micro_batch_tokens,
        setting=setting,
        alone=not section.divides and not spec.train.meets_in_passes,
        ways=tuple(ways),
    )


def receives(spec: RunSpec, sharding: Sharding, inputs: Inputs) -> bool:
    """Whether ranks other than the main one are sent their weights instead of loading them. What files hold packed has
    a shape that is known only when it is loaded."""
    packed_in_files = spec.model.quantization != "none" and not packed_while_read(spec.model, inputs.config)
    return not sharding_section(sharding).whole_weights and not packed_in_files


def own_model(
    spec: RunSpec,
    inputs: Inputs,
    device: Device,
    dtype: torch.dtype,
    attention: Attention,
    shape: Any,
    *,
    sharding: Sharding,
    is_main: bool,
) -> Any:
    """What this process brings to being spread: the model with its weights or, where the main one sends them, without.
    `shape` is the model without memory, unpacked."""
    received = receives(spec, sharding, inputs)
    if received and not is_main:
        packed = spec.model.quantization != "none"
        return make_model(spec, inputs, device, dtype, attention, empty=True, packed=True) if packed else shape
    stored = precision_as_stored(spec, inputs, sharding, dtype, is_main=is_main)
    model = make_model(spec, inputs, device, dtype, attention, empty=False, packed=received, stored=stored)
    if spec.lora is None:
        freeze_as(model, shape)
    if stored is not None:
        keep_as_stored(model, shape)
    return model


def precision_as_stored(
    spec: RunSpec, inputs: Inputs, sharding: Sharding, dtype: torch.dtype, *, is_main: bool
) -> torch.dtype | None:
    """What a full fine-tune's weights are loaded in where blocks are cut one by one, or what has its own masters rounds
    the rest: as files have them, so that they stay there until then; None: what weights are held in. Of mixed files,
    or beside a head that is drawn: float32, with own masters on the main rank alone, which sends what is rounded."""
    section = sharding_section(sharding)
    rounds = section.own_masters and weights_dtype(spec, dtype) is not torch.float32
    if spec.lora is not None or not (section.cut_by_block or rounds):
        return None
    known = STORED.get(stored_precision(inputs.source.weights) or "")
    if rounds and not is_main:
        return known or dtype
    return (known if inputs.kind != "classifier" else None) or (torch.float32 if rounds else None)


def steps_of(
    train: TokenizedDataset | Stream,
    spec: RunSpec,
    schedule: Schedule,
    world: World,
    batches: Callable[[Rows], Batches],
) -> Steps:
    """The global batches of the run."""
    size = spec.train.global_batch_size
    if isinstance(train, Stream):
        return Streamed(partial(open_stream, train, world), batches, size=size)
    seed, steps, in_epoch = spec.train.seed, schedule.total_steps, schedule.steps_per_epoch
    return Epochs(batches(train), seed=seed, size=size, steps_per_epoch=in_epoch, total_steps=steps)


def weights_dtype(spec: RunSpec, dtype: torch.dtype) -> torch.dtype:
    """What the weights are held in: a frozen base as it computes, trained ones as float32 masters or in bfloat16."""
    if spec.lora is not None:
        return dtype
    own_masters = sharding_section(spec.train.sharding).own_masters
    in_bfloat16 = dtype is torch.bfloat16 and (spec.train.master_weights != "float32" or own_masters)
    return dtype if in_bfloat16 else torch.float32


def make_model(
    spec: RunSpec,
    inputs: Inputs,
    device: Device,
    dtype: torch.dtype,
    attention: Attention,
    *,
    empty: bool,
    packed: bool = False,
    stored: torch.dtype | None = None,
) -> Any:
    """The model as it is trained. `empty`: without memory for its weights. `packed`: quantised weights look packed in
    an empty one too, and stay in the host's memory in one that is not. `stored`: in this precision instead."""
    weights, implementation, head = stored or weights_dtype(spec, dtype), attention.implementation, None
    if inputs.kind == "classifier":
        head = ClassHead(inputs.labels, inputs.pad_token_id, spec.train.seed)
    if empty:
        model = empty_model(spec.model, inputs.config, weights, attention=implementation, head=head, packed=packed)
    else:
        model = load_model(
            inputs.source,
            spec.model,
            inputs.config,
            weights,
            device=torch.device("cpu") if packed else device.torch_device,
            pack_on=device.torch_device,
            attention=implementation,
            head=head,
        )
    tokens = token_numbers(spec.lora, inputs.tokenizer) if spec.lora is not None else ()
    return to_train(model, spec, base_name=inputs.source.name, tokens=tokens)


def to_train(model: Any, spec: RunSpec, *, base_name: str, tokens: Sequence[int] = ()) -> Any:
    """The model with its adapters, or with what is not trained frozen. `base_name` is what an adapter says it belongs
    to, `tokens` those whose embeddings are trained. Raises ConfigError."""
    if spec.lora is not None:
        adapted = apply_lora(
            model,
            spec.lora,
            parts=spec.train.parts,
            use=spec.task_section.uses,
            seed=spec.train.seed,
            packed=spec.model.quantization != "none",
            base_name=base_name,
            tokens=tokens,
        )
        for config in adapted.peft_config.values():
            config.revision = spec.model.revision  # with the name it says which weights these are
        return adapted
    freeze_to(model, wanted_parts(spec.train.parts, model, adapters=False))
    return model


def spread(sharding: Sharding, model: Any, spec: RunSpec, world: World, device: Device, dtype: torch.dtype) -> Parallel:
    """The model over the processes, with its optimizer. Only the way that is taken is imported."""
    make = partial(make_optimizer, spec=spec.train, learning_rate=learning_rate(spec))
    section = sharding_section(sharding)
    module = section.module if spec.train.expert_parallel == 1 else section.beside_experts
    way = import_module(f"rankzero.engine.parallel.{module}")
    parallel: Parallel = way.spread(model, make, spec=spec, world=world, device=device, dtype=dtype)
    return parallel


def learning_rate(spec: RunSpec) -> float:
    """The peak, which resolving has decided."""
    rate = spec.train.learning_rate
    if isinstance(rate, str):
        raise TypeError("train.learning_rate is not resolved")
    return rate


def seed_ranks(seed: int, rank: int) -> None:
    """Each rank's own streams. Nothing should draw from them during training: dropout does not (model/dropout.py), and
    what does after all is warned of (engine/step.py)."""
    torch.manual_seed((seed + 1_000_003 * rank) % 2**63)
    random.seed(seed + rank)
    np.random.seed((seed + rank) % 2**32)


def collect_environment(device: Device, dtype: torch.dtype, world: World) -> dict[str, Any]:
    """Versions and hardware, for environment.json and the report. Reads no environment variables: they hold secrets."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    versions = {"python": platform.python_version()}
    for package in ("rankzero", "torch", "transformers", "peft", "tokenizers", "safetensors", "pyarrow", "numpy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "device": device.describe(),
        "dtype": str(dtype).removeprefix("torch."),
        "world_size": world.world_size,
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "cuda": torch.version.cuda,
        "git_revision": _git_revision(),
    }


def _git_revision() -> str | None:
    """The commit of the working directory, where it is a git checkout."""
    import subprocess

    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
