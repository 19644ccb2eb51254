"""The forecast of a run from files alone: headers of the model, rows in the cache, what drivers say of the GPUs.

Takes a second or two, where importing torch takes many. Where files and cache do not say enough there is nothing here,
and the engine is asked (`engine/forecasting.py`).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.cache.joined import longest_sequences
from rankzero.data.cache.known_tokenizers import known_tokenizer
from rankzero.data.cache.training_data import TrainingData, cached_data
from rankzero.forecast.conditions import conditions_here
from rankzero.forecast.devices import Network
from rankzero.forecast.forecast import Forecast, Place, make_forecast, outlook
from rankzero.forecast.rows import facts_of_rows
from rankzero.machine import (
    available_memory,
    cache_root,
    cpu_computes,
    cuda_chooses,
    local_gpu_count,
    nvidia_gpus,
    shown_gpus,
    threads_of_a_process,
    usable_cores,
    usable_memory,
)
from rankzero.model.context import require_rows_within, stored_borders, stored_context
from rankzero.model.facts import ModelFacts, fused_of
from rankzero.model.files import converted_gguf, read_config, stored_value_bytes
from rankzero.model.hub import cached_directory
from rankzero.model.stored_facts import Held, stored_facts
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.setting import newest_manifest
from rankzero.spec.run_spec import Dtype, ModelSpec, RunSpec
from rankzero.spec.shardings import sharding_section

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_NEEDED = ("orjson", "pyarrow", "filelock", "fsspec", "huggingface_hub")


@dataclass(frozen=True, slots=True)
class _Found:
    """What files say of a run."""

    facts: ModelFacts
    data: TrainingData
    place: Place
    precision: str
    packed: bool
    result_value: int
    borders: Sequence[int]


def forecast_without_torch(spec: RunSpec, nproc: int) -> Forecast | None:
    """The forecast of a run of `nproc` processes on this machine; None where torch has to be asked. `spec` is resolved,
    its paths absolute. Raises ConfigError for rows that are longer than the model's context."""
    if any(importlib.util.find_spec(name) is None for name in _NEEDED):
        return None
    found = _look(spec, nproc)
    if found is None:
        return None
    rows = facts_of_rows(found.data.train, found.data.eval, spec.row_length)
    planned = outlook(spec, found.facts, rows, found.place)
    conditions = conditions_here(
        spec,
        planned.need,
        found.place.name,
        found.precision,
        packed=found.packed,
        result_value=found.result_value,
        borders=found.borders,
    )
    return make_forecast(spec, found.data, planned, found.place, conditions)


def _look(spec: RunSpec, nproc: int) -> _Found | None:
    directory = model_directory(spec.model)
    here = place_and_precision(spec, nproc)
    if directory is None or here is None or spec.task_section.uses != "writes" or _engine_may_refuse(spec):
        return None
    place, precision = here
    facts = stored_facts(directory, spec.model, spec.lora, spec.train.parts, held_in(spec, precision, place.kind))
    packed = _lie_end_to_end(spec, read_config(directory), place.kind, precision)
    data = None if facts is None else _data(spec, directory)
    if facts is None or data is None or packed is None:
        return None
    return _Found(facts, data, place, precision, packed, stored_value_bytes(directory), borders_of(spec, directory))


def _engine_may_refuse(spec: RunSpec) -> bool:
    """Whether the run asks for what may end it before it trains, by reasons that only the engine knows."""
    train = spec.train
    balances = train.router_aux_loss_coef != "auto"
    return train.expert_parallel > 1 or balances or spec.eval.prompts is not None or spec.model.kernels != "none"


def _data(spec: RunSpec, directory: Path) -> TrainingData | None:
    tokenizer = Path(spec.model.tokenizer_dir) if spec.model.tokenizer_dir is not None else directory
    fingerprint = known_tokenizer(tokenizer, spec.data.chat_template, cache_root())
    data = None if fingerprint is None else cached_data(spec, fingerprint, cache_root())
    if fingerprint is None or data is None:
        return None
    parts = {"data.train": data.train, "data.eval": data.eval}
    lengths = {name: longest_sequences(part) for name, part in parts.items() if isinstance(part, TokenizedDataset)}
    require_rows_within(stored_context(read_config(directory)), lengths)
    return data if _goes_on_with(spec, fingerprint, data) else None


