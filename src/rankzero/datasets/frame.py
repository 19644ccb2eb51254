"""What every recipe does: raw rows in, images found, training rows and `stats.json` out. Knows no data set.

    raw files ─ pass 1 ─> images that the rows need, groups ──> images located, hold-out decided
              ─ pass 2 ─> one row, one outcome: written to train or eval, or dropped by a named rule

The rows are streamed twice (once, where neither images nor a hold-out are asked for), so memory holds image paths and
counts, never rows. Output files appear when all splits are written and each has rows, `stats.json` last.
"""

from __future__ import annotations

import errno
import hashlib
import os
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from rankzero.data.images.layout import image_key
from rankzero.data.images.paths import normalised, refusal
from rankzero.data.rows.formats.json_text import write_text
from rankzero.data.rows.formats.unread import Reads, unread_of
from rankzero.data.rows.problems import RowProblem, kind
from rankzero.datasets.images.resolve import ImageSettings, Located, Lost, locate_images
from rankzero.datasets.images.stores import Store
from rankzero.datasets.raw import rows_of, written_into
from rankzero.datasets.tally import FAILED_STATS, STATS, Converted, Dropped, Tally
from rankzero.errors import DataError, Problem, UsageError
from rankzero.run_dir.atomic import fsync_path, stage_name, storage_errors, write_json

EVAL = "eval"

_BUCKETS = 1 << 20
"""Of the hold-out: groups that share one are held out together."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a data set has of its own."""

    name: str
    file_name: str
    """Of the output, with {split}."""
    convert: Callable[[Mapping[str, Any], Tally], Converted | Dropped]
    needs_image: bool
    """Whether a row without an image is dropped."""
    reads: Reads
    """The keys of raw rows that are read, or left out on purpose. Of rows that are used all others are counted."""
    choices: Mapping[str, Any] = field(default_factory=dict)
    """What else was chosen, for `stats.json`."""


@dataclass(frozen=True, slots=True)
class FrameSettings:
    """What a user can choose for every recipe."""

    output_dir: Path
    image_dir: Path
    max_samples: int = 0
    """Raw rows of each split, from its beginning; 0: all."""
    skip_images: bool = False
    """Look for no image: rows name the paths of the raw data."""
    eval_fraction: float = 0.0
    """Share of the train split's rows to hold out, by image."""
    seed: int = 42
    images: ImageSettings = field(default_factory=ImageSettings)

    @property
    def compares_contents(self) -> bool:
        """Whether images are the same by what they hold: where they are looked for and read, which decoding does."""
        return not self.skip_images and self.images.check


Announce = Callable[[str], None]
"""Told in words what begins."""


def quiet(_words: str) -> None:
    """Announce nothing."""


def run(
    recipe: Recipe,
    inputs: Mapping[str, Sequence[str]],
    settings: FrameSettings,
    stores: Sequence[Store] = (),
    announce: Announce = quiet,
) -> dict[str, Any]:
    """Write every split and the statistics, which are returned. Raises DataError where a split gives no row at all, or
    nothing can be held out that was to be: then the statistics alone are written, beside what an earlier run made."""
    _require_no_stale_eval(recipe, inputs, settings)
    _require_inputs_stay(recipe, inputs, settings)
    stats_file, failed = (settings.output_dir / name for name in (STATS, FAILED_STATS))
    splits: dict[str, Any] = {}
    groups: dict[str, set[str]] = {}
    with RowWriter(settings.output_dir) as writer:
        for split, paths in inputs.items():
            work = _Split(recipe, split, paths, settings, announce)
            splits[split] = work.run(stores, writer)
            groups[split] = work.images
        every = [group for used in groups.values() for group in used]
        stats = {
            "recipe": recipe.name,
            "inputs": {split: list(paths) for split, paths in inputs.items()},
            "choices": {
                "max_samples": settings.max_samples,
                "skip_images": settings.skip_images,
                "eval_fraction": settings.eval_fraction,
                "seed": settings.seed,
                **recipe.choices,
            },
            "splits": splits,
            "written_before": _still_there(settings.output_dir, writer.counts),
            "images_in_several_splits": len(every) - len(set(every)),
            "images_compared": "by content" if settings.compares_contents else "by name",
        }
        if problems := _without_rows(splits, settings, f"{failed} has examples and the places that were looked in"):
            write_json(failed, stats)
            raise DataError(problems)
        writer.commit()
    write_json(stats_file, stats)
    with storage_errors(failed):
        failed.unlink(missing_ok=True)
    return stats


