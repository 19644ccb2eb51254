"""Small runs for tests: a spec over tiny files, started in this process or as several."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rankzero.machine import CPU_FEATURES_VARIABLE
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from tests.support.tiny import chat_rows, write_jsonl

if TYPE_CHECKING:
    import torch

    from rankzero.engine.hooks import Hooks


def small_spec(tmp_path: Path, model: Path, *, rows: int = 30, eval_rows: int = 7, **changes: Any) -> RunSpec:
    """A LoRA run of 12 steps: 30 rows in batches of 8 are 4 steps an epoch. `changes` are dotted with `__`."""
    value: dict[str, Any] = {
        "name": "small",
        "model": {"name": str(model), "dtype": "float32"},
        "data": {
            "train": str(write_jsonl(tmp_path / "train.jsonl", chat_rows(rows))),
            "eval": str(write_jsonl(tmp_path / "eval.jsonl", chat_rows(eval_rows))) if eval_rows else None,
        },
        "lora": {"r": 4, "dropout": 0.1, "target_modules": "all-linear"},
        "train": {"num_train_epochs": 3, "global_batch_size": 8, "learning_rate": 0.01, "micro_batch_tokens": 128},
        "checkpoint": {"every": 5},
        "tracking": {"tensorboard": False},
        "output_dir": str(tmp_path / "runs"),
    }
    for dotted, change in changes.items():
        section, _, field = dotted.partition("__")
        if field and value.get(section, {}) is not None:
            value[section] = {**value.get(section, {}), field: change}
        else:
            value[section] = change
    return RunSpec.model_validate(value)


def one_process_each(root: Path, make: Callable[[Path, str], RunSpec], methods: Iterable[str]) -> dict[str, RunSpec]:
    """Finished runs of one process, by what they train: for fixtures that live longer than a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKZERO_CACHE", str(root / "cache"))
        specs = {method: make(root / method, method) for method in methods}
        for spec in specs.values():
            run_here(spec)
    return specs


def final_weights(spec: RunSpec) -> dict[str, torch.Tensor]:
    """Of a finished run's result, by name."""
    from safetensors.torch import load_file

    files = (run_root(spec) / "final").glob("*.safetensors")
    return {name: tensor for path in files for name, tensor in load_file(path).items()}


def require_told(spec: RunSpec) -> None:
    """A test that trains in 16 bits on a CPU says that the CPU computes so (`bfloat16_computed`), or it would pass on
    some CPUs alone."""
    import torch

    by_itself = spec.model.dtype in ("auto", "float32") or torch.cuda.is_available()
    assert by_itself or CPU_FEATURES_VARIABLE in os.environ, f"say which CPU computes {spec.model.dtype}"


def run_here(
    spec: RunSpec, *, log_level: str = "WARNING", hooks: Hooks | None = None, **options: Any
) -> dict[str, Any]:
    """Train in this process."""
    from rankzero.engine.worker import run

    require_told(spec)
    return run(spec, RunOptions(log_level=log_level, **options), hooks)


def run_processes_here(spec: RunSpec, nproc: int, **options: Any) -> dict[str, Any]:
    """Train in `nproc` processes of this machine, through the product's own launcher."""
    from rankzero.launch.local import run_processes

    return json.loads(run_processes(spec, RunOptions(log_level="WARNING", **options), nproc, os.environ))


def stop_in(step: int) -> Hooks:
    """Send this process SIGTERM as the given step begins (1 is the first): the run stops after that step."""
    from rankzero.engine.hooks import Hooks

    return Hooks(step_begins=lambda begun: os.kill(os.getpid(), signal.SIGTERM) if begun == step else None)


def metrics(spec: RunSpec) -> list[dict[str, Any]]:
    """The objects of metrics.jsonl."""
    path = Path(spec.output_dir) / str(spec.name) / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def log(spec: RunSpec) -> str:
    """What the main rank has said in all starts of a run, down to the level that it was started with."""
    return (run_root(spec) / "logs/rank-0.log").read_text()


def run_root(spec: RunSpec) -> Path:
    """The run directory."""
    return Path(spec.output_dir) / str(spec.name)
