"""What is on disk of a run that Slurm has: which job it is, what its nodes noted, their logs. Judges nothing.

All of it lies on the file system that nodes share, in a directory that the batch script fills
(launch/render/sbatch.py).
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rankzero.directories import there
from rankzero.errors import AccessError, StorageError
from rankzero.launch.node.ownership import must_be_writable
from rankzero.launch.render.sbatch_parts import CANCELLED_FILE, SUBMITTED_FILE
from rankzero.run_dir.atomic import storage_errors, write_json, write_text

MOST_MESSAGE_BYTES = 4096
PREPARATION: Literal["prepare"] = "prepare"
Part = int | Literal["prepare"]
"""A node by its number, or what goes before them."""
_TAIL_BYTES = 256 * 1024
_DOUBT = ".doubt"


@dataclass(frozen=True, slots=True)
class Ending:
    """One end of a node command."""

    code: int
    began: datetime | None
    at: datetime


@dataclass(frozen=True, slots=True)
class NodeNotes:
    """What a node noted in one start of the job."""

    host: str = ""
    began: datetime | None = None
    """When the newest instance of its command did; None: it has not."""
    endings: tuple[Ending, ...] = ()
    """Oldest first."""
    runs: bool = False
    """Whether it has begun once more than it has ended."""


@dataclass(slots=True)
class _Notes:
    host: str = ""
    began: datetime | None = None
    endings: list[Ending] = field(default_factory=list)
    runs: bool = False


def read_notes(text: str, job: str) -> tuple[int, NodeNotes]:
    """Of the newest start of this job: its number, which is 0 for the first, and what was noted in it.

    A line is `begin JOB RESTART SECONDS HOST` or `end JOB RESTART SECONDS CODE`; one that is cut counts for nothing.
    """
    newest, notes = 0, _Notes()
    for line in text.splitlines():
        words = line.split()
        if len(words) != 5 or words[1] != job or not words[2].isdigit() or not words[3].isdigit():
            continue
        word, restart, at, value = words[0], int(words[2]), datetime.fromtimestamp(int(words[3]), UTC), words[4]
        if restart > newest:
            newest, notes = restart, _Notes()
        if word == "begin":
            notes.host, notes.began, notes.runs = value, at, True
        elif word == "end" and value.isdigit():
            notes.endings.append(Ending(int(value), notes.began, at))
            notes.runs = False
    return newest, NodeNotes(notes.host, notes.began, tuple(notes.endings), notes.runs)


class RunState:
    """The directory of one run, and the log of its batch script beside it. Whatever reads raises AccessError where the
    directory is somebody else's who keeps it to themselves, as its mode says where outputs are shared."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.batch_log = root.parent.parent / f"slurm-{root.name}.log"

    @property
    def job(self) -> str:
        """The id of the newest job; empty where there is none."""
        return self._number("job")

    @property
    def preparation(self) -> str:
        """The id of the job that prepares, or did; empty where there is none."""
        return self._number("prepare_job")

    @property
    def about(self) -> dict[str, Any]:
        """The script's metadata; empty where there is none."""
        return _read_map(self._text("about.json"))

    @property
    def doubted(self) -> dict[str, Any]:
        """The metadata of the script of which it is not known whether sbatch took it; empty where there is none."""
        return _read_map(self._text(self._doubt.name, self.root.parent))

    def is_cancelled(self, job: str) -> bool:
        """Whether it was told to stop for good. An earlier version wrote all such jobs into one file."""
        if job in self._text("cancelled").split():
            return True
        with storage_errors(self.root):
            return there(self.root / f"{CANCELLED_FILE}{job}")

    def must_be_makeable(self) -> None:
        """Raise what `anew` would, as far as looking tells. Makes nothing."""
        with storage_errors(self.root):
            there = next(one for one in (self.root.parent, *self.root.parents) if os.path.lexists(one))
            if not there.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if os.statvfs(there).f_flag & os.ST_RDONLY:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        must_be_writable([self.root.parent], hosts=True)

    @contextmanager
    def anew(self, about: dict[str, Any], submission: str) -> Iterator[None]:
        """Make it for another job, which is submitted inside; where that fails, all is as before. `submission` is what
        nodes know it by. Raises StorageError, and AccessError where the directory of all runs is somebody else's alone.

        A job may start before sbatch has said its number; the script writes that too.
        """
        with storage_errors(self.root):
            _open_as_above(self.root.parent)
        must_be_writable([self.root.parent], hosts=True)
        made = False
        with storage_errors(self.root):
            self._take_up_what_is_aside()
        try:
            with storage_errors(self.root):
                self._aside.mkdir()
                for one in (self.root, self.batch_log):
                    _move(one, self._aside / one.name)
                self.root.mkdir(mode=0o700)
                made = True
                for name in ("nodes", "logs"):
                    (self.root / name).mkdir()
                (self.root / f"{SUBMITTED_FILE}{submission}").touch()
            write_json(self.root / "about.json", about)
            yield
        except BaseException:
            with storage_errors(self.root):
                self._put_back(made=made)
            raise
        shutil.rmtree(self._aside, ignore_errors=True)

    @property
    def _aside(self) -> Path:
        """Where the run is as it was, while it is submitted anew."""
        return self.root.with_name(f".{self.root.name}.before")

    def _put_back(self, *, made: bool) -> None:
        """What is aside, in the place of what was `made` meanwhile. Raises OSError; then it stays aside."""
        if made:
            shutil.rmtree(self.root, ignore_errors=True)  # what is left of it, no move replaces
        for one in (self.root, self.batch_log):
            _move(self._aside / one.name, one)
        shutil.rmtree(self._aside, ignore_errors=True)

    def _take_up_what_is_aside(self) -> None:
        """Where a submit was killed, or could not put it back: it counts unless a job is known that came after it."""
        try:
            there = os.listdir(self._aside)
        except FileNotFoundError:
            return
        if there and not self.job:
            self._put_back(made=self.root.name in there)
        else:
            shutil.rmtree(self._aside)

    def take_back(self) -> None:
        """Where a submit was killed, and nothing came of it: all is as before it. Raises StorageError."""
        if self.about and not self.job and not self.notes(PREPARATION, self.preparation)[1].began:
            with storage_errors(self.root):
                self._put_back(made=True)

    def settle(self, job: str) -> None:
        """Note which job it is. Raises StorageError."""
        write_text(self.root / "job", f"{job}\n")

    def settle_preparation(self, job: str) -> None:
        """Note which job prepares it. Raises StorageError."""
        write_text(self.root / "prepare_job", f"{job}\n")

    @property
    def is_in_doubt(self) -> bool:
        """Whether Slurm may have a job of the run that nobody was told the number of."""
        with storage_errors(self._doubt):
            return there(self._doubt)

    def doubt(self, about: Mapping[str, Any]) -> None:
        """Note that, with the script's metadata, as long as it is not known to be otherwise: who asks sbatch may be
        killed. Raises StorageError."""
        write_text(self._doubt, json.dumps(about))
        with storage_errors(self._doubt):
            self._doubt.chmod(0o600)

    def settle_doubt(self) -> None:
        """There is none any more. Raises StorageError."""
        with storage_errors(self._doubt):
            self._doubt.unlink(missing_ok=True)

    @property
    def _doubt(self) -> Path:
        """Beside it: it is as before where a submit fails."""
        return self.root.with_name(f".{self.root.name}{_DOUBT}")

    def cancel(self, *jobs: str) -> None:
        """Have the batch scripts let them end when they are saved; a full volume takes it too. Raises StorageError."""
        with storage_errors(self.root):
            for job in jobs:
                (self.root / f"{CANCELLED_FILE}{job}").touch()
        if jobs:
            with suppress(StorageError):  # for scripts that an earlier version submitted, which know no other word
                write_text(self.root / "cancelled", "".join(f"{job}\n" for job in jobs))

    def notes(self, part: Part, job: str) -> tuple[int, NodeNotes]:
        """As `read_notes`, of a node or the preparation."""
        return read_notes(self._text(f"nodes/{part}"), job)

    def is_left_to_the_next(self, part: Part, job: str, restart: int) -> bool:
        """Whether it failed while it was asked to stop in this start, and may be tried again in another. An earlier
        version wrote the start into the file. Raises StorageError."""
        noted = self.root / f"nodes/{part}.again-{job}-{restart}"
        with storage_errors(noted):
            return there(noted) or self._text(f"nodes/{part}.again").strip() == f"{job} {restart}"

    def words(self, part: Part) -> str:
        """What its command said at its last end."""
        return self._text(f"nodes/{part}.words")[:MOST_MESSAGE_BYTES]

    def log(self, part: Part) -> Path:
        """All that its commands have printed."""
        return self.root / "logs" / (f"{part}.log" if part == PREPARATION else f"node-{part}.log")

    def last_lines(self, path: Path, count: int) -> list[str]:
        """The end of a log."""
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _TAIL_BYTES))
                lines = file.read().decode(errors="replace").split("\n")
        except OSError:
            return []
        whole = lines[1:] if size > _TAIL_BYTES else lines
        return [line for line in whole if line][-count:] if count else []

    def written(self, path: Path) -> datetime | None:
        """When a log was written last; None where there is none."""
        try:
            return datetime.fromtimestamp(path.stat().st_mtime, UTC)
        except OSError:
            return None

    def remove(self) -> list[str]:
        """All of it. Returns what was removed. Raises StorageError."""
        removed = []
        with storage_errors(self.root):
            if there(self.root):
                shutil.rmtree(self.root)
                removed.append(f"directory {self.root}")
            if there(self.batch_log):
                self.batch_log.unlink()
                removed.append(f"file {self.batch_log}")
        return removed

    def _number(self, name: str) -> str:
        """The last line that is one: an earlier version noted all that sbatch had said."""
        lines = self._text(name).split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip().isdigit()), "")

    def _text(self, name: str, directory: Path | None = None) -> str:
        """Nothing where there is no such file. Raises AccessError, and StorageError where that cannot be seen."""
        path = (directory or self.root) / name
        with storage_errors(path):
            try:
                return path.read_text(encoding="utf-8", errors="replace")
            except (FileNotFoundError, NotADirectoryError):
                return ""
            except PermissionError as error:
                raise self._closed() from error

    def _closed(self) -> AccessError:
        try:
            owner = self.root.owner()
        except KeyError:  # of a user that this machine does not know
            owner = f"user {self.root.stat().st_uid}"
        hint = "who submitted it looks at it and ends it; a run of yours needs another name"
        return AccessError(f"it is a run of {owner}, and nobody else may read it", where=str(self.root), hint=hint)


