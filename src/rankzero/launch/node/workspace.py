"""The files of a warm pod that are copies of files elsewhere: which there are, and how they become others.

`python -m rankzero.launch.node.workspace ROOT PLACE list` prints what was copied to ROOT/PLACE and is there;
`… ROOT PLACE apply LENGTH` reads so many bytes of a tar stream: an order, then the files that changed. ROOT/PLACE.json
remembers what was copied: nothing else is ever removed, and what was changed here, or is in the way, is kept in
ROOT/PLACE.replaced.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from rankzero.launch.node.beat import beating

ORDER = "order.json"
"""First member of the stream: the marks of all files, by name."""
FILES = "files/"
"""What the names of the other members begin with."""


class BrokenCopyError(Exception):
    """What came is not what was sent."""


def mark(path: Path) -> str:
    """What tells a file from another of its name: what is in it, and whether it can be executed."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
        executable = os.fstat(file.fileno()).st_mode & 0o100
    return f"{digest.hexdigest()}{'x' if executable else ''}"


def mark_now(path: Path) -> str | None:
    """The same; None where there is no file, or none any more."""
    try:
        return mark(path) if path.is_file() else None
    except FileNotFoundError:
        return None


def present(root: Path, place: str) -> dict[str, str]:
    """Marks of the files that were copied and are there, as they are now."""
    work = root / place
    found = {name: mark_now(work / name) for name in _copied(root, place)}
    return {name: known for name, known in found.items() if known is not None}


def apply(root: Path, place: str, stream: IO[bytes]) -> dict[str, Any]:
    """Take a tar stream. Everything is checked before the first file changes. Returns how many were put and removed,
    and where below the root those are now that had been changed here.

    Raises BrokenCopyError, OSError or tarfile.TarError; then nothing has changed, unless the disk itself failed.
    """
    (root / place).mkdir(parents=True, exist_ok=True)
    with _staging(root, place) as staged:
        _unpack(stream, staged)
        with _alone(root, place):
            return _put(root, place, staged)


def _put(root: Path, place: str, staged: Path) -> dict[str, Any]:
    """What has come in the place of what is there."""
    work = root / place
    wanted: dict[str, str] = json.loads((staged / ORDER).read_text(encoding="utf-8"))
    came = [name for name in wanted if (staged / FILES / name).is_file()]
    wrong = [name for name in came if mark(staged / FILES / name) != wanted[name]]
    wrong += [name for name in wanted if name not in came and not (work / name).is_file()]
    if wrong:
        raise BrokenCopyError(f"{wrong[0]} changed while it was sent")
    copied = _copied(root, place)
    gone = [name for name in copied if name not in wanted]
    own = [name for name in (*gone, *came) if _is_own(work / name, (copied.get(name), wanted.get(name)))]
    kept = _keep(root, place, own)
    # Before anything changes: a file that is put is remembered, whatever happens to the rest.
    _remember(root, place, {**copied, **wanted})
    removed = sum(_remove(work, name) for name in gone)
    kept += _clear(root, place, came)
    for name in came:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (staged / FILES / name).replace(work / name)
    _remember(root, place, wanted)
    return {"put": len(came), "removed": removed, "replaced": kept}


