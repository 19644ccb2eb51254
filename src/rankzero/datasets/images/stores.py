"""Where images can be taken from: a folder, a tar, a zip, a Parquet file, a Hub mirror. Found by name or id alone.

Nothing is ever paired by order: a member whose name is not asked for is left alone, and a row without a name is counted
and left alone. A store may be declared to be of one source (`coco=train2017.zip`); its names then stand below that
source's folder. Knows nothing of rows and decodes nothing.
"""

from __future__ import annotations

import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from rankzero.data.images.decode import NOT_THERE, ImageError, locate
from rankzero.data.images.layout import COCO, SOURCES, coco_key, image_key, spellings
from rankzero.data.images.paths import refusal
from rankzero.data.read.download import download
from rankzero.data.read.network import Network, RealNetwork
from rankzero.errors import ConfigError, DataError, UsageError
from rankzero.wording import first_line

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip", ".parquet")

MAX_BYTES = 256 << 20
"""Of one image in an archive."""

_NAMES = ("file_name", "filename", "image_path", "path")
_IDS = ("image_id", "cocoid", "id")
_IMAGES = ("image", "img", "jpg", "bytes")
_ROWS_AT_A_TIME = 16
"""Of a Parquet file: images are large."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """One image that was asked for: a file that lies somewhere, or its bytes."""

    key: str
    file: Path | None = None
    data: bytes = b""


@dataclass(slots=True)
class Seen:
    """What a store holds besides what was asked for, so that a wrong layout is seen at once."""

    members: int = 0
    used: int = 0
    unnamed: int = 0
    """Rows of Parquet without a name, which are never used."""
    too_large: int = 0
    """Images of more than MAX_BYTES, which are not taken."""
    others: list[str] = field(default_factory=list)
    """The first names that nobody asked for."""
    faults: dict[str, ImageError] = field(default_factory=dict)
    """By key: images that are here and may not be used, such as a link that leads out of the folder."""

    def note(self, name: str, used: bool) -> None:
        """Count a member."""
        self.members += 1
        self.used += used
        if not used and len(self.others) < 3:
            self.others.append(name[:120])

    def add(self, other: Seen) -> None:
        """Sum up."""
        for name in ("members", "used", "unnamed", "too_large"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.others = (self.others + other.others)[:3]
        self.faults = other.faults | self.faults


class Store(Protocol):
    """A place with images."""

    label: str
    seen: Seen

    def fetch(self, wanted: Mapping[str, str]) -> Iterator[Fetched]:
        """Those of `wanted` (path in the rows by image key) that are here, each once."""


def open_store(text: str, network: Network | None = None) -> Store:
    """`[SOURCE=]PLACE`: a folder, an archive, a Parquet file, or `hub:org/name`. Raises UsageError."""
    source, is_named, place = text.partition("=")
    if not is_named or Path(text).exists() or source.startswith((".", "/", "~", "hub:")):  # a path that has a = in it
        source, place = "", text
    elif refusal(source):
        raise UsageError(f"{source!r} cannot be a source's name", where="--images", hint=f"as in {', '.join(SOURCES)}")
    if place.startswith("hub:"):
        return HubStore(place.removeprefix("hub:"), source, network or RealNetwork())
    path = Path(os.path.expanduser(place))
    if path.is_dir():
        return FolderStore(path, source)
    if not path.exists():
        raise UsageError("no such folder or file", where=f"--images {text}", hint="SOURCE=PATH, or hub:org/name")
    return file_store(path, source)


def file_store(path: Path, source: str) -> Store:
    """The store that a file is, by its name."""
    name = path.name.lower()
    if name.endswith(".parquet"):
        return ParquetStore(path, source)
    if name.endswith(".zip"):
        return ZipStore(path, source)
    if name.endswith(ARCHIVES):
        return TarStore(path, source)
    raise UsageError("not a kind of file that holds images", where=str(path), hint=f"known: {', '.join(ARCHIVES)}")


class FolderStore:
    """Files below a folder; looked up, never listed."""

    def __init__(self, root: Path, source: str = "") -> None:
        self.label, self.seen = _label(str(root), source), Seen()
        self._root, self._prefix = root, f"{source}/" if source else ""

    def fetch(self, wanted: Mapping[str, str]) -> Iterator[Fetched]:
        """Every spelling of every path is tried, its own first."""
        for key, path in wanted.items():
            found = self.find(path)
            if found is not None:
                self.seen.note(found, used=True)
                yield Fetched(key, file=self._root / found)

    def find(self, path: str) -> str | None:
        """The path below this folder at which the image lies."""
        for name in spellings(path):
            if not name.startswith(self._prefix):
                continue
            here = name.removeprefix(self._prefix)
            try:
                locate(here, self._root)
            except ImageError as error:
                if error.reason != NOT_THERE:
                    self.seen.faults.setdefault(image_key(path), error)
                continue
            return here
        return None


class TarStore:
    """Regular members of a tar, packed or not, in one pass that ends with the last image asked for."""

    def __init__(self, path: Path, source: str = "") -> None:
        self.label, self.seen = _label(str(path), source), Seen()
        self._path, self._source = path, source

    def fetch(self, wanted: Mapping[str, str]) -> Iterator[Fetched]:
        """Members by name; of two with one name the first."""
        left = set(wanted)
        with _archive_errors(self._path), tarfile.open(self._path, "r|*") as tar:
            for member in tar:
                if not left:
                    return
                if not member.isreg():
                    continue
                key = member_key(member.name, self._source)
                self.seen.note(member.name, used=key in left)
                if key in left:
                    left.discard(key)
                    stream = tar.extractfile(member)
                    data = read_member(stream, key, self.seen) if stream is not None else None
                    if data is not None:
                        yield Fetched(key, data=data)


class ZipStore:
    """Members of a zip, read one by one; only the directory at its end is held."""

    def __init__(self, path: Path, source: str = "") -> None:
        self.label, self.seen = _label(str(path), source), Seen()
        self._path, self._source = path, source

    def fetch(self, wanted: Mapping[str, str]) -> Iterator[Fetched]:
        """Members by name; of two with one name the first."""
        left = set(wanted)
        with _archive_errors(self._path), zipfile.ZipFile(self._path) as archive:
            for member in archive.infolist():
                if member.is_dir():
                    continue
                key = member_key(member.filename, self._source)
                self.seen.note(member.filename, used=key in left)
                if key in left:
                    left.discard(key)
                    with archive.open(member) as stream:
                        data = read_member(stream, key, self.seen)
                    if data is not None:
                        yield Fetched(key, data=data)


class ParquetStore:
    """Images in a column of a Parquet file, by the name or the id beside them.

    The name comes from `file_name`, `filename`, `image_path` or `path`; else, for COCO, from the integer `image_id`,
    `cocoid` or `id`; else from the path that is stored with the image. The names are read first: row groups without a
    wanted image are never read.
    """

    def __init__(self, path: Path, source: str = "") -> None:
        self.label, self.seen = _label(str(path), source), Seen()
        self._path, self._source = path, source

    def fetch(self, wanted: Mapping[str, str]) -> Iterator[Fetched]:
        """Rows by name or id; of two with one name the first."""
        parquet, failures = _pyarrow()
        left = set(wanted)
        try:
            file = parquet.ParquetFile(self._path)
            image, name = self._columns(file.schema_arrow)
            for group in range(file.num_row_groups):
                if not left:
                    return
                names = file.read_row_group(group, columns=[name]).column(0).to_pylist()
                keys = [self._key(value) for value in names]
                self._note(names, keys, left)
                if not left.isdisjoint(keys):
                    yield from self._images(file, group, image, keys, left)
        except (failures, OSError) as error:
            what = f"the Parquet file cannot be read: {first_line(error)}"
            raise DataError(what, where=str(self._path), hint="was the download cut off?") from error

    def _columns(self, schema: Any) -> tuple[str, str]:
        """The column of the images, and the one that names them."""
        image = next((column for column in _IMAGES if column in schema.names), None)
        candidates = [*_NAMES, *(_IDS if self._source == COCO else ())]
        name = next((column for column in candidates if column in schema.names), None)
        if image is not None and name is None:
            inner = schema.field(image).type
            if hasattr(inner, "get_field_index") and inner.get_field_index("path") >= 0:
                name = f"{image}.path"
        if image is None or name is None:
            missing = "images" if image is None else "their names"
            hint = f"images are looked for in {', '.join(_IMAGES)}, names in {', '.join(candidates)} and image.path"
            what = f"no column with {missing}: the columns are {', '.join(schema.names)}"
            raise DataError(what, where=str(self._path), hint=hint)
        return image, name

    def _key(self, value: object) -> str | None:
        """A name may be the image's struct with its path inside, for a nested column comes as one."""
        if isinstance(value, Mapping):
            value = value.get("path")
        if isinstance(value, int) and not isinstance(value, bool):
            return coco_key(value) if self._source == COCO else None
        return member_key(value, self._source) if isinstance(value, str) else None

    def _note(self, names: list[object], keys: list[str | None], left: set[str]) -> None:
        for name, key in zip(names, keys, strict=True):
            self.seen.note(str(name), used=key in left)
            self.seen.unnamed += key is None

    def _images(self, file: Any, group: int, column: str, keys: list[str | None], left: set[str]) -> Iterator[Fetched]:
        row = 0
        for batch in file.iter_batches(_ROWS_AT_A_TIME, row_groups=[group], columns=[column]):
            for value in batch.column(0):
                key = keys[row]
                row += 1
                if key is None or key not in left:
                    continue
                data = value.as_py()
                if isinstance(data, Mapping):
                    data = data.get("bytes")
                if isinstance(data, bytes):
                    left.discard(key)
                    if (taken := _within_limit(data, key, self.seen)) is not None:
                        yield Fetched(key, data=taken)


