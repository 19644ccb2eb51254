"""Everything that happens before the first step: checks from cheap to expensive, then data, model, and a Session.

The order is the promise: whatever can be refused is refused before a model is loaded, and a run directory appears only
once the spec, the model's files and the data have passed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from rankzero.cache import cache_root
from rankzero.data.dataset import TokenizedDataset
from rankzero.data.loader import Batches
from rankzero.data.locate_data import LocatedSource
from rankzero.data.progress import Progress, no_progress, show_progress
from rankzero.data.tokenize import tokenizer_fingerprint
from rankzero.data.training_data import TrainingData, input_bytes, training_data
from rankzero.engine.checkpoint import Trainable
from rankzero.engine.console import logger
from rankzero.engine.device import Device, memory_limit
from rankzero.engine.distributed import World, broadcast_parameters
from rankzero.engine.goodput import Ledger
from rankzero.engine.optim import make_optimizer, make_scheduler
from rankzero.engine.step import Stepper, SupervisedHead
from rankzero.machine import usable_cores
from rankzero.model.load import (
    check_vocabulary,
    load_config,
    load_model,
    load_tokenizer,
    meta_model,
    stop_token_ids,
)
from rankzero.model.lora import apply_lora, parameter_counts, target_modules
from rankzero.model.memory import MemoryPlan, plan_memory
from rankzero.model.source import ModelSource, locate
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.schedule import Schedule, make_schedule


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a run reads, checked: cheap to make, and all that a resume is compared by."""

    source: ModelSource
    tokenizer: Any
    config: Any
    train: TokenizedDataset
    eval: TokenizedDataset | None
    tokenizer_fingerprint: str


@dataclass(frozen=True, slots=True)
class Session:
    """Everything the loop works with."""

    live: Trainable
    stepper: Stepper
    train: Batches
    eval: Batches | None
    schedule: Schedule
    stop_ids: list[int]
    device: Device
    dtype: torch.dtype
    memory: MemoryPlan


def read_inputs(spec: RunSpec, world: World, ledger: Ledger) -> Inputs:
    """Find the model's files, load the tokenizer, check names and vocabulary, tokenise. Loads no weights.

    Raises ConfigError, AccessError, ServiceError or DataError with every problem of its kind.
    """
    with ledger.phase("model files"):
        logger.info("[STEP] find the model: %s", spec.model.local_dir or spec.model.name)
        source = locate(spec.model)
        tokenizer = load_tokenizer(source, spec.model, spec.data.chat_template)
        config = load_config(source, spec.model)
        check_vocabulary(tokenizer, config, source)
        if spec.lora is not None and isinstance(spec.lora.target_modules, tuple):
            target_modules(spec.lora, meta_model(config, trust_remote_code=spec.model.trust_remote_code))
    with ledger.phase("data"):
        logger.info("[STEP] read and tokenise the data")
        data = _read_data(spec, tokenizer, world)
    return Inputs(source, tokenizer, config, data.train, data.eval, tokenizer_fingerprint(tokenizer))


def _read_data(spec: RunSpec, tokenizer: Any, world: World) -> TrainingData:
    def show(label: str, sources: Sequence[LocatedSource]) -> AbstractContextManager[Progress]:
        return show_progress(label, input_bytes(sources)) if world.is_main else nullcontext(no_progress)

    workers = max(1, usable_cores() // world.local_world_size)
    say = partial(logger.info, "[DATA] %s")
    return training_data(spec, tokenizer, cache_root(), workers=workers, show=show, say=say)


def build_session(
    spec: RunSpec, inputs: Inputs, world: World, device: Device, dtype: torch.dtype, ledger: Ledger
) -> Session:
    """Load the weights, add adapters, place them, and make everything that moves with them."""
    with ledger.phase("model"):
        logger.info("[STEP] load the model")
        frozen_dtype = dtype if spec.lora is not None else torch.float32  # trained weights are float32 masters
        model = load_model(inputs.source, spec.model, inputs.config, frozen_dtype)
        stop_ids = stop_token_ids(model, inputs.tokenizer)
        if spec.lora is not None:
            model = apply_lora(model, spec.lora, seed=spec.train.seed, base_name=inputs.source.name)
        memory = plan_memory(
            spec,
            inputs.config,
            dtype,
            memory_limit(device, world.local_world_size),
            device.kind,
            *parameter_counts(model),
        )
        if memory.gradient_checkpointing:
            model.enable_input_require_grads()
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.to(device.torch_device)
        model.train()
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        broadcast_parameters(named.values())
    trainable, total = parameter_counts(model)
    logger.info(
        "[MODEL] %s: %.1fM parameters, %s", type(model).__name__, total / 1e6, str(dtype).removeprefix("torch.")
    )
    logger.debug("[MODEL] trainable parameters: %d of %d (%.3f%%)", trainable, total, 100 * trainable / total)
    schedule = make_schedule(len(inputs.train), spec.train)
    rate = spec.train.learning_rate
    if isinstance(rate, str):
        raise TypeError("train.learning_rate is not resolved")
    optimizer = make_optimizer(named, spec.train, rate)
    scheduler = make_scheduler(optimizer, spec.train, warmup=schedule.warmup_steps, total=schedule.total_steps)
    logger.info(
        "[MODEL] optimizer AdamW, learning rate %g, schedule %s with %d warm-up steps",
        *(rate, spec.train.lr_scheduler_type, schedule.warmup_steps),
    )

    def batches(dataset: TokenizedDataset) -> Batches:
        return Batches(
            dataset,
            rank=world.rank,
            world_size=world.world_size,
            max_tokens=memory.micro_batch_tokens,
            pass_cost=memory.pass_cost_tokens,
        )

    seed_ranks(spec.train.seed, world.rank)
    return Session(
        live=Trainable(model, optimizer, scheduler, named),
        stepper=Stepper(
            SupervisedHead(model),
            list(named.values()),
            device=device.torch_device,
            dtype=dtype,
            max_grad_norm=spec.train.max_grad_norm,
        ),
        train=batches(inputs.train),
        eval=None if inputs.eval is None else batches(inputs.eval),
        schedule=schedule,
        stop_ids=stop_ids,
        device=device,
        dtype=dtype,
        memory=memory,
    )


def seed_ranks(seed: int, rank: int) -> None:
    """Dropout differs between ranks; nothing else draws random numbers during training."""
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
    return done.stdout.strip() or None
