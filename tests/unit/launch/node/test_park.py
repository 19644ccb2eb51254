"""The end of a run in a StatefulSet: told to the API until it listens, then stayed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from rankzero.launch.labels import OUTCOME
from rankzero.launch.node import park as park_module
from rankzero.launch.node.park import park

STATEFUL_SET = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "my-run"},
    "spec": {
        "replicas": 0,
        "serviceName": "my-run",
        "selector": {"matchLabels": {}},
        "template": {"spec": {"containers": [{"name": "node"}]}},
    },
}
SAID = {"rankzero": 1, "outcome": "done"}


class Api:
    """An API server that fails as often as it is told to."""

    def __init__(self, failures: list[str]) -> None:
        self.failures, self.patches = failures, list[tuple[str, Any]]()
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_PATCH(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                failure = api.failures.pop(0) if api.failures else ""
                if failure == "cut":
                    self.close_connection = True
                    return
                api.patches.append((self.path, body))
                answer = {"kind": "Status", "status": "Failure", "message": "not now", "code": 503}
                text = json.dumps(answer if failure else STATEFUL_SET).encode()
                self.send_response(503 if failure else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    api = Api(["cut", "503"])
    where = f"http://127.0.0.1:{api.server.server_port}"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": where}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("POD_NAME", "my-run-0")
    monkeypatch.setattr(park_module, "ACCOUNT", tmp_path)
    monkeypatch.setattr(park_module, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(park_module, "POLL_SECONDS", 0.01)
    (tmp_path / "namespace").write_text("train")
    (tmp_path / "token").write_text("t")
    yield api
    api.stop()


def test_node_0_tells_the_stateful_set_until_it_is_heard(api: Api) -> None:
    said: list[str] = []
    park(SAID, 0, said.append, lambda: len(api.patches) == 3)
    (_refused, (noted, note), (scaled, scale)) = api.patches
    own = "/apis/apps/v1/namespaces/train/statefulsets/my-run"
    assert [path.partition("?")[0] for path in (noted, scaled)] == [f"{own}/status", f"{own}/scale"]
    assert scale == {"spec": {"replicas": 0}}
    assert json.loads(note["metadata"]["annotations"][OUTCOME]) == SAID
    assert len([line for line in said if "tried again" in line]) == 2, "a cut connection and a refusal"


def test_other_nodes_only_stay(api: Api) -> None:
    polls = iter([False, False, True])
    park(SAID, 1, lambda _text: None, lambda: next(polls))
    assert api.patches == [] and api.failures == ["cut", "503"]


def test_without_a_token_it_says_so(api: Api, tmp_path: Path) -> None:
    (tmp_path / "token").unlink()
    said: list[str] = []
    polls = iter([False, True])
    park(SAID, 0, said.append, lambda: next(polls))
    assert any("no service-account token" in line for line in said)
    assert api.patches == []
