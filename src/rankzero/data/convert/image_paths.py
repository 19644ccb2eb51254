"""Image paths of rows that come to stand in another folder. Knows paths; opens no image.

A relative path is one from the folder of its file, where no image root is named. What is not there is below a root
that only the spec names, and stays as it is.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from rankzero.data.images.paths import normalised, refusal
from rankzero.data.rows.conversation import Conversation

FROM_RESULT = "image paths are written from the folder of the result"
ABSOLUTE = "image paths are absolute, since the images are not below the folder of the result: name an image_root"


class ImagePaths:
    """Of rows of one file that are written to another."""

    def __init__(self, root: str, out: Path) -> None:
        """`root`: where the images of the rows are."""
        self._root, self._folder = os.path.abspath(root), os.path.abspath(out.parent)
        self._same = os.path.realpath(root) == os.path.realpath(out.parent)

    def moved(self, row: Conversation) -> tuple[Conversation, tuple[str, ...]]:
        """The row with paths that lead to the same images, and the rules that were applied."""
        if self._same or not row.images:
            return row, ()
        images = tuple(map(self._path, row.images))
        changed = [path for path, before in zip(images, row.images, strict=True) if path != before]
        rules = dict.fromkeys(ABSOLUTE if path.startswith(os.sep) else FROM_RESULT for path in changed)
        return replace(row, images=images), tuple(rules)

    def _path(self, path: str) -> str:
        if refusal(path) or not os.path.isfile(place := os.path.join(self._root, normalised(path))):
            return path
        relative = os.path.relpath(place, self._folder)
        return place if relative.startswith(os.pardir + os.sep) else relative
