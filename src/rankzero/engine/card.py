"""What the card of a run's result says: the run's spec, data and scores as plain values. Makes no text."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from rankzero import __version__
from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.cache.stream.plan import Stream
from rankzero.data.cache.training_data import parts_of
from rankzero.data.read.hashing import file_digest
from rankzero.data.tokens.surroundings import surroundings
from rankzero.engine.checkpoint import Position, evaluation_of
from rankzero.engine.inputs import Inputs
from rankzero.machine import cache_root
from rankzero.model.load import meta_model
from rankzero.model.parts import position_limit
from rankzero.run_dir.card import Card, DataFile, hub_id, licence_of, read_samples
from rankzero.run_dir.paths import RunDir
from rankzero.spec.data_paths import parse_data_path
from rankzero.spec.run_spec import Parts, RunSpec
from rankzero.spec.tasks import MEASURES

_MOST_HASHED = 20


_NOT_SERVED = ("use_dora", "modules_to_save", "target_parameters", "trainable_token_indices")


_NOT_SERVED_PARTS = frozenset({"vision_tower", "projector"})
"""vLLM puts adapters on the language model alone, and leaves others out without an error."""


def served_apart(adapter: Mapping[str, Any], parts: Parts = "auto") -> bool:
    """Whether vLLM takes an adapter with this adapter_config.json, trained on these parts. A spec alone does not say
    it: routers are trained in full, and some layers as tensors."""
    return not any(adapter.get(name) for name in _NOT_SERVED) and not _NOT_SERVED_PARTS & set(parts)


def result_card(
    spec: RunSpec,
    inputs: Inputs,
    position: Position,
    step: int,
    run_dir: RunDir,
    adapter: Mapping[str, Any],
    dtype: str,
) -> Card:
    """The card of the weights of `step`; `adapter` is what is written as its adapter_config.json, {} of a whole model;
    `dtype` is the precision that the run computes in. Reads the data files' hashes, the base's licence and the run's
    samples."""
    model, lora = spec.model, spec.lora
    base_id = hub_id(model.name, elsewhere=model.local_dir is not None)
    return Card(
        name=str(spec.name),
        base=base_id or Path(model.name).name.removesuffix(".gguf"),
        base_id=base_id,
        licence=licence_of(inputs.source.weights),
        kind=inputs.kind,
        form="whole" if lora is None else "adapter",
        quantization=model.quantization if lora is not None else "none",
        dtype=None if lora is None else dtype,
        rank=None if lora is None else lora.r,
        own_code=model.trust_remote_code,
        served_apart=lora is not None and served_apart(adapter, spec.train.parts),
        labels=inputs.labels,
        max_length=None if inputs.labels is None else _longest(spec, inputs),
        is_chat=inputs.tokenizer.chat_template is not None,
        ends_of_text=len(surroundings(inputs.tokenizer.backend_tokenizer).after),
        revision=model.revision,
        chat_template_kwargs=spec.data.chat_template_kwargs,
        datasets=_hub_data(spec),
        data=(*_files("train", inputs.train, spec), *_files("eval", inputs.eval, spec)),
        fingerprint=inputs.train.fingerprint,
        settings=_settings(spec, position, step),
        scores=_scores(position, step),
        samples=read_samples(run_dir.samples, step),
        version=__version__,
    )


def _longest(spec: RunSpec, inputs: Inputs) -> int:
    """What longer texts were cut to."""
    shape = meta_model(inputs.config, spec.model, spec.task_section.uses)
    return min(spec.data.max_length, position_limit(shape) or spec.data.max_length)


def _files(part: str, dataset: TokenizedDataset | Stream | None, spec: RunSpec) -> list[DataFile]:
    """The files of a part, by their names alone: whoever reads a card has another disk."""
    if dataset is None:
        return []
    if isinstance(dataset, Stream):
        names = [source.path for source in parts_of(spec.data)["train"]]
        return [DataFile(part, _name_of(name), None, None) for name in names]
    counts = np.bincount(dataset.source_of, minlength=len(dataset.sources))
    return [
        DataFile(part, _name_of(path), int(rows), _digest(path) if number < _MOST_HASHED else None)
        for number, (path, rows) in enumerate(zip(dataset.sources, counts, strict=True))
    ]


def _name_of(path: str) -> str:
    """`train.jsonl` of a file or a URL, which may have a signature behind it."""
    return Path(urlsplit(path).path if "://" in path else path).name


def _digest(path: str) -> str | None:
    with suppress(OSError):  # gone, or elsewhere
        return file_digest(path, cache_root())
    return None


def _hub_data(spec: RunSpec) -> tuple[str, ...]:
    names = []
    for sources in parts_of(spec.data).values():
        for source in sources:
            found = parse_data_path(source.path, os.path.exists)
            names += [found.path] if found.place == "hub" else []
    return tuple(dict.fromkeys(names))


def _settings(spec: RunSpec, position: Position, step: int) -> tuple[tuple[str, str], ...]:
    """What decides the result, by the names that run.yaml has."""
    train, lora, data = spec.train, spec.lora, spec.data
    length = f"{position.step:,} steps, {position.tokens:,} tokens"
    chosen: list[tuple[str, object]] = [
        ("task", spec.task),
        ("length", length + (f"; these are the weights of step {step:,}" if step != position.step else "")),
        ("global_batch_size", train.global_batch_size),
        ("learning_rate", f"{train.learning_rate:g}" if not isinstance(train.learning_rate, str) else "auto"),
        ("lr_scheduler_type", f"{train.lr_scheduler_type}, warmup_steps {train.warmup_steps:g}"),
        ("optimizer", f"{train.optimizer}, weight_decay {train.weight_decay:g}"),
        ("max_length", data.max_length),
        ("seed", train.seed),
        ("dtype", spec.model.dtype),
    ]
    if lora is not None:
        scaling = ", DoRA" * lora.use_dora + ", rsLoRA" * lora.use_rslora
        chosen += [
            ("lora", f"r {lora.r}, alpha {lora.alpha:g}, dropout {lora.dropout:g}{scaling}"),
            ("lora.target_modules", _listed(lora.target_modules)),
            ("lora.modules_to_save", _listed(lora.modules_to_save)),
            ("lora.trainable_token_indices", _listed([str(token) for token in lora.trainable_token_indices])),
            ("model.quantization", spec.model.quantization if spec.model.quantization != "none" else ""),
        ]
    if spec.task_section.trains == "preferences":
        chosen.append(("dpo.beta", f"{spec.beta:g}"))
    if train.parts != "auto":
        chosen.append(("train.parts", _listed(train.parts)))
    return tuple((name, str(value)) for name, value in chosen if value != "")


def _listed(names: str | Sequence[str]) -> str:
    return names if isinstance(names, str) else ", ".join(names)


def _scores(position: Position, step: int) -> tuple[tuple[str, float | None, float | None], ...]:
    """Before: an evaluation before the first step, and that step's loss; after: the weights of `step`, and the last
    step's loss. The first of several evaluations on the way is no score of the base."""
    final = evaluation_of(position, step) or {}
    base = position.eval_first or {} if position.eval_first_step == 0 else {}
    trained = ("train loss", position.train_loss_first, position.train_loss_last)
    return (trained, *((name, base.get(name), final.get(name)) for name in MEASURES if name in final))
