"""What a kubeconfig says beyond the address and a token, as kubectl takes it."""

from __future__ import annotations

import base64
import json
import os
from collections import defaultdict
from datetime import date
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankzero.errors import ConfigError, RankzeroError, ServiceError
from rankzero.launch.backends.kubernetes import kubeconfig
from rankzero.launch.backends.kubernetes.api import Api
from rankzero.launch.backends.kubernetes.auth import connect
from rankzero.launch.backends.kubernetes.backend import KubernetesBackend, open_kubernetes
from rankzero.launch.backends.kubernetes.kubeconfig import namespace_of
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


def test_what_a_pipe_says_is_read_once_for_all_who_ask(bench: Bench) -> None:
    """As of KUBECONFIG=<(…)."""
    value = config(bench.cluster.url, token=TOKEN)
    value["contexts"][0]["context"]["namespace"] = "of-the-pipe"
    reads, writes = os.pipe()
    try:
        os.write(writes, yaml.safe_dump(value).encode())
        os.close(writes)
        env = {"KUBECONFIG": f"/dev/fd/{reads}"}
        assert namespace_of(None, env) == "of-the-pipe"
        assert open_kubernetes(None, "train", say=bench.said.append, env=env).runs() == []
    finally:
        os.close(reads)


def test_what_is_empty_or_a_directory_adds_nothing(bench: Bench, tmp_path: Path) -> None:
    write(tmp_path / "k", config(bench.cluster.url, token=TOKEN))
    env = {"KUBECONFIG": f"/dev/null:{tmp_path}:{tmp_path / 'k'}"}
    assert open_kubernetes(None, "train", say=bench.said.append, env=env).runs() == []
    for named in ("/dev/null", str(tmp_path)):
        with pytest.raises(ConfigError, match="no current context|no such file"):
            connect(None, {"KUBECONFIG": named})


