"""Images of rows brought below one folder: found in place, copied, linked or unpacked; what is missing, by source.

    row's path ──> key ──> in <image_dir>, else in <image_dir>/<split>, else in the stores, in their order
                           (what comes from a store is written to <image_dir>/<split>/<row's path>)

An image is known by its key (COCO by integer id, others by name), so one file serves all rows and spellings. What is
found is decoded once before any row may name it; what cannot be is looked for in the places that come after. Knows
nothing of rows but the paths in them.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rankzero.data.images.check import check_images
from rankzero.data.images.decode import ImageError, ImageLimits, decode, require_pillow
from rankzero.data.images.layout import SOURCES, image_key, source_of
from rankzero.data.images.paths import inside, normalised, refusal
from rankzero.data.progress import Progress, no_progress
from rankzero.datasets.images.stores import Fetched, FolderStore, Store
from rankzero.run_dir.atomic import TEMPORARY_PREFIX, fsync_path, storage_errors

ImageMode = Literal["copy", "link", "none"]

MISSING = "image missing"
_EXAMPLES = 5
_MOST_WRITERS = 8


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """How images are brought in."""

    mode: ImageMode = "copy"
    """Of images in a folder store: copied, or hard-linked where the file system can. none: there are no stores."""
    check: bool = True
    """Decode every image, and use none that cannot be decoded."""
    limits: ImageLimits = field(default_factory=ImageLimits)
    workers: int | None = None
    compare: bool = False
    """Where every image is decoded: say which are the same under other names."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Why a row's image cannot be used. `rule` is the name under which the row is dropped."""

    rule: str
    what: str


@dataclass(slots=True)
class SourceReport:
    """What became of the distinct images of one source."""

    found: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def as_json(self, source: str) -> dict[str, Any]:
        """For `stats.json`."""
        value: dict[str, Any] = {"images": self.found + self.lost.total(), "found": self.found}
        if self.lost:
            value |= {"lost": dict(self.lost.most_common()), "examples": self.examples}
        if self.lost[MISSING] and source in SOURCES:
            value["looked_for_in"] = list(SOURCES[source])
        return value


class Located:
    """Where every image is, by the paths in the rows."""

    def __init__(self) -> None:
        self.sources: dict[str, SourceReport] = {}
        self.contents: dict[str, str] = {}
        """By key what the image's file holds, where that was asked for: equal for equal bytes."""
        self._how: dict[str, str] = {}
        self._paths: dict[str, str] = {}
        self._lost: dict[str, Lost] = {}

    def of(self, path: str) -> str | Lost:
        """The path below the image folder, or why there is none."""
        if refused := refusal(path):
            return Lost(refused.reason, refused.what)
        key = image_key(path)
        return self._paths.get(key) or self._lost.get(key) or Lost(MISSING, f"{path} is in none of the places")

    def add(self, key: str, path: str, how: str) -> None:
        """An image that is there."""
        self._paths[key], self._how[key] = path, how

    @property
    def how(self) -> Counter[str]:
        """Images that can be used, by how they came: `in place`, `copied`, `linked`, `unpacked`."""
        return Counter(self._how[key] for key in self._paths)

    def lose(self, key: str, lost: Lost) -> None:
        """An image that cannot be used."""
        self._paths.pop(key, None)
        self._lost[key] = lost

    def paths(self) -> dict[str, str]:
        """Path by key of all that can be used."""
        return dict(self._paths)

    def report(self, path: str) -> None:
        """Count a distinct image under its source. Once for each, at the end."""
        source = "(refused)" if refusal(path) else source_of(path)
        counts = self.sources.setdefault(source, SourceReport())
        place = self.of(path)
        if isinstance(place, str):
            counts.found += 1
            return
        counts.lost[place.rule] += 1
        if len(counts.examples) < _EXAMPLES:
            counts.examples.append(path[:200])


