"""Where a run is pulled from: an object store, or a volume that a command reads in a pod. Knows files and bytes."""

from __future__ import annotations

import base64
import json
import posixpath
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rankzero.errors import ConfigError, ServiceError
from rankzero.persist.objects import files_in, open_store, store_errors
from rankzero.run_dir.paths import LINKS

Execute = Callable[[Sequence[str]], str]
"""Runs a command beside the files, and returns what it printed. Raises ServiceError where it failed."""

_FIND = """
import json, os, sys
root, run = sys.argv[1:]
found = []
for place, names, files in os.walk(root):
    names[:] = [name for name in names if not name.startswith(".")]
    if "run.yaml" in files:
        found.append(place)
        names.clear()
    elif place[len(root):].count("/") >= 3:
        names.clear()
print(json.dumps({"found": [one for one in found if os.path.basename(one) == run], "others": sorted(found)[:20]}))
"""
_LIST = """
import json, os, sys
root, links = sys.argv[1], sys.argv[2:]
files, pointers = {}, {}
def unless_gone(error):
    if not isinstance(error, FileNotFoundError):
        raise error
for place, names, own in os.walk(root, onerror=unless_gone):
    for name in own:
        path = os.path.join(place, name)
        if os.path.isfile(path) and not os.path.islink(path):
            files[os.path.relpath(path, root)] = os.path.getsize(path)
for name in links:
    path = os.path.join(root, name)
    if os.path.islink(path):
        pointers[name] = os.readlink(path)
    elif os.path.isfile(path):
        pointers[name] = open(path).read().strip()
print(json.dumps({"files": files, "links": pointers}))
"""
_READ = """
import base64, sys
path, offset, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(path, "rb") as file:
    file.seek(offset)
    sys.stdout.write(base64.b64encode(file.read(length)).decode())
"""


class Source(Protocol):
    """One run directory that lies elsewhere. Methods raise StorageError or ServiceError where it does not answer."""

    @property
    def where(self) -> str:
        """As messages call it."""

    def files(self) -> dict[str, int]:
        """Bytes of each file, by its name in the run directory; links are not among them."""

    def links(self) -> dict[str, int]:
        """The steps that `best` and `last` point at."""

    def read(self, name: str, offset: int, length: int) -> bytes:
        """So many bytes of a file; fewer at its end."""


class ObjectSource:
    """A run directory in an object store."""

    def __init__(self, url: str) -> None:
        self.where = url
        with store_errors(url):
            self._store, self._root = open_store(url)
            self._store.invalidate_cache()

    @classmethod
    def find(cls, url: str, run: str, *, itself: bool = True) -> ObjectSource:
        """The run of this name below a URL, or what the URL `itself` is. Raises ConfigError where there is none."""
        for place in (posixpath.join(url, run), *([url] if itself else [])):
            source = cls(place)
            if source.has("run.yaml"):
                return source
        inside = cls(url).runs_one_level_down(run)  # as storage.outputs.url has them: <url>/<output_dir>/<name>
        if len(inside) == 1:
            return cls(posixpath.join(url, inside[0], run))
        hint = "the URL of the run's directory, or of the one that it is in, as output_url or storage.outputs.url say"
        raise ConfigError(f"there is no run {run} there: run.yaml is missing", where=url, hint=hint)

    def runs_one_level_down(self, run: str) -> list[str]:
        """Directories here that hold a run of this name."""
        with store_errors(self.where):
            found = self._store.glob(posixpath.join(self._root, "*", run, "run.yaml"))
        return [posixpath.relpath(path, self._root).split("/")[0] for path in found]

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        with store_errors(self.where):
            return bool(self._store.exists(posixpath.join(self._root, name)))

    def files(self) -> dict[str, int]:
        with store_errors(self.where):
            sizes = files_in(self._store, self._root)
        return {name: size for name, size in sizes.items() if name not in LINKS}

    def links(self) -> dict[str, int]:
        with store_errors(self.where):
            there = {name: posixpath.join(self._root, name) for name in LINKS}
            return _steps({name: self._pointer(path) for name, path in there.items() if self._store.exists(path)})

    def _pointer(self, path: str) -> str:
        """What a pointer file says, or, on a file system, where a link leads."""
        facts = self._store.info(path)
        target = facts.get("destination") or self._store.cat_file(path)
        return target.decode(errors="replace") if isinstance(target, bytes) else str(target)

    def read(self, name: str, offset: int, length: int) -> bytes:
        with store_errors(self.where):
            data: bytes = self._store.cat_file(posixpath.join(self._root, name), start=offset, end=offset + length)
        return data


class CommandSource:
    """A run directory on a volume, read by python commands in a pod that mounts it."""

    def __init__(self, execute: Execute, root: str, where: str) -> None:
        self._execute, self._root, self.where = execute, root, where

    @classmethod
    def find(cls, execute: Execute, mount: str, run: str, where: str) -> CommandSource:
        """The run of this name below a mount. Raises ConfigError with the runs that are there."""
        answer = _json(execute(["python", "-P", "-c", _FIND, mount, run]), where)
        found, others = answer["found"], [posixpath.basename(one) for one in answer["others"]]
        if len(found) == 1:
            return cls(execute, found[0], f"{where}: {found[0]}")
        if found:
            raise ConfigError(f"there are several runs {run}: {', '.join(found)}", where=where, hint="rename one")
        hint = f"there are {', '.join(others)}" if others else "there are no runs on this volume"
        raise ConfigError(f"there is no run {run}", where=where, hint=hint)

    def files(self) -> dict[str, int]:
        return {str(name): int(size) for name, size in self._listed()["files"].items() if name not in LINKS}

    def links(self) -> dict[str, int]:
        return _steps(self._listed()["links"])

    def read(self, name: str, offset: int, length: int) -> bytes:
        path = posixpath.join(self._root, name)
        text = self._execute(["python", "-P", "-c", _READ, path, str(offset), str(length)])
        try:
            return base64.b64decode(text.strip(), validate=True)
        except ValueError as error:
            raise ServiceError(f"what was read of {name} is cut off", where=self.where) from error

    def _listed(self) -> Any:
        return _json(self._execute(["python", "-P", "-c", _LIST, self._root, *LINKS]), self.where)


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ServiceError(f"not an answer of ours: {text[:200]!r}", where=where) from error


def _steps(pointers: dict[str, str]) -> dict[str, int]:
    steps = {name: text.strip().rpartition("step-")[2] for name, text in pointers.items()}
    return {name: int(step) for name, step in steps.items() if step.isdigit()}
