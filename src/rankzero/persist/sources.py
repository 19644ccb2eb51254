"""Where a run is pulled from: an object store, or a volume that a command reads in a pod. Knows files and bytes."""

from __future__ import annotations

import base64
import json
import posixpath
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rankzero.errors import ConfigError, ServiceError
from rankzero.persist.objects import files_in, open_store, store_errors
from rankzero.run_dir.paths import LINKS
from rankzero.store_listing import is_there, named_below

_SHOWN = 3
Execute = Callable[[Sequence[str]], str]
"""Runs a command beside the files, and returns what it printed. Raises ServiceError where it failed."""

_FIND = """
import json, os, sys
root, run, *known = sys.argv[1:]
def text(place):
    try:
        with open(os.path.join(place, "run.yaml"), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
def has_spec(place):
    try:
        return bool(os.stat(os.path.join(place, "run.yaml")))
    except (FileNotFoundError, NotADirectoryError):
        return False
is_known = any(has_spec(place) for place in known)
found, unseen = [], []
def note(error):
    if not isinstance(error, FileNotFoundError):
        unseen.append(f"{error.filename} could not be looked into: {error.strerror}")
for place, names, files in () if is_known else os.walk(root, onerror=note):
    names[:] = [name for name in names if not name.startswith(".")]
    if place == os.path.join(root, "slurm"):  # what jobs of Slurm read of a run and note, its spec among it
        names[:] = [name for name in names if not os.path.lexists(os.path.join(place, name, "about.json"))]
    if "run.yaml" in files:
        found.append(place)
        names.clear()
    elif place[len(root):].count("/") >= 3:
        names.clear()
same = {one: text(one) for one in sorted(found) if os.path.basename(one) == run}
print(json.dumps({"known": is_known, "found": same, "others": sorted(found)[:20], "unseen": unseen[:3]}))
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


@dataclass(frozen=True, slots=True)
class Sought:
    """What a run.yaml says of its run besides the name, which other runs may have, too."""

    output_dir: str | None
    """Where it is, relative to the volume or URL that is searched; None: that is not known."""
    is_sure: bool
    """Whether what is there is this run, whatever its settings."""
    is_ours: Callable[[str], bool | None]
    """Whether a run.yaml that lies elsewhere may be this run's. None: this version does not read it."""

    def place(self, root: str, run: str) -> list[str]:
        """Its directory below what is searched, where that is known."""
        return [] if self.output_dir is None else [_below(root, self.output_dir, run)]


class ObjectSource:
    """A run directory in an object store."""

    def __init__(self, url: str) -> None:
        self.where = url
        with store_errors(url):
            self._store, self._root = open_store(url)
            self._store.invalidate_cache()

    @classmethod
    def find(cls, url: str, run: str, *, itself: bool = True, sought: Sought | None = None) -> ObjectSource:
        """The run of this name below a URL, or what the URL `itself` is. Raises ConfigError where there is none, or it
        is not clear which is meant."""
        its = [] if sought is None else sought.place(url, run)
        found: dict[str, str] = {}
        for place in dict.fromkeys([*its, posixpath.join(url, run), *([url] if itself else [])]):
            source = cls(place)
            if not source.has("run.yaml"):
                continue
            if sought is None or (sought.is_sure and place in its):
                return source
            found[place] = source.spec_text()
            if sought.is_ours(found[place]):
                return source
        inside, unseen = cls(url)._one_level_down(run)  # as storage.outputs.url has them: <url>/<output_dir>/<name>
        found |= {place: cls(place).spec_text() for place in inside if place not in found}
        meant = _meant(found, run, url, sought, lambda place: ["rankzero", "pull", run, place.removesuffix(f"/{run}")])
        if meant is not None:
            return cls(meant)
        hint = "the URL of the run's directory, or of the one that it is in, as output_url or storage.outputs.url say"
        hint = "; ".join([hint, *unseen[:_SHOWN]])
        raise ConfigError(f"there is no run {run} there: run.yaml is missing", where=url, hint=hint)

    def _one_level_down(self, run: str) -> tuple[list[str], list[str]]:
        """URLs of the runs of this name in directories here, and what could not be looked into."""
        with store_errors(self.where):
            found, unseen = named_below(self._store, self._root, posixpath.join(run, "run.yaml"))
        inside = [posixpath.relpath(path, self._root).split("/")[0] for path in found]
        return [posixpath.join(self.where, name, run) for name in inside], unseen

    def spec_text(self) -> str:
        """Its run.yaml."""
        with store_errors(self.where):
            data: bytes = self._store.cat_file(posixpath.join(self._root, "run.yaml"))
        return data.decode(errors="replace")

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        with store_errors(self.where):
            return is_there(self._store, posixpath.join(self._root, name))

    def files(self) -> dict[str, int]:
        with store_errors(self.where):
            sizes = files_in(self._store, self._root)
        return {name: size for name, size in sizes.items() if name not in LINKS}

    def links(self) -> dict[str, int]:
        with store_errors(self.where):
            there = {name: posixpath.join(self._root, name) for name in LINKS}
            return _steps({name: self._pointer(path) for name, path in there.items() if is_there(self._store, path)})

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
    def find(
        cls,
        execute: Execute,
        mount: str,
        run: str,
        where: str,
        sought: Sought | None = None,
        cluster: str | None = None,
    ) -> CommandSource:
        """The run of this name below a mount. Raises ConfigError with the runs that are there, or where it is not clear
        which is meant. `cluster` is what was typed for it."""
        its = [] if sought is None else sought.place(mount, run)
        known = its if sought is not None and sought.is_sure else []
        answer = _json(execute(["python", "-P", "-c", _FIND, mount, run, *known]), where)
        by_name = ["rankzero", "pull", run, *([] if cluster is None else ["--cluster", cluster])]
        place = known[0] if answer["known"] else _meant(answer["found"], run, where, sought, lambda _: by_name, its)
        if place is not None:
            return cls(execute, place, f"{where}: {place}")
        others = [posixpath.basename(one) for one in answer["others"]]
        unseen = answer["unseen"]
        there = [f"there are {', '.join(others)}"] if others else [] if unseen else ["there are no runs on this volume"]
        hint = "; ".join([*there, *unseen])
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


