"""Which files of a directory are the user's own: those that git would take. Knows no pods."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankzero.errors import ConfigError, Problem, UsageError

_NO_REPOSITORY = re.compile(rb"not a git repository \(or any")
"""Here and above; of a `.git` that leads nowhere git says which."""
_TRUSTED = re.compile(r"git config --global --add safe\.directory .+")
"""What git names where the directory is somebody else's, as it is in containers that mount it."""
_FOLDERS = "copy its files here, or put them on a volume of the pods"


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """A user's own files."""

    files: dict[str, Path]
    """By their names relative to the directory."""
    left_out: tuple[Problem, ...] = ()
    """What git names, or cannot look into, and what is no file that could be sent."""


def must_be_directory(directory: Path, where: str = "") -> None:
    """Raises UsageError where it is none; `where` says who names it."""
    if not directory.is_dir():
        what = "it is no directory" if directory.exists() else "there is no such directory"
        raise UsageError(what, where=where or str(directory), hint="name the one whose files are sent")


def own_files(directory: Path) -> OwnFiles:
    """What lies below a directory, without `.git` and what .gitignore names.

    A link stands for the file that it leads to. Raises ConfigError where nobody can say what is ignored, UsageError
    where it is no directory or nothing is left.
    """
    must_be_directory(directory)
    names, left_out = _by_git(directory) if shutil.which("git") else _all(directory)
    files = {}
    for name in sorted(names):
        path = directory / name
        try:
            if why := _no_file(path):
                left_out.append(Problem(why, name, _FOLDERS if path.is_dir() else ""))
            elif path.is_file():
                files[name] = path
        except PermissionError as error:  # it lies, or leads, where this user may not go
            left_out.append(Problem(f"it is not sent: {error.strerror}", name))
    if not files:
        hint = "is it the right directory? What .gitignore names is not sent"
        raise UsageError("there are no files to send", where=str(directory), hint=hint)
    return OwnFiles(files, tuple(left_out))


def _no_file(path: Path) -> str:
    """Why something is not sent that somebody may miss; empty for a file, and for what git remembers and is gone."""
    if path.is_dir():
        return "a link to a folder is not sent" if path.is_symlink() else "a repository of its own is not sent"
    if path.is_symlink() and not path.exists() and not path.name.startswith("."):  # editors lock by hidden ones
        return "a link that leads nowhere is not sent"
    if path.is_file() and not os.access(path, os.R_OK):
        return "a file that may not be read is not sent"
    return ""


def _by_git(directory: Path) -> tuple[list[str], list[Problem]]:
    inside = _git(directory, ["rev-parse", "--is-inside-work-tree"])
    if inside.returncode == 0:
        return _listed(directory, ["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
    if not _NO_REPOSITORY.search(inside.stderr):
        raise _refused(directory, inside)
    with tempfile.TemporaryDirectory() as empty:  # git reads .gitignore files for a repository alone: one without files
        _git(directory, ["init", "--quiet", "--bare", empty])
        place = [f"--git-dir={empty}", "--work-tree=."]
        return _listed(directory, [*place, "ls-files", "--others", "--exclude-standard", "-z"])


def _listed(directory: Path, arguments: Sequence[str]) -> tuple[list[str], list[Problem]]:
    done = _git(directory, arguments)
    if done.returncode:
        raise _refused(directory, done)
    said = done.stderr.decode(errors="replace").strip()
    names = [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    return names, [Problem(f"git: {line}", str(directory)) for line in said.splitlines()]


def _refused(directory: Path, done: subprocess.CompletedProcess[bytes]) -> ConfigError:
    """There may be a repository, which knows what is ignored: without it, nobody does."""
    said = done.stderr.decode(errors="replace").strip()
    trusted = _TRUSTED.search(said)
    words, hint = (said.splitlines()[0], f"`{trusted[0]}`") if trusted is not None else (said, "")
    return ConfigError(f"git does not say which files are yours: {words}", where=str(directory), hint=hint)


def _git(directory: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=directory, env=_env(os.environ), capture_output=True, check=False)


def _env(env: Mapping[str, str]) -> dict[str, str]:
    """Without what would point git at another repository than the directory's, and with answers in one language."""
    kept = {name: value for name, value in env.items() if name not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")}
    return {**kept, "LC_ALL": "C"}


def _all(directory: Path) -> tuple[list[str], list[Problem]]:
    names: list[str] = []
    left_out: list[Problem] = []

    def unreadable(error: OSError) -> None:
        left_out.append(Problem(f"it is not sent: {error.strerror}", str(error.filename)))

    for place, folders, files in os.walk(directory, onerror=unreadable):
        folders[:] = [folder for folder in folders if folder != ".git"]
        if ".gitignore" in files:
            hint = "install git, which reads it"
            raise ConfigError("what it names cannot be left out", where=f"{place}/.gitignore", hint=hint)
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        names += [os.path.relpath(os.path.join(place, name), directory) for name in (*files, *links)]
    return names, left_out
