"""A web server with shards of rows, made as they are asked for."""

from __future__ import annotations

import random
from http.server import BaseHTTPRequestHandler
from typing import ClassVar

ROW_BYTES = 2_000


def _documents() -> list[bytes]:
    numbers = random.Random(0)
    words = ["the", "quick", "gradient", "harbour", "town", "token", "falls", "on", "quiet", "capital", "of", "Peru"]
    texts = [" ".join(numbers.choice(words) for _ in range(600)).encode() for _ in range(64)]
    return [text[: ROW_BYTES - len(_row(0, b""))] for text in texts]


def _row(number: int, text: bytes) -> bytes:
    return b'{"text": "%012d %s"}\n' % (number, text)


class Shards(BaseHTTPRequestHandler):
    """Shards of rows of equal length, with ranges."""

    rows: ClassVar[int] = 5_000
    """Of each."""
    documents: ClassVar[list[bytes]] = _documents()
    served: ClassVar[int] = 0

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        given = self.headers.get("Range", "")
        start, size = int(given.removeprefix("bytes=").partition("-")[0] or 0), self.rows * ROW_BYTES
        self.send_response(206 if given else 200)
        self.send_header("Content-Length", str(size - start))
        self.send_header("ETag", '"fixed"')
        self.send_header("Accept-Ranges", "bytes")
        if given:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        self.end_headers()
        row, inside = divmod(start, ROW_BYTES)
        while body and row < self.rows:
            rows = range(row, min(self.rows, row + 1000))
            block = b"".join(_row(i, self.documents[i % len(self.documents)]) for i in rows)[inside:]
            try:
                self.wfile.write(block)
            except OSError:  # who reads has what it wanted
                return
            type(self).served += len(block)
            row, inside = rows.stop, 0

    def log_message(self, *_arguments: object) -> None:
        """Quiet."""
