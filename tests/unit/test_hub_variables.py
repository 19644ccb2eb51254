"""Variables of the Hub under other names reach its client, and are told in one line each."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rankzero.hub_variables import adopt_hub_variables


@pytest.mark.parametrize(
    ("env", "more"),
    [
        ({"HUGGINGFACE_HUB_TOKEN": "t"}, {"HF_TOKEN": "t"}),
        ({"HUGGINGFACE_HUB_TOKEN": "t", "HF_TOKEN": "mine"}, {}),
        ({"HUGGINGFACE_HUB_TOKEN": "t", "HUGGING_FACE_HUB_TOKEN": "mine"}, {}),
        ({"HUGGINGFACE_HUB_TOKEN": ""}, {}),
        ({"TRANSFORMERS_CACHE": "/c", "HF_HOME": "/h"}, {"HF_HUB_CACHE": "/c"}),
        ({"TRANSFORMERS_CACHE": "/c", "HF_HUB_CACHE": "/mine"}, {}),
        ({}, {}),
    ],
)
def test_what_is_taken_as_what(env: dict[str, str], more: dict[str, str]) -> None:
    after = dict(env)
    said = adopt_hub_variables(after)
    assert after == env | more
    assert [line.split(" is taken as ")[1] for line in said] == list(more), "a line for each, and no value in it"
    assert adopt_hub_variables(after) == []


class Hub(BaseHTTPRequestHandler):
    """Notes what it is sent, and has nothing."""

    tokens: list[str | None] = []

    def do_GET(self) -> None:
        self.tokens.append(self.headers.get("Authorization"))
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_arguments: object) -> None:
        """Quiet."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_seed_s_token_is_sent(endpoint: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    env = {name: value for name, value in os.environ.items() if name not in ("HF_TOKEN", "HF_HUB_OFFLINE")}
    env |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HUGGINGFACE_HUB_TOKEN": "hf_canary"}
    words = [sys.executable, "-m", "rankzero", "data", "check", "rows.jsonl", "--model", "org/model"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 77, done.stderr
    assert "Bearer hf_canary" in Hub.tokens
    assert done.stderr.startswith("HUGGINGFACE_HUB_TOKEN is taken as HF_TOKEN\nerror: ")
    assert "hf_canary" not in done.stderr
