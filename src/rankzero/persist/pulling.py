"""A run directory brought here from elsewhere: whole and verified, or not there. Knows no store and no pod.

What has a manifest (the result, each checkpoint) is gathered under a temporary name, where the next call finds what
this one had, and gets its own name when every hash is right.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import ValidationError

from rankzero.errors import ConfigError, Problem, ServiceError, StorageError
from rankzero.persist.objects import inside
from rankzero.persist.sending import is_plain
from rankzero.persist.sources import Source
from rankzero.run_dir.atomic import (
    MANIFEST,
    TEMPORARY_PREFIX,
    NotReadError,
    faults,
    file_sha256,
    fsync_path,
    not_read_errors,
    parse_manifest,
    read_manifest,
    replace_directory,
    stage_name,
    storage_errors,
)
from rankzero.run_dir.intact import is_weights
from rankzero.run_dir.kept_aside import keep_aside
from rankzero.run_dir.lease import holder
from rankzero.run_dir.paths import LINKS, RunDir
from rankzero.run_dir.result import FINAL
from rankzero.run_dir.same_run import two_runs
from rankzero.run_dir.setting import newest_manifest
from rankzero.run_dir.steps import furthest
from rankzero.spec.diff import LENGTH, compare, identity_at, perhaps_the_same
from rankzero.spec.resolve import resolve
from rankzero.spec.run_spec import RunSpec

Say = Callable[[str], None]
T = TypeVar("T")
Checkpoints = Literal["none", "best", "last", "all"]
Only = Literal["final", "report"]
CHUNK = 16 << 20
"""Bytes that are asked for at a time."""
ATTEMPTS = 4
PAUSE_SECONDS = 2.0
_REPORT = ("run.yaml", "report.json", "report.html", "eval.json", "goodput.json")


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull did."""

    root: Path
    fetched: int
    """Files that were not here."""
    kept: int
    """Files that were here already, with the bytes that they should have."""
    fetched_bytes: int
    result: bool
    """Whether final/ is there."""
    steps: tuple[int, ...]
    """Checkpoints that were asked for and are here now."""


def pull(
    source: Source, root: Path, say: Say, *, checkpoints: Checkpoints = "none", only: Only | None = None
) -> Pulled:
    """Bring a run here: all but its checkpoints, the result verified by its manifest; `checkpoints` come besides.

    `only` final: the result and run.yaml; report: the reports and run.yaml. Raises ConfigError where the directory is
    another run's or further than the source, or where that has no result and it was asked for alone; StorageError where
    the directory is trained in, or bytes stay wrong; ServiceError where the source does not answer. What was fetched
    till then is used by the next call.
    """
    return _Pull(source, root, say).run(checkpoints, only)


