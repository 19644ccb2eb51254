"""Every image opened and decoded whole, over processes. Knows files and counts; nothing of rows."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from rankzero.data.images.decode import ImageError, ImageLimits, decode, locate, require_pillow
from rankzero.data.images.layout import source_of
from rankzero.data.images.paths import refusal
from rankzero.data.pool import ordered_map
from rankzero.data.progress import Progress, no_progress
from rankzero.machine import usable_cores
from rankzero.run_dir.atomic import file_sha256

_BATCH = 16
_FEW = 200
"""Below this, starting processes takes longer than decoding."""


@dataclass(frozen=True, slots=True)
class ImageProblem:
    """One image that cannot be used. `reason` is short and the same for every image with this fault."""

    path: str
    reason: str
    what: str
    hint: str = ""


@dataclass(slots=True)
class ImageReport:
    """What the check found: every bad image with its reason, and counts for each source."""

    checked: int = 0
    problems: dict[str, ImageProblem] = field(default_factory=dict)
    sources: dict[str, Counter[str]] = field(default_factory=dict)
    """By source: how many images are `ok`, and how many have which fault."""
    contents: dict[str, str] = field(default_factory=dict)
    """By path the sha256 of the image's file, where that was asked for."""

    @property
    def ok(self) -> bool:
        """Whether every image can be used."""
        return not self.problems

    @property
    def reasons(self) -> Counter[str]:
        """Bad images by reason."""
        return Counter(problem.reason for problem in self.problems.values())

    def as_json(self, examples: int = 20) -> dict[str, Any]:
        """For `--json` and `stats.json`: counts, and the first bad images."""
        return {
            "ok": self.ok,
            "checked": self.checked,
            "problems_by_reason": dict(self.reasons.most_common()),
            "sources": {name: dict(counts.most_common()) for name, counts in sorted(self.sources.items())},
            "problems": [
                {"image": problem.path, "reason": problem.reason, "what": problem.what, "hint": problem.hint or None}
                for problem in islice(self.problems.values(), examples)
            ],
        }


def check_images(
    paths: Iterable[str],
    root: Path,
    *,
    workers: int | None = None,
    limits: ImageLimits | None = None,
    contents: bool = False,
    progress: Progress = no_progress,
) -> ImageReport:
    """Decode every image below `root`; each path once, however often it is given. Raises ConfigError without Pillow.

    `workers` absent: one for each core, and none for a handful of images. `contents`: also say which are the same.
    `progress` is told the bytes of the files.
    """
    require_pillow()
    wanted = list(dict.fromkeys(paths))
    if workers is None:
        workers = 1 if len(wanted) < _FEW else usable_cores()
    report = ImageReport()
    make = partial(_checker, root, limits or ImageLimits(), contents)
    for done, size in ordered_map(make, _batches(wanted), workers):
        for path, problem, content in done:
            report.checked += 1
            source = "(refused)" if problem is not None and refusal(path) else source_of(path.lstrip("/"))
            report.sources.setdefault(source, Counter())["ok" if problem is None else problem.reason] += 1
            if problem is not None:
                report.problems[path] = problem
            elif content:
                report.contents[path] = content
        progress(size)
    return report


_Done = tuple[list[tuple[str, ImageProblem | None, str]], int]


def _batches(paths: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(paths), _BATCH):
        yield paths[start : start + _BATCH]


def _checker(root: Path, limits: ImageLimits, contents: bool) -> Callable[[list[str]], _Done]:
    return partial(_check_batch, root, limits, contents)


def _check_batch(root: Path, limits: ImageLimits, contents: bool, paths: list[str]) -> _Done:
    done: list[tuple[str, ImageProblem | None, str]] = []
    size = 0
    for path in paths:
        try:
            file = locate(path, root)
            decode(file, limits).close()
            size += os.path.getsize(file)
        except ImageError as fault:
            done.append((path, ImageProblem(path, fault.reason, fault.what, fault.hint), ""))
        else:
            done.append((path, None, file_sha256(file) if contents else ""))
    return done, size
