"""Pages that are served: on loopback, to who has the URL, and never older than their run."""

from __future__ import annotations

import http.client
import json
import socket
import struct
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Event
from urllib.parse import urlsplit

import pytest

from rankzero.report import live
from rankzero.report.live import Answer, Site, served
from rankzero.report.page import OVER_SECONDS, REFRESH_SECONDS
from tests.support.run_directory import run_directory
from tests.support.unreadable import shut

TOKEN = "a-token"


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """For tests that only ask."""
    return site(tmp_path_factory.mktemp("site"))


def site(tmp_path: Path) -> Site:
    run_directory(tmp_path / "runs/first")
    run_directory(tmp_path / "runs/with # and ?", name="second")
    (tmp_path / "runs/no-run").mkdir()
    (tmp_path / "secret.html").write_text("a file")
    return Site([tmp_path / "runs"], TOKEN)


def test_every_run_has_a_page(unchanged: Site, tmp_path: Path) -> None:
    ours = unchanged
    index = ours.get(f"/{TOKEN}/")
    assert index.status == HTTPStatus.OK and "no-run" not in index.body
    for url in ("run/first/", "run/with%20%23%20and%20%3F/"):
        assert f'href="{url}"' in index.body
        assert "chart-loss" in ours.get(f"/{TOKEN}/{url}").body
    chosen = ours.get(f"/{TOKEN}/compare")
    assert chosen.status == HTTPStatus.OK and chosen.body.count("checkbox") == 2 and "refresh" not in chosen.body
    both = ours.get(f"/{TOKEN}/compare?run=first&run=with%2520%2523%2520and%2520%253F&run=none")
    assert "Fields in which they differ" in both.body and "second, train" in both.body
    (tmp_path / "empty").mkdir()
    assert "no runs yet" in Site([tmp_path / "empty"], TOKEN).get(f"/{TOKEN}/").body


@pytest.mark.parametrize("has_runs", [True, False])
def test_a_project_is_no_run_and_has_its_runs(has_runs: bool, tmp_path: Path) -> None:
    """Its run.yaml is what somebody trains with."""
    (tmp_path / "run.yaml").write_text("name: mine\nmodel: {name: m}\ndata: {train: t.jsonl}\n")
    (tmp_path / "cluster.yaml").write_text("kind: job\n")
    if has_runs:
        run_directory(tmp_path / "runs/first")
    ours = Site([tmp_path], TOKEN)
    assert list(ours.runs()) == (["first"] if has_runs else [])
    run_directory(tmp_path / "runs/second")
    assert "second" in ours.runs() and 'href="run/second/"' in ours.get(f"/{TOKEN}/").body
    assert list(Site([tmp_path / "runs/second"], TOKEN).runs()) == ["second"]


def test_runs_that_do_not_fit_beside_the_others_are_named(tmp_path: Path) -> None:
    for number in range(15):
        run_directory(tmp_path / f"r{number}", name=f"run {number}")
    ours = Site([tmp_path], TOKEN)
    asked = [f"run=r{number}" for number in range(15)]
    assert "Left out: r12, r13, r14." in ours.get(f"/{TOKEN}/compare?{'&'.join(asked)}").body
    assert "Left out" not in ours.get(f"/{TOKEN}/compare?{'&'.join(asked[:12])}").body


@pytest.mark.parametrize(
    "target",
    [
        *("/", "", "//", "/wrong/", "/wrong/run/first/", "/A-TOKEN/", "/a-token%00/", "/ä/", "/\udcff/", "http://[::1"),
        *("/a-token/run/", "/a-token/run/none/", "/a-token/run/first", "/a-token/run/first/report.html"),
        *("/a-token/run/../secret.html", "/a-token/run/..%2f..%2fsecret.html/", "/a-token/../secret.html"),
        *("/a-token/secret.html", "/a-token//", "/a-token/run/no-run/", "/a-token/run/%2e%2e/", "/a-token/compare/x"),
    ],
)
def test_nothing_else_is_found(target: str, unchanged: Site) -> None:
    answer = unchanged.get(target)
    assert answer.status == HTTPStatus.NOT_FOUND and answer.body == "not found\n"