class _Split:
    """One split, from raw files to output files."""

    def __init__(
        self, recipe: Recipe, split: str, paths: Sequence[str], settings: FrameSettings, announce: Announce
    ) -> None:
        self._recipe, self._split, self._paths, self._settings = recipe, split, paths, settings
        self._announce = announce
        self._holdout = HoldOut(settings.eval_fraction if split == "train" else 0.0, settings.seed)
        self._located: Located | None = None
        self._tally = Tally()
        self._first: dict[str, str] = {}
        """Of images that are there under several names: the key of all of them, by each key."""
        self.images: set[str] = set()
        """Of the images that are used: what they hold, or their keys where that is not known."""

    def run(self, stores: Sequence[Store], writer: RowWriter) -> dict[str, Any]:
        """Write the rows, which have their names once the writer commits. Returns the statistics."""
        if not self._settings.skip_images or self._settings.eval_fraction:
            self._survey(stores)
        self._announce(f"{self._split}: writing rows")
        sides = (self._split, EVAL) if self._holdout.holds_out else (self._split,)
        names = {split: self._recipe.file_name.format(split=split) for split in sides}
        for name in names.values():  # also those that will have no rows
            writer.open(name)
        for number, value in self._rows():
            self._tally.rows_in += 1
            outcome = self._outcome(number, value)
            if isinstance(outcome, Dropped):
                self._tally.drop(number, outcome)
                continue
            rows, group = outcome
            self._tally.rows_used += 1
            writer.write(names[EVAL if self._holdout.holds(group) else self._split], rows)
        self._tally.written.update({name: writer.counts[name] for name in names.values()})
        assert self._tally.accounted, self._tally.as_json()
        return self._tally.as_json() | {"images": self._image_stats(stores)}

    def _rows(self) -> Iterator[tuple[int, Any]]:
        return islice(rows_of(self._paths), self._settings.max_samples or None)

    def _survey(self, stores: Sequence[Store]) -> None:
        """The first pass: which images are needed, and how many rows each group has that can be used."""
        self._announce(f"{self._split}: reading which images the rows need")
        rows_of_image: Counter[str] = Counter()
        scratch = Tally()
        for number, value in self._rows():
            read = self._read(number, value, scratch)
            if isinstance(read, Dropped):
                continue
            _, image = read
            if image is None:
                self._holdout.count(self._group(None, number))
            else:
                rows_of_image[image] += 1
        settings = self._settings
        if not settings.skip_images:
            self._announce(f"{self._split}: finding {len(rows_of_image):,} images")
            how = replace(settings.images, compare=settings.compares_contents)
            self._located = locate_images(rows_of_image, settings.image_dir, self._split, stores, how)
            self._first = _first_keys(self._located.contents)
        for image, rows in rows_of_image.items():
            if isinstance(self._image(image), str):
                self._holdout.count(self._group(image, 0), rows)
        self._holdout.decide()

    def _read(self, number: int, value: Any, tally: Tally) -> tuple[Converted, str | None] | Dropped:
        """The row's training rows, and the image that it names."""
        if isinstance(value, RowProblem):
            return Dropped(value.reason, value.what)
        if not isinstance(value, dict):
            return Dropped("not an object", f"the row is {kind(value)}")
        image = _image_in(value)
        if isinstance(image, Dropped):
            return image
        if image is None and self._recipe.needs_image:
            return Dropped("no image", "the row names no image")
        tally.keys_not_read.update(set(unread_of(value, self._recipe.reads)))
        converted = self._recipe.convert({**value, "image": image}, tally)
        return converted if isinstance(converted, Dropped) else (converted, image)

    def _outcome(self, number: int, value: Any) -> tuple[list[dict[str, Any]], str] | Dropped:
        """What is written for a raw row, and its group; or the rule that drops it."""
        tally = Tally()
        read = self._read(number, value, tally)
        if isinstance(read, Dropped):
            self._tally.add(tally, used=False)
            return read
        converted, image = read
        path = None if image is None else self._image(image)
        if isinstance(path, Lost):
            tally.unconvert(converted.steps, path.rule)
            self._tally.add(tally, used=False)
            return Dropped(path.rule, path.what)
        self._tally.add(tally, used=True)
        group = self._group(image, number)
        if image is not None:
            contents = {} if self._located is None else self._located.contents
            self.images.add(contents.get(image_key(image), group))
        name = _name(value.get("id"), self._split, number)
        return [_finished(row, name, group if image else None, path) for row in converted.rows], group

    def _group(self, image: str | None, number: int) -> str:
        """Rows of one image are one group, whatever they call it; a row without an image is its own."""
        if image is None or refusal(image):
            return f"{self._split}:{number}"
        key = image_key(image)
        return self._first.get(key, key)

    def _image(self, path: str) -> str | Lost:
        if self._located is not None:
            return self._located.of(path)
        refused = refusal(path)
        return normalised(path) if refused is None else Lost(refused.reason, refused.what)

    def _image_stats(self, stores: Sequence[Store]) -> dict[str, Any]:
        """Found and missing images by source, and what the stores hold besides."""
        if self._located is None:
            return {"skipped": True}
        return {
            "how": dict(self._located.how.most_common()),
            "sources": {name: counts.as_json(name) for name, counts in sorted(self._located.sources.items())},
            "stores": [{"place": store.label, **_seen(store)} for store in stores],
        }


