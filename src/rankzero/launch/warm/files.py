"""Which files of a directory are the user's own: those that git would take. Knows no pods."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rankzero.errors import ConfigError, UsageError


def local_files(directory: Path) -> dict[str, Path]:
    """Files below a directory by their relative names, without `.git` and what .gitignore names.

    A link stands for the file that it leads to; directories of other repositories are left out. Raises ConfigError
    where nobody can say what is ignored, UsageError where nothing is left.
    """
    names = _by_git(directory) if shutil.which("git") else _all(directory)
    found = {name: directory / name for name in sorted(names) if (directory / name).is_file()}
    if not found:
        hint = "is it the right directory? What .gitignore names is not sent"
        raise UsageError("there are no files to send", where=str(directory), hint=hint)
    return found


def _by_git(directory: Path) -> list[str]:
    inside = _git(directory, ["rev-parse", "--is-inside-work-tree"])
    if inside.returncode == 0:
        return _listed(directory, ["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
    with tempfile.TemporaryDirectory() as empty:  # git reads .gitignore files for a repository alone: one without files
        _git(directory, ["init", "--quiet", "--bare", empty])
        place = [f"--git-dir={empty}", "--work-tree=."]
        return _listed(directory, [*place, "ls-files", "--others", "--exclude-standard", "-z"])


def _listed(directory: Path, arguments: Sequence[str]) -> list[str]:
    done = _git(directory, arguments)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise ConfigError(f"git does not say which files are yours: {said}", where=str(directory))
    return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]


def _git(directory: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=directory, env=_env(os.environ), capture_output=True, check=False)


def _env(env: Mapping[str, str]) -> dict[str, str]:
    """Without what would point git at another repository than the directory's."""
    return {name: value for name, value in env.items() if name not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")}


def _all(directory: Path) -> list[str]:
    names: list[str] = []
    for place, folders, files in os.walk(directory):
        folders[:] = [folder for folder in folders if folder != ".git"]
        if ".gitignore" in files:
            hint = "install git, which reads it"
            raise ConfigError("what it names cannot be left out", where=f"{place}/.gitignore", hint=hint)
        names += [os.path.relpath(os.path.join(place, name), directory) for name in files]
    return names
