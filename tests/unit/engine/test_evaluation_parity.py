"""Looking does not change what is looked at: a run that evaluates, saves and is merged after every step has the losses,
to the last bit, of one that only trains. For every kind of base."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from rankzero.engine.device import pick_device, pick_dtype
from rankzero.engine.hooks import Hooks
from rankzero.machine import CPU_FEATURES_VARIABLE
from rankzero.model.generate import answer, load_speaker
from rankzero.model.merge import merge
from rankzero.run_dir.result import as_it_was
from rankzero.spec.run_spec import RunSpec
from tests.support.runs import metrics, run_here, run_root, small_spec
from tests.support.tiny import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 3
BASES: dict[str, dict[str, Any]] = {
    "float32": {},
    "float32, all of it": {"lora": None},
    "bfloat16": {"model__dtype": "bfloat16"},
    "float16": {"model__dtype": "float16"},
    "nf4": {"model__quantization": "nf4"},
    "fp8": {"model__quantization": "fp8"},
    "4-bit files": {"model__quantization": "nf4"},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A model, and the same in files of bitsandbytes. As wide as it must be for 4-bit kernels not to fail outright."""
    root = tmp_path_factory.mktemp("models")
    plain = tiny_model(root / "plain", hidden=64)
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    AutoModelForCausalLM.from_pretrained(plain, quantization_config=config).save_pretrained(root / "packed")
    tiny_tokenizer().save_pretrained(root / "packed")
    return {False: plain, True: root / "packed"}


def curve(spec: RunSpec, hooks: Hooks | None = None) -> list[tuple[float, float]]:
    run_here(spec, hooks=hooks)
    return [(row["loss"], row["grad_norm"]) for row in metrics(spec) if row["step"]]


def merge_and_ask_after_saving(spec: RunSpec, done: list[Path]) -> Hooks:
    """What another process does with a checkpoint, in the one that trains."""
    dtype = pick_dtype(spec.model.dtype, pick_device(0), loss_scaling=True)

    def use(step: int) -> None:
        adapter, merged = run_root(spec) / "last/model", run_root(spec).parent / f"merged-{step}"
        with torch.random.fork_rng():  # for them alone: a process has one generator
            if spec.lora is not None:
                merge(spec.model, adapter, merged)
                result = replace(as_it_was(spec), adapter=adapter)
                answer(load_speaker(result, dtype, torch.device("cpu")), ["Hi"], max_new_tokens=2)
        done.append(merged)

    return Hooks(saved=use)


@pytest.mark.parametrize("base", BASES)
def test_losses_are_those_of_a_run_that_only_trains(
    base: str, models: dict[bool, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CPU_FEATURES_VARIABLE, "avx512_bf16 avx512_fp16")
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: True)  # also where this CPU has not
    changes = {"train__max_steps": STEPS, "rows": 20, **BASES[base]}
    model = models[base == "4-bit files"]
    alone = curve(small_spec(tmp_path / "alone", model, eval_rows=0, checkpoint__every=100, **changes))

    busy = small_spec(tmp_path / "busy", model, eval__every=1, eval__on_start=True, checkpoint__every=1, **changes)
    done: list[Path] = []
    assert curve(busy, merge_and_ask_after_saving(busy, done)) == alone and len(alone) == STEPS
    assert len(done) == STEPS and sum("eval_loss" in row for row in metrics(busy)) == 1 + STEPS