def test_a_page_is_made_again_when_its_run_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, read = site(tmp_path), []
    real = live.read_run
    monkeypatch.setattr(live, "read_run", lambda root, now: read.append(root.name) or real(root, now))
    for _ in range(3):
        ours.get(f"/{TOKEN}/run/first/")
    assert read == ["first"], "nothing has changed"
    with (tmp_path / "runs/first/metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 61, "loss": 123.0}) + "\n")
    assert "123" in ours.get(f"/{TOKEN}/run/first/").body
    run_directory(tmp_path / "runs/third")
    assert "run/third/" in ours.get(f"/{TOKEN}/").body


def test_a_page_is_drawn_again_when_one_of_its_runs_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tab that is left open asks for it every 30 s, and of a long run it takes seconds."""
    ours, drawn = site(tmp_path), list[str]()
    run_directory(tmp_path / "runs/third", name="third")
    for name in ("run_page", "compare_page"):
        real = getattr(live, name)
        monkeypatch.setattr(live, name, lambda *a, _real=real, _name=name, **k: drawn.append(_name) or _real(*a, **k))
    asked = ["run/first/", "compare?run=first&run=third", "compare?run=third&run=first"]
    for _ in range(3):
        bodies = [ours.get(f"/{TOKEN}/{target}").body for target in asked]
    assert drawn == ["run_page", "compare_page", "compare_page"] and len(set(bodies)) == 3
    with (tmp_path / "runs/first/metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 61, "loss": 123.0}) + "\n")
    assert all("123" in ours.get(f"/{TOKEN}/{target}").body for target in asked)
    for number in range(live._MOST_KEPT):
        ours.get(f"/{TOKEN}/compare?run=third&run=first&run={number}")
        ours.get(f"/{TOKEN}/run/third/?{number}")
    assert len(drawn) == 7, "what names no run is no page of its own"


@pytest.mark.parametrize("name", ["lease.json", "starts.jsonl", "report.json", "checkpoints"])
def test_a_run_that_cannot_be_read_takes_no_other_along(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = site(tmp_path)
    (tmp_path / "runs/first/lease.json").write_text('{"token": 2}')
    shut(monkeypatch, tmp_path / "runs/first" / name)
    assert f"{name}: Permission denied" in ours.get(f"/{TOKEN}/").body
    page = ours.get(f"/{TOKEN}/run/first/").body
    assert f"Unknown: {name}: Permission denied" in page
    assert page.count(f"{name}: Permission denied") == 2, "once among the warnings"
    assert LATER in page, "nothing says that it goes on"


SOON, LATER = (f'http-equiv="refresh" content="{seconds}"' for seconds in (REFRESH_SECONDS, OVER_SECONDS))


def test_it_is_refreshed_the_more_often_while_it_goes_on(tmp_path: Path) -> None:
    """One that is over may be started again."""
    ours = site(tmp_path)
    assert LATER in ours.get(f"/{TOKEN}/run/first/").body
    assert LATER in ours.get(f"/{TOKEN}/compare?run=first&run=with%2520%2523%2520and%2520%253F").body
    run_directory(tmp_path / "going-on", ended=None).replace(tmp_path / "runs/on")
    held = {"token": 1, "beat": 3, "host": "another-host", "pid": 7, "process": "x"}
    (tmp_path / "runs/on/lease.json").write_text(json.dumps(held))
    page = ours.get(f"/{TOKEN}/run/on/").body
    assert SOON in page and "another host" in page
    assert SOON in ours.get(f"/{TOKEN}/compare?run=on&run=with%2520%2523%2520and%2520%253F").body


def test_the_server(tmp_path: Path) -> None:
    """Loopback alone, reading alone, and nothing is kept by who looks."""
    site(tmp_path)
    with served([tmp_path / "runs"]) as (url, _):
        parts = urlsplit(url)
        assert parts.hostname == "127.0.0.1" and len(parts.path) > 30

        def ask(method: str, path: str) -> tuple[http.client.HTTPResponse, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", parts.port, timeout=300)
            connection.request(method, path)
            response = connection.getresponse()
            return response, response.read()

        found, body = ask("GET", parts.path + "run/first/")
        assert found.status == 200 and b"chart-loss" in body
        assert (found.headers["Cache-Control"], found.headers["Referrer-Policy"]) == ("no-store", "no-referrer")
        assert ask("HEAD", parts.path)[1] == b""
        assert ask("GET", "/")[0].status == ask("GET", "/favicon.ico")[0].status == 404
        assert ask("POST", parts.path)[0].status == ask("DELETE", parts.path)[0].status == 501
        assert ask("GET", parts.path.rstrip("/"))[0].headers["Location"] == parts.path
    with served([tmp_path / "runs"]) as (again, _):
        assert urlsplit(again).path != parts.path


def test_a_browser_that_goes_away_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each reload that comes before a page is there is one."""
    gone, over = Event(), Event()
    end = ThreadingHTTPServer.shutdown_request

    def late(_site: Site, _target: str) -> Answer:
        gone.wait()
        return Answer(HTTPStatus.OK, "x" * 10_000_000)

    def ended(server: ThreadingHTTPServer, request: socket.socket) -> None:
        end(server, request)
        over.set()

    monkeypatch.setattr(Site, "get", late)
    monkeypatch.setattr(ThreadingHTTPServer, "shutdown_request", ended)
    with served([tmp_path]) as (url, _):
        browser = socket.create_connection(("127.0.0.1", urlsplit(url).port or 0))
        browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # as one that is killed
        browser.sendall(b"GET / HTTP/1.0\r\n\r\n")
        browser.close()
        gone.set()
        over.wait()
    assert capfd.readouterr().err == ""
