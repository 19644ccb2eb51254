"""Images of vision-language models: the tokens that one becomes, its pixels as inputs, the processor's files.

Knows processors that put text in place of a placeholder, which the chat template prints once for each image, and whose
text follows from the image's size; whether a processor is one of these is tried out on samples. Knows nothing of rows.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from jinja2 import TemplateError

from rankzero.data.tokens.image_tokens import DecidedBy, Layout, in_place
from rankzero.directories import is_file
from rankzero.errors import ConfigError
from rankzero.model.layouts import counts_decide, expand, image_text
from rankzero.model.processor import cannot_limit, image_counts
from rankzero.model.source import ModelSource
from rankzero.model.vision_rules import ProcessorPlace, VisionRules
from rankzero.run_dir.atomic import write_json
from rankzero.spec.run_spec import ModelSpec
from rankzero.wording import first_line

if TYPE_CHECKING:
    from PIL.Image import Image

_IMAGES = "preprocessor_config.json"
_FILES = (_IMAGES, "processor_config.json", "video_preprocessor_config.json")
_SAMPLES = ((64, 64), (200, 120), (97, 333), (1300, 400), (400, 1300), (800, 800))
"""Small and large, wide and tall: whatever cuts images into tiles cuts some of these."""
_TEXT_INPUTS = ("input_ids", "attention_mask")


class Vision:
    """A model's processor, tried out."""

    def __init__(self, place: ProcessorPlace) -> None:
        """Raises ConfigError where there is no processor, or one whose layout is not known."""
        self._processor = place.load()
        added = self._processor.tokenizer.get_added_vocab()
        # Line ends are tokens of Gemma's that were added, too; they stand for themselves.
        self._names: dict[int, str] = {number: token for token, number in added.items() if token.strip()}
        placeholder = getattr(self._processor, "image_token", None)
        if not isinstance(placeholder, str) or self._id_of(placeholder) is None:
            raise self._unknown("it has no placeholder for images that is one token")
        try:
            texts = [image_text(self._processor, placeholder, size) for size in _SAMPLES]
        except Exception as error:  # a processor is foreign code: it may fail in any way
            raise self._unknown(first_line(error)) from error
        image_token, image_token_id = self._image_token(texts)
        decided_by, around = self._decided_by(texts, placeholder), self._around(placeholder)
        settings = json.dumps(self._processor.image_processor.to_dict(), sort_keys=True, default=str)
        decides = f"{type(self._processor).__name__} {placeholder} {decided_by} {place.max_tokens} {settings} {texts}"
        self.rules = VisionRules(
            place=place,
            placeholder=placeholder,
            image_token_id=image_token_id,
            image_token=image_token,
            reserved=self._reserved(texts, placeholder, "".join(around)),
            around=around,
            decided_by=decided_by,
            fingerprint=hashlib.sha256(decides.encode()).hexdigest(),
        )
        self._layout = self.rules.layouts()
        self._laid_out: dict[Layout, list[int]] = {}
        self._token_inputs = self._try_out()
        self._check_limit()

    @property
    def image_token_id(self) -> int:
        """The token whose copies the model puts an image's features in the place of."""
        return self.rules.image_token_id

    @property
    def chat_template(self) -> str | None:
        """The processor's own, where it has one."""
        template = self._processor.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        return template if isinstance(template, str) else None

    def tokens(self, image: Image) -> int:
        """How many tokens an image becomes, with those around its image tokens."""
        return self._layout(*image.size).tokens

    def image_tokens(self, image: Image) -> int:
        """How many image tokens it has."""
        return sum(self._layout(*image.size).copies)

    def laid_out(self, images: Sequence[Image]) -> list[int]:
        """The special tokens of these images in a row's text, in order: image tokens, and tags around and between
        them."""
        return [token for image in images for token in self._tokens_of(self._layout(*image.size))]

    def _tokens_of(self, layout: Layout) -> list[int]:
        if layout not in self._laid_out:
            ids = self._processor.tokenizer.encode(layout.text, add_special_tokens=False)
            special = [token for token in ids if token in self._names]
            self._laid_out[layout] = expand(special, self.image_token_id, layout.copies)
        return self._laid_out[layout]

    def ids(self, image: Image) -> list[int]:
        """All tokens of an image, alone."""
        return self.prompt_ids(self.rules.placeholder, [image], self._processor.tokenizer)

    def prompt_ids(self, text: str, images: Sequence[Image], tokenizer: Any) -> list[int]:
        """The tokens of a text that has the placeholder once for each of these images."""
        layouts = [self._layout(*image.size) for image in images]
        whole, _ = in_place(text, self.rules.placeholder, layouts)
        ids = tokenizer(whole, add_special_tokens=False)["input_ids"]
        return expand(ids, self.image_token_id, [run for layout in layouts for run in layout.copies])

    def inputs(self, images: Sequence[Image]) -> dict[str, torch.Tensor]:
        """What the model is given of these RGB images besides their tokens: pixels, and how they lie. Raises
        ConfigError where the processor makes other tokens of them than of images of their sizes."""
        text = self.rules.placeholder * len(images)
        made = self._processor(images=list(images), text=[text], return_tensors="pt")
        found = int((made["input_ids"] == self.image_token_id).sum())
        if found != sum(map(self.image_tokens, images)):
            sizes = ", ".join(f"{image.width} x {image.height}" for image in images)
            raise self._unknown(f"images of {sizes} become {found} image tokens, which does not follow from their size")
        return {name: value for name, value in made.items() if name not in (*_TEXT_INPUTS, *self._token_inputs)}

    def token_inputs(self, input_ids_BT: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
        """What the model is given of each token besides its id, in a pass with images: which are image tokens."""
        of_image_BT = (input_ids_BT == self.image_token_id).astype(np.int64)
        return {name: of_image_BT for name in self._token_inputs}

    def save(self, directory: Path) -> None:
        """Write the processor's files as they were, but for a limit on image tokens, and a chat template, which would
        come before that of the tokenizer beside them. Raises StorageError."""
        for name in _FILES:
            file = Path(self.rules.place.name, name)
            if is_file(file):
                content = json.loads(file.read_text(encoding="utf-8"))
                content.pop("chat_template", None)
                write_json(directory / name, content if self.rules.max_tokens is None else self._limited(name, content))

    def _limited(self, name: str, content: dict[str, Any]) -> dict[str, Any]:
        """The limit in whatever says how images are scaled. Many files do not say whose settings they hold."""
        if "image_processor" in content:
            return {**content, "image_processor": self._limited(_IMAGES, content["image_processor"])}
        if name != _IMAGES and "image_processor_type" not in content:
            return content
        older = {"min_pixels", "max_pixels"}  # which would have the last word
        return {
            **{name: value for name, value in content.items() if name not in older},
            "size": dict(self._processor.image_processor.size),
        }

    def _id_of(self, token: str) -> int | None:
        ids: list[int] = self._processor.tokenizer.encode(token, add_special_tokens=False)
        return ids[0] if len(ids) == 1 else None

    def _special(self, texts: Sequence[str]) -> Counter[str]:
        """Special tokens of these texts, and how often they stand there."""
        tokenizer = self._processor.tokenizer
        return Counter(
            self._names[number]
            for text in texts
            for number in tokenizer.encode(text, add_special_tokens=False)
            if number in self._names
        )

    def _image_token(self, texts: Sequence[str]) -> tuple[str, int]:
        """The special token that sample images have most of."""
        found = self._special(texts).most_common(1)
        token_id = self._id_of(found[0][0]) if found else None
        if token_id is None:
            raise self._unknown("its tokens of an image are no special ones")
        return found[0][0], token_id

    def _around(self, placeholder: str) -> tuple[str, str]:
        """Special tokens that the model's own chat template prints directly before and behind an image."""
        template = self.chat_template or self._processor.tokenizer.chat_template
        if not isinstance(template, str):
            return "", ""
        parts = [{"type": "text", "text": "x"}, {"type": "image"}, {"type": "text", "text": "y"}]
        turns = [{"role": "user", "content": parts}]
        try:
            text = self._processor.tokenizer.apply_chat_template(turns, tokenize=False, chat_template=template)
        except (TemplateError, TypeError):  # it reads no parts, so it has no place for images
            return "", ""
        special = "|".join(re.escape(name) for name in self._names.values() if name != placeholder)
        found = re.search(f"x((?:{special})*){re.escape(placeholder)}((?:{special})*)y", text)
        return (found[1], found[2]) if found else ("", "")

    def _reserved(self, texts: Sequence[str], placeholder: str, around: str) -> tuple[str, ...]:
        """Tokens that no row may have in its text: of videos and audio, and what the samples, or what is `around` them,
        have besides their placeholder."""
        others = [getattr(self._processor, f"{kind}_token", None) for kind in ("video", "audio")]
        others += sorted(self._special([*texts, around]))
        return tuple(dict.fromkeys(other for other in others if isinstance(other, str) and other != placeholder))

    def _decided_by(self, texts: Sequence[str], placeholder: str) -> DecidedBy:
        """What the samples' layouts follow from."""
        try:
            counts = image_counts(self._processor, _SAMPLES)
            if all(text == placeholder * number for text, (number, _) in zip(texts, counts, strict=True)):
                return "count"
            return "counts" if counts_decide(self._processor, placeholder) else "size"
        except ValueError:
            return "size"

    def _try_out(self) -> tuple[str, ...]:
        """Raise ConfigError where the processor's own tokens of sample images are not what is made of them here.
        Returns the names of what it gives for each token, besides the ids."""
        from PIL import Image

        images = [Image.new("RGB", size, (90, 120, 150)) for size in _SAMPLES]
        tokenizer, mark = self._processor.tokenizer, self.rules.placeholder
        text = f"one\n{mark}\ntwo {mark}{mark}three\n\n{mark}\n\n{mark}".removesuffix(mark)
        text += mark * (len(images) - text.count(mark)) + " four"
        try:
            made = self._processor(images=images, text=[text])
            ids = list(made["input_ids"][0])
            layouts = [self._layout(*size) for size in _SAMPLES]
        except Exception as error:  # as above
            raise self._unknown(first_line(error)) from error
        whole, _ = in_place(text, mark, layouts)
        copies = [run for layout in layouts for run in layout.copies]
        if ids != expand(tokenizer(whole)["input_ids"], self.image_token_id, copies):
            raise self._unknown("its tokens of several images are not those of each in its place")
        names = []
        of_image = [int(token == self.image_token_id) for token in ids]
        for name, value in made.items():
            if name in _TEXT_INPUTS or np.shape(value) != np.shape(made["input_ids"]):
                continue
            if list(value[0]) == of_image:
                names.append(name)
            elif any(value[0]):
                raise self._unknown(f"what it gives as {name}")
        return tuple(names)

    def _check_limit(self) -> None:
        """Raise ConfigError where images are cut into tiles or of one size, and take more than the limit. Whether a
        number of pixels can be kept to, setting it has told."""
        limit, most = self.rules.max_tokens, max(self._layout(*size).tokens for size in _SAMPLES)
        if limit is not None and self.rules.decided_by != "count" and most > limit:
            raise cannot_limit(self._processor, most, limit)

    def _unknown(self, why: str) -> ConfigError:
        what = f"{type(self._processor).__name__} lays out images in a way that is not known: {why}"
        hint = "known are models like Qwen-VL, LLaVA, Gemma 3, Idefics3, SmolVLM and InternVL"
        return ConfigError(what, where="model.name", hint=hint)


def load_vision(
    source: ModelSource, spec: ModelSpec, tokenizer: Any, *, max_tokens: int | None, keep_template: bool
) -> Vision:
    """The model's processor, with images of up to `max_tokens`. Its chat template, where it has one, becomes the
    tokenizer's, unless that is to `keep_template`: one that was chosen, or trained with. Raises ConfigError."""
    found = (place for place in (source.weights, source.tokenizer) if any(is_file(place / name) for name in _FILES))
    place = ProcessorPlace(
        name=str(next(found, source.weights)),
        tokenizer=str(source.tokenizer),
        trust_remote_code=spec.trust_remote_code,
        max_tokens=max_tokens,
    )
    vision = Vision(place)
    if vision.chat_template is not None and not keep_template:
        tokenizer.chat_template = vision.chat_template
    return vision
