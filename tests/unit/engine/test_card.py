"""What the card of a run says of its adapter, by the adapter as it is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.engine.card import served_apart
from rankzero.engine.setup import to_train
from rankzero.model.weights import export_final
from rankzero.run_dir.result import find_adapter
from rankzero.spec.run_spec import Part
from tests.support.tiny import tiny_tokenizer
from tests.unit.model.support import loaded, saved, spec_of


def written(name: str, root: Path, **changes: Any) -> dict[str, Any]:
    """The adapter_config.json of an adapter on a tiny model."""
    source, spec = saved(name, root / "base"), spec_of(**{"lora": {"dropout": 0}, **changes})
    tokens = [] if spec.lora is None else [int(token) for token in spec.lora.trainable_token_indices]
    adapted = to_train(loaded(source, spec), spec, base_name="org/base", tokens=tokens)
    (root / "final").mkdir()
    export_final(adapted, tiny_tokenizer(), root / "final", dtype=torch.float32, stop_ids=[2])
    config: dict[str, Any] = json.loads((root / "final/adapter_config.json").read_text())
    return config


@pytest.mark.parametrize(
    ("name", "changes", "taken"),
    [
        ("llama", {}, True),
        ("qwen3_moe", {"train__parts": ["language"]}, True),
        ("qwen3_moe", {"train__parts": ["language", "router"]}, False),
        ("qwen3_moe", {"train__parts": ["language", "experts"]}, False),
        ("llama", {"lora__use_dora": True}, False),
        ("llama", {"lora__modules_to_save": ["norm"]}, False),
        ("llama", {"lora__trainable_token_indices": [5]}, False),
    ],
)
def test_vllm_is_offered_only_what_it_takes(name: str, changes: dict[str, Any], taken: bool, tmp_path: Path) -> None:
    assert served_apart(written(name, tmp_path, **changes)) is taken


@pytest.mark.parametrize(("part", "taken"), [("language", True), ("projector", False), ("vision_tower", False)])
def test_vllm_is_offered_no_adapter_that_it_leaves_out(part: Part, taken: bool) -> None:
    """Of towers and projectors it says no word and serves the rest."""
    assert served_apart({"r": 8}, ("language", part)) is taken and served_apart({"r": 8})


def test_an_adapter_says_the_revision_of_its_base(tmp_path: Path) -> None:
    config = written("llama", tmp_path, model__revision="v1.5")
    assert (config["base_model_name_or_path"], config["revision"]) == ("org/base", "v1.5")
    found = find_adapter(tmp_path / "final").base
    assert (found.name, found.revision) == ("org/base", "v1.5")
