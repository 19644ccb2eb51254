"""Which paths mean the same image: by id and by name, never by place in a list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankzero.data.images.layout import COCO_SPLITS, SOURCES, image_key, source_of, spellings

ONE_IMAGE = [
    "coco/train2017/000000000123.jpg",
    "coco/val2017/000000000123.jpg",
    "coco/train2014/COCO_train2014_000000000123.jpg",
    "coco/val2014/COCO_val2014_000000000123.jpg",
    "coco/val2014/000000000123.jpg",
    "train2017/000000000123.jpg",
    "coco/000000000123.jpg",
    "./coco//train2017/000000000123.jpg",
]


def test_coco_is_known_by_its_integer_id() -> None:
    assert {image_key(path) for path in ONE_IMAGE} == {"coco:123"}


@pytest.mark.parametrize(
    "path",
    [
        "gqa/images/000000000123.jpg",
        "coco/test2017/000000000123.jpg",
        "coco/unlabeled2017/000000000123.jpg",
        "coco/train2017/123.jpg",
        "coco/train2017/000000000123.png",
        "coco/train2017/0000000000123.jpg",
        "coco/train2017/COCO_test2014_000000000123.jpg",
        "coco/train2017/000000000124.jpg",
        "000000000123.jpg",
    ],
)
def test_what_is_not_that_image(path: str) -> None:
    assert image_key(path) != "coco:123"


def test_folders_that_have_two_names() -> None:
    assert image_key("textvqa/train_images/a.jpg") == image_key("textvqa/train_val_images/a.jpg")
    assert image_key("mathverse/images/images_version_5/1.png") == image_key("mathverse/images_version_5/1.png")
    assert list(spellings("textvqa/train_images/a.jpg")) == [
        "textvqa/train_images/a.jpg",
        "textvqa/train_val_images/a.jpg",
    ]
    assert list(spellings("textvqa/train_val_images/a.jpg")) == [
        "textvqa/train_val_images/a.jpg",
        "textvqa/train_images/a.jpg",
    ]
    assert "mathverse/images/images_version_5/1.png" in spellings("mathverse/images_version_5/1.png")


@given(st.integers(0, 999_999), st.sampled_from(COCO_SPLITS), st.booleans(), st.booleans())
def test_spellings_of_a_coco_image(number: int, split: str, prefixed: bool, folder: bool) -> None:
    name = f"COCO_{split}_{number:012d}.jpg" if prefixed and "2014" in split else f"{number:012d}.jpg"
    path = f"{'coco/' if folder else ''}{split}/{name}"
    found = list(spellings(path))
    assert found[0] == path and len(found) == len(set(found))
    assert {image_key(spelling) for spelling in found} == {f"coco:{number}"}
    assert {source_of(spelling) for spelling in found} == {"coco"}


@given(st.sampled_from([prefix for prefixes in SOURCES.values() for prefix in prefixes]), st.text("ab1_.", min_size=1))
def test_every_spelling_has_the_key_of_its_path(prefix: str, name: str) -> None:
    path = f"{prefix}/x{name}.png"
    assert {image_key(spelling) for spelling in spellings(path)} == {image_key(path)}


def test_every_listed_folder_is_of_its_source() -> None:
    assert all(source_of(f"{prefix}/x.jpg") == source for source, prefixes in SOURCES.items() for prefix in prefixes)
    assert source_of("x.jpg") == "(no folder)" and source_of("new/x.jpg") == "new"
