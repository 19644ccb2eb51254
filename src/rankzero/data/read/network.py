"""The network as data sees it: find files, list a Hub data set, read bytes. Knows fsspec and the Hub's client.

Nothing else here imports them. Whatever they raise becomes a RankzeroError with a hint. Files of the Hub are left to
its client, which keeps them in a cache that other tools share; what other places serve is read here, and `download`
keeps it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rankzero.errors import AccessError, ConfigError, DataError, RankzeroError, ServiceError, StorageError
from rankzero.object_version import object_version
from rankzero.spec.nearby import meant_here, modelscope_hint
from rankzero.store_listing import facts_below

_BLOCK_BYTES = 4 << 20
_SILENCE_SECONDS = 60.0
"""Of a server, after which it is asked again."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file's place on the Hub."""

    repository: str
    path: str
    revision: str
    kind: str = "dataset"
    """Of the repository, as the Hub calls it."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file that can be downloaded."""

    name: str
    """Its path in the data set or in the directory that was asked for or, of other places, its last part."""
    url: str
    size: int | None = None
    version: str = ""
    """Changes with the content; empty where the place does not say."""
    hub: HubFile | None = None
    """Where it is on the Hub, whose client then looks after what is brought here."""


@dataclass(frozen=True, slots=True)
class Found:
    """What is at a URL."""

    files: tuple[RemoteFile, ...]
    is_directory: bool = False


class Network(Protocol):
    """What is asked of the network. Methods raise RankzeroErrors; ServiceError where another try may help."""

    def find(self, url: str) -> Found:
        """The file at the URL, the files that match its pattern, or those of its directory."""
        ...

    def data_set(self, name: str, revision: str | None) -> tuple[RemoteFile, ...]:
        """All files of a Hub data set at a revision, which may be a branch."""
        ...

    def from_hub(self, file: HubFile) -> str:
        """Its path in the Hub's cache, where it is brought to if it is not there. Raises StorageError as well."""
        ...

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """The bytes of a file of another place, from `start` on."""
        ...

    def pause(self, seconds: float) -> None:
        """Give a service that failed some time."""
        ...


class RealNetwork:
    """The network."""

    def find(self, url: str) -> Found:
        """See Network."""
        with _errors(url):
            fs, path = _file_system(url)
            fs.invalidate_cache()  # of listings: what is there now is asked for
            if url.startswith(("http://", "https://")):
                return Found((_file(fs, path),))
            if any(character in path for character in "*?["):
                names = [name for name in sorted(fs.glob(path)) if fs.isfile(name)]
                return Found(tuple(_file(fs, name) for name in names))
            if fs.isdir(path):
                inside = f"{path.rstrip('/')}/"
                found = (name for name in facts_below(fs, path) if name.startswith(inside))
                names = sorted(name for name in found if not name.endswith("/"))  # empty objects that stand for folders
                files = (replace(_file(fs, name), name=name.removeprefix(inside)) for name in names)
                return Found(tuple(files), is_directory=True)
            return Found((_file(fs, path),))

    def data_set(self, name: str, revision: str | None) -> tuple[RemoteFile, ...]:
        """See Network."""
        where = f"{name}@{revision}" if revision else name
        with _errors(where):
            from huggingface_hub import HfApi

            info = HfApi().dataset_info(name, revision=revision)
            files = (HubFile(name, sibling.rfilename, str(info.sha)) for sibling in info.siblings or ())
            return tuple(RemoteFile(file.path, _hub_url(file), hub=file) for file in files)

    def from_hub(self, file: HubFile) -> str:
        """See Network."""
        with _errors(_hub_url(file)):
            from huggingface_hub import constants, hf_hub_download

            try:
                return str(hf_hub_download(file.repository, file.path, repo_type=file.kind, revision=file.revision))
            except OSError as error:
                if type(error) not in (OSError, PermissionError) or not error.errno:
                    raise  # the network's: those of the volume are of no class of their own
                what, where = error.strerror or str(error), str(constants.HF_HUB_CACHE)
                hint = "free space there, or set HF_HOME to a directory that has it and can be written"
                raise StorageError(what, where=where, hint=hint) from error

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """See Network."""
        with _errors(file.url):
            fs, path = _file_system(file.url)
            with _open_at(fs, path, start) as stream:
                while block := stream.read(_BLOCK_BYTES):
                    yield block

    def pause(self, seconds: float) -> None:
        """See Network."""
        time.sleep(seconds)


def _file_system(url: str) -> tuple[Any, str]:
    """What reads the URL, and its path there."""
    from fsspec.core import url_to_fs

    if not url.startswith(("http://", "https://")):
        fs, path = url_to_fs(url)
        return fs, path
    import aiohttp

    # The client's own limit is five minutes for a whole file, however well it comes along.
    patience = aiohttp.ClientTimeout(total=None, sock_connect=_SILENCE_SECONDS, sock_read=_SILENCE_SECONDS)
    fs, path = url_to_fs(url, client_kwargs={"timeout": patience})
    return fs, path


