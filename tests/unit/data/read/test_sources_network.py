"""The real network's adapter, against fsspec's memory, a web server on this machine, and what clients raise."""

from __future__ import annotations

import errno
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from huggingface_hub import errors as hub_errors

from rankzero.data.cache.tokenize import TokenRules, prepare
from rankzero.data.inspect.validate import check
from rankzero.data.read.download import download, origin
from rankzero.data.read.locate import expand
from rankzero.data.read.network import HubFile, RealNetwork, RemoteFile, _as_ours
from rankzero.errors import AccessError, ConfigError, DataError, RankzeroError, ServiceError, StorageError
from rankzero.spec.run_spec import SourceSpec
from tests.support.s3 import BUCKET, s3_store
from tests.support.servers import serving
from tests.support.tiny import tiny_tokenizer
from tests.support.unreadable import stale
from tests.unit.data.read.fake_network import fault, located, own_cache

__all__ = ["own_cache"]


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


def test_a_folder_that_cannot_be_listed_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a server that lists folder by folder, as SFTP's."""
    (tmp_path / "x").mkdir()
    (tmp_path / "a.jsonl").write_text("one\n")
    stale(monkeypatch, tmp_path / "x", errno.EIO)
    with pytest.raises(ServiceError, match="Input/output error"):
        RealNetwork().find(tmp_path.as_uri())


def test_folders_that_a_console_made_in_a_bucket_are_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_store(monkeypatch) as store:
        for name, content in (("b/", b""), ("b/x/", b""), ("b/x/a.jsonl", b"one\n")):
            store.put(name, content)
        found = RealNetwork().find(f"s3://{BUCKET}/b")
    assert [(file.name, file.size) for file in found.files] == [("x/a.jsonl", 4)]


