"""A vision-language model's processor, loaded with what images need and nothing else. Knows transformers' processors;
nothing of rows or passes.

Images are always scaled by Pillow, with and without torchvision, so that every machine sees the same pixels. Video
processors, which need torchvision, are left out.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from transformers import AutoConfig, AutoImageProcessor, AutoProcessor, AutoTokenizer
from transformers.image_processing_base import ImageProcessingMixin
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING, processor_class_from_name
from transformers.processing_utils import ProcessorMixin

from rankzero.data.images.decode import require_pillow
from rankzero.errors import ConfigError
from rankzero.wording import first_line

_LARGE = ((4096, 4096), (3000, 1000), (1000, 3000))
"""Sizes at which a limit would show."""


@lru_cache(2)
def load_processor(directory: str, tokenizer: str, trust_remote_code: bool, max_tokens: int | None) -> Any:
    """The processor of a directory with a tokenizer of its own, scaling images to `max_tokens`. Raises ConfigError."""
    require_pillow()
    try:
        processor = _load(directory, tokenizer, {"trust_remote_code": trust_remote_code, "local_files_only": True})
    except Exception as error:  # whatever a processor's code makes of values that it does not know
        reason = first_line(error)
        hint = "copy preprocessor_config.json (or processor_config.json) from the model's Hub page"
        if isinstance(error, ImportError):
            hint = "install that package beside rankzero"
        raise ConfigError(f"the model's processor cannot be loaded: {reason}", where=directory, hint=hint) from error
    if max_tokens is not None:
        _limit(processor, max_tokens)
    return processor


def image_counts(processor: Any, sizes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """How many tokens and patches images of (width, height) become, as the processor computes it from their sizes; 0
    patches where it does not say. ValueError where it says nothing, or takes no image of a size."""
    count = getattr(processor, "_get_num_multimodal_tokens", None)
    if count is None:
        raise ValueError(f"{type(processor).__name__} does not say how many tokens an image becomes")
    wanted = [(height, width) for width, height in sizes]
    try:
        found = count(image_sizes=wanted)
    except Exception as error:  # whatever a processor's code makes of settings that it does not know
        said = f"{type(processor).__name__} cannot say how many tokens an image becomes: {first_line(error)}"
        raise ValueError(said) from error
    tokens = found.num_image_tokens
    patches = getattr(found, "num_image_patches", None) or [0] * len(wanted)
    return [(int(number), int(of)) for number, of in zip(tokens, patches, strict=True)]


class _ImagesOnly:
    """Before a processor's class: lets it be made without the parts that it has for other things than images."""

    def check_argument_for_proper_class(self, _name: str, argument: Any) -> Any:
        return type(argument)


def _load(directory: str, tokenizer: str, options: dict[str, Any]) -> Any:
    config = AutoConfig.from_pretrained(directory, **options)
    if type(config) not in PROCESSOR_MAPPING:  # with code of its own
        processor = AutoProcessor.from_pretrained(directory, **options)
        if not hasattr(processor, "image_processor"):
            raise ValueError(f"{type(processor).__name__} has nothing for images")
        return processor
    known = _named(directory, options) or PROCESSOR_MAPPING[type(config)]
    module = sys.modules.get(known.__module__)
    if module is not None and getattr(module, "num2words", "") is None:
        module.num2words = str  # type: ignore[attr-defined]  # SmolVLM's wants a package that words numbers, for videos
    parts = {
        "image_processor": AutoImageProcessor.from_pretrained(directory, backend="pil", **options),
        "tokenizer": AutoTokenizer.from_pretrained(tokenizer, **options),
    }
    settings, _ = known.get_processor_dict(directory, **options)
    made: Any = type(known.__name__, (_ImagesOnly, known), {})
    return made.from_args_and_dict([parts.get(name) for name in known.get_attributes()], settings)


def _named(directory: str, options: dict[str, Any]) -> Any:
    """The class that its files name, as AutoProcessor looks for it: Pixtral's is not that of its config, LLaVA's. None
    where they name none that is transformers' own."""
    processor, _ = ProcessorMixin.get_processor_dict(directory, **options)
    image, _ = ImageProcessingMixin.get_image_processor_dict(directory, **options)
    names = [name for one in (processor, image) if (name := one.get("processor_class"))]
    return processor_class_from_name(names[0]) if names else None


def _limit(processor: Any, max_tokens: int) -> None:
    """Scale larger images down, as processors can that count in pixels. Raises ConfigError for the others, where their
    images take more."""
    image_processor = processor.image_processor
    size = dict(getattr(image_processor, "size", None) or {})
    patch, merge = getattr(image_processor, "patch_size", None), getattr(image_processor, "merge_size", None)
    if {"shortest_edge", "longest_edge"} <= size.keys() and isinstance(patch, int) and isinstance(merge, int):
        token = (patch * merge) ** 2
        # A small image is scaled up to `shortest_edge` pixels, and then each side up to whole tokens.
        least = int(max(1.0, math.sqrt(max_tokens) - 1) ** 2 * token)
        size |= {"longest_edge": max_tokens * token, "shortest_edge": min(size["shortest_edge"], least)}
        image_processor.size = type(image_processor.size)(**size)
    try:
        tokens = max(number for number, _ in image_counts(processor, _LARGE))
    except ValueError:
        return  # told when the layout is tried out
    if tokens > max_tokens:
        raise cannot_limit(processor, tokens, max_tokens)


def cannot_limit(processor: Any, tokens: int, wanted: int) -> ConfigError:
    """That images take so many tokens whatever is wanted."""
    name = type(processor.image_processor).__name__
    what = f"an image becomes {tokens} tokens, and {name} cannot scale it to {wanted}"
    return ConfigError(what, where="data.image_max_tokens", hint=f"set {tokens} or more, or leave it out")