def _open_at(fs: Any, path: str, start: int) -> Any:
    """A stream from `start` on; where a web server knows no ranges, one from the beginning that is read up to there."""
    if not path.startswith(("http://", "https://")):
        stream = fs.open(path, "rb", block_size=_BLOCK_BYTES)
        stream.seek(start)
        return stream
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    stream = fs.open(path, "rb", block_size=0, headers=headers)
    left = 0 if stream.r.status == 206 else start
    while left and (skipped := stream.read(min(left, _BLOCK_BYTES))):
        left -= len(skipped)
    return stream


def _file(fs: Any, path: str) -> RemoteFile:
    info = fs.info(path)
    if info.get("type") == "directory":
        raise DataError("is a directory", where=path, hint="put /*.jsonl after it")
    size = info.get("size")
    name = path.split("?")[0].rstrip("/").rpartition("/")[2]
    url, hub = fs.unstrip_protocol(path), _in_repository(fs, path)
    return RemoteFile(name, url, int(size) if size is not None else None, object_version(info), hub)


def _in_repository(fs: Any, path: str) -> HubFile | None:
    """Where in which repository of the Hub; None for other places, and for its buckets, which are no repositories."""
    found: Any = fs.resolve_path(path) if "hf" in fs.protocol else None
    if not hasattr(found, "repo_id"):
        return None
    return HubFile(found.repo_id, found.path_in_repo, found.revision, found.repo_type)


def _hub_url(file: HubFile) -> str:
    folder = "" if file.kind == "model" else f"{file.kind}s/"
    return f"hf://{folder}{file.repository}@{file.revision}/{file.path}"


@contextmanager
def _errors(where: str) -> Iterator[None]:
    try:
        yield
    except RankzeroError:
        raise
    except Exception as error:  # half a dozen clients, each with exceptions of its own
        raise _as_ours(error, where) from error


def other_meaning(name: str) -> str:
    """The beginning of a hint: what a name that the Hub does not have may be instead."""
    if name.startswith("hf://") and not name.startswith("hf://datasets/"):
        return f"hf:// alone is for models' repositories: write {name.removeprefix('hf://')}. Else: "
    return meant_here(name) or modelscope_hint(name, "dataset", "data.train")


_LOGIN = "log in with `hf auth login`, or set HF_TOKEN; on a cluster the token comes from a secret"


def _as_ours(error: Exception, where: str) -> RankzeroError:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception):
        return _as_ours(error.__cause__, where)  # what clients make of every answer that they do not like
    if "OfflineModeIsEnabled" in kinds:
        hint = "once with the network, without HF_HUB_OFFLINE, fetches it"
        return ServiceError("it is not here, and the network is not to be used", where=where, hint=hint)
    if "GatedRepoError" in kinds:
        name = where.split("@")[0].removeprefix("hf://datasets/")
        hint = f"accept the terms at https://huggingface.co/datasets/{name}, then {_LOGIN}"
        return AccessError("the data set is gated", where=where, hint=hint)
    if "RepositoryNotFoundError" in kinds:
        meant = other_meaning(where.partition("@")[0])
        hint = f"{meant}neither a file here nor a Hub data set of this name. If it is private: {_LOGIN}"
        return DataError("there is no such data set", where=where, hint=hint)
    if "RevisionNotFoundError" in kinds:
        return DataError("the data set has no such revision", where=where, hint="a branch, a tag or a commit")
    if "ImportError" in kinds or (isinstance(error, ValueError) and "Protocol not known" in said):
        return ConfigError(f"URLs of this kind need another package: {said}", where=where, hint=_package(where))
    if "LocalEntryNotFoundError" not in kinds and (isinstance(error, FileNotFoundError) or status == 404):
        return DataError("no such file", where=where, hint="see that the URL is spelled as the place spells it")
    if isinstance(error, PermissionError) or status in (401, 403) or "NoCredentialsError" in kinds:
        hint = _LOGIN if where.startswith("hf://") or "://" not in where else "see that credentials for it are set"
        return AccessError(f"access is refused: {said}", where=where, hint=hint)
    hint = "is the network reachable from here? the same command goes on from what came of files of known length"
    return ServiceError(f"it cannot be read: {type(error).__name__}: {said}", where=where, hint=hint)


def _package(url: str) -> str:
    protocol = url.partition("://")[0]
    names = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp", "https": "aiohttp"}
    names |= {"az": "adlfs", "abfs": "adlfs", "abfss": "adlfs", "hf": "huggingface_hub"}
    return f"pip install {names[protocol]}" if protocol in names else "known are hf, https, s3, gs and az"