def test_it_all_works_together(
    memory: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANKZERO_CACHE", str(tmp_path))
    (found,) = expand([SourceSpec(path="memory://b/*.jsonl#1")])
    assert [Path(path).read_bytes() for path in found.files] == [b"one\n", b"two\n"] and found.sample == 1


def test_problems_of_what_was_fetched_name_where_it_is(
    memory: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANKZERO_CACHE", str(tmp_path))
    report = check([SourceSpec(path="memory://b/*.jsonl")])
    assert [located.path for located in report.problems] == ["memory:///b/a.jsonl", "memory:///b/c.jsonl"]
    (found,) = expand([SourceSpec(path="memory://b/*.jsonl")])
    with pytest.raises(DataError) as refused:
        prepare([found.source], tiny_tokenizer(), TokenRules(), tmp_path)
    assert [problem.where for problem in refused.value.problems] == ["memory:///b/a.jsonl:1", "memory:///b/c.jsonl:1"]
    hub = "/home/me/.cache/huggingface/hub/datasets--org--name/snapshots/0123456789abcdef/data/train.jsonl"
    assert origin(hub) == "hf://datasets/org/name@0123456789ab/data/train.jsonl"
    assert origin("rows.jsonl") == "rows.jsonl" and origin(str(tmp_path / "rows.jsonl")) == str(tmp_path / "rows.jsonl")


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
            if "slow" in self.path:
                self.wfile.write(CONTENT[start : start + 1])
                self.wfile.flush()
                time.sleep(0.5)
                start += 1
            self.wfile.write(CONTENT[start:])

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    pytest.importorskip("aiohttp")
    with serving(_Pages) as url:
        yield url


@pytest.mark.parametrize("name", ["ranges.bin", "whole.bin"])
@pytest.mark.parametrize("start", [0, 1, 700, 1023])
def test_a_web_server_is_read_from_anywhere(site: str, name: str, start: int) -> None:
    (file,) = RealNetwork().find(f"{site}/{name}?x=1").files
    assert (file.name, file.size) == (name, len(CONTENT)) and "1" in file.version
    assert b"".join(RealNetwork().read(file, start)) == CONTENT[start:]


def test_a_download_may_take_longer_than_the_client_would_wait(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes, as long as bytes come: the client's own limit is one for the whole file."""
    import aiohttp
    import aiohttp.client

    monkeypatch.setattr(aiohttp.client, "DEFAULT_TIMEOUT", aiohttp.ClientTimeout(total=0.2))
    fsspec.filesystem("https").clear_instance_cache()
    file = RemoteFile("slow", f"{site}/slow.bin", len(CONTENT))
    assert b"".join(RealNetwork().read(file, 0)) == CONTENT
    fsspec.filesystem("https").clear_instance_cache()


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
        (RepositoryNotFoundError(), "hf://o/n", DataError, "hf:// alone is for models' repositories: write o/n"),
        (RepositoryNotFoundError(), "hf://datasets/o/n", DataError, "hint: neither a file here"),
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


def test_a_data_set_is_listed_at_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.hf_api import RepoSibling

    class Info:
        sha = "abc"
        siblings = [RepoSibling("README.md"), RepoSibling("d/x.parquet")]

    class Api:
        def dataset_info(self, name: str, *, revision: str | None) -> Info:
            assert (name, revision) == ("o/n", "v1")
            return Info()

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    card, data = RealNetwork().data_set("o/n", "v1")
    assert card == RemoteFile("README.md", "hf://datasets/o/n@abc/README.md", hub=HubFile("o/n", "README.md", "abc"))
    assert data.hub == HubFile("o/n", "d/x.parquet", "abc") and data.name == "d/x.parquet"


class TestFilesOfTheHub:
    COMMIT = "0123456789" * 4

    @pytest.fixture
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        return tmp_path

    def test_what_another_tool_fetched_is_not_fetched_again(self, cache: Path) -> None:
        there = cache / "datasets--o--n" / "snapshots" / self.COMMIT / "d" / "x.jsonl"
        there.parent.mkdir(parents=True)
        there.write_bytes(b"rows")
        file = RemoteFile("d/x.jsonl", "hf://…", hub=HubFile("o/n", "d/x.jsonl", self.COMMIT))
        assert Path(download(file, RealNetwork())).samefile(there)

    def test_a_url_is_a_place_in_a_repository(self, monkeypatch: pytest.MonkeyPatch) -> None:
        @dataclass
        class Place:
            repo_id: str
            path_in_repo: str
            revision: str
            repo_type: str

        class Hub(MemoryFileSystem):  # type: ignore[misc]
            protocol = "hf"
            store: ClassVar[dict[str, object]] = {}
            pseudo_dirs: ClassVar[list[str]] = [""]

            @classmethod
            def _strip_protocol(cls, path: str) -> str:
                return str(super()._strip_protocol(path.removeprefix("hf://")))

            def resolve_path(self, path: str) -> object:
                kind, owner, name, file = path.strip("/").split("/", 3)
                name, _, revision = name.partition("@")
                if kind == "buckets":
                    return object()
                return Place(f"{owner}/{name}", file, revision or "main", kind.removesuffix("s"))

        monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "hf", Hub)
        hub = Hub()
        hub.pipe({"/datasets/o/n@v1/d/a.jsonl": b"1", "/datasets/o/n@v1/d/b.jsonl": b"2", "/buckets/o/n/c.jsonl": b"3"})
        found = RealNetwork().find("hf://datasets/o/n@v1/d/*.jsonl").files
        assert [file.hub for file in found] == [HubFile("o/n", f"d/{name}.jsonl", "v1", "dataset") for name in "ab"]
        (bucket,) = RealNetwork().find("hf://buckets/o/n/c.jsonl").files
        assert bucket.hub is None and b"".join(RealNetwork().read(bucket, 0)) == b"3"

    def test_a_listing_that_a_client_keeps_is_not_taken_for_what_is_there(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Keeping(MemoryFileSystem):  # type: ignore[misc]
            protocol = "keeping"
            store: ClassVar[dict[str, object]] = {}
            pseudo_dirs: ClassVar[list[str]] = [""]
            kept: ClassVar[dict[str, dict[str, object]]] = {}

            @classmethod
            def _strip_protocol(cls, path: str) -> str:
                return str(super()._strip_protocol(path.removeprefix("keeping://")))

            def info(self, path: str, **_options: object) -> dict[str, object]:
                if path not in self.kept:
                    self.kept[path] = {**super().info(path), "blob_id": str(self.cat_file(path))}
                return self.kept[path]

            def invalidate_cache(self, path: str | None = None) -> None:
                self.kept.clear()

        monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "keeping", Keeping)
        Keeping().pipe({"/d/a.jsonl": b"1"})
        (before,) = RealNetwork().find("keeping://d/a.jsonl").files
        Keeping().pipe({"/d/a.jsonl": b"2"})
        (after,) = RealNetwork().find("keeping://d/a.jsonl").files
        assert (before.version, after.version) == (str(b"1"), str(b"2"))

    @pytest.mark.parametrize(
        ("error", "kind", "words"),
        [
            (OSError(errno.ENOSPC, "No space left on device"), StorageError, "No space left"),
            (PermissionError(errno.EACCES, "Permission denied"), StorageError, "HF_HOME"),
            (hub_errors.LocalEntryNotFoundError("look at your connection"), ServiceError, "your connection"),
            (ConnectionResetError(errno.ECONNRESET, "reset"), ServiceError, "reset"),
            (FileNotFoundError("gone"), DataError, "no such file"),
            (RuntimeError("the line broke"), ServiceError, "the line broke"),
        ],
    )
    def test_errors(
        self, cache: Path, error: Exception, kind: type[RankzeroError], words: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def failing(repository: str, path: str, *, repo_type: str, revision: str) -> str:
            assert (repository, path, repo_type, revision) == ("o/n", "x.jsonl", "dataset", "v1")
            raise error

        monkeypatch.setattr("huggingface_hub.hf_hub_download", failing)
        with pytest.raises(RankzeroError) as caught:
            RealNetwork().from_hub(HubFile("o/n", "x.jsonl", "v1"))
        assert type(caught.value) is kind and words in str(caught.value)
        assert (str(cache) if kind is StorageError else "hf://datasets/o/n@v1/x.jsonl") in str(caught.value)

    def test_a_hub_that_does_not_answer_is_a_service(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the client makes of it names files that are missing here; the cause is what happened."""

        def failing(*_args: object, **_options: object) -> str:
            raise hub_errors.LocalEntryNotFoundError("not in the cache") from ConnectionError("refused")

        monkeypatch.setattr("huggingface_hub.hf_hub_download", failing)
        with pytest.raises(ServiceError, match="refused"):
            RealNetwork().from_hub(HubFile("o/n", "x.jsonl", "v1"))


class _Hub(BaseHTTPRequestHandler):
    """A data set of two files, one that is gated, and none of any other name."""

    FILES: ClassVar[dict[str, bytes]] = {"README.md": b"# Rows", "train.jsonl": b'{"text": "t"}\n'}
    asked: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        status, headers, data = 404, {"X-Error-Code": "RepoNotFound"}, b""
        commit, name = TestFilesOfTheHub.COMMIT, self.path.rpartition("/")[2]
        if self.path.startswith("/api/datasets/o/gated"):
            status, headers = 403, {"X-Error-Code": "GatedRepo"}
        elif self.path.startswith("/api/datasets/o/n"):
            listed = {"id": "o/n", "sha": commit, "siblings": [{"rfilename": file} for file in self.FILES]}
            status, headers, data = 200, {}, json.dumps(listed).encode()
        elif self.path.startswith(f"/datasets/o/n/resolve/{commit}/"):
            status, headers, data = 200, {"ETag": f'"{name}"', "X-Repo-Commit": commit}, self.FILES[name]
            self.asked.append(f"{self.command} {name}")
        self.send_response(status)
        for header, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(header, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.mark.usefixtures("own_cache")
def test_a_data_set_by_the_hubs_own_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    with serving(_Hub) as place:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, place)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", place)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # read when the client was first imported
        (rows,) = located("o/n", RealNetwork()).files
        assert Path(rows).read_bytes() == _Hub.FILES["train.jsonl"]
        assert Path(rows).is_relative_to(tmp_path / "hub" / "datasets--o--n" / "snapshots")
        assert _Hub.asked.count("GET train.jsonl") == 1
        assert located("o/n[train]@v1", RealNetwork()).files == (rows,)
        assert _Hub.asked.count("GET train.jsonl") == 1  # the branch is of the same commit
        with pytest.raises(AccessError, match="gated"):
            located("o/gated", RealNetwork())
        assert "no such data set" in fault("o/none", RealNetwork()).what
    assert located("o/n", offline=True).files == (rows,)
