"""A result in the form that something else takes: one plain model in shards, or a GGUF file. Whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankzero.engine.checkpoint_export import write_as_result
from rankzero.engine.gguf_ends import told_of_its_end
from rankzero.engine.merging import merge_adapter
from rankzero.errors import ConfigError
from rankzero.model.files import CHAT_TEMPLATES, INDEX, WEIGHTS, read_config, weight_files, weight_problems
from rankzero.model.gguf_export import to_gguf
from rankzero.model.load import settled_libraries
from rankzero.model.merge import BaseWeights
from rankzero.model.weights import copy_in_shards, library_errors, staged_for
from rankzero.run_dir.atomic import MANIFEST, commit_directory, read_manifest, stage_name
from rankzero.run_dir.of_weights import MAX_LENGTH, TEMPLATE_KWARGS, max_length_of
from rankzero.run_dir.result import Adapter, Result
from rankzero.spec.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    place: Path
    bytes: int
    files: int
    said: tuple[str, ...] = ()
    """What else there is to know of it."""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"output": str(self.place), "bytes": self.bytes, "files": self.files, "notes": list(self.said)}


Found = tuple[Path, Adapter | tuple[RunSpec, Result] | None]
"""Where weights are, and what they are of: an adapter, a full fine-tune's checkpoint; None: a model as it is."""


def _written(
    found: Found, output: Path, *, base_weights: BaseWeights, shard_bytes: int | None = None, known_as: Path
) -> tuple[str, ...] | None:
    """Write one plain model of what is none yet to `output`, and say what else there is to know of it; None, and
    nothing written, where it is one. `known_as`: what is made of the model, where it does not stay."""
    place, of = found
    if of is None:
        return None
    if isinstance(of, Adapter):
        done = merge_adapter(of, output, base_weights=base_weights, shard_bytes=shard_bytes, known_as=known_as)
        return (done.in_words,)
    write_as_result(*of, place, output, shard_bytes=shard_bytes)
    return ("of a checkpoint: as the run's result would be, had it ended there",)


@settled_libraries
def export_safetensors(found: Found, output: Path, *, shard_bytes: int, base_weights: BaseWeights) -> Exported:
    """The model as a directory with files of up to `shard_bytes`; an adapter is merged. Raises as `merge` does."""
    made = _written(found, output, base_weights=base_weights, shard_bytes=shard_bytes, known_as=output)
    if made is not None:
        return _counted(output, made)
    place = found[0]
    require_weights(place)
    with staged_for(output) as staged, library_errors(output):
        copy_in_shards(place, staged, shard_bytes)
        rest = {WEIGHTS, INDEX, MANIFEST, *(file.name for file in weight_files(place))}
        for file in sorted(place.iterdir()):
            if file.is_file() and file.name not in rest:
                shutil.copyfile(file, staged / file.name)
        if (place / CHAT_TEMPLATES).is_dir():
            shutil.copytree(place / CHAT_TEMPLATES, staged / CHAT_TEMPLATES)
        commit_directory(staged, output, _kept(place), replaces=False)
    return _counted(output, ())


@settled_libraries
def export_gguf(
    found: Found, output: Path, *, outtype: str, converter: list[str], base_weights: BaseWeights
) -> Exported:
    """The model as one file; an adapter is merged beside it first, which takes as much disk again for as long. Raises
    ConfigError of what GGUF is not for, and as `merge` and `to_gguf` do."""
    place, merged = found[0], output.parent / stage_name(f"{output.stem}-merged")
    try:
        made = _written(found, merged, base_weights=base_weights, known_as=output)
        model = place if made is None else merged
        require_weights(model)
        notes = (*of_gguf(read_config(model), place), *(made or ()))
        with told_of_its_end(model, _template_kwargs(model)) as (told, of_ends):
            tensors = to_gguf(told, output, outtype=outtype, converter=converter)
    finally:
        shutil.rmtree(merged, ignore_errors=True)
    return Exported(output, output.stat().st_size, 1, (f"{tensors} tensors", *notes, *of_ends))


def of_gguf(config: Mapping[str, Any], place: Path) -> tuple[str, ...]:
    """What a GGUF file of this model lacks. Raises ConfigError where it has no use."""
    kinds = config.get("architectures") or ()
    if any(str(kind).endswith("ForSequenceClassification") for kind in kinds):
        hint = "--to safetensors is for classifiers too"
        raise ConfigError(
            "GGUF files are for models that write; this one puts texts into classes", where=str(place), hint=hint
        )
    if "vision_config" in config:
        return ("the language model alone: the converter makes another file of what sees, with --mmproj",)
    return ()


def require_weights(place: Path) -> None:
    """Raise ConfigError where a model's directory has not all of its weights."""
    problems = weight_problems(place, trust_pickle=False)
    if problems:
        raise ConfigError(problems)


def _kept(place: Path) -> dict[str, Any]:
    """What a result's manifest says that whoever uses its weights asks of it."""
    if not (place / MANIFEST).is_file():
        return {}
    manifest = read_manifest(place)
    kept = {name: manifest[name] for name in ("card", "labels", "merged", TEMPLATE_KWARGS) if name in manifest}
    longest = max_length_of(place)
    return kept if longest is None else {**kept, MAX_LENGTH: longest}


def _template_kwargs(place: Path) -> dict[str, Any]:
    kept = _kept(place)
    given: dict[str, Any] = (kept.get("card") or kept).get(TEMPLATE_KWARGS) or {}
    return given


def _counted(directory: Path, said: tuple[str, ...]) -> Exported:
    files = weight_files(directory)
    return Exported(directory, sum(file.stat().st_size for file in files), len(files), said)
