"""Which files `rankzero dev` sends, and that it says what it cannot."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rankzero.errors import ConfigError, UsageError
from rankzero.launch.warm import files
from rankzero.launch.warm.files import OwnFiles, own_files
from rankzero.launch.warm.sync import marks
from tests.support.unreadable import refuse


@pytest.fixture(params=["a repository", "no repository", "no git"])
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "project"
    (place / "src").mkdir(parents=True)
    (place / "src/train.py").write_text("1\n", encoding="utf-8")
    if request.param == "a repository":
        subprocess.run(["git", "init", "--quiet", str(place)], check=True)
    if request.param == "no git":
        monkeypatch.setattr(shutil, "which", lambda _name: None)
    return place


def said(found: OwnFiles) -> dict[str, str]:
    return {problem.where: problem.what for problem in found.left_out}


def test_links_stand_for_their_files_and_what_is_no_file_is_said(project: Path, tmp_path: Path) -> None:
    rows = tmp_path / "elsewhere"
    rows.mkdir()
    (rows / "a.jsonl").write_text("{}\n", encoding="utf-8")
    (project / "one.jsonl").symlink_to(rows / "a.jsonl")
    (project / "data").symlink_to(rows)
    (project / "src/gone.jsonl").symlink_to(rows / "nothing")
    (project / "src/.#train.py").symlink_to("somebody@host")
    found = own_files(project)
    assert set(found.files) == {"one.jsonl", "src/train.py"}
    assert said(found) == {
        "data": "a link to a folder is not sent",
        "src/gone.jsonl": "a link that leads nowhere is not sent",
    }


def test_nothing_is_said_where_all_is_sent(project: Path) -> None:
    found = own_files(project)
    assert found == OwnFiles({"src/train.py": project / "src/train.py"})


def test_another_repository_is_said(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "other"):
        subprocess.run(["git", "init", "--quiet", str(place)], check=True)
        (place / "a.py").write_text("1\n", encoding="utf-8")
    found = own_files(tmp_path)
    assert set(found.files) == {"a.py"}
    assert said(found) == {"other/": "a repository of its own is not sent"}


def test_what_git_remembers_and_is_gone_is_nothing_to_say(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("1\n", encoding="utf-8")
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    (tmp_path / "b.py").unlink()
    assert own_files(tmp_path) == OwnFiles({"a.py": tmp_path / "a.py"})


def test_a_file_that_may_not_be_read_is_said(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "secret.pem").write_text("x", encoding="utf-8")
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "secret.pem" and real(path, mode))
    found = own_files(project)
    assert set(found.files) == {"src/train.py"}
    assert said(found) == {"secret.pem": "a file that may not be read is not sent"}


def test_a_link_into_a_folder_that_may_not_be_entered_is_said(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "w.bin").symlink_to("/closed/w.bin")
    stat = os.stat

    def refused(path: Any, *, follow_symlinks: bool = True, **more: Any) -> os.stat_result:
        if follow_symlinks and Path(os.fsdecode(path)).name == "w.bin":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, follow_symlinks=follow_symlinks, **more)

    monkeypatch.setattr(os, "stat", refused)
    found = own_files(project)
    assert set(found.files) == {"src/train.py"}
    assert said(found) == {"w.bin": "it is not sent: Permission denied"}


def test_a_file_that_vanishes_once_it_was_listed_is_none(tmp_path: Path) -> None:
    """As an editor's swap file."""
    (tmp_path / "a.py").write_text("1\n", encoding="utf-8")
    there = {"a.py": tmp_path / "a.py", "tmp.swp": tmp_path / "tmp.swp"}
    assert set(marks(there)) == {"a.py"}


def test_a_folder_that_may_not_be_read_is_said(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project / "locked"
    folder.mkdir()
    (folder / "a.py").write_text("1\n", encoding="utf-8")
    if shutil.which("git") is None:
        refuse(monkeypatch, "locked")
    else:  # git looks by itself, and root is not stopped: what it says then
        listed = files._git

        def git(directory: Path, arguments: list[str]) -> subprocess.CompletedProcess[bytes]:
            done = listed(directory, arguments)
            done.stdout = b"\0".join(name for name in done.stdout.split(b"\0") if not name.startswith(b"locked/"))
            done.stderr += b"warning: could not open directory 'locked/': Permission denied\n"
            return done

        monkeypatch.setattr(files, "_git", git)
    found = own_files(project)
    assert set(found.files) == {"src/train.py"}
    (problem,) = found.left_out
    assert "locked" in str(problem) and "Permission denied" in str(problem)


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a secret that it ignores, and a user who is not the one that git knows."""
    for name, value in {
        "HOME": str(tmp_path),
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_GLOBAL": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    place = tmp_path / "project"
    (place / "src").mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", str(place)], check=True)
    (place / ".gitignore").write_text(".env\n", encoding="utf-8")
    (place / "src/.env").write_text("TOKEN=1\n", encoding="utf-8")
    (place / "src/a.py").write_text("1\n", encoding="utf-8")
    return place


def test_where_git_distrusts_the_owner_nothing_is_sent(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that mounts the directory. What the repository ignores above is not known below it."""
    assert set(own_files(closed / "src").files) == {"a.py"}
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("LANGUAGE", "de")
    with pytest.raises(ConfigError, match="dubious ownership") as caught:
        own_files(closed / "src")
    (problem,) = caught.value.problems
    assert problem.where == str(closed / "src")
    assert problem.hint == f"`git config --global --add safe.directory {closed}`"


def test_where_git_cannot_read_the_repository_nothing_is_sent(closed: Path) -> None:
    (closed / ".git/config").write_text("[cut", encoding="utf-8")
    with pytest.raises(ConfigError, match="bad config"):
        own_files(closed / "src")
    shutil.rmtree(closed / ".git")
    (closed / ".git").write_text("gitdir: /moved/away\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="not a git repository: /moved/away"):
        own_files(closed / "src")


def test_what_is_no_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "nothing"):
        with pytest.raises(UsageError, match="directory"):
            own_files(tmp_path / name)


def test_nothing_to_send_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(tmp_path.parent)
    with pytest.raises(UsageError, match="there are no files to send"):
        own_files(tmp_path)
