"""Writes that are there whole or not at all: files, and directories with a manifest. Knows nothing of their meaning.

A directory is committed in the order that survives a crash at any point: files, fsync, manifest (size and sha256 of
each file), fsync, rename, fsync of the parent. Whatever still carries a temporary name was never finished.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from rankzero.directories import is_file, there
from rankzero.errors import ConfigError, StorageError
from rankzero.machine import usable_cores
from rankzero.run_dir.unread import FOR_GOOD

MANIFEST = "manifest.json"
FIRST_FORMAT, FORMAT = 1, 2
"""Of manifests. The first one has no seal."""
SEAL = "seal"
"""Where a manifest has the sha256 of the rest of itself."""
TEMPORARY_PREFIX = ".tmp-"
_DISPLACED = re.compile(re.escape(TEMPORARY_PREFIX) + r"old-(.+)-[0-9a-f]{32}")
_MOST_READERS = 8
_HASHED_BYTES = 1 << 20
ONE_VOLUME = "results go to one volume that all nodes mount: ReadWriteMany, or a shared file system"
"""What to do where a process does not see what another one has written."""

_HINTS = {
    errno.ENOSPC: "free space on this volume, or {}; then give the same command again",
    errno.EDQUOT: "the quota of this volume is used up: free space, or {}",
    errno.EROFS: "this volume is read-only: {}",
    errno.EACCES: "this user may not write here: {}",
    errno.EPERM: "this user may not write here: {}",
    errno.ENOENT: "its directory is gone, or cannot be made: {}",
    errno.ENOTDIR: "a file stands where a directory is needed: {}",
    errno.EISDIR: "a directory stands where a file is needed: {}",
    errno.EEXIST: "a file stands where a directory is needed: {}",
}
_way_out = ContextVar("way_out", default="set output_dir to a place that can be written")


@contextmanager
def place_given_by(flag: str) -> Iterator[None]:
    """Within, what is written goes where a flag says, not into a run directory: errors name the flag."""
    token = _way_out.set(f"choose another place with {flag}")
    try:
        yield
    finally:
        _way_out.reset(token)


def require_nothing_at(place: Path) -> None:
    """Raise ConfigError where there is something: what somebody keeps is not written over."""
    if os.path.lexists(place):
        raise ConfigError("there is something already", where=str(place), hint="name another place")


@contextmanager
def _nothing_there(place: Path) -> Iterator[None]:
    """What keeps something from being put where nothing was, as ConfigError where that is what has come since."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR) and os.path.lexists(place):
            what = "something has come to stand here meanwhile, and stays"
            raise ConfigError(what, where=str(place), hint="name another place") from error
        raise


def put_new_file(staged: Path, place: Path) -> None:
    """Give a file its name, where nothing has it. Raises ConfigError where something has, StorageError."""
    with storage_errors(place), _nothing_there(place):
        fsync_path(staged)
        try:
            os.link(staged, place)
        except OSError as error:
            if error.errno == errno.EEXIST:
                raise
            require_nothing_at(place)  # a volume without links
            os.rename(staged, place)
        else:
            staged.unlink()
        fsync_path(place.parent)


@contextmanager
def storage_errors(where: Path | str) -> Iterator[None]:
    """Turn an OSError into a StorageError that names the place and the way out."""
    try:
        yield
    except OSError as error:
        hint = _HINTS.get(error.errno or 0, "check the volume, then give the same command again")
        hint = hint.format(_way_out.get())
        raise StorageError(error.strerror or str(error), where=str(where), hint=hint) from error


def fsync_path(path: Path) -> None:
    """Flush a file's bytes, or a directory's entries, to the device."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network file systems cannot sync a directory; the rename is still atomic
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP, errno.EBADF)):
            raise
    finally:
        os.close(descriptor)


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name when the block ends without an error, and vanishes otherwise. A link stays one: what it
    leads to is replaced. Into what is no file, as a pipe, is written as it comes. Raises StorageError."""
    if takes_as_it_comes(path):
        with storage_errors(path), os.fdopen(os.dup(1), "wb") if is_own_output(path) else path.open("wb") as there:
            yield there
        return
    target = Path(os.path.realpath(path))
    staged = target.with_name(stage_name(target.name))
    with storage_errors(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with staged.open("wb") as file:
                yield file
                flush_to_disk(file)
            os.replace(staged, target)
        finally:
            staged.unlink(missing_ok=True)
        fsync_path(target.parent)


def flush_to_disk(file: IO[bytes]) -> None:
    """Whatever was written; of what is no file, hand it over."""
    file.flush()
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        os.fsync(file.fileno())


def takes_as_it_comes(path: Path) -> bool:
    """Whether there is a pipe, a socket or a device, which no file may take the place of, or this process's output, be
    that a file: who started it has that open, and may have written to it."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or is_own_output(path)


def is_own_output(path: Path) -> bool:
    """Whether what is written there comes out of this process, where nothing else is to be among it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(1))
    except OSError:  # it is not there yet, or this process's output is closed
        return False


