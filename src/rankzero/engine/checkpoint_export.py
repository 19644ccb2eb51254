"""A full fine-tune's checkpoint as the model that the run's result would be, had the run ended there.

A checkpoint has the weights as training holds them, under the names and in the precision of memory, and nothing besides
them (model/weights.py): what it lacks is the base's.
"""

from __future__ import annotations

from pathlib import Path

import torch

from rankzero.engine.console import results_alone_on_stdout
from rankzero.errors import StorageError
from rankzero.model.load import (
    ClassHead,
    kind_of,
    load_config,
    load_model,
    load_tokenizer,
    padding_id,
    stop_token_ids,
    stored_dtype,
)
from rankzero.model.source import (
    locate,
    require_trained_tokenizer,
    warn_of_another_base,
    warn_of_another_tokenizer,
)
from rankzero.model.vision import load_vision
from rankzero.model.weights import export_final, file_layout, library_errors, saved_buffers, staged_for
from rankzero.run_dir.atomic import commit_directory
from rankzero.run_dir.of_weights import MAX_LENGTH, TEMPLATE_KWARGS
from rankzero.run_dir.result import Result
from rankzero.spec.run_spec import RunSpec


def write_as_result(spec: RunSpec, found: Result, weights: Path, output: Path, *, shard_bytes: int | None) -> None:
    """Write `weights`, of the run's `spec`, to `output`, whole or not at all. `found`: its base, and how texts become
    its tokens. Raises ConfigError, AccessError, ServiceError, StorageError."""
    uses = spec.task_section.uses
    with results_alone_on_stdout():
        source = locate(found.model, uses)
        warn_of_another_base(source, found.trained_on)
        config = load_config(source, found.model)
        tokenizer, head, vision = load_tokenizer(source, found.model, found.chat_template), None, None
        if uses == "classifies":
            head = ClassHead(found.labels, padding_id(tokenizer, config))
        if kind_of(config, uses) == "vision":
            limit, chosen = found.image_max_tokens, found.chat_template is not None
            vision = load_vision(source, found.model, tokenizer, max_tokens=limit, keep_template=chosen)
        (warn_of_another_tokenizer if found.base_is_given else require_trained_tokenizer)(
            source, tokenizer, found.tokenizer
        )
        dtype = stored_dtype(config, source.weights)
        model = load_model(source, found.model, config, dtype, head=head)
        with library_errors(weights):
            _take(model, weights)
        with staged_for(output) as staged:
            with library_errors(output):
                ends = sorted({*stop_token_ids(model, tokenizer), *found.stop_ids})
                export_final(model, tokenizer, staged, dtype=dtype, stop_ids=ends, shard_bytes=shard_bytes)
                if vision is not None:
                    vision.save(staged)
            about: dict[str, object] = {"labels": found.labels, TEMPLATE_KWARGS: dict(found.chat_template_kwargs)}
            if head is not None:
                about[MAX_LENGTH] = found.max_length
            commit_directory(staged, output, about, replaces=False)


@torch.no_grad()
def _take(model: object, weights: Path) -> None:
    """The checkpoint's values in the place of the base's, rounded once to the precision of its files. Raises
    StorageError where they do not fit."""
    held = {**dict(model.named_parameters()), **saved_buffers(model)}  # type: ignore[attr-defined, arg-type]
    values = file_layout(model).read(weights)
    different = [name for name, value in values.items() if held[name].shape != value.shape]
    if different:
        hint = f"they differ in the shapes of {', '.join(different[:5])}"
        raise StorageError("the saved weights do not fit this model", where=str(weights), hint=hint)
    for name, value in values.items():
        held[name].copy_(value)