@contextmanager
def _staging(root: Path, place: str) -> Iterator[Path]:
    """A new directory for what comes: a client that has gone may have left a program that still takes its files. What
    those have left that were killed is removed."""
    with _alone(root, place):
        for left in (root / f"{place}.new", *root.glob(f"{place}.new-*")):
            if not _is_held(left):
                shutil.rmtree(left, ignore_errors=True)
        staged = Path(tempfile.mkdtemp(prefix=f"{place}.new-", dir=root))
        held = os.open(staged, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
    try:
        yield staged
    finally:
        with _alone(root, place):
            os.close(held)
            shutil.rmtree(staged, ignore_errors=True)


@contextmanager
def _alone(root: Path, place: str) -> Iterator[None]:
    with (root / f"{place}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_held(staged: Path) -> bool:
    """Whether somebody's files still come there."""
    try:
        held = os.open(staged, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(held)
    return False


def _unpack(stream: IO[bytes], target: Path) -> None:
    """Plain files below the target, and nothing else. (tarfile's own filters came with Python 3.11.4.)"""
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            if content is None or not _is_inside(PurePosixPath(member.name)):
                raise BrokenCopyError(f"{member.name} is no file that may be put")
            path = target / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(content, file)
            path.chmod(0o755 if member.mode & 0o100 else 0o644)


def pack(files: Mapping[str, Path | bytes], wanted: Mapping[str, str], out: IO[bytes]) -> None:
    """Write the stream that `apply` takes: the marks of all files, and those files that the pod lacks. Raises
    BrokenCopyError where one is not as it was."""
    with tarfile.open(fileobj=out, mode="w|") as tar:
        order = json.dumps(dict(wanted)).encode()
        _add(tar, ORDER, io.BytesIO(order), len(order), 0o644)
        for name, content in files.items():
            if isinstance(content, bytes):
                _add(tar, FILES + name, io.BytesIO(content), len(content), 0o644)
                continue
            try:
                with content.open("rb") as file:
                    seen = os.fstat(file.fileno())
                    _add(tar, FILES + name, file, seen.st_size, 0o755 if seen.st_mode & 0o100 else 0o644)
            except OSError as error:
                if error.errno not in (None, errno.ENOENT):  # tarfile's own have no number: the file has shrunk
                    raise
                raise BrokenCopyError(f"{name} changed while it was sent") from error


def _add(tar: tarfile.TarFile, name: str, content: IO[bytes], size: int, mode: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, mode
    tar.addfile(member, content)


def _copied(root: Path, place: str) -> dict[str, str]:
    """Marks of what was copied, as it was then."""
    try:
        marks: dict[str, str] = json.loads((root / f"{place}.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {name: known for name, known in marks.items() if _is_inside(PurePosixPath(name))}


def _is_inside(name: PurePosixPath) -> bool:
    return not name.is_absolute() and ".." not in name.parts


def _remember(root: Path, place: str, marks: Mapping[str, str]) -> None:
    staged = root / f"{place}.json.new"
    staged.write_text(json.dumps(dict(sorted(marks.items()))), encoding="utf-8")
    staged.replace(root / f"{place}.json")


def _is_own(path: Path, sent: Collection[str | None]) -> bool:
    """Whether somebody here made the file what it is."""
    return mark_now(path) not in (None, *sent)


def _keep(root: Path, place: str, names: Sequence[str]) -> list[str]:
    """Copy files of a place to a new directory. Returns where they are, below the root."""
    if not names:
        return []
    aside = _aside(root, place)
    for name in names:
        (aside / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / place / name, aside / name)
    return [str((aside / name).relative_to(root)) for name in names]


def _clear(root: Path, place: str, names: Sequence[str]) -> list[str]:
    """Move what was made there and is in the way of files, a directory of that name or a file above it, to a new
    directory. Returns where it is, below the root."""
    work = root / place
    aside: Path | None = None
    moved = []
    for name in names:
        for path in (*reversed((work / name).parents), work / name):
            above = path != work / name
            if path.is_relative_to(work) and (_is_no_directory(path) if above else _is_directory(path)):
                aside = aside or _aside(root, place)
                kept = aside / path.relative_to(work)
                kept.parent.mkdir(parents=True, exist_ok=True)
                path.rename(kept)
                moved.append(str(kept.relative_to(root)))
    return moved


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_no_directory(path: Path) -> bool:
    return os.path.lexists(path) and not path.is_dir()


def _aside(root: Path, place: str) -> Path:
    """A new directory to keep what was there."""
    every = root / f"{place}.replaced"
    every.mkdir(exist_ok=True)
    number = max((int(one.name) for one in every.iterdir() if one.name.isdecimal()), default=0)
    while True:
        number += 1
        with suppress(FileExistsError):  # somebody else's sync at this moment
            (every / str(number)).mkdir()
            return every / str(number)


def _remove(work: Path, name: str) -> bool:
    """Delete a file, and its directories that are empty then. Returns whether there was one."""
    path = work / name
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
    with suppress(OSError):  # not empty
        for parent in path.parents:
            if parent == work:
                break
            parent.rmdir()
    return True


class _Limited(io.RawIOBase):
    """So many bytes of a stream, which itself may never end."""

    def __init__(self, stream: IO[bytes], length: int) -> None:
        self._stream, self._left = stream, length

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


def main() -> None:
    """Do as the arguments say; one line of JSON, or of what is wrong."""
    root, place, verb = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    root.mkdir(parents=True, exist_ok=True)
    with beating():  # to read what is there takes long where there is much
        try:
            print(json.dumps(present(root, place) if verb == "list" else _apply_stdin(root, place, int(sys.argv[4]))))
        except (BrokenCopyError, OSError, tarfile.TarError) as error:
            sys.exit(f"{type(error).__name__}: {error}")


def _apply_stdin(root: Path, place: str, length: int) -> dict[str, Any]:
    return apply(root, place, cast("IO[bytes]", _Limited(sys.stdin.buffer, length)))


if __name__ == "__main__":
    main()
