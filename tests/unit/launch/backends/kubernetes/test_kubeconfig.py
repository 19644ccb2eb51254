"""What a kubeconfig says beyond the address and a token, as kubectl takes it."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from datetime import date
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from rankzero.errors import ConfigError, RankzeroError
from rankzero.launch.backends.kubernetes.api import Api
from rankzero.launch.backends.kubernetes.auth import connect
from rankzero.launch.backends.kubernetes.backend import KubernetesBackend, open_kubernetes
from rankzero.launch.resource import POD
from tests.support.certificates import authority
from tests.support.fake_cluster import TOKEN
from tests.support.servers import serving
from tests.unit.launch.backends.kubernetes.runs import Bench, Ticks
from tests.unit.launch.backends.kubernetes.test_connect import config, login, write


class Noting(BaseHTTPRequestHandler):
    """Answers with an empty list, and notes what came with each request. A subclass has its own notes."""

    protocol_version = "HTTP/1.1"
    headers_seen: list[dict[str, list[str]]]

    def __init_subclass__(cls) -> None:
        cls.headers_seen = []

    def do_GET(self) -> None:
        seen: dict[str, list[str]] = defaultdict(list)
        for name, value in self.headers.items():
            seen[name.lower()].append(value.encode("latin-1").decode())
        self.headers_seen.append(dict(seen))
        body = json.dumps({"metadata": {"resourceVersion": "1"}, "items": []}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Quiet."""


def api_of(value: Any, directory: Path) -> Api:
    return Api(connect(None, write(directory / "k", value)), "train", say=lambda _: None, clock=Ticks().clock())


class TestImpersonation:
    """`as` and what goes with it."""

    EVERYTHING = {
        "as": "älice",
        "as-uid": "42",
        "as-groups": ["team a", "team-b"],
        "as-user-extra": {"acme.com/Project%": ["x", "y"], "scopes": ["view"]},
    }
    HEADERS = {
        "impersonate-user": ["älice"],
        "impersonate-uid": ["42"],
        "impersonate-group": ["team a", "team-b"],
        "impersonate-extra-acme.com%2fproject%25": ["x", "y"],
        "impersonate-extra-scopes": ["view"],
    }

    @pytest.mark.parametrize("way", ["token", "login command"])
    def test_every_request_says_for_whom_it_is(self, tmp_path: Path, way: str) -> None:
        class Server(Noting):
            """Of this test."""

        said = json.dumps({"status": {"token": TOKEN}})
        command = {"apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": [said]}
        user = {"token": TOKEN} if way == "token" else {"exec": command}
        with serving(Server) as url:
            api = api_of(config(url, **user, **self.EVERYTHING), tmp_path)
            api.list(POD)
            with pytest.raises(RankzeroError):  # this server runs no commands
                KubernetesBackend(api).execute("p", ["true"], lambda _: None)
            api.close()
        assert len(Server.headers_seen) >= 3
        for seen in Server.headers_seen:
            assert seen["authorization"] == [f"Bearer {TOKEN}"]
            assert {name: value for name, value in seen.items() if name.startswith("impersonate")} == self.HEADERS

    def test_nobody_else_where_nobody_is_named(self, tmp_path: Path) -> None:
        class Server(Noting):
            """Of this test."""

        with serving(Server) as url:
            api = api_of(config(url, **{"token": TOKEN, "as": None, "as-groups": [], "as-uid": ""}), tmp_path)
            api.list(POD)
            api.close()
        assert not [name for name in Server.headers_seen[0] if name.startswith("impersonate")]

    @pytest.mark.parametrize(
        ("user", "words"),
        [
            ({"as-groups": ["team-a"]}, "has no `as`"),
            ({"as": "alice", "as-groups": "team-a"}, r"of its user, Expected `array \| null`, got `str`"),
            ({"as": 7}, r"of its user, Expected `str \| null`, got `int`"),
        ],
    )
    def test_what_kubectl_refuses(self, tmp_path: Path, user: dict[str, Any], words: str) -> None:
        env = write(tmp_path / "k", config("http://127.0.0.1:1", token=TOKEN, **user))
        with pytest.raises(ConfigError, match=words) as caught:
            connect(None, env)
        assert caught.value.problems[0].where == str(tmp_path / "k")


class TestWhatALoginCommandIsTold:
    """In KUBERNETES_EXEC_INFO."""

    def told(self, bench: Bench, tmp_path: Path, cluster: dict[str, Any], **command: Any) -> Any:
        script = f"""
with open({str(tmp_path / "told")!r}, "w") as file:
    file.write(os.environ["KUBERNETES_EXEC_INFO"])
print(json.dumps({{"status": {{"token": {TOKEN!r}}}}}))"""
        asked = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(login(tmp_path, script)), **command}
        value = config(bench.cluster.url, exec=asked)
        value["clusters"][0]["cluster"] |= cluster
        env = write(tmp_path / "k", value)
        assert open_kubernetes(None, "train", say=bench.said.append, env=env).runs() == []
        return json.loads((tmp_path / "told").read_text())["spec"]

    def test_nothing_of_the_cluster_where_it_did_not_ask(self, bench: Bench, tmp_path: Path) -> None:
        assert self.told(bench, tmp_path, {"tls-server-name": "api"}) == {"interactive": False}
        assert self.told(bench, tmp_path, {}, provideClusterInfo=False) == {"interactive": False}

    def test_all_of_the_cluster_where_it_asked(self, bench: Bench, tmp_path: Path) -> None:
        own = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a", "since": date(2026, 11, 1)}}
        cluster = {
            "tls-server-name": "api.inside",
            "insecure-skip-tls-verify": True,
            "proxy-url": bench.cluster.url,
            "extensions": [{"name": "somebody's", "extension": {"x": 1}}, own],
        }
        told = self.told(bench, tmp_path, cluster, provideClusterInfo=True)
        assert told["cluster"] == {
            "server": bench.cluster.url,
            "tls-server-name": "api.inside",
            "insecure-skip-tls-verify": True,
            "proxy-url": bench.cluster.url,
            "config": {"audience": "a", "since": "2026-11-01"},
        }

    @pytest.mark.parametrize("way", ["data", "file"])
    def test_the_authority_wherever_it_stands(self, bench: Bench, tmp_path: Path, way: str) -> None:
        pem = authority().pem
        (tmp_path / "ca.pem").write_bytes(pem)
        data = base64.b64encode(pem).decode()
        cluster = {"certificate-authority-data": data} if way == "data" else {"certificate-authority": "ca.pem"}
        told = self.told(bench, tmp_path, cluster, provideClusterInfo=True)
        assert told["cluster"] == {"server": bench.cluster.url, "certificate-authority-data": data}
