"""What cannot be read of a user's files: for good, or at the moment, when a restart may find it again."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rankzero.errors import ConfigError, Problem, StorageError

FOR_GOOD = frozenset(
    {errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL}
    | {errno.ENAMETOOLONG, errno.ENXIO, errno.EFBIG, errno.EOVERFLOW}
)
"""Errors that no restart mends."""


def unread(error: OSError, where: str | Path) -> Problem:
    """What is to be said of what no restart makes readable. Raises StorageError of all else: a stale handle, a server
    that does not answer, a disk's own error."""
    place, why = str(error.filename or where).rstrip("/"), error.strerror or str(error)
    if error.errno in FOR_GOOD:
        return Problem(f"cannot be read: {why}", place, f"try: ls -ld {place}")
    hint = "is its disk or server there? The same command goes on once it is"
    raise StorageError(f"cannot be read at the moment: {why}", where=place, hint=hint) from error


def may_be_read(path: str | Path) -> bool:
    """Whether this user may. Raises OSError where that cannot be told: `access` says no of any error."""
    if os.access(path, os.R_OK):
        return True
    try:
        Path(path).open("rb").close()
    except PermissionError:
        return False
    return True


@contextmanager
def read_errors(where: str | Path) -> Iterator[None]:
    """Within, what cannot be read is a ConfigError, or at the moment a StorageError, that names it."""
    try:
        yield
    except OSError as error:
        raise ConfigError(unread(error, where)) from error
