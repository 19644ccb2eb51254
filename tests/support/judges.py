"""A judge that is only a stand-in, on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.servers import serving


class StandIn(BaseHTTPRequestHandler):
    """A judge that gives 10 where the answer is the reference, else 2; `statuses` come first, or bodies with 200."""

    statuses: list[int | dict[str, Any]] = []
    asked: list[dict[str, Any]] = []
    keys: list[str | None] = []
    words: str | None = None
    refuses = ""
    """A part of the request that is answered with `refusal`, by its name."""
    refusal = 400
    fails_after: int | None = None
    """How many answers come before it answers 500 for good."""
    retry_after = ""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append({"path": self.path, **body})
        type(self).keys.append(self.headers.get("Authorization"))
        status = self.statuses.pop(0) if self.statuses else 200
        if self.fails_after is not None and len(self.asked) > self.fails_after:
            status = 500
        text = body["messages"][-1]["content"]
        parts = {name: text.split(f"<{name}>\n")[-1].split(f"\n</{name}>")[0] for name in ("answer", "reference")}
        words = self.words or json.dumps({"score": 10 if parts["answer"] == parts["reference"] else 2, "reason": "x"})
        answer = json.dumps({"choices": [{"message": {"role": "assistant", "content": words}}]}).encode()
        if self.refuses and self.refuses in body:
            refused = {"error": {"message": f"Unsupported value: '{self.refuses}'"}}
            status, answer = self.refusal, json.dumps(refused).encode()
        if isinstance(status, dict):
            status, answer = 200, json.dumps(status).encode()
        self.send_response(status)
        if self.retry_after:
            self.send_header("Retry-After", self.retry_after)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_arguments: object) -> None:
        """Quiet."""


@contextmanager
def judging() -> Iterator[str]:
    """Its URL; what was said of it before is forgotten."""
    StandIn.statuses, StandIn.asked, StandIn.keys, StandIn.words = [], [], [], None
    StandIn.refuses, StandIn.fails_after, StandIn.retry_after = "", None, ""
    StandIn.refusal = 400
    with serving(StandIn) as url:
        yield f"{url}/v1"
