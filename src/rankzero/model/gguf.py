"""A GGUF file as a plain directory in the cache, which the rest then takes as any other model."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from rankzero.cache.uses import use
from rankzero.directories import is_file
from rankzero.errors import ConfigError
from rankzero.model.files import gguf_place
from rankzero.run_dir.unread import read_errors
from rankzero.wording import first_line

SAFETENSORS = "take the safetensors files of this model: transformers does not read all of it from GGUF"


def gguf_as_safetensors(file: Path) -> Path:
    """A GGUF file's model and tokenizer as a plain directory in the cache, converted once per content.

    A model that transformers read from GGUF refuses `save_pretrained` (it counts as quantised), so its state is
    copied into a plain model of the same config.
    """
    with read_errors(file):
        if not is_file(file):
            raise ConfigError(f"{file} does not exist", where="model.name", hint="give the path of a .gguf file")
        target = gguf_place(file)
    use(target)
    with read_errors(target):
        if is_file(target / "config.json"):
            return target
    try:
        import gguf  # noqa: F401  transformers reads GGUF through it
    except ImportError as error:
        hint = "pip install 'rankzero[demo]'"
        raise ConfigError("reading a GGUF file needs the package gguf", where="model.name", hint=hint) from error
    from filelock import FileLock

    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not is_file(target / "config.json"):
            staged = target.with_name(f".tmp-{target.name}-{uuid.uuid4().hex}")
            try:
                with _names_made_once():
                    _convert_gguf(file, staged)
                os.rename(staged, target)
            finally:
                shutil.rmtree(staged, ignore_errors=True)
    return target


def _require_all(file: Path, report: dict[str, Any]) -> None:
    """Raise ConfigError where weights were made up that should have been read, or read and put nowhere."""
    if report["unexpected_keys"]:
        unread = sorted(report["unexpected_keys"])
        what = f"what this file says would be lost: {', '.join(unread[:3])}"
        raise ConfigError(what, where=str(file), hint=SAFETENSORS)
    drawn = sorted({*report["missing_keys"], *(entry[0] for entry in report["mismatched_keys"])})
    if not drawn:
        return
    hint = SAFETENSORS
    if re.search(r"-[0-9]+-of-[0-9]+$", file.stem):
        hint = "this is a part of a model: join the parts by llama.cpp's `llama-gguf-split --merge`"
    what = f"{len(drawn)} of the model's weights are not in this file, or in another shape: {', '.join(drawn[:3])}"
    raise ConfigError(what, where=str(file), hint=hint)


@contextmanager
def _without_bars() -> Iterator[None]:
    """No progress bars of transformers' own; the one over GGUF tensors is not among those that it can switch off."""
    from transformers import modeling_gguf_pytorch_utils as reader

    bar = reader.tqdm
    reader.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        reader.tqdm = bar


@contextmanager
def _names_made_once() -> Iterator[None]:
    """transformers asks for the table of all tensors' names again for each module of a model, and to make it takes
    longer than all else that it does with names."""
    import gguf

    make = gguf.get_tensor_name_map
    gguf.get_tensor_name_map = cache(make)
    try:
        yield
    finally:
        gguf.get_tensor_name_map = make


def _convert_gguf(file: Path, staged: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rankzero.model.gguf_contents import complete_config

    # Not resolved: the Hub's own cache has links, and what they lead to is called otherwise.
    directory, name = str(file.absolute().parent), file.name
    try:
        with _without_bars():
            tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=name)
            quantised, report = AutoModelForCausalLM.from_pretrained(
                directory, gguf_file=name, dtype=torch.float32, output_loading_info=True
            )
    except Exception as error:  # transformers, gguf and numpy each have their own; the cause is kept
        raise ConfigError(
            f"this GGUF file cannot be read: {first_line(error)}",
            where=str(file),
            hint="it may be cut off, or of an architecture that transformers does not read from GGUF",
        ) from error
    _require_all(file, report)
    config = complete_config(file, quantised, hint=SAFETENSORS)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(quantised)(config)
    plain.load_state_dict(quantised.state_dict())
    plain.save_pretrained(staged)
    tokenizer.save_pretrained(staged)
