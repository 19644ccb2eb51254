"""Images of converted rows are those that the rows had, wherever the result stands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rankzero.data.convert.convert import convert
from rankzero.data.convert.image_paths import ABSOLUTE, FROM_RESULT
from rankzero.data.images.paths import inside
from rankzero.data.rows.formats.messages import PATHS_FOR_OPENAI
from rankzero.spec.run_spec import SourceSpec
from tests.unit.data.convert.convert_support import read_rows, write_rows
from tests.unit.data.support import user_assistant


def shown(*images: str) -> dict[str, Any]:
    return {**user_assistant("<image>" * len(images) + "q", "a"), "images": list(images)}


@pytest.fixture
def folders(tmp_path: Path) -> list[SourceSpec]:
    """Two folders, each with another image of the same name, and rows that name it."""
    sources = []
    for name in ("a", "b"):
        (tmp_path / name / "pictures").mkdir(parents=True)
        (tmp_path / name / "pictures/1.png").write_text(name)
        sources.append(write_rows(tmp_path / name / "rows.jsonl", [shown("pictures/1.png")]))
    return sources


def images_of(out: Path) -> list[str]:
    return [image for row in read_rows(out) for image in row["images"]]


def test_rows_of_several_folders_keep_their_own_images(folders: list[SourceSpec], tmp_path: Path) -> None:
    result = convert(folders, tmp_path / "all.jsonl", "messages")
    assert images_of(tmp_path / "all.jsonl") == ["a/pictures/1.png", "b/pictures/1.png"]
    assert result.rules == {FROM_RESULT: 2}
    parts = convert(folders, tmp_path / "parts.jsonl", "openai")
    assert parts.rules == {FROM_RESULT: 2, PATHS_FOR_OPENAI: 2}
    one = convert(folders[:1], tmp_path / "a/out.parquet", "messages")
    assert not one.rules


def test_images_outside_of_the_results_folder_are_absolute(folders: list[SourceSpec], tmp_path: Path) -> None:
    """The reader follows no `..`; below an image root it takes absolute paths."""
    out = tmp_path / "a/out.jsonl"
    result = convert(folders, out, "sharegpt")
    assert images_of(out) == ["pictures/1.png", str(tmp_path / "b/pictures/1.png")]
    assert result.rules == {ABSOLUTE: 1}
    found = inside(images_of(out)[1], tmp_path)
    assert isinstance(found, Path) and found.read_text() == "b"


def test_only_what_is_there_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other paths are below an image root that the spec names, or are no paths."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/1.png").write_text("a")
    names = ["coco/1.png", "https://x/1.png", "data:image/png;base64,AA", str(tmp_path / "a/1.png"), "../a/1.png"]
    write_rows(tmp_path / "a/rows.jsonl", [shown(*names), shown("1.png", "2.png")])
    monkeypatch.chdir(tmp_path)
    result = convert([SourceSpec(path="a/rows.jsonl")], Path("out.jsonl"), "messages")
    assert images_of(Path("out.jsonl")) == [*names, "a/1.png", "2.png"] and result.rules == {FROM_RESULT: 1}


def test_a_sources_image_root_is_where_its_images_are(folders: list[SourceSpec], tmp_path: Path) -> None:
    rooted = folders[0].model_copy(update={"image_root": str(tmp_path / "b")})
    convert([rooted], tmp_path / "out.jsonl", "messages")
    assert images_of(tmp_path / "out.jsonl") == ["b/pictures/1.png"]


def test_into_a_pipe_paths_stay(folders: list[SourceSpec], tmp_path: Path) -> None:
    read, write = os.pipe()
    convert(folders, Path(f"/dev/fd/{write}"), "messages", container="jsonl", overwrite=True)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read().count('"images":["pictures/1.png"]') == 2
