"""The forecast of a run on another machine: of its hardware is known what somebody says. No torch.

Shapes come from the model's files here, or from its config alone; rows are counted where they are tokenised here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rankzero.data.cache.known_tokenizers import known_tokenizer
from rankzero.data.cache.training_data import TrainingData, cached_data
from rankzero.errors import ConfigError, DataError
from rankzero.forecast.conditions import Conditions
from rankzero.forecast.devices import assumed_network
from rankzero.forecast.forecast import Forecast, Place, make_forecast, outlook
from rankzero.forecast.rows import facts_of_rows
from rankzero.forecast.without_torch import borders_of, held_in, model_directory
from rankzero.machine import cache_root
from rankzero.model.facts import ModelFacts
from rankzero.model.files import stored_value_bytes
from rankzero.model.hub import TOKENIZER, snapshot
from rankzero.model.stored_facts import stored_facts
from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.quantity import as_number
from rankzero.spec.run_spec import ModelSpec, RunSpec

ASSUMED_GPU = 80 * 10**9
"""Bytes of a GPU of which nobody says what it has."""
_NO_LIMIT = 1 << 50


def place_of(run: RunSpec, cluster: ClusterSpec, gpu: str, gpu_bytes: int) -> tuple[Place, str]:
    """What each process of a run gets on a cluster, and the precision of its products. `gpu` and `gpu_bytes` are what
    the cluster says of its GPUs; an NVIDIA GPU of the last years is taken for granted, which computes bfloat16."""
    processes = cluster.num_nodes * cluster.nproc_per_node
    wanted = run.model.dtype
    network = assumed_network(cluster.nproc_per_node, rdma=cluster.resources.rdma is not None)
    if cluster.gpu:
        assumed = "" if gpu_bytes else " (assumed: no node says what its GPUs have)"
        place = Place("cuda", (gpu or "a GPU") + assumed, gpu_bytes or ASSUMED_GPU, 0, processes, network)
        return place, "bfloat16" if wanted == "auto" else wanted
    memory = cluster.resources.limits.memory or cluster.resources.memory
    limit = int(as_number(memory)) // cluster.nproc_per_node if memory else 0
    cores = cluster.resources.limits.cpu or cluster.resources.cpu
    threads = max(1, int(cores) // cluster.nproc_per_node) if cores else 1
    place = Place("cpu", "CPUs of the pods", limit, 0, processes, network, threads)
    return place, "float32" if wanted == "auto" else wanted


def model_files(model: ModelSpec) -> Path:
    """A directory with at least the model's config: here, in the Hub's cache, or fetched as far as it has no weights.

    Raises ConfigError where it is on a volume of the pods, and what `snapshot` raises.
    """
    found = model_directory(model)
    if found is not None:
        return found
    if model.local_dir is not None or model.name.startswith("/") or model.name.endswith(".gguf"):
        raise ConfigError(f"{model.local_dir or model.name} is not on this machine", where="model")
    return snapshot(model, TOKENIZER)


def facts_from_files(run: RunSpec, directory: Path, precision: str, device_kind: str) -> ModelFacts | None:
    """Facts of the model as it is trained; None where only the model itself tells them, which takes torch."""
    if run.task_section.uses != "writes" or run.train.expert_parallel > 1:
        return None
    return stored_facts(directory, run.model, run.lora, run.train.parts, held_in(run, precision, device_kind))


def forecast_elsewhere(run: RunSpec, directory: Path, facts: ModelFacts, place: Place, precision: str) -> Forecast:
    """Put together what is known here. Raises ConfigError for what a run would be refused for."""
    data = _data_here(run, directory)
    rows = facts_of_rows(None if data is None else data.train, None if data is None else data.eval, run.row_length)
    planned = outlook(run, facts, rows, replace(place, limit=place.limit or _NO_LIMIT))
    packed = place.kind == "cuda" and run.train.padding_free is not False and facts.compute_bytes == 2
    packed = packed or run.train.context_parallel > 1
    conditions = Conditions(precision, packed, stored_value_bytes(directory), borders_of(run, directory))
    return make_forecast(run, data, planned, place, conditions)


def _data_here(run: RunSpec, directory: Path) -> TrainingData | None:
    """The rows, where they are on this machine and tokenised."""
    tokenizer = Path(run.model.tokenizer_dir) if run.model.tokenizer_dir is not None else directory
    fingerprint = known_tokenizer(tokenizer, run.data.chat_template, cache_root())
    try:
        return None if fingerprint is None else cached_data(run, fingerprint, cache_root())
    except DataError:
        return None  # they are on a volume of the pods
