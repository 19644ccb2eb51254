"""Images in rows: where they are named, and where in the text they stand. Opens no image and knows no format.

A row gives images in `images` or `image`, and `<image>` in a text, or a content part without a source, says where the
next of them stands. Or content parts name their images themselves. In a row that gives no images, `<image>` is text.
So it is in an answer where the images have their places outside of answers, or no tag stands there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from rankzero.data.rows.conversation import Message, Role
from rankzero.data.rows.formats.format import Row
from rankzero.data.rows.problems import RowProblem, kind
from rankzero.wording import counted

TAG = "<image>"

PREPENDED = "images without a tag are put before the first user turn"
ANSWERED = "images are put into an answer, where it has <image>"

_ANSWERS = ("assistant", "completion")


@dataclass(frozen=True, slots=True)
class Placed:
    """The turns with all images in their places."""

    turns: tuple[Message, ...]
    images: tuple[str, ...] = ()
    problems: list[RowProblem] = field(default_factory=list)
    rules: tuple[str, ...] = ()


class Slots:
    """The places for images that a row's turns have, collected while they are read."""

    __slots__ = ("_fault", "_given", "_sources", "_tags")

    def __init__(self, row: Row, line: int) -> None:
        self._given: tuple[str, ...] = ()
        self._fault: RowProblem | None = None
        self._sources: list[str | None] = []
        self._tags: list[bool] = []
        if "images" in row or "image" in row:
            given = _given(row, line)
            if isinstance(given, RowProblem):
                self._fault = given
            else:
                self._given = given

    @property
    def used(self) -> bool:
        """Whether there is any image, or a place for one."""
        return bool(self._given or self._sources or self._fault)

    @property
    def tagged(self) -> bool:
        """Whether `<image>` in a text stands for an image of this row."""
        return bool(self._given)

    def add(self, source: str | None) -> None:
        """A content part: an image of its own, or a place for the row's next one."""
        self._sources.append(source)
        self._tags.append(False)

    def take(self, text: str, at: int = 0) -> tuple[str, tuple[int, ...]]:
        """The text without its tags, and where they were, counted from `at`."""
        if not self._given or TAG not in text:
            return text, ()
        pieces = text.split(TAG)
        offsets: list[int] = []
        for piece in pieces[:-1]:
            at += len(piece)
            offsets.append(at)
            self._sources.append(None)
            self._tags.append(True)
        return "".join(pieces), tuple(offsets)

    def message(self, role: Role, text: str) -> Message:
        """A turn of this text, its tags taken out."""
        content, offsets = self.take(text)
        return Message(role, content, image_offsets=offsets)

    def place(self, turns: tuple[Message, ...], line: int) -> Placed:
        """Give every place its image. Images that have none stand before the first user turn."""
        if self._fault is not None:
            return Placed(turns, problems=[self._fault])
        own = [source for source in self._sources if source is not None]
        if own and self._given:
            what = (
                f"the row gives {counted(len(self._given), 'image')}, and its content parts name {len(own)} themselves"
            )
            return Placed(turns, problems=[RowProblem(line, "images in two places", what, "keep one of the two")])
        if own:
            if len(own) == len(self._sources):
                return Placed(turns, tuple(own))
            what = "some image parts name an image and others do not"
            hint = "name the image of every part, or give all of them in `images`"
            return Placed(turns, problems=[RowProblem(line, "image part without an image", what, hint)])
        turns = self._said(turns) if self._given else turns
        places = sum(len(turn.image_offsets) for turn in turns) if self._given else len(self._sources)
        missing = len(self._given) - places
        if missing < 0:
            what = f"{places} places for images and {counted(len(self._given), 'image')}"
            hint = "give every <image> its image, or write the tag in another way where text is meant"
            return Placed(turns, problems=[RowProblem(line, "more image tags than images", what, hint)])
        shown = any(turn.role in _ANSWERS and turn.image_offsets for turn in turns)
        rules = (ANSWERED,) if shown and self._given else ()
        if not missing:
            return Placed(turns, self._given, rules=rules)
        first = next((i for i, turn in enumerate(turns) if turn.role == "user"), None)
        if first is None:
            what = f"{counted(missing, 'image')} without a tag, and no user turn to put it before"
            hint = "put <image> into the text where it stands, or add the user turn that shows it"
            return Placed(turns, problems=[RowProblem(line, "image without a place", what, hint)])
        turn = turns[first]
        changed = replace(turn, image_offsets=(*[0] * missing, *turn.image_offsets))
        return Placed((*turns[:first], changed, *turns[first + 1 :]), self._given, rules=(PREPENDED, *rules))

    def _said(self, turns: tuple[Message, ...]) -> tuple[Message, ...]:
        """The turns with the tags of answers as text, where the images have their places outside of answers, or none
        of them has. An answer of nothing but tags means its images."""
        tags = iter(self._tags)
        ours = [(turn, [next(tags, False) for _ in turn.image_offsets]) for turn in turns]
        said = [turn.role in _ANSWERS and any(of) and all(of) and bool(turn.content.strip()) for turn, of in ours]
        outside = sum(len(turn.image_offsets) for turn, text in zip(turns, said, strict=True) if not text)
        if outside != len(self._given) and (outside or all(turn.role != "user" for turn in turns)):
            return turns
        return tuple(_with_tags(turn) if text else turn for turn, text in zip(turns, said, strict=True))


