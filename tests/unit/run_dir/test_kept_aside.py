"""What people have put into final/ is kept where another result takes its place, and keeps no result from its place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankzero.run_dir.atomic import commit_directory, replace_directory, verify_directory
from rankzero.run_dir.kept_aside import keep_aside, place_problems


def staged(root: Path, content: str) -> Path:
    directory = root / "staged"
    directory.mkdir(parents=True)
    for name in ("README.md", "model.safetensors", "tokenizer.json"):
        (directory / name).write_text(f"{name}: {content}")
    return directory


def replaced(root: Path, edit: Callable[[Path], object]) -> tuple[str, list[Path]]:
    """What is said, and what is kept of a result that was edited, where another one has taken its place."""
    final = root / "final"
    commit_directory(staged(root, "first"), final, {})
    edit(final)
    comes = staged(root, "second")
    keep, said = keep_aside(final, comes)
    commit_directory(comes, final, {}, keep=keep)
    verify_directory(final)
    assert (final / "model.safetensors").read_text() == "model.safetensors: second"
    assert not final.is_symlink() and not list(root.glob(".tmp-*"))
    return said, list(root.glob("final-kept-*"))


def put(name: str, content: str = "own") -> Callable[[Path], object]:
    def edit(final: Path) -> None:
        (final / name).parent.mkdir(exist_ok=True)
        (final / name).write_text(content)

    return edit


def link(name: str, target: str) -> Callable[[Path], object]:
    def edit(final: Path) -> None:
        (final / name).unlink(missing_ok=True)
        (final / name).symlink_to(target)

    return edit


def directory_for_a_file(final: Path) -> None:
    (final / "README.md").unlink()
    put("README.md/notes.txt")(final)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (put("notes.txt"), "notes.txt"),
        (put("merged/model.safetensors"), "merged/model.safetensors"),
        (put("model.safetensors", "merged by somebody"), "model.safetensors"),
        (put(".git/HEAD"), ".git/HEAD"),
        (link("README.md", "/nowhere/README.md"), "README.md"),
        (link("merged", "/"), "merged"),
        (directory_for_a_file, "README.md/notes.txt"),
        (lambda final: (final / "manifest.json").unlink(), "README.md, model.safetensors, tokenizer.json"),
    ],
)
def test_a_result_that_people_have_changed_is_kept_whole(
    edit: Callable[[Path], object], named: str, tmp_path: Path
) -> None:
    said, (kept,) = replaced(tmp_path, edit)
    assert said.endswith(f"put or changed this: {named}") and str(kept) in said
    assert (kept / "tokenizer.json").read_text() == "tokenizer.json: first"
    assert all(os.path.lexists(kept / name) for name in named.split(", "))


@pytest.mark.parametrize(
    "edit",
    [
        lambda final: None,
        put("__pycache__/own.pyc"),
        put(".tmp-merged-0/model.safetensors"),
        put("README.md", "README.md: second"),
        lambda final: (final / "tokenizer.json").unlink(),
    ],
)
def test_nothing_is_kept_of_what_nobody_misses(edit: Callable[[Path], object], tmp_path: Path) -> None:
    assert keep_aside(tmp_path / "final", tmp_path / "staged") == (None, ""), "as of the first result"
    assert replaced(tmp_path, edit) == ("", [])


@pytest.mark.parametrize("is_there", [True, False])
def test_of_a_link_only_the_link_is_replaced(is_there: bool, tmp_path: Path) -> None:
    """As to another volume, which may be gone."""
    target = tmp_path / "volume/final"

    def move(final: Path) -> None:
        target.parent.mkdir()
        final.rename(target if is_there else tmp_path / "gone")
        final.symlink_to("volume/final")
        if is_there:
            (target / "notes.txt").write_text("own")

    said, kept = replaced(tmp_path, move)
    assert said.endswith(str(target)) and "was a link" in said and kept == []
    assert not is_there or (target / "notes.txt").read_text() == "own"


def test_what_cannot_be_looked_through_is_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a directory inside that another user has made."""

    def deny(place: Path) -> Iterator[str]:
        raise PermissionError(13, "Permission denied", str(place))

    monkeypatch.setattr("rankzero.run_dir.kept_aside._below", deny)
    said, (kept,) = replaced(tmp_path, put("merged/model.safetensors"))
    assert "cannot be looked through" in said and "Permission denied" in said and str(kept) in said
    assert (kept / "merged/model.safetensors").read_text() == "own"


def test_where_the_place_is_not_taken_the_result_is_there_as_before(tmp_path: Path) -> None:
    final = tmp_path / "final"
    commit_directory(staged(tmp_path, "first"), final, {})
    put("notes.txt")(final)
    keep, _ = keep_aside(final, tmp_path / "nothing")
    with pytest.raises(OSError, match="No such file"):
        replace_directory(tmp_path / "nothing", final, keep=keep)
    assert (final / "notes.txt").is_file() and not list(tmp_path.glob("final-kept-*"))


def test_only_a_run_has_checkpoints_that_nothing_may_be_put_into(tmp_path: Path) -> None:
    place = tmp_path / "checkpoints/step-2"
    place.parent.mkdir()
    commit_directory(staged(tmp_path, "exported"), place, {})
    assert place_problems(place / "shards") == []
    (tmp_path / "run.yaml").write_text("name: r\n")
    assert "in the checkpoint" in place_problems(place / "shards")[0].what
