"""What lies below a directory, and why one could not be made. pathlib and os.walk leave out in silence what they may
not read. Knows no meaning."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path


def there(path: Path) -> bool:
    """Whether something is there, a link that leads nowhere included. Raises OSError where that cannot be looked at:
    Python's own `exists` says False of some such errors, from 3.14 on of all."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def status(path: str | Path) -> os.stat_result | None:
    """What is at a path, where links lead to; None where nothing is. Raises OSError where that cannot be looked at."""
    try:
        return os.stat(path)
    except ValueError:  # a name that none can have
        return None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            return None
        raise


def is_file(path: str | Path) -> bool:
    """Raises OSError where that cannot be looked at."""
    about = status(path)
    return about is not None and stat.S_ISREG(about.st_mode)


def is_folder(path: str | Path) -> bool:
    """Raises OSError where that cannot be looked at."""
    about = status(path)
    return about is not None and stat.S_ISDIR(about.st_mode)


def files_below(
    directory: Path,
    *,
    into: Callable[[str], bool] = lambda name: True,
    follow_links: bool = False,
    living: bool = False,
) -> Iterator[Path]:
    """Every file below a directory, and every link that leads to one or nowhere. Raises OSError where a directory
    cannot be read, or a file not looked at.

    `into` is asked for each folder, by its path from `directory` with forward slashes. `follow_links`: also into
    folders that links lead to, each folder once. `living`: what goes meanwhile is no error.
    """

    def fail(error: OSError) -> None:
        if not (living and isinstance(error, FileNotFoundError)):
            raise error

    seen = {os.path.realpath(directory)}
    for place, folders, files in os.walk(directory, onerror=fail, followlinks=follow_links):
        parent = Path(place)
        folders[:] = sorted(name for name in folders if into((parent / name).relative_to(directory).as_posix()))
        if follow_links:
            real = {name: os.path.realpath(parent / name) for name in folders}
            folders[:] = [name for name in folders if real[name] not in seen]  # a link may lead back up
            seen.update(real.values())
        for path in (parent / name for name in sorted(files)):
            about = status(path)
            if stat.S_ISREG(about.st_mode) if about is not None else path.is_symlink():
                yield path


def why_not_writable(place: Path) -> tuple[Path, str] | None:
    """What keeps a directory from being made at an absolute place, or written to where it is there: what it is, and
    what is to be said of it. A path that may not be looked at is one that is not there."""
    there = next(path for path in (place, *place.parents) if os.path.lexists(path))
    if not os.path.isdir(there):
        return there, "is a file, where a directory is needed"
    if not os.access(there, os.W_OK | os.X_OK):
        return there, "cannot be written"
    longest = _longest_name(there)
    if longest is not None and any(len(os.fsencode(part)) > longest for part in place.relative_to(there).parts):
        return there, f"takes no names of more than {longest} letters"
    return None


def _longest_name(directory: Path) -> int | None:
    """In bytes; None where the file system does not say: some answer with 0 or an error, and take any name."""
    try:
        longest = os.pathconf(directory, "PC_NAME_MAX")
    except (OSError, ValueError):
        return None
    return longest if longest > 0 else None
