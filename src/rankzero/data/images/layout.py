"""Where the images of each source lie, and which paths mean the same image. Pure.

The prefixes are those that FIRE and LLaVA's mixture use. A source that is not listed is taken by its first folder.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankzero.data.images import coco
from rankzero.data.images.paths import normalised

SOURCES: dict[str, tuple[str, ...]] = {
    "ai2d": ("ai2d/images",),
    "allava_vflan": ("allava_vflan/images/images_191task_1k",),
    "chartqa": ("chartqa/train", "chartqa/test"),
    "coco": tuple(f"coco/{split}" for split in coco.SPLITS),
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
    return coco.SOURCE if first in coco.SPLITS else first


def image_key(path: str) -> str:
    """The same for every spelling of one image, different for different images: COCO by id, others by name."""
    path = normalised(path)
    number = coco.image_id(path)
    if number is not None:
        return coco_key(number)
    for other, usual in _SAME_FOLDER:
        if path.startswith(other):
            return usual + path.removeprefix(other)
    return path


def coco_key(number: int) -> str:
    """The key of a COCO image."""
    return f"coco:{number}"


def spellings(path: str) -> Iterator[str]:
    """Every path under which the image may lie, its own first. All have the same key."""
    path = normalised(path)
    yield path
    number = coco.image_id(path)
    if number is not None:
        yield from (name for name in coco.spellings(number) if name != path)
        return
    for pair in _SAME_FOLDER:
        usual = image_key(path)
        yield from (
            name
            for name in (usual, pair[0] + usual.removeprefix(pair[1]))
            if name != path and usual.startswith(pair[1])
        )
