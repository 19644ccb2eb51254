"""What this machine refuses as an error of ours: a place that cannot be looked at or written, a word that can be none.

Light: the command line asks it too, of whatever a command comes upon.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rankzero.errors import RankzeroError, StorageError, UsageError

FULL = {
    errno.ENOSPC: "free space there, or choose another place",
    errno.EDQUOT: "the quota there is used up: free space, or choose another place",
    errno.EFBIG: "a file cannot be as large there: choose another place",
    errno.EROFS: "this volume is read-only: choose another place",
}
_NO_PLACE = {
    errno.ENAMETOOLONG: "no file has a name as long as this: does a word stand where another one is meant to?",
    errno.ELOOP: "links that lead in a circle: see what `ls -l` says of them",
}
_SHOWN = 60


def as_ours(error: OSError) -> RankzeroError | None:
    """What a user can mend. None where the fault may be ours."""
    what, number, where = error.strerror or str(error), error.errno or 0, str(error.filename or "")
    if isinstance(error, PermissionError) and where:
        return StorageError(what, where=where, hint="name another place, or have who owns it let this user in")
    if number in _NO_PLACE and where:
        shown = where if len(where) <= _SHOWN else f"{where[:_SHOWN]}…"
        return UsageError(what, where=shown, hint=_NO_PLACE[number])
    if number in FULL:
        return StorageError(what, where=where, hint=FULL[number])
    return None


def place(path: str | os.PathLike[str]) -> Path:
    """A path that somebody gave a function of ours, with `~` as this user's home, which no shell has seen to. Of whom
    nobody knows (`~nobody`) it is a name like any other, which pathlib would raise for."""
    return Path(os.path.expanduser(path))


@contextmanager
def places_told() -> Iterator[None]:
    """Around what is called from Python: raises what `as_ours` makes of an OSError. Any other passes as it is."""
    try:
        yield
    except OSError as error:
        if (known := as_ours(error)) is None:
            raise
        raise known from error
