"""`rankzero dev jupyter` in tests: the command until Ctrl-C, what a real server's kernel says, and a Jupyter that needs
no packages: it takes the flags, the token file and the port of one, and says what it got."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2

_PROGRAM = """
import http.server, json, os, sys

flags = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:])
with open(os.environ["JUPYTER_TOKEN_FILE"]) as file:
    token = file.read()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        allowed = self.path.endswith("?token=" + token)
        told = {"flags": flags, "argv": sys.argv, "pid": os.getpid(), "env": dict(os.environ), "path": self.path}
        body = json.dumps(told if allowed else "Forbidden").encode()
        self.send_response(200 if allowed else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words):
        pass


place = flags["ServerApp.ip"], int(flags["ServerApp.port"])
http.server.ThreadingHTTPServer(place, Handler).serve_forever()
"""


def stand_in(directory: Path, program: str = _PROGRAM) -> Path:
    """A directory for PYTHONPATH that has it as JupyterLab."""
    package = directory / "jupyterlab"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "__main__.py").write_text(program, encoding="utf-8")
    return directory


HEARS = [
    *(sys.executable, "-c"),
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL);"
    " os.execv(sys.executable, [sys.executable, '-m', 'rankzero', *sys.argv[1:]])",
]
"""The command, which Ctrl-C reaches although the tests may have been started in the background of a shell, where it is
ignored by all that come of it."""


@contextmanager
def forwarding(*more: str, cwd: Path | None = None) -> Iterator[str]:
    """The command until Ctrl-C; its URL."""
    command = [*HEARS, "dev", "jupyter", *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            url = process.stdout.readline().strip()
            assert url, process.stderr.read()
            yield url
            process.send_signal(signal.SIGINT)
            assert process.wait(300) == 0, process.stderr.read()
            assert process.stdout.read() == "" and token_of(url) not in process.stderr.read()
        finally:
            process.kill()


def token_of(url: str) -> str:
    (token,) = parse_qs(urlsplit(url).query)["token"]
    return token


def said_by_kernel(url: str, directory: str | Path, code: str) -> str:
    """Start a kernel in a directory, as a browser does for a notebook there; what it prints."""
    parts = urlsplit(url)
    headers = {"Authorization": f"token {token_of(url)}"}
    wish = {"path": str(directory).lstrip("/")}
    started = httpx2.post(f"http://{parts.netloc}/api/kernels", json=wish, headers=headers, timeout=300).json()
    channels = f"ws://{parts.netloc}/api/kernels/{started['id']}/channels?token={token_of(url)}"
    return asyncio.run(_said(channels, code))


async def _said(url: str, code: str) -> str:
    from tornado.websocket import websocket_connect

    socket = await websocket_connect(url)
    header = {"msg_id": "m", "session": "s", "username": "", "version": "5.3", "msg_type": "execute_request"}
    content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
    rest = {"parent_header": {}, "metadata": {}, "content": content, "buffers": [], "channel": "shell"}
    await socket.write_message(json.dumps({"header": header, **rest}))
    while (message := await socket.read_message()) is not None:
        told = json.loads(message)
        if told["msg_type"] == "stream" and told["content"]["name"] == "stdout":
            socket.close()
            return str(told["content"]["text"])
        assert told["msg_type"] != "error", told
    raise AssertionError("the connection ended without an answer")
