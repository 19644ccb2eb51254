"""Whether a model's head and its embeddings are one tensor: what its config says, and what its files hold.

transformers ties them as config.json says, unless the files hold both tables and these differ: then it loads two. What
is made without the files (the shape that is planned with, what receives another process's weights) would still have
one, and so would whoever reads the config beside what was trained.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from rankzero.model.files import weight_files

_log = logging.getLogger("rankzero.model")
_ROWS = 4096
"""Rows of a table that are compared at once."""


def tie_as_stored(config: Any, weights: Path) -> None:
    """Have a config that ties them say that there are two where the files hold two that differ."""
    said = [one for one in (config, config.get_text_config()) if getattr(one, "tie_word_embeddings", False)]
    names = _tables(config) if said else None
    if names is None or not _differ(*names, tuple((file, _written(file)) for file in weight_files(weights))):
        return
    words = "[MODEL] %s: config.json says that head and embeddings are one (tie_word_embeddings), the files hold two"
    _log.info(words, weights)
    for one in said:
        one.tie_word_embeddings = False


def say_whether_tied(model: Any) -> None:
    """Where training or merging has parted a head from its embeddings, the config must not join them again: servers
    read it, and not which tensors there are."""
    weight = getattr(model.get_output_embeddings(), "weight", None)
    for config in (model.config, model.config.get_text_config()):
        if weight is not None and getattr(config, "tie_word_embeddings", False):
            config.tie_word_embeddings = weight is model.get_input_embeddings().weight


def _tables(config: Any) -> tuple[str, str] | None:
    """What the tensors of head and embeddings are called; None where nothing says it."""
    for auto in (AutoModelForCausalLM, AutoModelForImageTextToText):
        kind = auto._model_mapping.get(type(config), None)
        tied = getattr(kind, "_tied_weights_keys", None)
        pairs = (
            [pair for pair in tied.items() if all(name.endswith(".weight") for name in pair)]
            if isinstance(tied, dict)
            else []
        )
        if len(pairs) == 1:
            return pairs[0]
    return None


def _written(file: Path) -> int:
    return file.stat().st_mtime_ns if file.is_file() else 0


@lru_cache(8)
def _differ(head: str, embeddings: str, files: tuple[tuple[Path, int], ...]) -> bool:
    """Whether both are in these files, once each, and not equal. A file that cannot be read is told when it is
    loaded."""
    found: dict[str, list[tuple[Path, str]]] = {head: [], embeddings: []}
    try:
        for file, _ in files:
            with safe_open(file, framework="pt") as opened:
                names = list(opened.keys())
            for name, places in found.items():
                end = ".".join(name.split(".")[-2:])
                places += [(file, stored) for stored in names if f".{stored}".endswith(f".{end}")]
        ours, theirs = (_the_one(places, name) for name, places in found.items())
        return ours is not None and theirs is not None and not _are_equal(*ours, *theirs)
    except (OSError, SafetensorError):
        return False


def _the_one(places: list[tuple[Path, str]], name: str) -> tuple[Path, str] | None:
    """The tensor of this name, or of an older one, beside those of blocks that predict further tokens."""
    exact = [place for place in places if place[1] == name]
    beside = [place for place in places if not _OF_A_BLOCK.search(place[1])]
    return next((some[0] for some in (exact, beside) if len(some) == 1), None)


_OF_A_BLOCK = re.compile(r"(^|\.)(mtp|\d+)\.")


def _are_equal(file: Path, name: str, other_file: Path, other_name: str) -> bool:
    with safe_open(file, framework="pt") as one, safe_open(other_file, framework="pt") as other:
        ours, theirs = one.get_slice(name), other.get_slice(other_name)
        shape = ours.get_shape()
        if shape != theirs.get_shape() or not shape:
            return False
        pieces = (slice(first, first + _ROWS) for first in range(0, shape[0], _ROWS))
        return all(_same(ours[piece], theirs[piece]) for piece in pieces)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one, other) if one.dtype is other.dtype else torch.equal(one.float(), other.float())
