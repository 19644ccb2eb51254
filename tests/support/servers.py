"""Web servers on loopback, for as long as a test needs them."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a server that answers so."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class RefusingHub(BaseHTTPRequestHandler):
    """Refuses every request as the Hub does, and notes whom it was sent as. Change `status` and `code` in a subclass,
    which has its own notes then."""

    status, code = 404, "RepoNotFound"
    tokens: list[str | None]

    def __init_subclass__(cls) -> None:
        cls.tokens = []

    def do_GET(self) -> None:
        self.tokens.append(self.headers.get("Authorization"))
        self.send_response(self.status)
        self.send_header("X-Error-Code", self.code)
        self.send_header("X-Error-Message", "no")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_arguments: object) -> None:
        """Quiet."""


class TakingHub(BaseHTTPRequestHandler):
    """Takes new repositories and one commit into each, as the Hub does with files that are small. A subclass has its
    own notes; `refuses` is a path's beginning and the status that it is answered with."""

    files: dict[str, dict[str, bytes]]
    """By repository, what was committed."""
    made: dict[str, bool]
    """Whether each repository is private."""
    deleted: list[str]
    tokens: set[str | None]
    refuses: tuple[str, int] = ("nothing", 0)

    def __init_subclass__(cls) -> None:
        cls.files, cls.made, cls.deleted, cls.tokens = {}, {}, [], set()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.tokens.add(self.headers.get("Authorization"))
        place, status = self.refuses
        owner_and_name = "/".join(self.path.split("/")[3:5])
        if place in self.path:
            self._answer(status, {"error": "no"})
        elif self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            if name in self.made:
                self._answer(409, {"error": "You already created this model repo", "url": self._url(name)})
                return
            private = asked.get("private", asked.get("visibility") == "private")
            self.made[name] = bool(private)
            self._answer(200, {"url": self._url(name), "name": name, "id": "1"})
        elif "/preupload/" in self.path:
            files = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            self._answer(200, {"files": files})
        elif "/commit/" in self.path and self.commits():
            lines = [json.loads(line)["value"] for line in body.splitlines() if json.loads(line)["key"] == "file"]
            self.files[owner_and_name] = {one["path"]: base64.b64decode(one["content"]) for one in lines}
            url = f"{self._url(owner_and_name)}/commit/{'0' * 40}"
            self._answer(200, {"commitUrl": url, "commitOid": "0" * 40, "success": True})
        elif "/commit/" not in self.path:  # the head of README.md is validated first
            self._answer(200, {"errors": [], "warnings": []})

    def commits(self) -> bool:
        """Whether what is being sent is taken; else it has no answer."""
        return True

    def do_GET(self) -> None:
        self._answer(200, {"sha": "0" * 40, "id": "1", "siblings": []})

    def do_DELETE(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        self.deleted.append(name)
        self.made.pop(name, None)
        self._answer(200, {})

    def _url(self, name: str) -> str:
        return f"http://{self.headers['Host']}/{name}"

    def _answer(self, status: int, value: dict[str, object]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Quiet."""
