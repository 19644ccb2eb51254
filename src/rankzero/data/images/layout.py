"""Where the images of each source lie, and which paths mean the same image. Pure.

The prefixes are those that FIRE and LLaVA's mixture use. A source that is not listed is taken by its first folder.

COCO's file names are one integer id in two spellings. The 2014 and the 2017 release hold the same images in different
splits, under ids that never changed. So an image of COCO is known by its id: most val2014 images lie in train2017, and
mapping split to split would miss them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankzero.data.images.paths import normalised

COCO = "coco"
COCO_SPLITS = ("train2017", "val2017", "train2014", "val2014")

_COCO_NAME = re.compile(r"(?:COCO_(?:train|val)2014_)?(?P<id>[0-9]{12})\.jpg")
_OTHER_RELEASES = ("test", "unlabeled")
"""Their images are in none of the four splits, so an id of theirs means nothing here."""

SOURCES: dict[str, tuple[str, ...]] = {
    "ai2d": ("ai2d/images",),
    "allava_vflan": ("allava_vflan/images/images_191task_1k",),
    "chartqa": ("chartqa/train", "chartqa/test"),
    "coco": tuple(f"coco/{split}" for split in COCO_SPLITS),
    "docvqa": ("docvqa/documents",),
    "dvqa": ("dvqa/images",),
    "geoqa+": ("geoqa+/images", "geoqa+/test-images"),
    "gqa": ("gqa/images",),
    "llava-in-the-wild": ("llava-in-the-wild/images",),
    "mathverse": tuple(f"mathverse/images_version_{number}" for number in ("1-4", "5", "6")),
    "mathvista": ("mathvista/images",),
    "mm-vet": ("mm-vet/images",),
    "mme": ("mme",),
    "mmmu": ("mmmu/test-images",),
    "ocr_vqa": ("ocr_vqa/images",),
    "sam": ("sam/images",),
    "scienceqa": ("scienceqa/images", "scienceqa/images/test"),
    "seedbench": ("seedbench/SEED-Bench-image",),
    "share_textvqa": ("share_textvqa/images",),
    "synthdog-en": ("synthdog-en/images", "synthdog-en/test-images"),
    "textvqa": ("textvqa/train_val_images", "textvqa/train_images"),
    "vg": ("vg/VG_100K", "vg/VG_100K_2"),
    "web-celebrity": ("web-celebrity/images",),
    "web-landmark": ("web-landmark/images",),
    "wikiart": ("wikiart/images",),
}

_SAME_FOLDER = (("textvqa/train_images/", "textvqa/train_val_images/"), ("mathverse/images/", "mathverse/"))
"""(other spelling, usual spelling): data sets disagree about these folders' names, not about the files in them."""


def source_of(path: str) -> str:
    """The source that a path belongs to: its first folder; `coco` for COCO's bare splits."""
    first, slash, _ = normalised(path).partition("/")
    if not slash:
        return "(no folder)"
    return COCO if first in COCO_SPLITS else first


def image_key(path: str) -> str:
    """The same for every spelling of one image, different for different images: COCO by id, others by name."""
    path = normalised(path)
    number = coco_id(path)
    if number is not None:
        return coco_key(number)
    for other, usual in _SAME_FOLDER:
        if path.startswith(other):
            return usual + path.removeprefix(other)
    return path


def coco_id(path: str) -> int | None:
    """The id in a path of the `coco` source (`coco/…`) or of a bare split (`train2017/…`); None for other paths."""
    *folders, name = path.split("/")
    if not folders or folders[0] not in (COCO, *COCO_SPLITS):
        return None
    if any(folder.startswith(_OTHER_RELEASES) for folder in folders):
        return None
    match = _COCO_NAME.fullmatch(name)
    return int(match["id"]) if match else None


def coco_key(number: int) -> str:
    """The key of a COCO image."""
    return f"coco:{number}"


def spellings(path: str) -> Iterator[str]:
    """Every path under which the image may lie, its own first. All have the same key."""
    path = normalised(path)
    yield path
    number = coco_id(path)
    if number is not None:
        yield from (name for name in _coco_spellings(number) if name != path)
        return
    for pair in _SAME_FOLDER:
        usual = image_key(path)
        yield from (
            name
            for name in (usual, pair[0] + usual.removeprefix(pair[1]))
            if name != path and usual.startswith(pair[1])
        )


def _coco_spellings(number: int) -> Iterator[str]:
    """Every path under which the image with this id may lie, the usual ones first."""
    plain = f"{number:012d}.jpg"
    for prefix in (f"{COCO}/", ""):
        for split in COCO_SPLITS:
            if split.endswith("2014"):
                yield f"{prefix}{split}/COCO_{split}_{plain}"
            yield f"{prefix}{split}/{plain}"
    yield f"{COCO}/{plain}"
