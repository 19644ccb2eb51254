"""What the tests of DeepSpeed's ZeRO share: small runs, the same ones by replicas, and what must agree."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.spec.run_spec import RunSpec
from tests.support.runs import final_weights, metrics, run_here, small_spec

LOSS_TOLERANCE = 1e-4
WEIGHTS_TOLERANCE = 1e-3
METHODS: dict[str, dict[str, Any]] = {
    "adapters": {"lora__dropout": 0.1},
    "full": {"lora": None, "train__learning_rate": 0.001, "train__weight_decay": 0.1},
}

_missing = importlib.util.find_spec("deepspeed") is None
NEEDS_DEEPSPEED = [
    pytest.mark.deepspeed,
    pytest.mark.skipif(_missing, reason="DeepSpeed is an extra: make test-deepspeed"),
]
"""Marks of tests of DeepSpeed itself."""


def zero_spec(path: Path, tiny: Path, method: str, **changes: Any) -> RunSpec:
    """Two epochs of 17 rows in batches of 8: the last batch of each has one row, for two processes."""
    changes = {**METHODS[method], **changes}
    return small_spec(path, tiny, rows=17, eval_rows=5, train__num_train_epochs=2, **changes)


def run_replicas(tiny: Path, factory: pytest.TempPathFactory) -> dict[str, RunSpec]:
    """The run of each method without DeepSpeed, by one process."""
    specs = {}
    for method in METHODS:
        root = factory.mktemp(method)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANKZERO_CACHE", str(root / "cache"))
            specs[method] = zero_spec(root, tiny, method)
            run_here(specs[method])
    return specs


def weights(spec: RunSpec) -> torch.Tensor:
    """All of the result's."""
    tensors = final_weights(spec)
    return torch.cat([tensors[name].flatten().float() for name in sorted(tensors)])


def assert_same_curve(found: RunSpec, wanted: RunSpec) -> None:
    for a, b in zip(metrics(found), metrics(wanted), strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() & {"loss", "grad_norm", "eval_loss", "accuracy", "learning_rate"}:
            assert a[name] == pytest.approx(b[name], rel=LOSS_TOLERANCE), f"{name} of step {a['step']}"
    difference = (weights(found) - weights(wanted)).norm() / weights(wanted).norm()
    assert difference < WEIGHTS_TOLERANCE
