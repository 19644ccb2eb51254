"""Ranks that are sent their weights have an outline of the model, which has to be that of what the main one loads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file
from transformers import Gemma3ForCausalLM

from rankzero.engine.inputs import Inputs
from rankzero.engine.parallel import placing
from rankzero.engine.parallel.placing import check_same_model, keep_as_stored
from rankzero.engine.setup import precision_as_stored
from rankzero.model.load import ModelKind
from rankzero.spec.run_spec import RunSpec
from tests.support.tiny_configs import CONFIGS

BF16, FP32 = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("sharding", "dtype", "kind", "files", "main", "others"),
    [
        ("fsdp", BF16, "causal", {BF16}, BF16, BF16),
        ("fsdp", BF16, "causal", {BF16, FP32}, None, None),
        ("fsdp", BF16, "classifier", {BF16}, None, None),
        ("zero2", BF16, "causal", {FP32}, FP32, FP32),
        ("zero3", BF16, "causal", {BF16}, BF16, BF16),
        ("zero2", BF16, "causal", {BF16, FP32}, FP32, BF16),
        ("zero2", BF16, "classifier", {BF16}, FP32, BF16),
        ("zero2", BF16, "classifier", {FP32}, FP32, FP32),
        ("zero2", FP32, "causal", {BF16}, None, None),
        ("ddp", BF16, "causal", {BF16}, None, None),
    ],
)
def test_nothing_is_rounded_as_it_is_loaded(
    sharding: str,
    dtype: torch.dtype,
    kind: ModelKind,
    files: set[torch.dtype],
    main: Any,
    others: Any,
    tmp_path: Path,
) -> None:
    """None is what weights are held in: float32, but not with DeepSpeed, which has float32 weights beside. Where that
    takes memory of the process, the main rank alone does it, which sends the others what they round."""
    save_file({str(one): torch.zeros(1, dtype=one) for one in files}, tmp_path / "model.safetensors")
    inputs = cast(Inputs, SimpleNamespace(kind=kind, source=SimpleNamespace(weights=tmp_path)))
    train = {"sharding": sharding}
    spec = RunSpec.model_validate({"model": {"name": "m"}, "data": {"train": "r.jsonl"}, "lora": None, "train": train})
    found = [
        precision_as_stored(spec, inputs, spec.train.sharding, dtype, is_main=is_main) for is_main in (True, False)
    ]
    assert found == [main, others]


@pytest.mark.parametrize(("stored", "held"), [(BF16, FP32), (FP32, BF16)])
def test_a_model_is_loaded_as_stored_and_described_as_it_will_be_held(
    stored: torch.dtype, held: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemma 3 has a buffer in the precision that it is loaded in."""
    config = CONFIGS["gemma3"]().get_text_config()
    loaded = Gemma3ForCausalLM._from_config(config, dtype=stored)
    with torch.device("meta"):
        outline = Gemma3ForCausalLM._from_config(config, dtype=held)
    assert {b.dtype for b in loaded.buffers()} != {b.dtype for b in outline.buffers()}
    keep_as_stored(loaded, outline)
    digests: list[Any] = []
    monkeypatch.setattr(placing, "gather_objects", lambda digest: digests.append(digest) or digests)
    check_same_model(outline)
    check_same_model(loaded)
    assert {p.dtype for p in loaded.parameters()} == {stored}
