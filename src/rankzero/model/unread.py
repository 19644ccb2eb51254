"""Weights that are in a model's files and have no place in the model: what they say of config.json."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import safe_open

from rankzero.errors import ConfigError
from rankzero.model.files import weight_files
from rankzero.model.parts import after_encoder
from rankzero.wording import counted

_log = logging.getLogger("rankzero.model")
_NUMBERED = re.compile(r".*?\.\d+(?=\.)")
"""A block of several: `model.layers.3`."""


def check_unread(model: Any, unread: Iterable[str], weights: Path) -> None:
    """`unread` are names of tensors of the files in `weights`. Raises ConfigError where a layer would compute without a
    bias or a weight that the files have for it; warns where a block would without a layer, and of blocks that the model
    has not got. Heads of other tasks, and what stands beside the blocks, may be left out."""
    names = sorted(unread)
    modules = {name: module for name, module in model.named_modules() if name}
    prefix = f"{model.base_model_prefix}."
    modules |= {
        name.removeprefix(prefix): module for name, module in modules.items()
    }  # as an encoder's files have them
    classifies = type(model).__name__.endswith("ForSequenceClassification")
    own = [
        name
        for name in names
        if name.rpartition(".")[2] in ("weight", "bias")
        and not (classifies and after_encoder(model, name) and name.rpartition(".")[0] in modules)
    ]
    there = {name: modules[name.rpartition(".")[0]] for name in own if name.rpartition(".")[0] in modules}
    lacking = [name for name, module in there.items() if any(True for _ in module.parameters(recurse=False))]
    changing = [name for name in lacking if not _adds_nothing(name, weights)]
    if changing:
        what = f"{counted(len(changing), 'weight')} of the files have no place in their layers as config.json has these"
        hint = "config.json may be of another architecture than the files, or say another attention_bias or mlp_bias"
        raise ConfigError(f"{what}: {', '.join(changing[:3])}", where=str(weights), hint=f"{hint}; copy both again")
    blocks = {name: match[0] for name in names if (match := _NUMBERED.match(name))}
    # A bias of a module that is there, and has no weights, is a causal mask: GPT-2's and GPT-Neo's in older files.
    unknown = [name for name in own if name not in there or name.endswith(".weight")]
    layers = sorted(
        {name.rpartition(".")[0] for name in unknown if name not in lacking and blocks.get(name) in modules}
    )
    if layers:
        words = "[MODEL] %s: its files have %s in blocks where config.json has none, left out here: %s"
        _log.warning(words, weights, counted(len(layers), "layer"), ", ".join(layers[:3]))
    more = sorted({one for one in blocks.values() if one not in modules and one.rpartition(".")[0] in modules})
    if more:
        words = "[MODEL] %s: its files have %s more than config.json says (num_hidden_layers), left out here: %s"
        _log.warning(words, weights, counted(len(more), "layer"), ", ".join(more[:3]))


def _adds_nothing(name: str, weights: Path) -> bool:
    """Whether it is a bias of zeros, as some converters write them everywhere. In the files it may stand under an older
    name, and is known by its block and what follows; of a file that is no safetensors nobody knows."""
    if not name.endswith(".bias"):
        return False
    block = _NUMBERED.match(name)
    end = (
        name
        if block is None
        else block[0].rpartition(".")[0].rpartition(".")[2] + name[len(block[0].rpartition(".")[0]) :]
    )
    found = []
    for file in weight_files(weights):
        with safe_open(file, framework="pt") as opened:
            found += [
                bool(opened.get_tensor(stored).any())
                for stored in opened.keys()  # noqa: SIM118
                if f".{stored}".endswith(f".{end}")
            ]
    return not any(found) if found else not weight_files(weights)
