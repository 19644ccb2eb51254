"""How fast runs of a shape were on this machine, remembered in the cache: one small file for each shape.

A timing belongs to the machine and to the shape of the work, and not to a run: it outlives the run directory, and the
next run may have another name. So it lies in the cache, and losing it costs nothing but an estimate.
"""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from rankzero.errors import StorageError
from rankzero.model.fitting import Need
from rankzero.run_dir.atomic import write_text
from rankzero.spec.run_spec import RunSpec

LEAST_STEPS = 3
"""Fewer say nothing: the first ones are slower than the rest."""


def shape_of_work(spec: RunSpec, need: Need, device: str, *, packed: bool) -> str:
    """A key for what decides tokens a second: the model as it is trained, how passes are made, and on what."""
    decides = {
        "facts": asdict(need.facts),
        "quantization": spec.model.quantization,
        "kernels": spec.model.kernels,
        "dropout": None if spec.lora is None else spec.lora.dropout,
        "compile": spec.train.torch_compile,
        "optimizer": [spec.train.optimizer, spec.train.master_weights, spec.train.offload],
        "passes": [need.tokens, need.recomputing, need.offloading, packed],
        "rows": [spec.train.global_batch_size, _rounded(need.longest)],
        "processes": [need.sharding, need.world_size, spec.train.context_parallel, spec.train.expert_parallel],
        "device": device,
    }
    if need.sharers < need.world_size:
        decides["sharers"] = need.sharers
    if need.sequences > 1:
        decides["sequences"] = need.sequences
    if need.passes_at_once > 1:
        decides["passes_at_once"] = need.passes_at_once
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:32]


def remembered_rate(key: str, cache_dir: Path) -> float | None:
    """Tokens a second of the last run of this shape; None where there was none."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        rate = float(
            json.loads((cache_dir / "timings" / f"{key}.json").read_text(encoding="utf-8"))["tokens_per_second"]
        )
        return rate if math.isfinite(rate) and rate > 0 else None
    return None


def remember_rate(key: str, tokens_per_second: float, cache_dir: Path) -> None:
    """Note it for the next run. A convenience: that it cannot be written matters to nobody."""
    with suppress(OSError, StorageError):
        write_text(
            cache_dir / "timings" / f"{key}.json", json.dumps({"tokens_per_second": round(tokens_per_second, 3)})
        )


def _rounded(tokens: int) -> int:
    """Rows of about the same length cost about the same."""
    return 1 << max(0, tokens - 1).bit_length()