def _with_tags(turn: Message) -> Message:
    cuts = [0, *turn.image_offsets, len(turn.content)]
    content = TAG.join(turn.content[start:end] for start, end in pairwise(cuts))
    return replace(turn, content=content, image_offsets=())


def part_source(part: Mapping[str, Any]) -> str | None | bool:
    """The image that a content part names: a path, a URL, or its bytes as a `data:` URL. None where the part only holds
    a place, False where it is no image part."""
    name = part.get("type")
    if name is None:
        return _untyped_source(part)
    if name not in ("image", "image_url", "input_image"):
        return False
    value = next((part[key] for key in ("image_url", *_PLACES, "source", "value") if part.get(key) is not None), None)
    if isinstance(value, Mapping):
        value = _of_object(value)
        return value if value is not None else False
    if isinstance(value, str) and value:
        return value
    return None if value is None and name == "image" else False


_PLACES = ("image", "url", "path")


def _of_object(value: Mapping[str, Any]) -> str | None:
    """A path or URL that an object has, or its bytes as Anthropic gives them."""
    place = next((value[key] for key in _PLACES if value.get(key) is not None), None)
    if isinstance(place, str) and place:
        return place
    return _data_url(value.get("media_type"), value.get("data"))


def _untyped_source(part: Mapping[str, Any]) -> str | bool:
    """As Gemini and Bedrock name images."""
    for key in ("inlineData", "inline_data", "fileData", "file_data"):
        inner = part.get(key)
        if isinstance(inner, Mapping):
            kind_of_file = inner.get("mimeType", inner.get("mime_type"))
            if not str(kind_of_file).lower().startswith("image/"):
                return False
            place = inner.get("fileUri", inner.get("file_uri"))
            return place if isinstance(place, str) and place else _data_url(kind_of_file, inner.get("data")) or False
    image = part.get("image")
    source = image.get("source") if isinstance(image, Mapping) else None
    if not isinstance(image, Mapping) or not isinstance(source, Mapping):
        return False
    place = source["s3Location"].get("uri") if isinstance(source.get("s3Location"), Mapping) else None
    return place if isinstance(place, str) else _data_url(f"image/{image.get('format')}", source.get("bytes")) or False


def _data_url(kind_of_file: object, data: object) -> str | None:
    return f"data:{kind_of_file};base64,{data}" if isinstance(data, str) and data and kind_of_file else None


def _given(row: Row, line: int) -> tuple[str, ...] | RowProblem:
    """What `images` or `image` hold."""
    lists = []
    for key in ("images", "image"):
        value = row.get(key)
        if value in (None, "", [], {}):
            continue
        items = value if isinstance(value, list) else [value]
        names = [_name(item) for item in items]
        if None in names:
            what = f"`{key}` holds {kind(items[names.index(None)])}, not a path or the bytes of an image"
            return RowProblem(line, "image is not a path", what, 'expected: {"images": ["photos/1.jpg"]}')
        lists.append(tuple(str(name) for name in names))
    if len(lists) == 2 and lists[0] != lists[1]:
        what = "the row has `image` and `images`, and they differ"
        return RowProblem(line, "images in two places", what, "keep one of the two")
    return lists[0] if lists else ()


def _name(item: object) -> str | None:
    if isinstance(item, Mapping):
        own = item.get("bytes")
        if own is not None and not (isinstance(own, str) and own[:5].lower() == "data:"):
            return None
        item = own or item.get("path") or item.get("url")
    return item if isinstance(item, str) and item else None
