"""Stand-ins for trackers' servers: one in memory that counts everything twice that comes twice, and a Langfuse on
loopback that decodes the OTLP it gets."""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from rankzero.run_dir.goodput import Ending, Start, StartLine
from rankzero.run_dir.paths import RunDir
from rankzero.track.server import Kind, LostRunError, Row, RunFacts, Setting, numbers
from tests.support.servers import serving


class MemoryServer:
    """Keeps whatever it is sent, however often. Its requests fail at the moments in `failing`, before they had an
    effect or after."""

    link = "memory"
    place = "memory"

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.points: Counter[tuple[str, int, str]] = Counter()
        self.ended: list[Ending | None] = []
        self.settings: dict[str, Setting] = {}
        self.closed: list[Ending | None] = []
        self.requests = 0
        self.failing: dict[int, str] = {}
        """By the number of the request: `before` or `after`."""
        self.refused: set[str] = set()
        """Kinds, `settings` or `end`: it answers, and takes none of them."""

    @contextmanager
    def _request(self, what: str = "") -> Iterator[None]:
        self.requests += 1
        if what in self.refused:
            raise ValueError(f"{what} is too much")
        moment = self.failing.get(self.requests)
        if moment == "before":
            raise ConnectionError("the server is away")
        yield
        if moment == "after":
            raise TimeoutError("no answer came")

    def begin(self, run: RunFacts, key: str, there: str | None) -> str:
        with self._request():
            if there is not None and there not in self.runs:
                raise LostRunError(there)
            if key not in self.runs:
                self.runs.append(key)
        return key

    def send_settings(self, run: RunFacts) -> None:
        if "settings" in self.refused:
            raise ValueError("settings is too much")
        self.settings |= run.settings

    def known(self, kind: Kind, rows: Sequence[Row]) -> set[tuple[int, str]]:
        with self._request():
            asked = {(row["step"], name) for row in rows for name in numbers(row)}
            return {(step, name) for step, name in asked if (kind, step, name) in self.points}

    def send(self, kind: Kind, rows: Sequence[Row]) -> None:
        with self._request(kind):
            self.points.update((kind, row["step"], name) for row in rows for name in numbers(row))

    def end(self, ended: Ending | None) -> None:
        with self._request("end"):
            self.ended.append(ended)

    def close(self, ended: Ending | None) -> None:
        self.closed.append(ended)


def note_start(run_dir: RunDir, begun: float, ended: Ending | None) -> None:
    """A start that has ended so; None: it was killed."""
    line = StartLine(run_dir.starts, Start(begun=begun, updated=begun, ended=ended))
    line.write({"step": 1.0})
    line.close()


PUBLIC, SECRET = "pk-lf-of-a-test", "sk-lf-0123456789abcdef-of-a-test"


@dataclass
class Langfuse:
    """What a receiver has got. Spans and scores by their ids, as Langfuse keeps them; `posts` are all requests."""

    url: str = ""
    spans: dict[str, dict[str, Any]] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    mood: str = "well"
    """well, or how it answers: error, refused, garbage, slow."""
    asked: threading.Event = field(default_factory=threading.Event)
    proceed: threading.Event = field(default_factory=threading.Event)
    """In the mood `slow`, requests wait for it."""

    def take(self, path: str, body: dict[str, Any]) -> None:
        if path == "/api/public/scores":
            self.scores[body["id"]] = body
            return
        assert path == "/api/public/otel/v1/traces"
        for resource in body["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    assert len(bytes.fromhex(span["traceId"])) == 16 and len(bytes.fromhex(span["spanId"])) == 8
                    assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
                    self.sent[span["name"]] += 1
                    self.spans[span["spanId"]] = span | {"attributes": attributes_of(span)}

    def named(self, beginning: str) -> list[dict[str, Any]]:
        """The spans whose name begins so."""
        return [span for span in self.spans.values() if span["name"].startswith(beginning)]


def attributes_of(span: dict[str, Any]) -> dict[str, Any]:
    """OTLP's JSON form of attributes as a dictionary; a value has exactly one kind."""
    found: dict[str, Any] = {}
    for entry in span["attributes"]:
        [(kind, value)] = entry["value"].items()
        found[entry["key"]] = int(value) if kind == "intValue" else value
    return found


@contextmanager
def langfuse() -> Iterator[Langfuse]:
    """A receiver on loopback."""
    told = Langfuse()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told.asked.set()
            if told.mood == "slow":
                told.proceed.wait(300)
            login = f"Basic {base64.b64encode(f'{PUBLIC}:{SECRET}'.encode()).decode()}"
            right = self.headers["Authorization"] == login and told.mood != "refused"
            if told.mood in {"well", "slow"} and right:
                told.take(self.path, json.loads(body))
            status = 500 if told.mood == "error" else 200 if right else 401
            answer = b"<html>welcome</html>" if told.mood == "garbage" else b"{}"
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_arguments: object) -> None:
            """Quiet."""

    with serving(Handler) as url:
        told.url = url
        yield told
        told.proceed.set()