def test_a_pods_own_service_account_is_no_context(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is printed for people to type works in the pod, where kubectl finds the account without one."""
    for name, content in {"token": TOKEN, "namespace": "train", "ca.crt": authority().pem.decode()}.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(kubeconfig, "SERVICE_ACCOUNT", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "9")
    env = {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "127.0.0.1"}
    api = Api(connect(None, env), "train", say=bench.said.append, clock=Ticks().clock())
    with pytest.raises(ServiceError, match="does not answer") as caught:
        KubernetesBackend(api).runs()
    assert "`kubectl get pods -n train`" in caught.value.problems[0].hint


def test_a_context_whose_name_a_shell_would_split(bench: Bench, tmp_path: Path) -> None:
    value = config("http://127.0.0.1:9", token=TOKEN)
    value["current-context"] = value["contexts"][0]["name"] = "my cluster"
    api = Api(connect(None, write(tmp_path / "k", value)), "train", say=bench.said.append, clock=Ticks().clock())
    with pytest.raises(ServiceError, match="does not answer") as caught:
        KubernetesBackend(api).runs()
    assert "`kubectl --context 'my cluster' get pods -n train`" in caught.value.problems[0].hint


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


CLUSTER, USER = ("clusters", "cluster"), ("users", "user")


@pytest.mark.parametrize(
    ("part", "put", "words"),
    [
        (CLUSTER, "canary", "the cluster c has no fields"),
        (CLUSTER, ["canary"], "the cluster c has no fields"),
        (USER, ["canary"], "the user u has no fields"),
        (("contexts", "context"), "canary", "the context here has no fields"),
        (CLUSTER, {"server": "https://h", "proxy-url": 5}, "proxy-url of the cluster c is no text"),
        (
            CLUSTER,
            {"server": "https://h", "tls-server-name": ["canary"]},
            "tls-server-name of the cluster c is no text",
        ),
        (("clusters", "name"), ["canary"], "one of its clusters has no name"),
        (("current-context",), ["canary"], "its current-context is no name"),
    ],
)
def test_values_of_other_kinds_are_named_and_not_shown(
    tmp_path: Path, part: tuple[str, ...], put: object, words: str
) -> None:
    value = config("https://h", token=TOKEN)
    if len(part) == 1:
        value[part[0]] = put
    else:
        value[part[0]][0][part[1]] = put
    with pytest.raises(ConfigError, match=f"not a kubeconfig: {words}") as caught:
        connect(None, write(tmp_path / "k", value))
    (problem,) = caught.value.problems
    assert problem.where == str(tmp_path / "k") and "canary" not in str(caught.value)


def test_values_of_other_kinds_that_nothing_chooses_are_left_alone(tmp_path: Path) -> None:
    value = config("https://h", token=TOKEN)
    value["clusters"].append({"name": "d", "cluster": {"server": "https://h", "proxy-url": 5}})
    first = write(tmp_path / "a", value)["KUBECONFIG"]
    second = write(tmp_path / "b", {"current-context": ["x"], "clusters": [{"name": "c", "cluster": "x"}]})[
        "KUBECONFIG"
    ]
    assert connect(None, {"KUBECONFIG": f"{first}:{second}"}).server == "https://h"


def test_a_control_character_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "k").write_text("apiVersion: v1\nusers: []\ntoken: can\x07ary\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="not YAML: it has a control character") as caught:
        connect(None, {"KUBECONFIG": str(tmp_path / "k")})
    assert caught.value.problems[0].where == f"{tmp_path / 'k'}:3" and "ary" not in caught.value.problems[0].what


def test_contexts_that_are_numbers_are_listed(tmp_path: Path) -> None:
    value = config("https://h", token=TOKEN)
    value["contexts"].append({"name": 5, "context": {"cluster": "c", "user": "u"}})
    with pytest.raises(ConfigError, match="there is no context there") as caught:
        connect("there", write(tmp_path / "k", value))
    assert caught.value.problems[0].hint == "contexts there: 5, here"


class TestProxiesOfThisMachine:
    """Who goes through them, and who is told of them."""

    DEAD = "http://127.0.0.1:9"

    @pytest.fixture(autouse=True)
    def no_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            monkeypatch.delenv(name)

    @pytest.mark.parametrize("way", ["token", "login command"])
    def test_a_server_on_this_machine_is_asked_directly(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
    ) -> None:
        """As kubectl asks kind's, minikube's, and what a tunnel leads to."""
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, self.DEAD)
        said = json.dumps({"status": {"token": TOKEN}})
        command = {"apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": [said]}
        user: dict[str, Any] = {"token": TOKEN} if way == "token" else {"exec": command}
        for host in ("127.0.0.1", "localhost"):
            env = write(tmp_path / "k", config(bench.cluster.url.replace("127.0.0.1", host), **user))
            assert open_kubernetes(None, "train", say=bench.said.append, env=env).runs() == []

    def test_others_are_asked_through_them(self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The fake cluster plays a proxy for an address that is nowhere."""
        monkeypatch.setenv("http_proxy", bench.cluster.url.removeprefix("http://"))
        env = write(tmp_path / "k", config("http://cluster.invalid", token=TOKEN))
        assert open_kubernetes(None, "train", say=bench.said.append, env=env).runs() == []

    def test_all_proxy_is_for_where_there_is_no_other(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Which kubectl does not read."""
        env = write(tmp_path / "k", config("https://cluster.invalid", token=TOKEN))
        monkeypatch.setenv("ALL_PROXY", self.DEAD)
        assert connect(None, env).proxy == "environment ALL_PROXY"
        monkeypatch.setenv("HTTPS_PROXY", self.DEAD)
        assert connect(None, env).proxy == "environment HTTPS_PROXY"
        monkeypatch.setenv("NO_PROXY", "cluster.invalid")
        assert connect(None, env).proxy == ""

    @pytest.mark.parametrize(
        ("server", "listed", "direct"),
        [
            ("https://10.1.2.3:6443", "10.0.0.0/8", True),
            ("https://10.1.2.3:6443", "192.168.0.0/16,10.1.2.3", True),
            ("https://10.1.2.3:6443", "10.1.2.3:6443", True),
            ("https://10.1.2.3:6443", "10.1.2.3:443,192.168.0.0/16,1.2.3", False),
            ("https://api.corp.example", "example", True),
            ("https://api.corp.example", "a, .corp.Example ", True),
            ("https://api.corp.example", "*.corp.example", True),
            ("https://API.corp.example", "api.corp.example:443", True),
            ("https://api.corp.example", "pi.corp.example,.api.corp.example,", False),
            ("https://api.corp.example", "*", True),
            ("https://[fd00::1]:6443", "fd00::/8", True),
            ("https://[fd00::1]:6443", "[fd00::1]:6443", True),
            ("https://[fd00::1]:6443", "10.0.0.0/8,fd00::2", False),
            ("https://[::1]:6443", "", True),
            ("https://127.9.9.9:6443", "", True),
            ("https://localhost.example", "", False),
        ],
    )
    def test_no_proxy_is_read_as_kubectl_reads_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, listed: str, direct: bool
    ) -> None:
        monkeypatch.setenv("HTTPS_PROXY", self.DEAD)
        monkeypatch.setenv("NO_PROXY", listed)
        connection = connect(None, write(tmp_path / "k", config(server, token=TOKEN)))
        assert connection.proxy == ("" if direct else "environment HTTPS_PROXY")

    @pytest.mark.parametrize("of", ["this machine", "the cluster"])
    def test_one_that_leads_nowhere_is_named(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
    ) -> None:
        value = config("https://cluster.invalid", token=TOKEN)
        if of == "this machine":
            monkeypatch.setenv("HTTPS_PROXY", "http://me:canary@127.0.0.1:9")
        else:
            value["clusters"][0]["cluster"]["proxy-url"] = "http://me:canary@127.0.0.1:9"
        api = Api(connect(None, write(tmp_path / "k", value)), "train", say=bench.said.append, clock=Ticks().clock())
        with pytest.raises(ServiceError, match="does not answer") as caught:
            KubernetesBackend(api).runs()
        named = "environment HTTPS_PROXY" if of == "this machine" else f"{tmp_path / 'k'} proxy-url"
        (problem,) = caught.value.problems
        assert problem.hint.endswith(f"; the way there is through a proxy ({named})")
        assert "canary" not in f"{problem} {bench.said}"