def _image_in(row: Mapping[str, Any]) -> str | None | Dropped:
    """The path that a row names as its `image`, or as the only one in `images`."""
    image, images = row.get("image") or None, row.get("images") or []
    paths = [path for path in (images if isinstance(images, list) else [images]) if path]
    named = [image, *paths] if image else paths
    if bad := [one for one in named if not isinstance(one, str)]:
        return Dropped("image is not a path", f"the row's image is {kind(bad[0])}")
    if len(paths) > 1 or len(set(named)) > 1:
        return Dropped("more than one image", f"the row names {', '.join(named[:4])}")
    return named[0] if named else None


def _first_keys(contents: Mapping[str, str]) -> dict[str, str]:
    """Of keys with the same content the first, in an order that does not depend on the rows, by each of the others."""
    first: dict[str, str] = {}
    for key in sorted(contents):
        first.setdefault(contents[key], key)
    return {key: first[content] for key, content in contents.items() if first[content] != key}


def _name(value: object, split: str, number: int) -> str:
    """The raw row's id as a string, or one from its place."""
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        return f"{split}-{number}"
    return str(value)


def _finished(row: dict[str, Any], name: str, group: str | None, image: str | None) -> dict[str, Any]:
    ending = row["id"]
    finished = {"id": f"{name}-{ending}" if ending else name, "messages": row["messages"]}
    if group is not None:
        finished["conversation_id"] = group  # which keeps rows of one image together wherever they are read
    if image is not None:
        finished["images"] = [image]
    return finished


def _seen(store: Store) -> dict[str, Any]:
    seen = store.seen
    counts = {"members": seen.members, "used": seen.used, "unnamed": seen.unnamed, "too_large": seen.too_large}
    return {**{name: count for name, count in counts.items() if count}, "not_asked_for": seen.others}


def _require_no_stale_eval(recipe: Recipe, inputs: Mapping[str, Sequence[str]], settings: FrameSettings) -> None:
    """Rows that an earlier run held out would now be in train as well."""
    stale = settings.output_dir / recipe.file_name.format(split=EVAL)
    if "train" in inputs and EVAL not in inputs and not settings.eval_fraction and stale.exists():
        what = "is left from a run with --eval-fraction, and its rows would now be in train as well"
        raise UsageError(what, where=str(stale), hint="delete it, or give --eval-fraction again")
    if settings.eval_fraction and EVAL in inputs:
        raise UsageError("--eval-fraction would write the file of the split `eval`", hint="leave one of the two out")
    if settings.eval_fraction and "train" not in inputs:
        raise UsageError("--eval-fraction holds out rows of train, which is not among the splits")


def _still_there(folder: Path, now: Collection[str]) -> list[str]:
    """What earlier runs wrote there: names that this run does not write."""
    return sorted(name for name in written_into(folder).difference(now) if (folder / name).is_file())