class _Pull:
    def __init__(self, source: Source, root: Path, say: Say) -> None:
        self._source, self._run_dir, self._say = source, RunDir(root), say
        self._fetched = self._kept = self._bytes = 0

    def run(self, checkpoints: Checkpoints, only: Only | None) -> Pulled:
        source, root = self._source, self._run_dir.root
        names = {inside(name, source.where): size for name, size in tried(source.files, self._say).items()}
        has_result = f"{FINAL}/{MANIFEST}" in names
        if only == "final" and not has_result:
            hint = "it has not ended; without --only all else comes, and --checkpoints last brings the newest weights"
            raise ConfigError("this run has no result yet: final/ is missing", where=source.where, hint=hint)
        self._require_ours(names)
        with storage_errors(root):
            root.mkdir(parents=True, exist_ok=True)
        plain = [name for name in names if is_plain(name) and not name.startswith(f"{FINAL}/")]
        if only is not None:
            plain = [name for name in plain if name in (_REPORT if only == "report" else _REPORT[:1])]
        for name in sorted(plain):
            self._plain(name, names[name])
        if has_result and only != "report":
            self._directory(FINAL, names)
        steps = self._checkpoints(checkpoints, names)
        return Pulled(root, self._fetched, self._kept, self._bytes, (root / FINAL).is_dir(), steps)

    def _require_ours(self, names: Mapping[str, int]) -> None:
        """Nothing of another run is mixed with this one, nobody trains here meanwhile, or has trained further."""
        root = self._run_dir.root
        if (held := holder(root, perhaps=True)) is not None:
            raise StorageError(f"{held} trains in this directory", where=str(root), hint="give another --output")
        ours = _bytes(self._run_dir.spec)
        if ours is None:
            return
        theirs = self._read("run.yaml", names.get("run.yaml", 0))
        problems = self._differences(ours, theirs, names)
        if problems:
            hint = "give another --output, or move that run away"
            raise ConfigError([Problem("this directory holds another run", str(root), hint), *problems])
        here = furthest(self._run_dir.committed_steps(), _bytes(self._run_dir.report) or b"")
        there = furthest(_steps(names), self._read("report.json", names.get("report.json", 0)))
        if here > there:
            what = f"the run is at step {here} here, and only at step {there} there"
            hint = "give another --output; this directory has the newer work, which would be replaced"
            raise ConfigError(what, where=str(root), hint=hint)

    def _differences(self, ours: bytes, theirs: bytes, names: Mapping[str, int]) -> list[Problem]:
        """Why these two run.yaml, or what was made by them, are of two runs."""
        specs = _spec(ours), _spec(theirs)
        if specs[0] is None or specs[1] is None:
            what = "one of the two was made by a version of rankzero whose specs this one does not read"
            return [] if ours == theirs else [Problem(what, "run.yaml")]
        here, there = self._manifest_here(), self._manifest_there(names)
        return two_runs(specs[0], specs[1], here, there, begun_alike=self._begun_alike(names))

    def _begun_alike(self, names: Mapping[str, int]) -> bool:
        """Whether both have the same first step, made at one time."""
        name = "metrics.jsonl"
        here = (_bytes(self._run_dir.metrics) or b"").partition(b"\n")[0]
        there = self._read(name, min(CHUNK, names.get(name, 0))).partition(b"\n")[0]
        return here == there and b'"time"' in here

    def _manifest_here(self) -> Mapping[str, Any]:
        """Of the newest checkpoint, which says most of what the run is, or of the result; {} where there is neither."""
        newest = newest_manifest(self._run_dir)
        if newest is None:
            try:
                newest = read_manifest(self._run_dir.final)
            except NotReadError:  # what is here may be another run's
                raise
            except StorageError:
                pass
        return newest or {}

    def _manifest_there(self, names: Mapping[str, int]) -> Mapping[str, Any]:
        directories = [*(f"checkpoints/step-{step}" for step in sorted(_steps(names), reverse=True)), FINAL]
        for name in (f"{directory}/{MANIFEST}" for directory in directories):
            text = self._read(name, names.get(name, 0)).decode(errors="replace")
            with suppress(StorageError):
                return parse_manifest(text, f"{self._source.where}/{name}")
        return {}

    def _checkpoints(self, wanted: Checkpoints, names: Mapping[str, int]) -> tuple[int, ...]:
        if wanted == "none":
            return ()
        steps = _steps(names)
        links = tried(self._source.links, self._say)
        if wanted != "all":
            chosen = links.get(wanted, max(steps, default=None) if wanted == "last" else None)
            steps &= {chosen}
        if not steps:
            raise ConfigError(
                f"there is no such checkpoint: {wanted}", where=self._source.where, hint="--checkpoints all"
            )
        for step in sorted(steps):
            self._directory(f"checkpoints/step-{step}", names)
        for link in LINKS:
            if links.get(link) in steps:
                self._run_dir.set_link(link, links[link])
        return tuple(sorted(steps))

    def _plain(self, name: str, size: int) -> None:
        """A file without a hash: it is asked for anew, unless it says the same."""
        path = self._run_dir.root / name
        data = self._read(name, size)
        with storage_errors(path):
            if path.is_file() and path.read_bytes() == data:
                self._kept += 1
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            staged = path.with_name(stage_name(path.name))
            try:
                staged.write_bytes(data)
                staged.replace(path)
            finally:
                staged.unlink(missing_ok=True)
        self._fetched, self._bytes = self._fetched + 1, self._bytes + len(data)

    def _directory(self, name: str, names: Mapping[str, int]) -> None:
        """The result or a checkpoint, by its manifest."""
        place = self._run_dir.root / name
        staged = place.with_name(f"{TEMPORARY_PREFIX}pull-{place.name}")
        data = self._read(f"{name}/{MANIFEST}", names[f"{name}/{MANIFEST}"])
        with storage_errors(place):
            same = (place / MANIFEST).is_file() and (place / MANIFEST).read_bytes() == data
            if same and not faults(place, read_manifest(place)):
                self._kept += len(read_manifest(place)["files"])
                return
            staged.mkdir(parents=True, exist_ok=True)
            (staged / MANIFEST).write_bytes(data)
        entries = read_manifest(staged)["files"]
        total = sum(entry["size"] for entry in entries.values())
        self._say(f"{name}: {len(entries)} files, {total / 1e6:,.1f} MB")
        for file, entry in entries.items():
            if self._verified(f"{name}/{file}", place / file, staged / file, entry):
                continue
            if name != FINAL or is_weights(file) or f"{name}/{file}" not in names:
                raise _damaged(f"{self._source.where}/{name}/{file}")
            self._say(f"{name}/{file} was changed since the run wrote it, and comes as it is")
            with storage_errors(staged):
                (staged / file).write_bytes(self._read(f"{name}/{file}", names[f"{name}/{file}"]))
            self._fetched += 1
        keep, said = keep_aside(place, staged) if name == FINAL else (None, "")
        if said:
            self._say(said)
        with storage_errors(place):
            for path in [*(path for path in staged.rglob("*")), staged]:
                fsync_path(path)
            replace_directory(staged, place, keep=keep)

    def _verified(self, name: str, here: Path, staged: Path, entry: Mapping[str, object]) -> bool:
        """One file with the hash that its manifest says: from here, from what an earlier call has of it, or anew. False
        where it has none such there."""
        size, digest = int(str(entry["size"])), entry["sha256"]
        with storage_errors(staged):
            staged.parent.mkdir(parents=True, exist_ok=True)
            if not staged.exists() and here.is_file() and here.stat().st_size == size:
                shutil.copyfile(here, staged)
            if staged.is_file() and staged.stat().st_size == size and file_sha256(staged) == digest:
                self._kept += 1
                return True
            if staged.is_file() and staged.stat().st_size >= size:
                staged.unlink()
        for again in (False, True):
            self._continue(name, staged, size)
            if file_sha256(staged) == digest:
                self._fetched += 1
                return True
            staged.unlink()
            if not again:
                self._say(f"{name} has not the bytes that its manifest says; it is fetched again")
        return False

    def _continue(self, name: str, path: Path, size: int) -> None:
        with storage_errors(path), path.open("ab") as file:
            while (offset := file.tell()) < size:
                data = self._chunk(name, offset, min(CHUNK, size - offset))
                if not data:
                    return  # shorter than its manifest says: the hash tells
                file.write(data)
                self._bytes += len(data)
                if size > 4 * CHUNK and offset // (size // 4) != (offset + len(data)) // (size // 4):
                    self._say(f"  {name}: {100 * (offset + len(data)) // size} %")

    def _read(self, name: str, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._chunk(name, len(data), min(CHUNK, size - len(data)))
            if not more:
                break
            data += more
        return data

    def _chunk(self, name: str, offset: int, length: int) -> bytes:
        return tried(lambda: self._source.read(name, offset, length), self._say)


def _damaged(where: str) -> StorageError:
    hint = "the copy is damaged, or the run is writing it right now: give the command again, or take another source"
    return StorageError("its bytes are not those that were saved (sha256 differs)", where=where, hint=hint)


def is_run_of(spec: RunSpec, text: str) -> bool | None:
    """Whether a run.yaml may be of this spec's run, of whatever length: by its settings, and by the names of its data,
    base and tokenizer, which have other paths on another machine. None where this version does not read it."""
    theirs = _spec(text.encode())
    if theirs is None:
        return None
    changes = [one for one in compare(resolve(theirs), spec) if one.another_setting and one.field not in LENGTH]
    return all(identity_at(change.field) is not None and perhaps_the_same(change) for change in changes)


def tried(work: Callable[[], T], say: Say) -> T:
    """More than once, where a source does not answer. Raises its last error."""
    for attempt in range(1, ATTEMPTS):
        try:
            return work()
        except (StorageError, ServiceError) as error:
            say(f"{error} (attempt {attempt} of {ATTEMPTS})")
            time.sleep(PAUSE_SECONDS * attempt)
    return work()


def _steps(names: Iterable[str]) -> set[int]:
    """Steps of the whole checkpoints among these files."""
    there = [name.split("/")[1] for name in names if name.startswith("checkpoints/") and name.endswith(MANIFEST)]
    return {int(name.removeprefix("step-")) for name in there if name.removeprefix("step-").isdigit()}


def _bytes(path: Path) -> bytes | None:
    """None: there is no such file. Raises NotReadError."""
    with not_read_errors(path):
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None


def _spec(text: bytes) -> RunSpec | None:
    """Of a run.yaml; None where it is none that this version reads."""
    with suppress(ValidationError, yaml.YAMLError, UnicodeDecodeError):
        return RunSpec.model_validate(yaml.safe_load(text.decode().replace("$${", "${")))
    return None
