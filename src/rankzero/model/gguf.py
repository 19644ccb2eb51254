"""A GGUF file as a plain directory in the cache, which the rest then takes as any other model."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rankzero.cache.uses import use
from rankzero.errors import ConfigError
from rankzero.model.files import gguf_place


def gguf_as_safetensors(file: Path) -> Path:
    """A GGUF file's model and tokenizer as a plain directory in the cache, converted once per content.

    A model that transformers read from GGUF refuses `save_pretrained` (it counts as quantised), so its state is
    copied into a plain model of the same config.
    """
    if not file.is_file():
        raise ConfigError(f"{file} does not exist", where="model.name", hint="give the path of a .gguf file")
    target = gguf_place(file)
    use(target)
    if (target / "config.json").is_file():
        return target
    try:
        import gguf  # noqa: F401  transformers reads GGUF through it
    except ImportError as error:
        hint = "pip install 'rankzero[demo]'"
        raise ConfigError("reading a GGUF file needs the package gguf", where="model.name", hint=hint) from error
    from filelock import FileLock

    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not (target / "config.json").is_file():
            staged = target.with_name(f".tmp-{target.name}-{uuid.uuid4().hex}")
            try:
                _convert_gguf(file, staged)
                os.rename(staged, target)
            finally:
                shutil.rmtree(staged, ignore_errors=True)
    return target


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


def _convert_gguf(file: Path, staged: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory, name = str(file.resolve().parent), file.name
    with _without_bars():
        tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=name)
        quantised = AutoModelForCausalLM.from_pretrained(directory, gguf_file=name, dtype=torch.float32)
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(quantised)(config)
    plain.load_state_dict(quantised.state_dict())
    plain.save_pretrained(staged)
    tokenizer.save_pretrained(staged)
