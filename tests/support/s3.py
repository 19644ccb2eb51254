"""An S3 server on loopback, moto's, and how it can fail."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

BUCKET = "rows"


@dataclass
class Store:
    """A server with one bucket. What fails is counted down, over all requests for objects."""

    refuse: int = 0
    """So many of the next requests get 503."""
    cut: int = 0
    """So many of the next answers end in their middle."""
    requests: list[str] = field(default_factory=list)
    """Method and path of each."""
    failed: int = 0

    def put(self, name: str, content: bytes) -> None:
        """An object, directly."""
        _client().put_object(Bucket=BUCKET, Key=name, Body=content)

    def remove(self, name: str) -> None:
        """No object of this name any more."""
        _client().delete_object(Bucket=BUCKET, Key=name)

    def put_folder(self, name: str, folder: Path) -> str:
        """All files below a folder, and the URL of where they are."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{name}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return f"s3://{BUCKET}/{name}"

    def objects(self) -> list[str]:
        """Names in the bucket."""
        return [entry["Key"] for entry in _client().list_objects_v2(Bucket=BUCKET).get("Contents", [])]


@contextmanager
def s3_store(patch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A server that every S3 client of this process and its children talks to."""
    from werkzeug.serving import make_server

    store = Store()
    server = make_server("127.0.0.1", 0, _failing(_moto(), store), threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        patch.setenv(name, "testing")
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    patch.setenv("AWS_MAX_ATTEMPTS", "1")  # a client that waits between tries makes a test wait
    try:
        _empty(server.server_port)
        _client().create_bucket(Bucket=BUCKET)
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        _forget()


def _moto() -> Any:
    from moto.server import DomainDispatcherApplication, create_backend_app

    return DomainDispatcherApplication(create_backend_app)


def _failing(application: Any, store: Store) -> Any:
    def answer(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        store.requests.append(f"{method} {path}")
        is_object = path.startswith(f"/{BUCKET}/") and len(path) > len(BUCKET) + 2
        if is_object and store.refuse:
            store.refuse, store.failed = store.refuse - 1, store.failed + 1
            start("503 Slow Down", [("Content-Type", "application/xml")])
            if method == "HEAD":
                return []
            return [b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"]
        body = b"".join(application(environ, start))
        if is_object and method == "GET" and store.cut and len(body) > 1:
            store.cut, store.failed = store.cut - 1, store.failed + 1
            return [body[: len(body) // 2]]
        return [body]

    return answer


def _client() -> Any:
    import boto3

    return boto3.client("s3")


def _empty(port: int) -> None:
    """What an earlier server of this process has kept is gone: moto has one memory for all of them."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/moto-api/reset", method="POST")
    with urllib.request.urlopen(request, timeout=300) as answer:
        assert answer.status == 200


def _forget() -> None:
    """Let no later test meet this server's clients."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
