"""The real network's adapter, against fsspec's memory, a web server on this machine, and what clients raise."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest

from rankzero.data.read.locate import expand
from rankzero.data.read.network import RealNetwork, RemoteFile, _as_ours
from rankzero.errors import AccessError, ConfigError, DataError, RankzeroError, ServiceError
from rankzero.spec.run_spec import SourceSpec


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    files = fsspec.filesystem("memory")
    files.pipe({"/b/a.jsonl": b"one\n", "/b/c.jsonl": b"two\n", "/b/x/README.md": b"", "/one.csv": b"a\n"})
    yield files
    files.rm("/", recursive=True)


def test_files_patterns_and_directories(memory: fsspec.AbstractFileSystem) -> None:
    network = RealNetwork()
    (one,) = network.find("memory://one.csv").files
    assert (one.name, one.size) == ("one.csv", 2) and one.version
    found = network.find("memory://b/*.jsonl")
    assert [file.name for file in found.files] == ["a.jsonl", "c.jsonl"] and not found.is_directory
    found = network.find("memory://b")
    assert [file.name for file in found.files] == ["a.jsonl", "c.jsonl", "x/README.md"] and found.is_directory
    assert b"".join(network.read(found.files[0], 2)) == b"e\n"
    assert network.find("memory://b/*.nothing").files == ()


def test_it_all_works_together(
    memory: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANKZERO_CACHE", str(tmp_path))
    (found,) = expand([SourceSpec(path="memory://b/*.jsonl#1")])
    assert [Path(path).read_bytes() for path in found.files] == [b"one\n", b"two\n"] and found.sample == 1


def test_a_missing_file_is_bad_data(memory: fsspec.AbstractFileSystem) -> None:
    with pytest.raises(DataError, match="no such file"):
        RealNetwork().find("memory://nothing.jsonl")
    with pytest.raises(DataError, match="no such file"):
        list(RealNetwork().read(RemoteFile("n", "memory://nothing.jsonl"), 0))


def test_an_unknown_kind_of_url_names_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="known are hf"):
        RealNetwork().find("nosuch://x/y.jsonl")


CONTENT = bytes(range(256)) * 4


class _Pages(BaseHTTPRequestHandler):
    """One file, with or without ranges."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        if "secret" in self.path or "none" in self.path:
            self.send_error(403 if "secret" in self.path else 404)
            return
        given = self.headers.get("Range", "") if "ranges" in self.path else ""
        start = int(given.removeprefix("bytes=").rstrip("-")) if given else 0
        self.send_response(206 if given else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.send_header("ETag", '"1"')
        if given:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.end_headers()
        if body:
            self.wfile.write(CONTENT[start:])

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    pytest.importorskip("aiohttp")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Pages)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", ["ranges.bin", "whole.bin"])
@pytest.mark.parametrize("start", [0, 1, 700, 1023])
def test_a_web_server_is_read_from_anywhere(site: str, name: str, start: int) -> None:
    (file,) = RealNetwork().find(f"{site}/{name}?x=1").files
    assert (file.name, file.size) == (name, len(CONTENT)) and "1" in file.version
    assert b"".join(RealNetwork().read(file, start)) == CONTENT[start:]


def test_answers_of_a_web_server(site: str) -> None:
    with pytest.raises(DataError, match="no such file"):
        RealNetwork().find(f"{site}/none.csv")
    with pytest.raises(AccessError, match="access is refused"):
        RealNetwork().find(f"{site}/secret.csv")
    with pytest.raises(ServiceError, match="it cannot be read"):
        RealNetwork().find("http://127.0.0.1:1/x.csv")


class _Answer:
    status_code = 403


class GatedRepoError(Exception):
    """By its name."""


class RepositoryNotFoundError(Exception):
    """By its name."""


class RevisionNotFoundError(Exception):
    """By its name."""


class StatusError(Exception):
    """As HTTP clients raise them."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class ResponseError(Exception):
    """As others raise them."""

    response = _Answer()


@pytest.mark.parametrize(
    ("error", "where", "kind", "words"),
    [
        (GatedRepoError(), "o/n@main", AccessError, "https://huggingface.co/datasets/o/n,"),
        (RepositoryNotFoundError(), "o/n", DataError, "HF_TOKEN"),
        (RevisionNotFoundError(), "o/n@x", DataError, "revision"),
        (ImportError("Install s3fs to access S3"), "s3://b/x", ConfigError, "pip install s3fs"),
        (ImportError("no aiohttp"), "https://h/x", ConfigError, "pip install aiohttp"),
        (StatusError(404), "https://h/x", DataError, "no such file"),
        (StatusError(401), "https://h/x", AccessError, "credentials"),
        (ResponseError("no"), "hf://datasets/o/n/x", AccessError, "HF_TOKEN"),
        (PermissionError("no"), "s3://b/x", AccessError, "credentials"),
        (StatusError(503), "https://h/x", ServiceError, "status 503"),
        (TimeoutError(), "https://h/x", ServiceError, "TimeoutError"),
    ],
)
def test_errors_of_clients_become_ours(error: Exception, where: str, kind: type[RankzeroError], words: str) -> None:
    ours = _as_ours(error, where)
    assert type(ours) is kind and words in str(ours) and where in str(ours)


def test_a_data_set_is_listed_with_what_verifies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.hf_api import BlobLfsInfo, RepoSibling

    class Info:
        sha = "abc"
        siblings = [
            RepoSibling("README.md", size=3, blob_id="b1"),
            RepoSibling("d/x.parquet", size=9, blob_id="b2", lfs=BlobLfsInfo(size=9, sha256="5" * 64, pointer_size=1)),
        ]

    class Api:
        def dataset_info(self, name: str, *, revision: str | None, files_metadata: bool) -> Info:
            assert (name, revision, files_metadata) == ("o/n", "v1", True)
            return Info()

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    card, data = RealNetwork().data_set("o/n", "v1")
    assert card == RemoteFile("README.md", "hf://datasets/o/n@abc/README.md", 3, "b1", "")
    assert data == RemoteFile("d/x.parquet", "hf://datasets/o/n@abc/d/x.parquet", 9, "b2", "5" * 64)
