"""COCO's file names: one integer id, four splits, two spellings. Pure.

The 2014 and the 2017 release hold the same images in different splits, under ids that never changed. So an image is
known by its integer id: most val2014 images lie in train2017, and mapping split to split would miss them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

SOURCE = "coco"
SPLITS = ("train2017", "val2017", "train2014", "val2014")

_NAME = re.compile(r"(?:COCO_(?:train|val)2014_)?(?P<id>[0-9]{12})\.jpg")
_OTHER_RELEASES = ("test", "unlabeled")
"""Their images are in none of the four splits, so an id of theirs means nothing here."""


def image_id(path: str) -> int | None:
    """The id in a path of the `coco` source (`coco/…`) or of a bare split (`train2017/…`); None for other paths."""
    *folders, name = path.split("/")
    if not folders or folders[0] not in (SOURCE, *SPLITS):
        return None
    if any(folder.startswith(_OTHER_RELEASES) for folder in folders):
        return None
    match = _NAME.fullmatch(name)
    return int(match["id"]) if match else None


def spellings(number: int) -> Iterator[str]:
    """Every path under which the image with this id may lie, the usual ones first."""
    plain = f"{number:012d}.jpg"
    for prefix in (f"{SOURCE}/", ""):
        for split in SPLITS:
            if split.endswith("2014"):
                yield f"{prefix}{split}/COCO_{split}_{plain}"
            yield f"{prefix}{split}/{plain}"
    yield f"{SOURCE}/{plain}"