def states(directory: Path) -> Iterator[RunState]:
    """Of all runs there that may be read, by their names; also of one that Slurm may have and that has no directory any
    more. Raises StorageError."""
    with storage_errors(directory):
        try:
            names = sorted(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return
        found = {name for name in names if not name.startswith(".") and _is_open(directory / name / "about.json")}
        doubts = [name for name in names if name.startswith(".") and name.endswith(_DOUBT)]
        found.update(name[1 : -len(_DOUBT)] for name in doubts if _is_open(directory / name))
    yield from (state for state in (RunState(directory / name) for name in sorted(found)) if _is_known(state))


def _is_known(state: RunState) -> bool:
    """Whether there is more of it than a doubt, which an earlier version left without a word."""
    return _is_open(state.root / "about.json") or bool(state.doubted)


def _read_map(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _move(source: Path, target: Path) -> None:
    """Where there is something. Raises OSError."""
    if there(source):
        source.rename(target)


def _open_as_above(directory: Path) -> None:
    """Made where it is not there, for whom what it lies in is for: others submit there too, whatever this umask is."""
    if not directory.is_dir():
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(exist_ok=True)
        directory.chmod(directory.parent.stat().st_mode & 0o7777)


def _is_open(file: Path) -> bool:
    """Whether it is there, and for us."""
    try:
        with file.open("rb"):
            return True
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
