"""An adapter and its base as one plain model. Knows nothing of runs.

Each adapted weight is the base's plus the adapter's share, computed in float32 and rounded once to the precision that
the base's files have. Of a base that was packed for training there are two: the weights as they were computed with
(packed and unpacked again), which give the merged model the losses that were measured, and those of the files, which
the adapter has never seen.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftConfig
from peft.tuners.lora.layer import LoraLayer, ParamWrapper
from peft.tuners.trainable_tokens.layer import TrainableTokensLayer

from rankzero.errors import ConfigError
from rankzero.model.files import TOKENIZER_FILES
from rankzero.model.load import ClassHead, load_config, load_model, load_tokenizer, padding_id
from rankzero.model.lora import CLASSIFIER, load_adapter
from rankzero.model.quantize import is_quantised, unpack
from rankzero.model.source import locate
from rankzero.model.weights import save_whole
from rankzero.run_dir.atomic import commit_directory, stage_name, storage_errors
from rankzero.spec.run_spec import ModelSpec

BaseWeights = Literal["trained", "files"]
COMPANIONS = (
    *TOKENIZER_FILES,
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt", "chat_template.jinja"),
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json", "generation_config.json"),
)
"""What belongs to a model besides weights and config; the adapter's are taken before the base's."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What was written."""

    directory: Path
    base: str
    dtype: str
    layers: int
    """Layers and tensors that an adapter was added to."""


def merge(
    spec: ModelSpec,
    adapter: Path,
    output: Path,
    *,
    base_weights: BaseWeights = "trained",
    labels: tuple[str, ...] | None = None,
) -> Merged:
    """Write the model `spec` with `adapter` added to its weights to `output`, whole or not at all.

    `labels` are the classes of a classifier by number. Raises ConfigError, AccessError, ServiceError, StorageError.
    """
    if output.exists():
        raise ConfigError("there is something already", where=str(output), hint="name a directory that does not exist")
    settings = PeftConfig.from_pretrained(str(adapter))
    if settings.peft_type != "LORA":
        hint = "use the tool that made it"
        raise ConfigError(f"{settings.peft_type} adapters cannot be merged", where=str(adapter), hint=hint)
    if base_weights == "files":
        spec = spec.model_copy(update={"quantization": "none"})
    source = locate(spec)
    config = load_config(source, spec)
    dtype = getattr(torch, str(config.dtype or "float32").removeprefix("torch."))
    head = None
    if settings.task_type == CLASSIFIER:
        head = ClassHead(labels, padding_id(load_tokenizer(source, spec, None), config))
    model = load_model(source, spec, config, dtype, head=head)
    if is_quantised(model):
        unpack(model)
    adapted = load_adapter(model, adapter)
    layers = add_adapters(adapted)
    plain = adapted.unload()
    plain.config.use_cache = True
    staged = output.parent / stage_name(output.name)
    with storage_errors(output):
        staged.mkdir(parents=True)
    try:
        save_whole(plain, staged, dtype=dtype)
        for name in COMPANIONS:
            holder = next(
                (place for place in (adapter, source.tokenizer, source.weights) if (place / name).is_file()), None
            )
            if holder is not None:
                shutil.copyfile(holder / name, staged / name)
        about = {"base": source.name, "base_weights": base_weights, "adapter": str(adapter), "labels": labels}
        commit_directory(staged, output, {"merged": about})
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return Merged(output, source.name, str(dtype).removeprefix("torch."), layers)


def add_adapters(adapted: Any) -> int:
    """Add every adapter to the weight that it belongs to, in float32, one layer at a time. Returns how many.

    Raises ConfigError where a sum is NaN or infinite.
    """
    count = 0
    for name, layer in adapted.named_modules():
        if isinstance(layer, TrainableTokensLayer):
            layer.merge()
            count += 1
        if not isinstance(layer, LoraLayer):
            continue
        owner = layer.get_base_layer()
        parameter = getattr(owner, layer.parameter_name if isinstance(layer, ParamWrapper) else "weight")
        precision = parameter.dtype
        parameter.data = parameter.data.to(torch.float32)
        try:
            layer.merge(safe_merge=True)
        except ValueError as error:
            hint = "the run diverged; take an earlier checkpoint"
            raise ConfigError("the adapter has NaN or Inf in it", where=name, hint=hint) from error
        parameter = getattr(owner, layer.parameter_name if isinstance(layer, ParamWrapper) else "weight")
        parameter.data = parameter.data.to(precision)
        count += 1
    return count
