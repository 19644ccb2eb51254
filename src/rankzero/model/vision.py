"""Images of vision-language models: how many tokens one becomes, its pixels as inputs, the processor's files.

Knows processors in whose text an image is N copies of one placeholder, which the chat template prints once for each
image; whether a processor is one of these is tried out on samples. Knows nothing of rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from rankzero.errors import ConfigError
from rankzero.model.processor import image_tokens
from rankzero.model.source import ModelSource
from rankzero.model.vision_rules import ProcessorPlace, VisionRules
from rankzero.run_dir.atomic import write_json
from rankzero.spec.run_spec import ModelSpec
from rankzero.wording import first_line

if TYPE_CHECKING:
    from PIL.Image import Image

_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
_SAMPLES = ((64, 64), (200, 120), (97, 333))
_TEXT_INPUTS = ("input_ids", "attention_mask")


class Vision:
    """A model's processor, tried out."""

    def __init__(self, place: ProcessorPlace) -> None:
        """Raises ConfigError where there is no processor, or one whose layout is not known."""
        self._processor = place.load()
        token = getattr(self._processor, "image_token", None)
        ids: list[int] = []
        if isinstance(token, str):
            ids = self._processor.tokenizer.encode(token, add_special_tokens=False)
        if not isinstance(token, str) or len(ids) != 1:
            raise self._unknown("it has no placeholder for images that is one token")
        others = (getattr(self._processor, f"{kind}_token", None) for kind in ("video", "audio"))
        reserved = tuple(other for other in others if isinstance(other, str) and other != token)
        settings = json.dumps(self._processor.image_processor.to_dict(), sort_keys=True, default=str)
        decides = f"{type(self._processor).__name__} {token} {place.max_tokens} {settings}"
        digest = hashlib.sha256(decides.encode()).hexdigest()
        self.rules = VisionRules(place, token, ids[0], reserved, digest)
        self._token_inputs = self._try_out()

    @property
    def placeholder_id(self) -> int:
        """The token that an image is copies of."""
        return self.rules.placeholder_id

    @property
    def chat_template(self) -> str | None:
        """The processor's own, where it has one."""
        template = self._processor.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        return template if isinstance(template, str) else None

    def tokens(self, image: Image) -> int:
        """How many tokens an image becomes."""
        return image_tokens(self._processor, [image.size])[0]

    def inputs(self, images: Sequence[Image]) -> dict[str, torch.Tensor]:
        """What the model is given of these RGB images besides their tokens: pixels, and how they lie."""
        text = self.rules.placeholder * len(images)
        made = self._processor(images=list(images), text=[text], return_tensors="pt")
        return {name: value for name, value in made.items() if name not in (*_TEXT_INPUTS, *self._token_inputs)}

    def token_inputs(self, input_ids_BT: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
        """What the model is given of each token besides its id, in a pass with images: which are of an image."""
        of_image_BT = (input_ids_BT == self.placeholder_id).astype(np.int64)
        return {name: of_image_BT for name in self._token_inputs}

    def save(self, directory: Path) -> None:
        """Write the processor's files as they were, but for a limit on image tokens. Raises StorageError."""
        for name in _FILES:
            file = Path(self.rules.place.name, name)
            if file.is_file():
                content = json.loads(file.read_text(encoding="utf-8"))
                write_json(directory / name, content if self.rules.max_tokens is None else self._limited(content))

    def _limited(self, content: dict[str, Any]) -> dict[str, Any]:
        if "image_processor" in content:
            return {**content, "image_processor": self._limited(content["image_processor"])}
        if "image_processor_type" not in content:
            return content
        older = {"min_pixels", "max_pixels"}  # which would have the last word
        return {
            **{name: value for name, value in content.items() if name not in older},
            "size": dict(self._processor.image_processor.size),
        }

    def _try_out(self) -> tuple[str, ...]:
        """Raise ConfigError where the processor's own tokens of sample images are not what is made of them here.
        Returns the names of what it gives for each token, besides the ids."""
        from PIL import Image

        images = [Image.new("RGB", size, (90, 120, 150)) for size in _SAMPLES]
        text = "one" + " two".join([self.rules.placeholder] * len(images)) + " three"
        try:
            made = self._processor(images=images, text=[text])
            ids = list(made["input_ids"][0])
            tokens = iter(image_tokens(self._processor, _SAMPLES))
        except Exception as error:  # a processor is foreign code: it may fail in any way
            raise self._unknown(first_line(error)) from error
        if ids != list(self._expanded(self._processor.tokenizer(text)["input_ids"], tokens)):
            raise self._unknown("its tokens of an image are more than copies of the placeholder")
        names = []
        of_image = [int(token == self.placeholder_id) for token in ids]
        for name, value in made.items():
            if name in _TEXT_INPUTS or np.shape(value) != np.shape(made["input_ids"]):
                continue
            if list(value[0]) == of_image:
                names.append(name)
            elif any(value[0]):
                raise self._unknown(f"what it gives as {name}")
        return tuple(names)

    def _expanded(self, ids: Sequence[int], tokens: Iterator[int]) -> Iterator[int]:
        for token in ids:
            yield from [token] * (next(tokens) if token == self.placeholder_id else 1)

    def _unknown(self, why: str) -> ConfigError:
        what = f"{type(self._processor).__name__} lays out images in a way that is not known: {why}"
        return ConfigError(what, where="model.name", hint="known are models like Qwen-VL and LLaVA")


def load_vision(
    source: ModelSource, spec: ModelSpec, tokenizer: Any, *, max_tokens: int | None, chat_template: str | None
) -> Vision:
    """The model's processor, with images of up to `max_tokens`. A chat template that only the processor has becomes the
    tokenizer's, unless `chat_template` (as data.chat_template) names one. Raises ConfigError."""
    found = (place for place in (source.weights, source.tokenizer) if any((place / name).is_file() for name in _FILES))
    place = ProcessorPlace(
        name=str(next(found, source.weights)),
        tokenizer=str(source.tokenizer),
        trust_remote_code=spec.trust_remote_code,
        max_tokens=max_tokens,
    )
    vision = Vision(place)
    if chat_template is None and vision.chat_template is not None:
        tokenizer.chat_template = vision.chat_template
    return vision