def _below(place: str, output_dir: str, run: str) -> str:
    return posixpath.join(place, posixpath.normpath(posixpath.join(output_dir, run)))


def _meant(
    found: Mapping[str, str],
    run: str,
    where: str,
    sought: Sought | None,
    by_name: Callable[[str], Sequence[str]],
    likely: Sequence[str] = (),
) -> str | None:
    """Which directory of the run's name is meant, of those with their run.yaml: a likely one that may be the run's, or
    the only one. None where there are none. Raises ConfigError where nothing tells; `by_name` is the command that takes
    such a one whatever it is."""
    if sought is None and len(found) > 1:
        hint = "give its run.yaml, whose output_dir says which, or rename one"
        raise ConfigError(f"there are several runs {run}: {', '.join(found)}", where=where, hint=hint)
    verdicts = {place: sought is None or sought.is_ours(text) for place, text in found.items()}
    ours = [place for place, verdict in verdicts.items() if verdict]
    if len(ours) == 1 or not found:
        return ours[0] if ours else None
    if first := next((place for place in likely if place in ours), None):
        return first
    if ours:
        hint = "set output_dir in run.yaml to that of the one that is meant"
        raise ConfigError(f"there are several runs {run}: {', '.join(ours)}", where=where, hint=hint)
    shown = [f"`{shlex.join(by_name(place))}`" for place in found]
    hint = f"if that is the one: {' or '.join(shown)}, with the name instead of run.yaml"
    if len(set(shown)) < len(shown):  # by its name alone none is found
        free = "" if sought is None or sought.is_sure else ", without resume: new"
        hint = f"set output_dir in run.yaml to that of the one that is meant{free}"
    raise ConfigError(f"there is no run {run} of this run.yaml, but {_others(verdicts)}", where=where, hint=hint)


def _others(verdicts: Mapping[str, bool | None]) -> str:
    unread = [place for place, verdict in verdicts.items() if verdict is None]
    other = [place for place in verdicts if place not in unread]
    told = [f"one with other settings or data in {', '.join(other)}"] if other else []
    told += [f"one whose run.yaml this version does not read in {', '.join(unread)}"] if unread else []
    return ", and ".join(told)


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ServiceError(f"not an answer of ours: {text[:200]!r}", where=where) from error


def _steps(pointers: dict[str, str]) -> dict[str, int]:
    steps = {name: text.strip().rpartition("step-")[2] for name, text in pointers.items()}
    return {name: int(step) for name, step in steps.items() if step.isdigit()}