def write_text(path: Path, text: str) -> None:
    """Replace a file's content in one step. Raises StorageError."""
    with whole_file(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file in one step. A name that is no UTF-8 is read as it was: its escapes are JSON's. Raises
    StorageError."""
    with whole_file(path) as file:
        file.write(f"{json.dumps(value, indent=2, ensure_ascii=False)}\n".encode(errors="backslashreplace"))


def file_sha256(path: Path, stopped: Callable[[], bool] | None = None) -> str:
    """Hex digest of a file's bytes. Raises OSError, and CancelledError once `stopped` says so."""
    digest, part = hashlib.sha256(), memoryview(bytearray(_HASHED_BYTES))
    with path.open("rb", buffering=0) as file:
        while read := file.readinto(part):
            digest.update(part[:read])
            if stopped is not None and stopped():
                raise CancelledError
    return digest.hexdigest()


def stage_name(final_name: str) -> str:
    """A fresh temporary name for a file or directory that will be committed as `final_name`."""
    return f"{TEMPORARY_PREFIX}{final_name}-{uuid.uuid4().hex}"


def written_files(staged: Path, paths: Iterable[Path], *, durable: bool = True) -> dict[str, dict[str, Any]]:
    """Sync files below `staged`, where they are to be `durable`, and hash them: their entries in its manifest. Raises
    StorageError."""

    def entry(path: Path) -> tuple[str, dict[str, Any]]:
        _permit(path, staged.stat().st_mode)
        if durable:
            fsync_path(path)
        return path.relative_to(staged).as_posix(), {"size": path.stat().st_size, "sha256": file_sha256(path)}

    with storage_errors(staged), ThreadPoolExecutor(min(_MOST_READERS, usable_cores())) as readers:
        return dict(readers.map(entry, paths))


def commit_directory(
    staged: Path,
    final: Path,
    meta: Mapping[str, Any],
    *,
    known: Mapping[str, dict[str, Any]] | None = None,
    durable: bool = True,
    replaces: bool = True,
    keep: Path | None = None,
) -> None:
    """Hash and sync everything under `staged`, write its manifest last, and rename it to `final`.

    `known`: entries of files that whoever wrote them has synced and hashed (`written_files`), all of which have to be
    seen here. Not `durable`: nothing is synced, since nobody reads it after the machine was off.

    An older `final` is replaced: it is moved aside first, so that a crash leaves the old or the new one whole, and
    never a mixture; `put_back_displaced` mends what a crash between the two renames leaves. It stays as `keep`, where
    that is given. Where nothing is to be replaced (not `replaces`), ConfigError is raised of what has come to stand
    there. Files get the permissions that `staged` has, by the umask: some libraries write theirs for the owner alone.
    Raises StorageError.
    """
    with storage_errors(final):
        # by their names too: a network file system may list what was there a while ago
        paths = {*staged.rglob("*"), *(staged / name for name in known or {})}
        # a file of which nobody can tell raises: a manifest without it would say that it was never there
        seen = {path.relative_to(staged).as_posix(): path for path in sorted(paths) if is_file(path)}
        entries = dict(known or {})
        for name in entries.keys() - seen.keys():
            what = f"{name}, which another process has written, is not seen here"
            raise StorageError(what, where=str(final), hint=ONE_VOLUME)
        entries |= written_files(staged, [path for name, path in seen.items() if name not in entries], durable=durable)
        files = {name: entries[name] for name in seen}
        manifest = staged / MANIFEST
        manifest.write_text(_sealed({"format": FORMAT, "files": files, **meta}), encoding="utf-8")
        for path in [manifest, *(entry for entry in staged.rglob("*") if entry.is_dir()), staged] if durable else ():
            fsync_path(path)
        if replaces:
            replace_directory(staged, final, durable=durable, keep=keep)
        else:
            with _nothing_there(final):
                os.rename(staged, final)  # onto nothing, or an empty directory
                fsync_path(final.parent)


def replace_directory(staged: Path, final: Path, *, durable: bool = True, keep: Path | None = None) -> None:
    """Rename a directory to its place. What is there is moved aside first, and removed, or stays as `keep`; where the
    place is not taken, it is put back. Of a link only the link is removed. Raises OSError."""
    displaced = keep or final.with_name(stage_name(f"old-{final.name}"))
    if there(final):
        os.rename(final, displaced)
    try:
        os.rename(staged, final)
    except OSError:
        with suppress(OSError):
            os.rename(displaced, final)
        raise
    if durable:
        fsync_path(final.parent)
    if displaced.is_symlink():
        displaced.unlink()
    elif keep is None:
        shutil.rmtree(displaced, ignore_errors=True)


def _sealed(value: dict[str, Any]) -> str:
    """The text of a manifest, with a digest of its own: a bit that flips there would otherwise be another run's."""
    whole = json.loads(json.dumps(value))
    return json.dumps({**whole, SEAL: _digest(whole)}, indent=1) + "\n"


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _permit(path: Path, directory_mode: int) -> None:
    mode = path.stat().st_mode
    wanted = mode | (directory_mode & 0o666)
    if wanted != mode:
        with suppress(OSError):  # a volume that knows no such permissions
            path.chmod(stat.S_IMODE(wanted))


def put_back_displaced(parent: Path) -> list[str]:
    """Give directories that were being replaced when their writer died their names back, where the new ones did not
    get them; returns the names. Only the lease holder may call it. Raises StorageError."""
    names = []
    with storage_errors(parent):
        for entry in sorted(parent.iterdir()) if parent.is_dir() else ():
            match = _DISPLACED.fullmatch(entry.name)
            if match and not there(parent / match[1]):
                os.rename(entry, parent / match[1])
                names.append(match[1])
    return names


class NotReadError(StorageError):
    """What is there can perhaps be read another time, or by another version: nothing says that it is damaged."""


class NewerFormatError(NotReadError):
    """It is whole, and another version's. `manifest`: as it stands."""

    manifest: Mapping[str, Any] = MappingProxyType({})


@contextmanager
def not_read_errors(where: Path) -> Iterator[None]:
    """Turn an OSError into a NotReadError that names the place; as `storage_errors` for what is only read."""
    try:
        yield
    except OSError as error:
        hint = f"try: ls -ld {where}" if error.errno in FOR_GOOD else "give the same command again"
        what = f"it cannot be read: {error.strerror or error}"
        raise NotReadError(what, where=str(where), hint=hint) from error


def read_manifest(directory: Path) -> dict[str, Any]:
    """A committed directory's manifest. Raises StorageError where it is missing, or not as it was written."""
    path = directory / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StorageError("the manifest is missing: the directory was never committed", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise StorageError(f"the manifest cannot be read: {error}", where=str(path)) from error
    except OSError as error:
        raise NotReadError(f"the manifest cannot be read: {error.strerror or error}", where=str(path)) from error
    return parse_manifest(text, str(path))


def parse_manifest(text: str, where: str) -> dict[str, Any]:
    """A manifest by its text. Raises StorageError where that is not as it was written."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"the manifest cannot be read: {error}", where=where) from error
    if not isinstance(value, dict) or not isinstance(value.get("files"), dict):
        raise StorageError("the manifest is not one of rankzero's", where=where)
    seal = value.pop(SEAL, None)
    if isinstance(number := value.get("format"), int) and number > FORMAT and seal == _digest(value):
        hint = "take that version, which its manifest names"
        newer = NewerFormatError(f"it is of a newer rankzero (format {number})", where=where, hint=hint)
        newer.manifest = value
        raise newer
    if value.get("format") != FIRST_FORMAT and (value.get("format") != FORMAT or seal != _digest(value)):
        raise StorageError("the manifest changed since it was saved, or is of a newer rankzero", where=where)
    if not all(_is_entry(name, entry) for name, entry in value["files"].items()):
        raise StorageError("the manifest is not one of rankzero's", where=where)
    return value


def _is_entry(name: str, entry: object) -> bool:
    """Whether a manifest's line of a file is one, and of a file of its directory."""
    inside = not name.startswith("/") and ".." not in name.split("/")
    return inside and isinstance(entry, dict) and isinstance(entry.get("size"), int) and "sha256" in entry


def verify_directory(directory: Path, *, hashes: bool = True) -> dict[str, Any]:
    """Read the manifest and check every file's presence, size and hash. Raises StorageError naming the first fault.

    Without `hashes` nothing but the manifest is read.
    """
    manifest = read_manifest(directory)
    found = faults(directory, manifest, hashes=hashes)
    if found:
        raise next(iter(found.values()))
    return manifest


def faults(directory: Path, manifest: Mapping[str, Any], *, hashes: bool = True) -> dict[str, StorageError]:
    """What is wrong with each file of a manifest, by name, in its order. {}: nothing."""

    def look(name: str) -> StorageError | None:
        path, entry = directory / name, manifest["files"][name]
        try:
            size = path.stat().st_size
            if size != entry["size"]:
                return StorageError(f"{size} bytes where {entry['size']} were saved", where=str(path))
            if hashes and file_sha256(path) != entry["sha256"]:
                return StorageError("the bytes changed since they were saved (sha256 differs)", where=str(path))
        except (FileNotFoundError, NotADirectoryError):
            return StorageError("a file of the checkpoint is missing", where=str(path))
        except OSError as error:
            return NotReadError(f"it cannot be read: {error.strerror or error}", where=str(path))
        return None

    if not hashes:
        return {name: fault for name in manifest["files"] if (fault := look(name)) is not None}
    with ThreadPoolExecutor(min(_MOST_READERS, usable_cores())) as readers:  # hashing lets go of the interpreter
        found = dict(zip(manifest["files"], readers.map(look, manifest["files"]), strict=True))
    return {name: fault for name, fault in found.items() if fault is not None}


def remove_stale(parent: Path) -> list[str]:
    """Delete what crashed writers left under temporary names; returns the names. Only the lease holder may call it."""
    removed = []
    if parent.is_dir():
        for entry in parent.iterdir():
            if entry.name.startswith(TEMPORARY_PREFIX):
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)
                removed.append(entry.name)
    return sorted(removed)