def locate_images(
    paths: Iterable[str],
    image_dir: Path,
    split: str,
    stores: Sequence[Store] = (),
    settings: ImageSettings | None = None,
    progress: Progress = no_progress,
) -> Located:
    """Find every image, bring it below `image_dir`, decode it.

    Raises StorageError, and DataError for an archive that is damaged: half of its images would be missing in silence.
    """
    settings = settings or ImageSettings()
    if settings.check:
        require_pillow()  # before an hour of copying
    located = Located()
    wanted: dict[str, str] = {}
    refused: list[str] = []
    for path in dict.fromkeys(paths):
        if refusal(path):
            refused.append(path)
        else:
            wanted.setdefault(image_key(path), normalised(path))
    left = dict(wanted)
    faults: dict[str, ImageError] = {}
    for folder in ("", split):
        before = dict(left)
        faults |= _in_place(left, located, image_dir, folder)
        found = [key for key in before if key not in left]
        left |= {key: wanted[key] for key in _lose_the_unreadable(located, found, image_dir, settings, progress)}
    brought: dict[str, str] = {}
    for store in stores:
        for fetched in store.fetch(dict(left)):
            key, target = fetched.key, f"{split}/{left[fetched.key]}"
            if how := _bring(fetched, target, image_dir, image_dir / split, settings):
                located.add(key, target, how)
                brought[key] = left.pop(key)
        faults |= store.seen.faults
    for key in left.keys() & faults.keys():
        located.lose(key, Lost(faults[key].reason, faults[key].what))
    for key in _lose_the_unreadable(located, brought, image_dir, settings, progress):
        (image_dir / split / brought.pop(key)).unlink(missing_ok=True)  # or the next run would take it for good
    _flush([image_dir / split / path for path in brought.values()], image_dir)
    for path in (*wanted.values(), *refused):
        located.report(path)
    return located


def _in_place(left: dict[str, str], located: Located, image_dir: Path, folder: str) -> dict[str, ImageError]:
    store = FolderStore(image_dir / folder)
    for key, path in list(left.items()):
        found = store.find(path)
        if found is not None:
            located.add(key, f"{folder}/{found}" if folder else found, "in place")
            del left[key]
    return store.seen.faults


def _bring(fetched: Fetched, path: str, image_dir: Path, split_dir: Path, settings: ImageSettings) -> str | None:
    """Write an image below the folder, whole or not at all; returns how. What is there already cannot be decoded: it is
    replaced by one that can, where it is in the split's own folder. None: it stays."""
    with storage_errors(image_dir / path):
        # A folder below may be a link that somebody made; what is written must not leave either.
        target = inside(path, image_dir)
        if not isinstance(target, Path):
            raise OSError(target.what)
        replaces = settings.check and target.is_file()
        if replaces and not target.is_relative_to(os.path.realpath(split_dir)):
            return None
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = target.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
        try:
            how = _write(fetched, staged, settings.mode)
            if replaces and not _can_be_decoded(staged, settings.limits):
                return None
            os.replace(staged, target)
        finally:
            staged.unlink(missing_ok=True)
    return how


def _can_be_decoded(file: Path, limits: ImageLimits) -> bool:
    try:
        decode(file, limits).close()
    except ImageError:
        return False
    return True


def _flush(files: Sequence[Path], image_dir: Path) -> None:
    """Rows that name these files are on the device when the run ends; so are they."""
    folders = {folder for file in files for folder in file.parents if folder.is_relative_to(image_dir)}
    with storage_errors(image_dir), ThreadPoolExecutor(_MOST_WRITERS) as writers:
        for _ in writers.map(fsync_path, (*files, *folders)):
            pass


def _write(fetched: Fetched, staged: Path, mode: ImageMode) -> str:
    if fetched.file is None:
        staged.write_bytes(fetched.data)
        return "unpacked"
    real = os.path.realpath(fetched.file)
    if mode == "link":
        try:
            os.link(real, staged)
        except OSError:  # another file system, or one without hard links
            pass
        else:
            return "linked"
    shutil.copyfile(real, staged)
    return "copied"


def _lose_the_unreadable(
    located: Located, keys: Iterable[str], image_dir: Path, settings: ImageSettings, progress: Progress
) -> list[str]:
    """Decode the images of these keys. Returns the keys of those that cannot be, which are lost."""
    if not settings.check:
        return []
    paths = located.paths()
    by_path = {paths[key]: key for key in keys}
    report = check_images(
        by_path,
        image_dir,
        workers=settings.workers,
        limits=settings.limits,
        contents=settings.compare,
        progress=progress,
    )
    located.contents |= {by_path[path]: content for path, content in report.contents.items()}
    for path, problem in report.problems.items():
        located.lose(by_path[path], Lost(problem.reason, f"{path}: {problem.what}"))
    return [by_path[path] for path in report.problems]