def _require_inputs_stay(recipe: Recipe, inputs: Mapping[str, Sequence[str]], settings: FrameSettings) -> None:
    """Raw rows that are written over cannot be read again."""
    splits = [*inputs, *([EVAL] if settings.eval_fraction else [])]
    outs = {
        settings.output_dir / name
        for name in (STATS, FAILED_STATS, *(recipe.file_name.format(split=one) for one in splits))
    }
    written = set(map(os.path.realpath, outs))
    for path in (path for paths in inputs.values() for path in paths):
        if os.path.realpath(path) in written:
            raise UsageError(f"{path} is read and would be written over", hint="name another place with --output_dir")


def _without_rows(splits: Mapping[str, Any], settings: FrameSettings, hint: str) -> list[Problem]:
    """The splits that give no row, or of which nothing can be held out."""
    problems = []
    for split, stats in splits.items():
        dropped = ", ".join(f"{count} × {rule}" for rule, count in stats["rows_dropped"].items())
        if not stats["rows_out"]:
            what = f"no training row from {stats['rows_in']} raw rows: {dropped or 'there are none'}"
            problems.append(Problem(what, split, hint))
        elif settings.eval_fraction and split == "train" and not all(stats["written"].values()):
            what = "nothing can be held out: all rows that can be used have one image"
            problems.append(Problem(f"{what}; dropped: {dropped}" if dropped else what, split, hint))
    return problems


class HoldOut:
    """A share of the rows held out by group, in fixed memory and in any order: from the seed and the groups alone.

    Groups are placed on [0, 1) by a hash; those below a cut are held out. The cut is where the share of the rows comes
    closest to what was asked for, with at least one group on either side. First every row is counted, then every row
    can be asked for.
    """

    def __init__(self, fraction: float, seed: int) -> None:
        self._fraction, self._seed = fraction, seed
        self._rows = array("q", bytes(8 * _BUCKETS)) if fraction else array("q")
        self._cut = 0

    @property
    def holds_out(self) -> bool:
        """Whether anything is asked for."""
        return bool(self._fraction)

    def count(self, group: str, rows: int = 1) -> None:
        """Rows of this group."""
        if self._fraction:
            self._rows[self._place(group)] += rows

    def decide(self) -> None:
        """Place the cut. Where one group is all there is, nothing is held out."""
        if not self._fraction:
            return
        filled = [place for place, rows in enumerate(self._rows) if rows]
        wanted = sum(self._rows) * self._fraction
        held, best = 0, float("inf")
        for place in filled[:-1]:
            held += self._rows[place]
            if abs(held - wanted) >= best:
                break
            best, self._cut = abs(held - wanted), place + 1

    def holds(self, group: str) -> bool:
        """Whether rows of this group are held out."""
        return self.holds_out and self._place(group) < self._cut

    def _place(self, group: str) -> int:
        digest = hashlib.sha256(f"{self._seed}:{group}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % _BUCKETS


class RowWriter:
    """JSON lines files of one directory, by name, each made when it is first named. They appear together when all is
    written, or not at all."""

    def __init__(self, directory: Path) -> None:
        self.counts: Counter[str] = Counter()
        """Rows by file."""
        self._directory = directory
        self._files: dict[str, tuple[Path, BinaryIO]] = {}

    def __enter__(self) -> RowWriter:
        with storage_errors(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """What was not committed is gone."""
        for staged, file in self._files.values():
            file.close()
            staged.unlink(missing_ok=True)

    def open(self, name: str) -> None:
        """A file of this name, even if it will have no rows."""
        if name not in self._files:
            staged = self._directory / stage_name(name)
            with storage_errors(staged):
                self._files[name] = (staged, staged.open("wb"))
            self.counts[name] += 0

    def write(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        """Append rows to a file."""
        self.open(name)
        for row in rows:
            with storage_errors(self._directory / name):
                self._files[name][1].write(write_text(row).encode() + b"\n")
            self.counts[name] += 1

    def commit(self) -> None:
        """Give the files their names."""
        with storage_errors(self._directory):
            for _staged, file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
                file.close()
            for name in self._files:  # before the first one is replaced: what would keep a later one from it
                _require_no_directory(self._directory / name)
            for name, (staged, _file) in self._files.items():
                os.replace(staged, self._directory / name)
            fsync_path(self._directory)
        self._files.clear()


def _require_no_directory(path: Path) -> None:
    with storage_errors(path):
        if path.is_dir() and not path.is_symlink():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