class HubStore:
    """The archives and Parquet files of a Hub data set, downloaded one by one until all is found."""

    def __init__(self, repository: str, source: str, network: Network) -> None:
        self.label, self.seen = _label(f"hub:{repository}", source), Seen()
        self._repository, self._source, self._network = repository, source, network

    def fetch(self, wanted: Mapping[str, str]) -> Iterator[Fetched]:
        """Each file is a store of its own."""
        left = dict(wanted)
        files = [
            file for file in self._network.data_set(self._repository, None) if file.name.lower().endswith(ARCHIVES)
        ]
        if not files:
            hint = f"known: {', '.join(ARCHIVES)}"
            raise DataError("the data set has no file of a kind that holds images", where=self.label, hint=hint)
        for file in sorted(files, key=lambda file: file.name):
            if not left:
                return
            part = file_store(Path(download(file, self._network)), self._source)
            for fetched in part.fetch(left):
                yield fetched
                del left[fetched.key]
            self.seen.add(part.seen)


def member_key(name: str, source: str) -> str | None:
    """The key of an archive member; None where its name is not one that may be followed."""
    if refusal(name):
        return None
    return image_key(f"{source}/{name}" if source else name)


def read_member(stream: IO[bytes], key: str, seen: Seen) -> bytes | None:
    """The bytes of a member; None, counted, where there are too many: what an archive says of sizes may be a lie."""
    return _within_limit(stream.read(MAX_BYTES + 1), key, seen)


def _within_limit(data: bytes, key: str, seen: Seen) -> bytes | None:
    if len(data) <= MAX_BYTES:
        return data
    seen.too_large += 1
    what = f"{key} is of more than {MAX_BYTES >> 20} MiB, which are not unpacked"
    seen.faults.setdefault(key, ImageError("image too large", what, "unpack it and make it smaller"))
    return None


def _label(place: str, source: str) -> str:
    return f"{source}={place}" if source else place


@contextmanager
def _archive_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        what = f"the archive is damaged or of an unknown kind: {error}"
        raise DataError(what, where=str(path), hint="was the download cut off?") from error
    except RuntimeError as error:  # what zipfile raises for members with a password
        raise DataError(f"the archive cannot be read: {error}", where=str(path)) from error
    except OSError as error:
        what = f"the archive cannot be read: {error.strerror or error}"
        raise DataError(what, where=str(path), hint=f"try: ls -l {os.fspath(path)}") from error


def _pyarrow() -> tuple[Any, type[Exception]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        hint = 'pip install "rankzero[data]"'
        raise ConfigError("Parquet needs pyarrow, which is not installed", hint=hint) from error
    return parquet, pyarrow.ArrowException
