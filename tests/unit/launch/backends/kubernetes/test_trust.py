"""Whose certificates are trusted: as kubectl does it, on every Python."""

from __future__ import annotations

import base64
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rankzero.launch.backends.kubernetes.api import Api
from rankzero.launch.backends.kubernetes.auth import connect
from rankzero.launch.backends.kubernetes.errors import ApiError
from tests.support.certificates import Issuer, authority, server_files
from tests.unit.launch.backends.kubernetes.runs import Ticks
from tests.unit.launch.backends.kubernetes.test_connect import config, write


class Version(BaseHTTPRequestHandler):
    """Answers every question with a version."""

    def do_GET(self) -> None:
        body = b'{"gitVersion": "v1.36.2"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Quiet."""


@contextmanager
def server(files: Path) -> Iterator[str]:
    """The URL of a server with this certificate."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Version) as http:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(files)
        http.socket = tls.wrap_socket(http.socket, server_side=True)
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"https://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()


def version(directory: Path, url: str, trusted: Issuer) -> Any:
    """What a server says whose kubeconfig names this authority."""
    value = config(url, token="t")
    value["clusters"][0]["cluster"]["certificate-authority-data"] = base64.b64encode(trusted.pem).decode()
    api = Api(connect(None, write(directory / "k", value)), "train", say=lambda _: None, clock=Ticks().clock())
    try:
        return api.get("/version")["gitVersion"]
    finally:
        api.close()


@pytest.fixture(params=["as this Python's", "as Python 3.13's"])
def default_context(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `ssl` makes: since 3.13 it asks for identifiers of keys."""
    if request.param == "as this Python's":
        return
    make = ssl.create_default_context

    def strict(*arguments: Any, **named: Any) -> ssl.SSLContext:
        made = make(*arguments, **named)
        made.verify_flags |= ssl.VERIFY_X509_STRICT
        return made

    monkeypatch.setattr(ssl, "create_default_context", strict)


@pytest.mark.usefixtures("default_context")
def test_an_authority_without_identifiers_of_keys_is_trusted(tmp_path: Path) -> None:
    issuer = authority()
    with server(server_files(tmp_path, issuer)) as url:
        assert version(tmp_path, url, issuer) == "v1.36.2"


@pytest.mark.usefixtures("default_context")
def test_an_authority_below_another_one_is_trusted_by_itself(tmp_path: Path) -> None:
    """Which is what a kubeconfig has of a cluster whose authority an organization's own has signed."""
    between = authority("kubernetes", issuer=authority("organization"))
    with server(server_files(tmp_path, between)) as url:
        assert version(tmp_path, url, between) == "v1.36.2"


@pytest.mark.usefixtures("default_context")
def test_somebody_elses_authority_is_not_trusted(tmp_path: Path) -> None:
    with server(server_files(tmp_path, authority())) as url, pytest.raises(ApiError, match="CERTIFICATE_VERIFY_FAILED"):
        version(tmp_path, url, authority())
