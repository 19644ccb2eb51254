"""A network of made-up places, and data paths located with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rankzero.data.read.locate import LocatedSource, expand
from rankzero.data.read.network import Found, HubFile, Network, RemoteFile
from rankzero.errors import DataError, Problem, ServiceError
from rankzero.spec.run_spec import SourceSpec


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and no variables that forbid the network."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANKZERO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


class FakeNetwork:
    """Files by URL, and data sets by name and revision."""

    def __init__(self, files: dict[str, bytes], sets: dict[tuple[str, str | None], list[str]] | None = None) -> None:
        self.files = files
        self.sets = sets or {}
        self.reads: list[tuple[str, int]] = []
        self.brought: list[str] = []
        self.paused = 0.0
        self.break_after: list[int] = []
        """For each read to come: bytes after which the line breaks."""

    def find(self, url: str) -> Found:
        """See Network."""
        folder = url.rstrip("/") + "/"
        inside = sorted(name for name in self.files if name.startswith(folder))
        if inside:
            files = (replace(self.file(name), name=name.removeprefix(folder)) for name in inside)
            return Found(tuple(files), is_directory=True)
        return Found((self.file(url),)) if url in self.files else Found(())

    def file(self, url: str) -> RemoteFile:
        """As the place lists it."""
        return RemoteFile(url.rpartition("/")[2], url, len(self.files[url]), version=str(hash(self.files[url])))

    def data_set(self, name: str, revision: str | None) -> tuple[RemoteFile, ...]:
        """See Network."""
        if (name, revision) not in self.sets:
            raise DataError("there is no such data set", where=name, hint="neither a file here nor")
        names = self.sets[name, revision]
        places = [HubFile(name, file, str(revision)) for file in names]
        return tuple(RemoteFile(place.path, f"hf://datasets/{name}/{place.path}", hub=place) for place in places)

    def from_hub(self, file: HubFile) -> str:
        """See Network."""
        url = f"hub/{file.repository}/{file.revision}/{file.path}"
        self.brought.append(url)
        path = Path(os.environ["RANKZERO_CACHE"], url)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.files.get(url, f"content of {url}".encode()))
        return str(path)

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """See Network."""
        self.reads.append((file.url, start))
        data = self.files.get(file.url, f"content of {file.url}".encode())[start:]
        if self.break_after:
            yield data[: self.break_after.pop(0)]
            raise ServiceError("the line broke", where=file.url)
        yield data

    def pause(self, seconds: float) -> None:
        """See Network."""
        self.paused += seconds


class NoNetwork(FakeNetwork):
    """Whoever asks it fails the test."""

    def find(self, url: str) -> Found:
        raise AssertionError(url)

    def data_set(self, name: str, revision: str | None) -> tuple[RemoteFile, ...]:
        raise AssertionError(name)


def located(
    path: str, network: Network | None = None, offline: bool = False, sample: int | None = None
) -> LocatedSource:
    (found,) = expand([SourceSpec(path=path, sample=sample)], network=network or NoNetwork({}), offline=offline)
    return found


def fault(path: str, network: Network | None = None, sample: int | None = None) -> Problem:
    with pytest.raises(DataError) as caught:
        located(path, network, sample=sample)
    (problem,) = caught.value.problems
    return problem
