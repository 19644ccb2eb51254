"""What is found below a directory, and what cannot be left out in silence."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rankzero.directories import files_below, is_file, is_folder, status, there, why_not_writable
from tests.support.unreadable import refuse, stale


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for name in ("a", "in/b", "in/deep/c", ".hidden/d"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "e").write_text("e")
    (root / "file-link").symlink_to(elsewhere / "e")
    (root / "linked").symlink_to(elsewhere)
    (root / "up").symlink_to(root)
    (root / "nowhere").symlink_to(tmp_path / "gone")
    os.mkfifo(root / "pipe")
    return root


def names(root: Path, **how: Any) -> set[str]:
    return {path.relative_to(root).as_posix() for path in files_below(root, **how)}


ALL = {"a", "in/b", "in/deep/c", ".hidden/d", "file-link", "nowhere"}


def test_files_and_links(tree: Path) -> None:
    assert names(tree) == ALL
    assert names(tree, follow_links=True) == {*ALL, "linked/e"}
    left_out = ("in/deep", ".hidden")
    assert names(tree, into=lambda name: name not in left_out) == ALL - {"in/deep/c", ".hidden/d"}


def test_what_may_not_be_read_is_an_error(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "deep")
    for living in (False, True):
        with pytest.raises(PermissionError):
            names(tree, living=living)


def test_what_goes_meanwhile_is_one_where_nothing_should(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "deep", FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        names(tree)
    assert names(tree, living=True) == ALL - {"in/deep/c"}


def test_a_file_that_goes_while_others_are_looked_at(tree: Path) -> None:
    found = files_below(tree, living=True)
    next(found)
    shutil.rmtree(tree / "in")
    assert {path.relative_to(tree).as_posix() for path in found} == {"file-link", "nowhere", ".hidden/d"}


@pytest.mark.parametrize("answer", [0, -1, OSError(22, "Invalid argument"), ValueError("unrecognized")])
def test_a_file_system_that_does_not_say_how_long_a_name_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: int | Exception
) -> None:
    def pathconf(path: object, name: str) -> int:
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert why_not_writable(tmp_path / "run") is None
    assert why_not_writable(tmp_path / ("x" * 300)) is not None
    monkeypatch.setattr(os, "pathconf", pathconf)
    assert why_not_writable(tmp_path / "run") is None


def test_what_cannot_be_looked_at_is_neither_there_nor_not(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert there(tree / "in") and there(tree / "nowhere") and there(tree / "pipe")
    assert not there(tree / "none") and not there(tree / "a" / "below")
    stale(monkeypatch, tree / "in")
    with pytest.raises(OSError, match="Stale file handle"):
        there(tree / "in" / "b")


def test_a_file_that_cannot_be_looked_at_is_not_left_out(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_file(tree / "a") and is_folder(tree / "linked") and not is_file(tree / "pipe") and not is_file("a\0b")
    for name in ("nowhere", "gone", "a/b", "n" * 300):
        assert status(tree / name) is None
    (tree / "round").symlink_to(tree / "round")
    assert status(tree / "round") is None
    stale(monkeypatch, tree / "file-link")
    for look in (status, is_file, is_folder):
        with pytest.raises(OSError, match="Stale file handle"):
            look(tree / "file-link")
    with pytest.raises(OSError, match="Stale file handle"):
        names(tree)
