"""What an image of a size becomes in the text of a processor, as the processor itself writes it. Knows transformers'
processors; nothing of rows.

A processor puts text in place of each image's placeholder and tokenises the whole. That text is listened to here, with
an image of the size in question, so that whatever a family writes around its image tokens (tags, rows of tiles, line
ends) is in it, and tokens may join what stands before and behind an image as they do in use. A run of image tokens is
kept as one of them with its length: a special token splits the text, however often it stands there.

    Qwen-VL, LLaVA     <image>                                                     n
    Gemma 3            ⏎⏎<start_of_image><image_soft_token><end_of_image>⏎⏎        256
    Idefics3, SmolVLM  <fake…><row_1_col_1><image>…⏎⏎<fake…><global-img><image><fake…>   n for each tile
    InternVL           <img><IMG_CONTEXT></img>                                    n for all tiles together
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import Any

from PIL import Image

from rankzero.data.images.decode import MAX_PIXELS
from rankzero.data.tokens.image_tokens import DecidedBy, Layout
from rankzero.model.processor import image_counts

_BEFORE, _AFTER = "before ", " after"
_SIDES = (40, 90, 160, 300, 520, 900, 1400)
_TRIED = [(width, height) for width in _SIDES for height in _SIDES]
_PAIRS = 8


class Layouts:
    """Layouts by size, each looked for once."""

    def __init__(self, processor: Any, placeholder: str, image_token: str, decided_by: DecidedBy) -> None:
        self._processor, self._decided_by = processor, decided_by
        self._placeholder, self._image_token = placeholder, image_token
        self._known: dict[tuple[int, ...], Layout] = {}
        self._by_text: dict[str, Layout] = {}

    def __call__(self, width: int, height: int) -> Layout:
        """Raises ValueError where the processor takes no image of this size."""
        _require_scalable(self._processor.image_processor, width, height)
        key: tuple[int, ...] = (width, height)
        if self._decided_by != "size":
            key = image_counts(self._processor, [(width, height)])[0]
        if self._decided_by == "count":
            return Layout(self._placeholder, key[:1], key[0])
        if key not in self._known:
            text = image_text(self._processor, self._placeholder, (width, height))
            if text not in self._by_text:  # many sizes have few layouts
                self._by_text[text] = self._layout(text)
            self._known[key] = self._by_text[text]
        return self._known[key]

    def _layout(self, text: str) -> Layout:
        token = re.escape(self._image_token)
        copies = tuple(len(run) // len(self._image_token) for run in re.findall(f"(?:{token})+", text))
        short = re.sub(f"(?:{token})+", lambda _: self._image_token, text)
        ids = self._processor.tokenizer.encode(short, add_special_tokens=False)
        return Layout(short, copies, len(ids) + sum(copies) - len(copies))


def _require_scalable(image_processor: Any, width: int, height: int) -> None:
    """Raise ValueError for a strip that a processor which scales by the shorter side, and crops then, makes larger than
    any image may be."""
    size = dict(getattr(image_processor, "size", None) or {})
    shortest = size.get("shortest_edge")
    if not shortest or size.get("longest_edge") or not getattr(image_processor, "do_resize", True):
        return
    pixels = width * height * (shortest / min(width, height)) ** 2
    if pixels > MAX_PIXELS:
        raise ValueError(f"it would be scaled to {pixels:,.0f} pixels before it is cropped")


def image_text(processor: Any, placeholder: str, size: tuple[int, int]) -> str:
    """What the processor puts in place of the placeholder for an image of (width, height). Raises ValueError where it
    takes no such image, or does not keep what stands before and behind it."""
    listening = copy.copy(processor)
    listening.tokenizer = heard = _Heard(processor.tokenizer)
    listening(images=[Image.new("RGB", size, (90, 120, 150))], text=[f"{_BEFORE}{placeholder}{_AFTER}"])
    text = heard.text
    if not (text.startswith(_BEFORE) and text.endswith(_AFTER)):
        raise ValueError("it writes its tokens of an image elsewhere than in the image's place")
    return text.removeprefix(_BEFORE).removesuffix(_AFTER)


def counts_decide(processor: Any, placeholder: str) -> bool:
    """Whether images of which the processor says the same numbers stand alike, as far as it can be tried: the widest
    and the tallest of some sizes with equal numbers. Raises ValueError where it says none."""
    alike: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for counts, size in zip(image_counts(processor, _TRIED), _TRIED, strict=True):
        alike.setdefault(counts, []).append(size)
    extremes = [(min(sizes, key=_shape), max(sizes, key=_shape)) for sizes in alike.values()]
    extremes.sort(key=lambda pair: _shape(pair[0]) / _shape(pair[1]))
    return all(
        image_text(processor, placeholder, tall) == image_text(processor, placeholder, wide)
        for tall, wide in extremes[:_PAIRS]
        if tall != wide
    )


def _shape(size: tuple[int, int]) -> float:
    return size[0] / size[1]


class _Heard:
    """A tokenizer that notes what it was last given."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.text = ""

    def __call__(self, text: Any = None, **options: Any) -> Any:
        self.text = text if isinstance(text, str) else str(text[0])
        return self._tokenizer(text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def expand(ids: Iterable[int], image_token_id: int, copies: Iterable[int]) -> list[int]:
    """The ids with each image token as often as its run is long, in order."""
    runs = iter(copies)
    return [copy for token in ids for copy in [token] * (next(runs, 1) if token == image_token_id else 1)]
