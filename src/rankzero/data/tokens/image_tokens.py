"""A row's images as files and numbers of tokens. Knows paths and image heads; how many tokens a size becomes, the
model's processor says (model/vision.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

from rankzero.data.images.decode import ImageError, ImageLimits, image_size, locate, require_pillow
from rankzero.data.images.embedded import is_embedded, keep, kept_images, shown
from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.problems import RowProblem

_REMEMBERED = 1 << 16


class ImageRules(Protocol):
    """How a vision-language model lays out images in text. Travels to data workers, so it must pickle."""

    @property
    def placeholder(self) -> str:
        """What a chat template prints once for each image, and what the image's tokens are copies of."""
        ...

    @property
    def placeholder_id(self) -> int: ...

    @property
    def reserved(self) -> tuple[str, ...]:
        """Further tokens that stand for what is no text, such as videos: no row may have them in its text."""
        ...

    @property
    def max_tokens(self) -> int | None:
        """Most tokens that one image may become."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes when the same image could become another number of tokens."""
        ...

    def counter(self) -> Callable[[int, int], int]:
        """Tokens of an image of (width, height). Loads the processor; ValueError where the size is not possible."""
        ...


class Picture(NamedTuple):
    """An image of a row: where the file is, and how many tokens it becomes."""

    path: str
    tokens: int


class Pictures:
    """Looks at the images of rows, each once. Nothing is loaded before the first of them."""

    def __init__(self, rules: ImageRules) -> None:
        self._rules = rules
        self._look = lru_cache(_REMEMBERED)(self._first_look)

    def of(self, conversation: Conversation, root: str) -> tuple[Picture, ...] | RowProblem:
        """The row's images, whose paths are relative to `root`, or what is wrong with the first bad one."""
        pictures: list[Picture] = []
        for image in conversation.images:
            found = self._embedded(image) if is_embedded(image) else self._look(image, root)
            if isinstance(found, ImageError):
                reason = found.reason if "image" in found.reason else f"image: {found.reason}"
                return RowProblem(conversation.line, reason, f"image {shown(image)}: {found.what}", found.hint)
            pictures.append(found)
        return tuple(pictures)

    @cached_property
    def _count(self) -> Callable[[int, int], int]:
        require_pillow()
        return self._rules.counter()

    def _embedded(self, image: str) -> Picture | ImageError:
        try:
            return self._look(keep(image), str(kept_images()))
        except ImageError as error:
            return error

    def _first_look(self, image: str, root: str) -> Picture | ImageError:
        count, limit = self._count, self._rules.max_tokens
        try:
            file = locate(image, Path(root))
            width, height = image_size(file, ImageLimits())
        except ImageError as error:
            return error
        size = f"{width} x {height} pixels"
        try:
            tokens = count(width, height)
        except ValueError as error:
            return ImageError("no image size for this model", f"is {size}: {error}", "crop or scale the image")
        if limit is not None and tokens > limit:
            what = f"is {size}, which becomes {tokens} tokens, more than data.image_max_tokens ({limit})"
            return ImageError(
                "image takes too many tokens", what, "scale the image down, or raise data.image_max_tokens"
            )
        return Picture(str(file), tokens)
