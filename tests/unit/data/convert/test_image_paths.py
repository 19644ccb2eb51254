"""Images of converted rows are those that the rows had, wherever the result stands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rankzero.data.convert.convert import convert
from rankzero.data.convert.image_paths import ABSOLUTE, FROM_RESULT, FROM_SOURCES, NOT_THERE
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


def read_from(out: Path, root: str | None) -> list[str]:
    """What is in the images of a result, as readers find them: below the root, or else its own folder."""
    places = [inside(image, Path(root or out.parent)) for image in images_of(out)]
    return [place.read_text() if isinstance(place, Path) else place.reason for place in places]


def test_rows_of_several_folders_keep_their_own_images(folders: list[SourceSpec], tmp_path: Path) -> None:
    result = convert(folders, tmp_path / "all.jsonl", "messages")
    assert images_of(tmp_path / "all.jsonl") == ["a/pictures/1.png", "b/pictures/1.png"]
    assert result.rules == {FROM_RESULT: 2} and result.image_root is None
    parts = convert(folders, tmp_path / "parts.jsonl", "openai")
    assert parts.rules == {FROM_RESULT: 2, PATHS_FOR_OPENAI: 2}


@pytest.mark.parametrize("name", ["a/out.jsonl", "a/pictures/out.jsonl", "c/out.jsonl", "link/out.jsonl"])
def test_one_root_serves_all_images_of_a_result(name: str, folders: list[SourceSpec], tmp_path: Path) -> None:
    """The reader follows no `..`; below an image root it takes absolute paths. `link` is the folder b."""
    (tmp_path / "link").symlink_to(tmp_path / "b")
    out = tmp_path / name
    result = convert(folders, out, "sharegpt")
    assert images_of(out) == [str(tmp_path / "a/pictures/1.png"), str(tmp_path / "b/pictures/1.png")]
    assert result.rules == {ABSOLUTE: 2} and result.image_root == str(tmp_path)
    assert read_from(out, result.image_root) == ["a", "b"]
    assert result.rows_in == result.rows_out == 2


def test_what_links_lead_out_of_the_results_folder_is_absolute(folders: list[SourceSpec], tmp_path: Path) -> None:
    """Readers follow no link that leads out of their root."""
    (tmp_path / "here").mkdir()
    for name in ("a", "b"):
        (tmp_path / "here" / name).symlink_to(tmp_path / name)
    linked = [SourceSpec(path=str(tmp_path / "here" / name / "rows.jsonl")) for name in ("a", "b")]
    out = tmp_path / "here/out.jsonl"
    result = convert(linked, out, "messages")
    assert result.rules == {ABSOLUTE: 2} and read_from(out, result.image_root) == ["a", "b"]
    (tmp_path / "real").mkdir()
    (tmp_path / "real/2.png").write_text("linked")
    (tmp_path / "b/more").symlink_to(tmp_path / "real")
    more = write_rows(tmp_path / "b/more.jsonl", [shown("more/2.png"), shown("pictures/1.png")])
    result = convert([folders[0], more], tmp_path / "out.jsonl", "messages")
    assert images_of(tmp_path / "out.jsonl") == ["a/pictures/1.png", "more/2.png", "b/pictures/1.png"]
    assert result.rules == {FROM_RESULT: 2, NOT_THERE: 1}


def test_of_one_folder_paths_stay_and_their_root_is_named(folders: list[SourceSpec], tmp_path: Path) -> None:
    """So a workflow that names an image_root goes on; where it is the folder of the result, nothing is to be said."""
    texts = write_rows(tmp_path / "b/texts.jsonl", [user_assistant("q", "a")])
    result = convert([folders[0], texts], tmp_path / "out.parquet", "messages")
    assert result.rules == {FROM_SOURCES: 1} and result.image_root == str(tmp_path / "a")
    out = tmp_path / "out.jsonl"
    result = convert(folders[:1], out, "messages")
    assert images_of(out) == ["pictures/1.png"] and result.rules == {FROM_SOURCES: 1}
    assert read_from(out, result.image_root) == ["a"] and result.as_json()["image_root"] == str(tmp_path / "a")
    result = convert([folders[0], texts], tmp_path / "a/out.parquet", "messages")
    assert not result.rules and result.image_root is None


def test_only_what_is_there_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other paths are below an image root that the spec names, or are no paths."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_text(name)
    names = ["https://x/1.png", "data:image/png;base64,AA", str(tmp_path / "b/1.png"), "../a/1.png"]
    a = write_rows(tmp_path / "a/rows.jsonl", [shown(*names), shown("1.png", "2.png", str(tmp_path / "a/1.png"))])
    b = write_rows(tmp_path / "b/rows.jsonl", [shown("coco/1.png")])
    monkeypatch.chdir(tmp_path)
    result = convert([SourceSpec(path="a/rows.jsonl"), b], Path("out.jsonl"), "messages")
    assert images_of(Path("out.jsonl")) == [*names, "a/1.png", "2.png", "a/1.png", "coco/1.png"]
    assert result.rules == {FROM_RESULT: 1, NOT_THERE: 2}
    result = convert([a, b], Path("a/out.jsonl"), "messages")
    assert images_of(Path("a/out.jsonl")) == [*names, "1.png", "2.png", "1.png", "coco/1.png"]
    result = convert([SourceSpec(path="b/rows.jsonl")], Path("a/b.jsonl"), "messages")
    assert images_of(Path("a/b.jsonl")) == ["coco/1.png"] and not result.rules and result.image_root is None


def test_a_sources_image_root_is_its_folder(folders: list[SourceSpec], tmp_path: Path) -> None:
    rooted = folders[0].model_copy(update={"image_root": str(tmp_path / "b")})
    result = convert([rooted, folders[1]], tmp_path / "out.jsonl", "messages")
    assert images_of(tmp_path / "out.jsonl") == ["pictures/1.png"] * 2 and result.image_root == str(tmp_path / "b")
    assert read_from(tmp_path / "out.jsonl", result.image_root) == ["b", "b"]


def test_progress_ends_with_all_bytes_where_rows_are_read_again(folders: list[SourceSpec], tmp_path: Path) -> None:
    seen: list[int] = []
    convert(folders, tmp_path / "out.jsonl", "messages", progress=seen.append)
    assert sum(seen) == sum(Path(source.path).stat().st_size for source in folders)


def test_into_a_pipe_paths_stay(folders: list[SourceSpec], tmp_path: Path) -> None:
    read, write = os.pipe()
    convert(folders, Path(f"/dev/fd/{write}"), "messages", container="jsonl", overwrite=True)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read().count('"images":["pictures/1.png"]') == 2
