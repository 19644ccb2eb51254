"""The files of a stream: listed once, read where they lie. Knows places and the network; nothing of rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rankzero.data.read.hashing import file_state
from rankzero.data.read.locate import listed, understood
from rankzero.data.read.network import Network, RealNetwork, RemoteFile
from rankzero.data.read.remote import ReadInPlace, always
from rankzero.data.read.sources import read_rows, require_readable
from rankzero.data.rows.chunks import NumberedLine
from rankzero.errors import DataError, Problem, ServiceError, StorageError
from rankzero.machine import offline as no_network
from rankzero.spec.data_paths import DataPath
from rankzero.spec.run_spec import SourceSpec


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a stream."""

    url: str
    """What people know it by: its URL, or its path."""
    source: int
    """The number of the source that it belongs to."""
    name: str
    """Its place within the source."""
    size: int | None
    version: str
    """Changes with the content; empty where the place does not say."""
    remote: RemoteFile | None = None
    """None: it is here."""

    @property
    def identity(self) -> list[object]:
        """What tells its content from another's without reading it."""
        return [self.source, self.name, self.size, self.version]

    def rows(
        self, source: SourceSpec, network: Network, skip: int = 0, is_due: Callable[[], bool] = always
    ) -> Iterator[NumberedLine]:
        """Its rows behind the first `skip`. Raises DataError where it is not what was listed, by their end too, or
        cannot be read, ServiceError or AccessError where it is not reached; while nothing `is_due` that is tried on."""
        if self.remote is not None:
            yield from read_rows(ReadInPlace(self.remote, network, is_due), header=source.header, skip=skip)
            return
        self.require_same()
        try:
            yield from read_rows(self.url, header=source.header, skip=skip)
        except DataError:
            self.require_same()  # what is half written is damaged for a moment
            raise
        self.require_same()

    def require_same(self) -> None:
        """Raise DataError where a file that is here is no longer the one that was listed. One elsewhere is compared
        whenever it is opened."""
        if self.remote is None and _version(self.url) != (self.size, self.version):
            hint = "the same command lists the files again; what a run goes on with is then other data, and it says so"
            raise DataError("the file changed since it was listed", where=self.url, hint=hint)


def list_shards(
    sources: Sequence[SourceSpec], *, network: Network | None = None, offline: bool = False
) -> tuple[Shard, ...]:
    """The files of all sources, source by source, in an order that does not depend on the machine. Reads none of them.

    Raises DataError with all that is wrong with local paths and with what a stream cannot do, then DataError,
    ServiceError, AccessError or ConfigError for what is elsewhere.
    """
    paths, here = understood(sources)
    problems = [
        Problem(_NO_PART, source.path, _WHOLE)
        for source, path in zip(sources, paths, strict=True)
        if path.sample is not None or path.rows is not None
    ]
    if problems:
        raise DataError(problems)
    require_readable([file for files in here.values() for file in files])
    shards: list[Shard] = []
    for number, (source, path) in enumerate(zip(sources, paths, strict=True)):
        if number in here:
            folder = os.path.dirname(os.path.commonprefix([*here[number]]))
            shards += [
                Shard(file, number, os.path.relpath(file, folder or "."), *_version(file)) for file in here[number]
            ]
        else:
            shards += _elsewhere(number, source.path, path, network or RealNetwork(), offline or no_network())
    return tuple(shards)


_NO_PART = "a part of a source cannot be streamed: how many rows there are is not known"
_WHOLE = "take the whole source and set train.max_steps, or leave data.streaming out"


def _elsewhere(number: int, text: str, path: DataPath, network: Network, offline: bool) -> Iterator[Shard]:
    if offline:
        what = "a stream is read from the network, and the network is not to be used"
        hint = "copy the files here, or allow the network (HF_HUB_OFFLINE, model.local_files_only)"
        raise ServiceError(what, where=text, hint=hint)
    for file in listed(path, text, network):
        version = file.version or ("" if file.hub is None else file.hub.revision)
        yield Shard(file.url, number, file.name, file.size, version, file)


def _version(path: str) -> tuple[int, str]:
    """Size, and the time of the last change, which a copy that keeps times has too."""
    try:
        _inode, size, modified, _changed = file_state(path)
    except OSError as error:
        raise StorageError(f"reading failed: {error.strerror or error}", where=path) from error
    return size, str(modified)