def _goes_on_with(spec: RunSpec, tokenizer: str, data: TrainingData) -> bool:
    """Whether a checkpoint of the run, if there is one, was made with the same tokenizer and rows. Where it was not,
    the engine says what differs, and whether it may."""
    manifest = newest_manifest(RunDir(Path(spec.output_dir) / str(spec.name)))
    held_out = None if data.eval is None else data.eval.fingerprint
    own = {"tokenizer": tokenizer, "data": data.train.fingerprint, "eval_data": held_out}
    return manifest is None or all(manifest.get(name) == value for name, value in own.items())


def borders_of(spec: RunSpec, directory: Path) -> list[int]:
    """As engine/setup.py keeps rows apart, whose last token is only ever a target. Of a classifier this is not all."""
    return [border + (spec.task_section.uses == "writes") for border in stored_borders(read_config(directory))]


def model_directory(model: ModelSpec) -> Path | None:
    """Where a model's files are on this machine; None for what is not here, or not yet converted from a .gguf file."""
    name = model.local_dir or model.name
    if Path(name).is_dir():
        return Path(name)
    if model.local_dir is not None:
        return None
    return converted_gguf(Path(name)) if name.endswith(".gguf") else cached_directory(model)


def held_in(spec: RunSpec, precision: str, device_kind: str) -> Held:
    """As engine/setup.py loads weights, and fuses layers on such devices."""
    own_masters = sharding_section(spec.train.sharding).own_masters
    in_bfloat16 = precision == "bfloat16" and (spec.train.master_weights != "float32" or own_masters)
    return Held(
        compute=_BYTES[precision],
        trained=2 if in_bfloat16 else 4,
        fused=fused_of(spec, device_kind),
        float16=precision == "float16",
    )


def place_and_precision(spec: RunSpec, nproc: int) -> tuple[Place, str] | None:
    """What each of `nproc` processes has here, and the precision of matrix products; None where only torch knows."""
    if sys.platform == "darwin":
        return None  # whose GPU is torch's to find
    if _torch_has_gpus() and local_gpu_count(os.environ):
        return _gpu(spec, nproc)
    native = {"bfloat16": cpu_computes("bfloat16"), "float16": cpu_computes("float16")}
    precision = _precision(spec.model.dtype, native, "float32")
    name, network = f"cpu, {usable_cores()} cores", Network(nproc, 0.0)
    memory, free = usable_memory() // nproc, available_memory() // nproc
    place = Place("cpu", name, memory, free, nproc, network, threads_of_a_process(nproc))
    return None if precision is None else (place, precision)


def _gpu(spec: RunSpec, nproc: int) -> tuple[Place, str] | None:
    there = nvidia_gpus()
    if cuda_chooses(there, os.environ):
        return None
    gpus = [*shown_gpus(there, os.environ).values()]
    if not gpus or nproc > len(gpus) or len({gpu.name for gpu in gpus}) > 1:
        return None
    native = {"bfloat16": min(gpu.capability for gpu in gpus) >= (8, 0), "float16": True}
    scaling = sharding_section(spec.train.sharding).scales_losses
    precision = _precision(spec.model.dtype, native, "float16" if scaling else "float32")
    memory, free = min(gpu.memory for gpu in gpus), min(gpu.free for gpu in gpus)
    return (
        None
        if precision is None
        else (Place("cuda", gpus[0].name, memory, free, nproc, Network(nproc, 0.0)), precision)
    )


def _precision(wanted: Dtype, native: dict[str, bool], otherwise: str) -> str | None:
    """As engine/device.py picks it; None where it refuses."""
    if wanted == "auto":
        return "bfloat16" if native["bfloat16"] else otherwise
    return wanted if native.get(wanted, True) else None


def _torch_has_gpus() -> bool:
    try:
        return not version("torch").endswith("+cpu")
    except PackageNotFoundError:
        return True


def _lie_end_to_end(spec: RunSpec, config: Mapping[str, Any], kind: str, precision: str) -> bool | None:
    """As model/attention.py chooses for these decoders; None where it decides by packages, or may refuse."""
    free, wanted = spec.train.padding_free, spec.model.attention
    if spec.train.context_parallel > 1:
        return None
    if wanted not in ("auto", "sdpa", "eager") or (free is True and (kind == "cpu" or wanted != "auto")):
        return None
    if config.get("attention_dropout"):
        return None
    fast = precision == "bfloat16" or (kind == "cuda" and precision == "float16")
    return fast and wanted == "auto" and free is not False
