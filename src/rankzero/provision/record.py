"""What was made for an infra.yaml, in a file beside it, so that nothing else is ever deleted. Names and ids, no secret.

Each thing has an entry by its kind and its own name, so that an infra.yaml that names another does not lose it. That
something is about to be made is written down before it is asked for: what a program made, and did not live to say, is
then known to be ours. A command that changes something holds the record for as long as it is at work.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rankzero.errors import ConfigError, StorageError
from rankzero.run_dir.atomic import storage_errors, write_text


@dataclass(frozen=True, slots=True)
class Made:
    """One thing."""

    name: str
    id: str = ""
    """Empty: it was asked for, and whether it was made nobody has said."""
    others: tuple[str, ...] = ()
    """What there was of its kind before, where its own name is only known from what is new."""
    within: str = ""
    """Id of what it is inside of, where its own id does not tell; empty: an older version did not say."""
    place: str = ""
    """Id of the place that it was made in; empty: the provider has but one."""
    by_name: bool = False
    """It was asked for, nobody said that it was made, and what has its name now was taken for it."""

    @property
    def is_guessed(self) -> bool:
        """Whether what has its name is taken for it by that alone."""
        return self.by_name or not self.id


class Record:
    """The file."""

    def __init__(self, infra: Path) -> None:
        self.path = infra.with_name(f"{infra.stem}.made.json")
        self._infra = infra
        self._made: dict[tuple[str, str], Made] = {}
        self._place = ""
        self._read()

    @contextmanager
    def held(self) -> Iterator[None]:
        """For one command at a time, from what the one before has left. Raises StorageError where another has it."""
        with os.fdopen(self._lock(), "rb") as file:  # and let go of by the kernel, however this process ends
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                hint = "wait until that is done, then give the same command again"
                what = "another command is at work on this file"
                raise StorageError(what, where=str(self._infra), hint=hint) from error
            except OSError:  # a volume without locks
                pass
            self._read()
            yield

    def _lock(self) -> int:
        """A file for it, which a colleague may have made: then this user may perhaps not write to it, and need not."""
        lock = self.path.with_name(f".{self.path.stem}.lock")
        try:
            try:
                return os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
            except PermissionError:
                return os.open(lock, os.O_RDONLY)
        except OSError as error:
            hint = f"it is kept beside {self._infra.name}: it has to be readable, or its directory writable"
            raise StorageError(error.strerror or str(error), where=str(lock), hint=hint) from error

    def _read(self) -> None:
        self._made.clear()
        try:
            text = self.path.read_text(encoding="utf-8")
            for key, one in json.loads(text).items():
                kind, _, _ = key.partition("/")
                since = {name: one[name] for name in ("within", "place", "by_name") if name in one}
                self._made[kind, one["name"]] = Made(one["name"], one["id"], tuple(one["others"]), **since)
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            hint = "it says what may be deleted; put it back, or move it away: then nothing that is there is ours"
            raise StorageError(f"it cannot be read: {error}", where=str(self.path), hint=hint) from error

    @property
    def titles(self) -> list[str]:
        """Kind and name of all."""
        return [f"{kind} {name}" for kind, name in self._made]

    def enter(self, place: str) -> None:
        """What is made from now on is there. Raises ConfigError where something was made in another place."""
        for title, one in zip(self.titles, self._made.values(), strict=True):
            if one.place not in ("", place):
                hint = "log in there again; for a cluster here, copy infra.yaml to a directory of its own"
                what = f"{title} was made in {one.place}, and this is {place}"
                raise ConfigError(what, where=str(self.path), hint=hint)
        self._place = place

    def of(self, kind: str, name: str) -> Made | None:
        """What was made of this kind, under this name."""
        return self._made.get((kind, name))

    def put(
        self,
        kind: str,
        name: str,
        id: str = "",
        others: tuple[str, ...] = (),
        *,
        within: str = "",
        by_name: bool = False,
    ) -> None:
        """Before it is made, and after. Raises StorageError."""
        self._made[kind, name] = Made(name, id, others, within, self._place, by_name)
        self._write()

    def drop(self, kind: str, name: str) -> None:
        """It is gone."""
        if self._made.pop((kind, name), None) is not None:
            self._write()

    def _write(self) -> None:
        with storage_errors(self.path):
            if self._made:
                text = json.dumps({f"{kind}/{name}": asdict(one) for (kind, name), one in self._made.items()}, indent=1)
                write_text(self.path, text + "\n")
            else:
                self.path.unlink(missing_ok=True)
