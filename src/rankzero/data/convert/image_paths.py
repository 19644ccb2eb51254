"""Image paths of rows that come to stand in another folder. Knows paths; opens no image.

A relative path is one from the folder of its file, where no image root is named. Of rows of one folder all paths stay:
naming that folder makes them right. Rows of several folders may have other images under one path, so there paths are
written anew, in the one form that serves all of them. What is not there is below a root that only the spec names, and
stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from rankzero.data.images.paths import inside, refusal
from rankzero.data.rows.conversation import Conversation

FROM_SOURCES = "image paths stay, and are from the folder of the rows that were read: name it as image_root"
FROM_RESULT = "image paths are written from the folder of the result"
ABSOLUTE = "image paths are absolute, since the folder of the result does not hold all images: name an image_root"
NOT_THERE = "image paths stay, since they lead to no image below the folder of the rows that were read"


class OtherPathsError(Exception):
    """Rows show that the paths of those before them need another form."""


class ImagePaths:
    """Of rows of several files that are written to one. Remembers what rows showed, for when they are read again."""

    def __init__(self, roots: Iterable[str], out: Path) -> None:
        """`roots`: where the images of each file's rows are."""
        self._real = {root: os.path.realpath(root) for root in roots}
        self._folder = os.path.realpath(out.parent)
        self._named: dict[str, str] = {}
        """Folders of rows with relative paths, as their sources name them, by what they really are."""
        self._found: set[str] = set()
        """Folders below which images were."""
        self._outside = False
        """Whether some of these are not below the folder of the result."""

    def _rule(self) -> str:
        if len(self._named) < 2:
            return FROM_SOURCES
        return ABSOLUTE if self._outside else FROM_RESULT

    def image_root(self) -> str | None:
        """The one to be named for the result; None where it needs none."""
        rule = self._rule()
        if rule == ABSOLUTE:
            return os.path.commonpath(self._found)
        others = [name for real, name in self._named.items() if real in self._found and real != self._folder]
        return os.path.abspath(others[0]) if others and rule == FROM_SOURCES else None

    def moved(self, row: Conversation, root: str) -> tuple[Conversation, tuple[str, ...]]:
        """The row with paths that lead to the same images, and the rules that were applied. Raises OtherPathsError."""
        real, rule = self._real[root], self._rule()
        places = {image: _place(image, real) for image in row.images}
        relative = [place for image, place in places.items() if refusal(image) is None]
        if relative:
            self._named.setdefault(real, root)
        for place in filter(None, places.values()):
            self._found.add(real)
            self._outside = self._outside or not _is_below(place, self._folder)
        if self._rule() != rule:
            raise OtherPathsError
        if rule == FROM_SOURCES:
            return row, (rule,) if real != self._folder and any(relative) else ()
        images = tuple(self._written(image, places[image]) for image in row.images)
        rules = (rule,) if images != row.images else ()
        return replace(row, images=images), rules if all(relative) else (*rules, NOT_THERE)

    def _written(self, image: str, place: str | None) -> str:
        if place is None:
            return image
        return place if self._outside else os.path.relpath(place, self._folder)


def _place(image: str, root: str) -> str | None:
    """Where an image really is, if readers find it below the root."""
    place = inside(image, Path(root))
    return str(place) if isinstance(place, Path) and place.is_file() else None


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)
