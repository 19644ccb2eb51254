"""Tiny saved models of many architectures, specs for them, and what the tests of this directory do with both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rankzero.model.load import ClassHead, load_config, load_model
from rankzero.model.source import ModelSource
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.tasks import ModelUse
from tests.support.tiny_configs import CONFIGS

CLASSES = ("bad", "fair", "good")
ENCODERS = ("bert", "distilbert")
PARTS = {"llama": "auto", "gpt2": "auto", "qwen3_moe": ["language", "experts", "router"], "gpt_oss": ["experts"]}
"""What tests of packed models train of each."""


def spec_of(**changes: Any) -> RunSpec:
    """A spec; `changes` are sections, or fields dotted with `__`."""
    value: dict[str, Any] = {"model": {"name": "tiny"}, "data": {"train": "rows.jsonl"}}
    for dotted, change in changes.items():
        section, _, field = dotted.partition("__")
        value[section] = {**value.get(section, {}), field: change} if field else change
    return RunSpec.model_validate(value)


def packed_spec(name: str, quantization: str, **changes: Any) -> RunSpec:
    """Adapters over a base in few bits."""
    return spec_of(
        lora={"dropout": 0, "target_modules": "all-linear"},
        model__quantization=quantization,
        train__parts=PARTS.get(name, "auto"),
        **changes,
    )


def bytes_of(model: Any) -> int:
    """Of the parameters, as they are held."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


def task_of(name: str) -> str:
    return "classify" if name in ENCODERS else "sft"


def use_of(name: str) -> ModelUse:
    return "classifies" if name in ENCODERS else "writes"


def saved(
    name: str,
    directory: Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    vocabulary: int = 64,
    **changes: Any,
) -> ModelSource:
    """Random weights of an architecture, as its own class saves them; encoders without a head. `changes`: fields of its
    config."""
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText

    config = CONFIGS[name]()
    config.get_text_config().update({"vocab_size": vocabulary, **changes})
    auto = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    auto = AutoModel if name in ENCODERS else auto
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = auto.from_config(config, dtype=dtype)
        for parameter in model.parameters():  # norms and biases too: all weights count
            parameter.data += 0.05 * torch.randn(parameter.shape)
    model.save_pretrained(directory)
    return ModelSource(weights=directory, tokenizer=directory, name=str(directory))


def loaded(source: ModelSource, spec: RunSpec, dtype: torch.dtype = torch.float32) -> Any:
    """The model as a run loads it, in evaluation mode."""
    head = ClassHead(CLASSES, seed=spec.train.seed) if spec.task == "classify" else None
    return load_model(source, spec.model, load_config(source, spec.model), dtype, head=head).eval()


def shaken(model: Any, seed: int = 1, scale: float = 0.1) -> Any:
    """The model with everything that it trains moved, so that adapters do something."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += scale * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def logits(model: Any, *, pictures: bool = False) -> torch.Tensor:
    """What a model says about two rows, with images where `pictures`."""
    ids = torch.tensor([[5, 9, 17, 33, 21, 40, 8, 3], [7, 44, 31, 6, 18, 25, 30, 11]])
    inputs = _with_picture(ids, model) if pictures else {"input_ids": ids}
    with torch.no_grad():
        answer: torch.Tensor = model(**inputs).logits
    return answer.float()


def _with_picture(ids: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
    """Four of the first row's tokens become an image's, of 4 x 4 patches that Qwen's towers merge two by two."""
    vision, generator = model.config.vision_config, torch.Generator().manual_seed(3)
    ids = ids[:1].clone()
    ids[0, 1:6] = torch.tensor([model.config.vision_start_token_id, *[model.config.image_token_id] * 4])
    size = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    kinds = (ids == model.config.image_token_id).int()
    pixels = torch.randn(16, size, generator=generator)
    grid = torch.tensor([[1, 4, 4]])
    return {"input_ids": ids, "pixel_values": pixels, "image_grid_thw": grid, "mm_token_type_ids": kinds}
