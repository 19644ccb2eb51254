"""A program that stands in for vLLM: it listens, asks for a key and answers as vLLM does, and notes what it was asked.

`installed` makes it the `vllm` of a directory. What it does besides is told by files in the directory that $STAND_IN
names, where it leaves its notes: `pids` of itself and of a process that it has started, `asked` with a line a request.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer
from typing import Any

STUBBORN, HEARD = "stubborn", "heard"
"""With the first it notes SIGTERM, as the second, and goes on; what it has started does not hear it."""
SECONDS = 60.0


def installed(directory: Path) -> dict[str, str]:
    """Put it there. Returns the environment in which it is found, and leaves its notes."""
    (directory / "vllm").write_text(f'#!/bin/sh\nexec {sys.executable} -P {__file__} "$@"\n')
    (directory / "vllm").chmod(0o755)
    found = {"PATH": f"{directory}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    return {**os.environ, **found, "STAND_IN": str(directory)}


def certified(directory: Path) -> list[str]:
    """Its flags for a certificate of another name, and the key of it, which are put there."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "models.example")])
    begins = datetime(2026, 1, 1, tzinfo=UTC)
    about = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    about = about.serial_number(1).not_valid_before(begins).not_valid_after(begins + timedelta(days=9999))
    certificate = about.sign(key, hashes.SHA256())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "tls.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (directory / "tls.key").write_bytes(secret)
    return ["--ssl-certfile", str(directory / "tls.crt"), "--ssl-keyfile", str(directory / "tls.key")]


def asked(directory: Path) -> list[dict[str, Any]]:
    """The requests that it was sent, in order."""
    return [json.loads(line) for line in (directory / "asked").read_text().splitlines()]


def pids(directory: Path) -> list[int]:
    """Its own, and the one of what it has started."""
    return [int(pid) for pid in (directory / "pids").read_text().split()]


def wait_for(path: Path) -> None:
    """Return when it is there."""
    deadline = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, f"there is no {path}"
        time.sleep(0.01)


def wait_until_gone(pid: int) -> None:
    """Return when there is no such process, or only what nobody has asked for the end of."""
    deadline = time.monotonic() + SECONDS
    while is_alive(pid):
        assert time.monotonic() < deadline, f"{pid} is still there"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class _Answers(BaseHTTPRequestHandler):
    keys: tuple[str, ...] = ()
    model = Path()
    notes = Path()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self._send(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        note = {"route": self.path, "authorization": self.headers["Authorization"], "body": body}
        with (self.notes / "asked").open("a") as notes:
            notes.write(json.dumps(note) + "\n")
        if self.keys and self.headers["Authorization"] not in [f"Bearer {key}" for key in self.keys]:
            self._send(401, {"error": "Unauthorized"})
        elif self.path == "/v1/completions":
            self._send(200, {"choices": [{"text": f"{body['prompt']} it says"}]})
        elif (self.model / "chat_template.jinja").is_file():
            self._send(200, {"choices": [{"message": {"content": "it says"}}]})
        else:
            self._send(400, {"error": {"message": "a chat template is needed"}})

    def _send(self, code: int, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class _Server(TCPServer):
    allow_reuse_address = True

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:  # one family alone, as asyncio's servers
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        super().server_bind()


def _values(arguments: list[str], flag: str) -> list[str]:
    """Of the last one of its flags, as argparse takes one or more, with underscores or without."""
    found: list[str] = []
    for place, argument in enumerate(arguments):
        name = argument.partition("=")[0].replace("_", "-")
        if name == flag and "=" not in argument:
            rest = arguments[place + 1 :]
            ends = [index for index, one in enumerate(rest) if one.startswith("--")]
            found = rest[: ends[0]] if ends else rest
        elif name == flag:
            found = [argument.partition("=")[2]]
    return found


def main() -> None:
    """`vllm serve MODEL --host HOST --port PORT [--api-key KEY…]`."""
    notes, arguments = Path(os.environ["STAND_IN"]), sys.argv[1:]
    stubborn = (notes / STUBBORN).exists()
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is started has it so
    other = subprocess.Popen(["sleep", "600"])
    if stubborn:
        signal.signal(signal.SIGTERM, lambda _number, _frame: (notes / HEARD).touch())
    (notes / "pids").write_text(f"{os.getpid()} {other.pid}")
    _Answers.notes, _Answers.model = notes, Path(arguments[1])
    keys = _values(arguments, "--api-key") or [os.environ.get("VLLM_API_KEY", "")]
    _Answers.keys = tuple(key for key in keys if key)
    [host], [port] = _values(arguments, "--host"), _values(arguments, "--port")
    _Server.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = _Server((host, int(port)), _Answers)
    if certificate := _values(arguments, "--ssl-certfile"):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate[0], _values(arguments, "--ssl-keyfile")[0])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
