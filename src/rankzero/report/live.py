"""The pages of runs on loopback while they go on. Reads run directories; changes nothing, and serves no file.

Who may look is who has the URL: it holds a random token, and everything else is not found. A page is made anew when
something in its run directory has changed.
"""

from __future__ import annotations

import hmac
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import is_
from pathlib import Path
from threading import Lock, Thread
from urllib.parse import parse_qs, quote, unquote

from rankzero.report.page import REFRESH_SECONDS, Live, compare_page, index_page, refreshed, run_page
from rankzero.report.run import RunPage, read_run
from rankzero.run_dir.known import DEFAULT_OUTPUT, is_run
from rankzero.run_dir.named import runs_in

LOOPBACK = "127.0.0.1"
_MOST_COMPARED = 12
_MOST_KEPT = 16
"""Pages, of which each may be a MB."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request gets."""

    status: HTTPStatus
    body: str = ""
    location: str | None = None


_NOT_FOUND = Answer(HTTPStatus.NOT_FOUND, "not found\n")


class Site:
    """The pages by their URL. `places` are run directories, or directories that hold some, or will."""

    def __init__(self, places: Sequence[Path], token: str) -> None:
        self._places, self._token = tuple(places), token
        self._title = "Runs in " + ", ".join(str(place) for place in places)
        self._read: dict[Path, tuple[object, RunPage]] = {}
        self._drawn: dict[tuple[Path, ...], tuple[Sequence[RunPage], str]] = {}
        """The page of one run, or of several beside each other, and what it was drawn of; the last asked for last."""
        self._lock = Lock()

    def get(self, target: str) -> Answer:
        """The page at a request's target, `/<token>/…?…`. Whatever is none of ours is not found, the token first."""
        path, _, query = target.partition("?")
        _, token, *rest = [*path.split("/"), ""]
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode()):
            return _NOT_FOUND
        if path == f"/{token}":
            return Answer(HTTPStatus.PERMANENT_REDIRECT, location=f"/{token}/")
        runs = self.runs()
        match rest[:-1]:
            case [""]:
                rows = [(name, self._page_of(root)) for name, root in runs.items()]
                return Answer(HTTPStatus.OK, index_page(self._title, rows, Live(REFRESH_SECONDS)))
            case ["run", name, ""] if (root := runs.get(name) or runs.get(_key(unquote(name)))) is not None:
                run = self._page_of(root)
                return self._kept([run], [root], lambda: run_page(run, refreshed([run], "../../")))
            case ["compare"]:
                chosen = dict.fromkeys(parse_qs(query).get("run", ()))
                return self._compared(runs, [runs[name] for name in chosen if name in runs])
        return _NOT_FOUND

    def runs(self) -> dict[str, Path]:
        """Run directories by the name that they have in a URL; those that appear later, too."""
        found: dict[str, Path] = {}
        for place in self._places:
            for root in [place] if is_run(place) else _held(place):
                key, number = _key(os.path.basename(os.path.realpath(root))), 1
                while key in found:
                    number += 1
                    key = f"{_key(os.path.basename(os.path.realpath(root)))}-{number}"
                found[key] = root
        return found

    def _compared(self, known: Mapping[str, Path], roots: Sequence[Path]) -> Answer:
        """The chosen runs beside each other; fewer than two are a question, on a page that keeps what is ticked."""
        if len(roots) < 2:
            rows = [(name, self._page_of(root)) for name, root in known.items()]
            return Answer(HTTPStatus.OK, index_page("Which runs?", rows, Live(refresh=0, home="./")))
        runs = [self._page_of(root) for root in roots[:_MOST_COMPARED]]
        left_out = [os.path.basename(os.path.realpath(root)) for root in roots[_MOST_COMPARED:]]  # as the list has them
        return self._kept(runs, roots, lambda: compare_page(runs, refreshed(runs, "./"), left_out=left_out))

    def _kept(self, runs: Sequence[RunPage], roots: Sequence[Path], draw: Callable[[], str]) -> Answer:
        """The page of these, drawn again where one of them was read again."""
        key = tuple(roots)
        with self._lock:
            known = self._drawn.pop(key, None)
        if known is None or not all(map(is_, known[0], runs)):
            known = runs, draw()
        with self._lock:
            self._drawn[key] = known
            if len(self._drawn) > _MOST_KEPT:
                del self._drawn[next(iter(self._drawn))]
        return Answer(HTTPStatus.OK, known[1])

    def _page_of(self, root: Path) -> RunPage:
        """What a run directory says, read again where a file of it has changed, or need not have."""
        stamp = _stamp(root)
        with self._lock:
            known = self._read.get(root)
        if known is not None and known[0] == stamp and not known[1].may_change_unseen:
            return known[1]
        run = read_run(root, time.time())
        with self._lock:
            self._read[root] = stamp, run
        return run


def _held(directory: Path) -> list[Path]:
    """The runs in a directory, or in its `runs` where it is one that somebody trains in."""
    return [Path(run) for run in runs_in(directory) or runs_in(directory / DEFAULT_OUTPUT)]


def _key(name: str) -> str:
    return quote(name, safe="")


def _stamp(root: Path) -> object:
    """Another value when a file that a page is made of was changed, made or removed."""
    found = []
    for directory in (root, root / "logs", root / "checkpoints"):
        try:
            entries = sorted(directory.iterdir())
        except OSError:
            continue
        for entry in entries:
            try:
                status = entry.stat()
            except OSError:
                continue
            found.append((str(entry), status.st_mtime_ns, status.st_size, status.st_ino))
    return found


@contextmanager
def served(places: Sequence[Path]) -> Iterator[tuple[str, Site]]:
    """Serve the runs in a thread until the block ends. Yields the URL with its token, and the site. Raises OSError
    where loopback has no port left."""
    token = secrets.token_urlsafe(24)
    site = Site(places, token)

    class Handler(BaseHTTPRequestHandler):
        """Answers GET and HEAD alone."""

        server_version, sys_version = "rankzero", ""

        def handle(self) -> None:
            with suppress(ConnectionError):  # who has asked has gone
                super().handle()

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            answer = site.get(self.path)
            body = answer.body.encode("utf-8", "replace")
            self.send_response(answer.status)
            kind = "text/html" if answer.status == HTTPStatus.OK else "text/plain"
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("X-Frame-Options", "DENY")
            if answer.location is not None:
                self.send_header("Location", answer.location)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_told: object) -> None:
            """Requests are nobody's business; their paths hold the token."""

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="report", daemon=True)
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{server.server_port}/{token}/", site
        finally:
            server.shutdown()
            thread.join()
