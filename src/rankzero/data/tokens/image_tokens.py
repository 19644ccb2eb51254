"""A row's images as files, and how each stands in the row's text. Knows paths and image heads; what an image of a size
becomes, the model's processor says (model/layouts.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from rankzero.data.images.decode import ImageError, ImageLimits, image_head, locate, require_pillow
from rankzero.data.images.embedded import is_embedded, keep, kept_images, shown
from rankzero.data.read.hashing import file_state
from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.problems import RowProblem

_REMEMBERED = 1 << 16

DEEP_GREY = "images of 16-bit grey are scaled to 8 bits, where servers may show them white: save them with 8 bits"

DecidedBy = Literal["count", "counts", "size"]
"""What an image's layout follows from. count: it is as many image tokens as the processor says of its size, and nothing
else; counts: the processor's numbers of tokens and patches; size: nothing less than its size."""


class ImageRules(Protocol):
    """How a vision-language model lays out images in text. Travels to data workers, so it must pickle."""

    @property
    def placeholder(self) -> str:
        """What a chat template prints once for each image."""
        ...

    @property
    def image_token_id(self) -> int:
        """The token whose copies the model puts an image's features in the place of."""
        ...

    @property
    def reserved(self) -> tuple[str, ...]:
        """Further tokens that stand for what is no text, such as videos: no row may have them in its text."""
        ...

    @property
    def around(self) -> tuple[str, str]:
        """Special tokens that the chat template prints directly before and behind a placeholder."""
        ...

    @property
    def max_tokens(self) -> int | None:
        """Most tokens that one image may become."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes when the same image could become other tokens."""
        ...

    def layouts(self) -> Callable[[int, int], Layout]:
        """How an image of (width, height) stands. Loads the processor; ValueError where the size is not possible."""
        ...


class Layout(NamedTuple):
    """An image in the text of a model."""

    text: str
    """What stands in place of the placeholder, with one image token for each run of image tokens."""
    copies: tuple[int, ...]
    """How long each of these runs is."""
    tokens: int
    """How many tokens all of it is, alone."""


class Picture(NamedTuple):
    """An image of a row: where the file is, and how it stands in the text. Relative: below `kept_images()`."""

    path: str
    layout: Layout
    state: tuple[int, ...]
    """The file's, before it was looked at (`file_state`)."""
    is_deep_grey: bool = False


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
                return bad_image(conversation.line, image, found)
            pictures.append(found)
        return tuple(pictures)

    @cached_property
    def _layouts(self) -> Callable[[int, int], Layout]:
        require_pillow()
        return self._rules.layouts()

    def _embedded(self, image: str) -> Picture | ImageError:
        """By its name in the cache, which may be elsewhere when it is read."""
        try:
            name = keep(image)
        except ImageError as error:
            return error
        found = self._look(name, str(kept_images()))
        return found if isinstance(found, ImageError) else found._replace(path=name)

    def _first_look(self, image: str, root: str) -> Picture | ImageError:
        layouts, limit = self._layouts, self._rules.max_tokens
        try:
            file = locate(image, Path(root))
            state = tuple(file_state(str(file)))
            (width, height), is_deep_grey = image_head(file, ImageLimits())
        except ImageError as error:
            return error
        except OSError as error:  # it has gone meanwhile
            return ImageError("unreadable file", f"cannot be read: {error.strerror or error}")
        size = f"{width} x {height} pixels"
        try:
            layout = layouts(width, height)
        except ValueError as error:
            return ImageError("no image size for this model", f"is {size}: {error}", "crop or scale the image")
        if limit is not None and layout.tokens > limit:
            what = f"is {size}, which becomes {layout.tokens} tokens, more than data.image_max_tokens ({limit})"
            return ImageError(
                "image takes too many tokens", what, "scale the image down, or raise data.image_max_tokens"
            )
        return Picture(str(file), layout, state, is_deep_grey)


def bad_image(line: int, image: str, fault: ImageError) -> RowProblem:
    """What is wrong with a row of which this image cannot be used."""
    reason = fault.reason if "image" in fault.reason else f"image: {fault.reason}"
    return RowProblem(line, reason, f"image {shown(image)}: {fault.what}", fault.hint)


def misplaced(text: str, images: int, rules: ImageRules, line: int = 0) -> RowProblem | None:
    """Why the placeholders in a rendered text are not those of its images."""
    found = text.count(rules.placeholder)
    if found < images:
        what, hint = f"the chat template prints {found} places for {images} image(s)", "set data.chat_template"
        return RowProblem(line, "images left out by the chat template", what, hint)
    before, behind = rules.around
    rest = text.replace(f"{before}{rules.placeholder}{behind}", rules.placeholder)
    token = rules.placeholder if found > images else next((t for t in rules.reserved if t in rest), None)
    if token is None:
        return None
    what = f"the text has the model's own token {token}, which stands for what is no text"
    hint = "write it in another way; an image of the row is <image> in its text"
    return RowProblem(line, "the model's image token as text", what, hint)


def in_place(text: str, placeholder: str, layouts: Sequence[Layout]) -> tuple[str, list[tuple[int, int]]]:
    """The text with each image in place of its placeholder, of which there are as many; and where they are."""
    pieces = text.split(placeholder)
    whole, spans = pieces[0], []
    for layout, piece in zip(layouts, pieces[1:], strict=True):
        spans.append((len(whole), len(whole) + len(layout.text)))
        whole += layout.text + piece
    return whole, spans
