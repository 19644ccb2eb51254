"""A model's weights to a checkpoint's files and back, as a replica does."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from rankzero.engine.parallel.base import WEIGHTS_DIRECTORY
from rankzero.engine.parallel.formats import model_state, read_weights
from rankzero.model.weights import file_layout


def save_weights(model: Any, directory: Path, state: Mapping[str, torch.Tensor] | None = None) -> None:
    """`state`: in place of what the model itself holds."""
    file_layout(model).write(directory, {**model_state(model), **(state or {})})


def read_state(model: Any, directory: Path) -> dict[str, torch.Tensor]:
    """What `save_weights` wrote into `directory`, by the model's names."""
    return file_layout(model).read(directory)


def load_weights(model: Any, directory: Path) -> None:
    """What `save_weights` wrote into `directory`. Raises StorageError where it does not fit."""
    with TemporaryDirectory() as checkpoint:
        (Path(checkpoint) / WEIGHTS_DIRECTORY).symlink_to(directory.resolve())
        read_weights(file_layout(model), model_state(model), Path(checkpoint), lambda _name, whole: whole)


def with_lost_rows(tiny: Path, place: Path) -> Path:
    """A base whose embeddings have rows of NaN behind those of its tokens."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny)
    model.config.tie_word_embeddings = False
    rows = model.config.vocab_size
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.resize_token_embeddings(rows + 8, mean_resizing=False)
    with torch.no_grad():
        model.model.embed_tokens.weight[rows:] = math.nan
        model.lm_head.weight[rows:] = 0.0
    shutil.copytree(tiny, place)
    model.save_pretrained(place)
    return place
