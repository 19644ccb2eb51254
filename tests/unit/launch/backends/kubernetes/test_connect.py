"""Finding the cluster, logging in, and what it serves."""

from __future__ import annotations

import json
import os
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from lightkube.config.models import UserExec

from rankzero.errors import AccessError, ConfigError, ServiceError
from rankzero.launch.backend import LogQuery
from rankzero.launch.backends.kubernetes import kubeconfig
from rankzero.launch.backends.kubernetes import login as logins
from rankzero.launch.backends.kubernetes.api import ATTEMPTS, Api
from rankzero.launch.backends.kubernetes.auth import Connection, ExecLogin, connect
from rankzero.launch.backends.kubernetes.backend import KubernetesBackend, open_kubernetes
from rankzero.launch.backends.kubernetes.connections import Connections
from rankzero.launch.backends.kubernetes.discover import Discovery
from rankzero.launch.backends.kubernetes.errors import ApiError, as_error
from rankzero.launch.backends.kubernetes.streams import Streams
from rankzero.launch.resource import POD
from rankzero.launch.silence import SilentError
from tests.support.fake_cluster import TOKEN
from tests.unit.launch.backends.kubernetes.runs import Bench, Ticks


def config(server: str, **user: Any) -> dict[str, Any]:
    return {
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": user}],
    }


def write(path: Path, value: Any) -> dict[str, str]:
    """An environment with this kubeconfig."""
    path.write_text(yaml.safe_dump(value), encoding="utf-8")
    return {"KUBECONFIG": str(path)}


def test_there_is_no_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no kubeconfig") as caught:
        connect(None, {"HOME": str(tmp_path)})
    assert "KUBECONFIG" in caught.value.problems[0].hint


def test_a_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        connect(None, {"KUBECONFIG": str(tmp_path / "nowhere")})


def test_a_context_that_is_not_there(tmp_path: Path) -> None:
    env = write(tmp_path / "k", config("http://127.0.0.1:1", token="t"))
    with pytest.raises(ConfigError, match="there is no context there") as caught:
        connect("there", env)
    assert "contexts there: here" in caught.value.problems[0].hint


def test_several_files_are_one_and_the_first_that_has_a_name_counts(tmp_path: Path) -> None:
    write(tmp_path / "a", {**config("http://127.0.0.1:1", token="t"), "current-context": "here"})
    other = config("http://127.0.0.1:2", token="t")
    other["contexts"][0] = {"name": "there", "context": {"cluster": "d", "user": "u"}}
    other["clusters"].append({"name": "d", "cluster": {"server": "http://127.0.0.1:2"}})
    write(tmp_path / "b", other)
    env = {"KUBECONFIG": f"{tmp_path / 'a'}:{tmp_path / 'b'}"}
    assert connect(None, env).server == "http://127.0.0.1:1"
    assert connect("there", env).server == "http://127.0.0.1:2"


@pytest.mark.parametrize("text", ["a: [b", "- just\n- a list\n", "users: 3\n", "\tx"])
def test_a_broken_kubeconfig_is_not_quoted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "k"
    path.write_text(f"# token: canary-in-kubeconfig\n{text}", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        connect(None, {"KUBECONFIG": str(path)})
    assert str(path) in str(caught.value)
    assert "canary" not in str(caught.value)


def test_401(bench: Bench, tmp_path: Path) -> None:
    env = write(tmp_path / "k", config(bench.cluster.url, token="wrong"))
    with pytest.raises(AccessError, match="does not accept these credentials") as caught:
        open_kubernetes(None, "train", say=bench.said.append, env=env).runs()
    assert "log in again" in caught.value.problems[0].hint


def test_a_server_that_cannot_be_reached(bench: Bench, tmp_path: Path) -> None:
    env = write(tmp_path / "k", config("http://127.0.0.1:9", token="t"))
    api = Api(connect(None, env), "train", say=bench.said.append, clock=bench.ticks.clock())
    with pytest.raises(ServiceError, match="does not answer") as caught:
        KubernetesBackend(api).runs()
    assert "--context here" in caught.value.problems[0].hint
    assert len(bench.ticks.slept) == 5 and bench.ticks.seconds < 60


def test_something_else_answers(bench: Bench, tmp_path: Path) -> None:
    bench.cluster.fail("GET", "/apis", drop="before", times=1)
    assert bench.backend().runs() == []  # one dropped connection is nothing


def login(directory: Path, body: str) -> Path:
    path = directory / "login"
    path.write_text(f"#!/usr/bin/env python3\nimport json, os, sys\n{body}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_login_command(bench: Bench, tmp_path: Path, version: str) -> None:
    count = tmp_path / "count"
    script = f"""
open({str(count)!r}, "a").write("x")
assert json.loads(os.environ["KUBERNETES_EXEC_INFO"])["spec"]["interactive"] is False
assert os.environ["EXTRA"] == "1" and sys.argv[1:] == ["token"]
first = os.path.getsize({str(count)!r}) == 1
print(json.dumps({{"status": {{"token": "stale" if first else {TOKEN!r}}}}}))
"""
    command = {
        "apiVersion": f"client.authentication.k8s.io/{version}",
        "command": str(login(tmp_path, script)),
        "args": ["token"],
        "env": [{"name": "EXTRA", "value": "1"}],
    }
    env = write(tmp_path / "k", config(bench.cluster.url, exec=command))
    backend = open_kubernetes(None, "train", say=bench.said.append, env=env)
    assert backend.runs() == backend.runs() == []
    assert count.read_text() == "xx"  # once, and once more because the first token was refused


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("sys.exit('please log in')", "failed with exit code 1: please log in"),
        ("print('canary-token')", "it gave no token and no certificate"),
    ],
)
def test_a_login_command_that_fails(bench: Bench, tmp_path: Path, body: str, words: str) -> None:
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(login(tmp_path, body))}
    env = write(tmp_path / "k", config(bench.cluster.url, exec=command))
    with pytest.raises(AccessError, match=words) as caught:
        open_kubernetes(None, "train", say=bench.said.append, env=env).runs()
    assert "canary" not in str(caught.value)


ASKS = "print('open https://login and enter ABCD', file=sys.stderr, flush=True); sys.stdin.read()"


def test_what_a_login_command_asks_for_is_heard(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And it gets no input that is not a terminal's."""
    monkeypatch.setenv("MY_TOKEN", "canary-secret")
    said = "print(os.environ['MY_TOKEN'], file=sys.stderr)"
    token = f"print(json.dumps({{'status': {{'token': {TOKEN!r}}}}}))"
    command = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": str(login(tmp_path, f"{ASKS}; {said}; {token}")),
    }
    env = write(tmp_path / "k", config(bench.cluster.url, exec=command))
    assert open_kubernetes(None, "train", say=bench.said.append, env=env).runs() == []
    assert capfd.readouterr().err == "open https://login and enter ABCD\n[hidden]\n"


def test_no_secret_of_a_login_command_is_heard(
    bench: Bench, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of its own environment, a private key line by line, and a token that comes in two parts."""
    monkeypatch.setenv("HF_TOKEN", "hf_canary89canary89canary89")
    parts = [
        *("with canary-vault\n", "-----BEGIN PRIVATE KEY-----\n", "canaryMIIEvQ", "IBADAN\n"),
        *("-----END PRIVATE KEY-----\n", "hf_canary89", "canary89canary89\n", "code? "),
    ]
    script = f"""
import fcntl, termios, time
for part in {parts!r}:
    print(part, end="", file=sys.stderr, flush=True)
    while any(fcntl.ioctl(2, termios.FIONREAD, bytes(4))):
        pass  # nobody has read it
while not os.path.exists({str(tmp_path / "heard")!r}):
    time.sleep(0.01)
sys.exit(3)"""
    command = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": str(login(tmp_path, script)),
        "env": [{"name": "VAULT_TOKEN", "value": "canary-vault"}],
    }
    env = write(tmp_path / "k", config(bench.cluster.url, exec=command))
    backend = open_kubernetes(None, "train", say=bench.said.append, env=env)
    with ThreadPoolExecutor() as pool:
        done = pool.submit(backend.runs)
        heard = ""
        while not heard.endswith("code? ") and not done.done():  # a question is heard while it waits
            heard += capfd.readouterr().err
        (tmp_path / "heard").touch()
        error = done.exception()
    assert heard.endswith("[hidden]\n[hidden]\ncode? ") and "canary" not in heard
    assert isinstance(error, AccessError) and "canary" not in str(error) and "code?" in str(error)


def test_a_login_command_that_nobody_answers(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankzero.launch.backends.kubernetes.login.PATIENCE_SECONDS", 0.1)
    path = login(tmp_path, f"{ASKS}; import signal; signal.pause()")
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(path), "args": ["-x"]}
    env = write(tmp_path / "k", config(bench.cluster.url, exec=command))
    with pytest.raises(AccessError, match="has not ended") as caught:
        open_kubernetes(None, "train", say=bench.said.append, env=env).runs()
    assert caught.value.problems[0].hint == f"log in first: {path} -x"


@pytest.mark.parametrize("how", ["timeout", "Ctrl-C"])
def test_nothing_is_left_of_a_login_command_that_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Nor of what it started, where there is no terminal that tells all of them."""
    monkeypatch.setattr(logins, "_has_terminal", lambda: False)
    left, holds = os.pipe()  # at its end once nobody holds it any more
    child = f"import os, time; time.sleep(10); os.write({holds}, b'a child')"
    path = login(
        tmp_path, f"import signal, subprocess\nsubprocess.Popen([sys.executable, '-c', {child!r}], close_fds=False)"
    )
    with path.open("a", encoding="utf-8") as script:
        script.write("os.kill(os.getppid(), signal.SIGINT)\n" if how == "Ctrl-C" else "")
        script.write("signal.pause()\n")
    monkeypatch.setattr(logins, "PATIENCE_SECONDS", 1.0 if how == "timeout" else 60.0)
    monkeypatch.setattr(subprocess, "Popen", partial(subprocess.Popen, pass_fds=[holds]))
    try:
        with pytest.raises(AccessError if how == "timeout" else KeyboardInterrupt):
            logins.log_in([str(path)], os.environ, asks=False, where="login command")
    finally:
        os.close(holds)
    with open(left, "rb") as pipe:
        assert pipe.read() == b""


def test_a_login_command_whose_child_lives_on_has_given_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "PATIENCE_SECONDS", 20.0)
    os.mkfifo(tmp_path / "ends")
    holds = os.open(tmp_path / "ends", os.O_RDWR)
    child = f"['cat', {str(tmp_path / 'ends')!r}]"
    path = login(tmp_path, f"import subprocess\nprint('answer', flush=True)\nsubprocess.Popen({child})")
    try:
        done = logins.log_in([str(path)], os.environ, asks=False, where="login command")
    finally:
        os.write(holds, b"end")
        os.close(holds)
    assert (done.code, done.out) == (0, b"answer\n")


@pytest.mark.parametrize("mode", ["Always", "Never", "IfAvailable"])
def test_a_login_command_gets_the_terminal_as_its_mode_says(bench: Bench, tmp_path: Path, mode: str) -> None:
    script = f"""
asks = json.loads(os.environ["KUBERNETES_EXEC_INFO"])["spec"]["interactive"]
assert asks is os.isatty(0) is {mode != "Never"}
print(json.dumps({{"status": {{"token": {TOKEN!r}}}}}))"""
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(login(tmp_path, script))}
    env = write(tmp_path / "k", config(bench.cluster.url, exec={**command, "interactiveMode": mode}))
    before, (ours, theirs) = os.dup(0), os.openpty()
    os.dup2(theirs, 0)
    try:
        assert open_kubernetes(None, "train", say=bench.said.append, env=env).runs() == []
    finally:
        os.dup2(before, 0)
        for one in (before, ours, theirs):
            os.close(one)


def test_a_login_command_that_needs_a_terminal_where_there_is_none(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": "false", "interactiveMode": "Always"}
    env = write(tmp_path / "k", config(bench.cluster.url, exec=command))
    monkeypatch.setattr("os.isatty", lambda _: False)
    with pytest.raises(AccessError, match="there is no terminal") as caught:
        open_kubernetes(None, "train", say=bench.said.append, env=env).runs()
    assert caught.value.problems[0].hint == "log in first: false"


@pytest.mark.parametrize(
    "said",
    [
        '{"status": "x"}',
        '{"status": null}',
        '{"status": []}',
        "[1]",
        "7",
        '{"status": {"token": ["a"], "expirationTimestamp": 5}}',
    ],
)
def test_a_login_command_that_says_something_else(bench: Bench, tmp_path: Path, said: str) -> None:
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": [said]}
    env = write(tmp_path / "k", config(bench.cluster.url, exec=command))
    with pytest.raises(AccessError, match="it gave no token and no certificate"):
        open_kubernetes(None, "train", say=bench.said.append, env=env).runs()


def test_an_end_without_a_time_zone_is_in_utc(bench: Bench, tmp_path: Path) -> None:
    said = json.dumps({"status": {"token": TOKEN, "expirationTimestamp": "2100-01-01T00:00:00"}})
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": [said]}
    env = write(tmp_path / "k", config(bench.cluster.url, exec=command))
    backend = open_kubernetes(None, "train", say=bench.said.append, env=env)
    assert backend.runs() == backend.runs() == []


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({"client-certificate-data": "aGVsbG8="}, "a client certificate and no key"),
        ({"client-certificate": "/nowhere"}, "a client certificate and no key"),
        ({"tokenFile": 5}, "not a kubeconfig"),
    ],
)
def test_a_user_that_is_not_whole(tmp_path: Path, user: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        connect(None, write(tmp_path / "k", config("https://127.0.0.1:1", **user)))
    assert str(tmp_path / "k") in caught.value.problems[0].where


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_of_a_token_that_cannot_be_read(bench: Bench, tmp_path: Path, content: bytes | None) -> None:
    """It may be gone by the time that it is read again."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    env = write(tmp_path / "k", config(bench.cluster.url, tokenFile=str(file)))
    backend = open_kubernetes(None, "train", say=bench.said.append, env=env)
    assert backend.runs() == []
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(AccessError, match="cannot be read") as caught:
        list(backend.logs("r", LogQuery(follow=True)))
    (problem,) = caught.value.problems
    assert problem.where == f"tokenFile {file}" and "log in again" in problem.hint


def test_a_token_that_was_renewed_in_its_file_is_taken(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("of before")
    env = write(tmp_path / "k", config(bench.cluster.url, tokenFile=str(file)))
    backend = open_kubernetes(None, "train", say=bench.said.append, env=env)
    with pytest.raises(AccessError, match="does not accept these credentials"):
        backend.runs()
    file.write_text(f"{TOKEN}\n")
    assert backend.runs() == []


@pytest.mark.parametrize("way", ["token", "tokenFile", "exec"])
def test_a_token_that_no_header_takes_is_not_shown(bench: Bench, tmp_path: Path, way: str) -> None:
    """The client's own error quotes it, and it is no silence of the server, which would be waited out."""
    token = "canary\ncanary"
    (tmp_path / "token").write_text(token)
    said = json.dumps({"status": {"token": token}})
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": [said]}
    user: dict[str, Any] = {"token": token, "tokenFile": str(tmp_path / "token"), "exec": command}
    env = write(tmp_path / "k", config(bench.cluster.url, **{way: user[way]}))
    with pytest.raises(AccessError, match="line break or the like") as caught:
        open_kubernetes(None, "train", say=bench.said.append, env=env).runs()
    assert "canary" not in f"{caught.value} {bench.said}" and bench.cluster.requests == []


def test_a_token_with_an_end_of_its_line_is_taken(bench: Bench, tmp_path: Path) -> None:
    env = write(tmp_path / "k", config(bench.cluster.url, token=f"{TOKEN}\n"))
    assert open_kubernetes(None, "train", say=bench.said.append, env=env).runs() == []


def without_socks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)


def test_a_proxy_of_the_cluster_that_needs_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_socks(monkeypatch)
    value = config("http://cluster.invalid", token=TOKEN)
    value["clusters"][0]["cluster"]["proxy-url"] = "socks5://127.0.0.1:9"
    with pytest.raises(ConfigError, match="a SOCKS proxy needs the package socksio") as caught:
        connect(None, write(tmp_path / "k", value))
    (problem,) = caught.value.problems
    assert problem.where == f"{tmp_path / 'k'} proxy-url" and "pip install socksio" in problem.hint


def test_a_proxy_of_this_machine_that_needs_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_socks(monkeypatch)
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    with pytest.raises(ConfigError, match="a SOCKS proxy needs the package socksio") as caught:
        connect(None, write(tmp_path / "k", config("http://cluster.invalid", token=TOKEN)))
    assert caught.value.problems[0].where == "environment ALL_PROXY"


def test_an_address_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot use context here"):
        connect(None, write(tmp_path / "k", config("http://127.0.0.1:abc", token=TOKEN)))


@pytest.mark.parametrize("of", ["this machine", "the cluster"])
@pytest.mark.parametrize(
    "url",
    [
        "socks4://me:canary@127.0.0.1:9",
        "http://me:canary@127.0.0.1:99999",
        "http://me:can/ary@127.0.0.1:9",
        "http://me:canary@127.0.0.1:abc",
        "http://me:can\u0007ary@127.0.0.1:9",
        "http://me:12/canary@127.0.0.1:9",
        "http://me:12#canary@127.0.0.1:9",
        "http://",
        "foo://",
    ],
)
def test_a_proxy_that_is_none_is_blamed_on_what_names_it_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, of: str
) -> None:
    value = config("http://cluster.invalid", token=TOKEN)
    if of == "this machine":
        monkeypatch.setenv("http_proxy", url)
    else:
        value["clusters"][0]["cluster"]["proxy-url"] = url
    with pytest.raises(ConfigError, match="is no proxy's address") as caught:
        connect(None, write(tmp_path / "k", value))
    (problem,) = caught.value.problems
    assert problem.where == ("environment http_proxy" if of == "this machine" else f"{tmp_path / 'k'} proxy-url")
    assert "can" not in f"{problem.what} {problem.hint}" and "%2F" in problem.hint
    assert caught.value.__cause__ is None


def test_a_service_account_that_is_not_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("t")
    monkeypatch.setattr(kubeconfig, "SERVICE_ACCOUNT", str(tmp_path))
    with pytest.raises(ConfigError, match="service account of this pod cannot be used"):
        connect(None, {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"})


def test_a_login_command_that_is_not_installed(bench: Bench, tmp_path: Path) -> None:
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-login", "installHint": "get it"}
    env = write(tmp_path / "k", config(bench.cluster.url, exec=command))
    with pytest.raises(AccessError) as caught:
        open_kubernetes(None, "train", say=bench.said.append, env=env).runs()
    assert caught.value.problems[0].hint == "get it"


class TestServed:
    """What the cluster can run."""

    def test_kinds(self, bench: Bench) -> None:
        bench.cluster.plurals -= {"jobsets", "trainjobs", "trainingruntimes"}
        bench.cluster.publish()
        assert set(Discovery(bench.api()).training()) == {"job", "statefulset", "pytorchjob"}

    def test_a_group_without_the_kind(self, bench: Bench) -> None:
        """Katib and the Training Operator share a group."""
        bench.cluster.plurals.discard("pytorchjobs")
        bench.cluster.publish()
        shown = {"groupVersion": "kubeflow.org/v1", "version": "v1"}
        bench.cluster.documents["/apis"]["groups"].append({"name": "kubeflow.org", "versions": [shown]})
        bench.cluster.documents["/apis/kubeflow.org/v1"] = {"resources": [{"name": "experiments"}]}
        assert "pytorchjob" not in Discovery(bench.api()).training()


def test_the_token_is_in_no_repr(bench: Bench) -> None:
    connection = connect(None, {"KUBECONFIG": str(bench.cluster.kubeconfig(bench.directory))})
    assert TOKEN not in repr(connection) + json.dumps(str(connection))


def test_a_context_may_refer_to_what_another_file_has(bench: Bench, tmp_path: Path) -> None:
    whole = config(bench.cluster.url, token=TOKEN)
    write(tmp_path / "a", {"current-context": "", "contexts": whole["contexts"]})
    write(tmp_path / "b", {"current-context": "here", "clusters": whole["clusters"], "users": whole["users"]})
    env = {"KUBECONFIG": f"{tmp_path / 'a'}:{tmp_path / 'b'}"}
    assert open_kubernetes(None, "train", say=bench.said.append, env=env).runs() == []


def test_files_are_relative_to_the_kubeconfig(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "token").write_text(TOKEN)
    env = write(tmp_path / "k", config(bench.cluster.url, tokenFile="token"))
    assert open_kubernetes(None, "train", say=bench.said.append, env=env).runs() == []


def test_the_clusters_proxy_is_asked(bench: Bench, tmp_path: Path) -> None:
    """The fake cluster plays a proxy for an address that is nowhere."""
    value = config("http://cluster.invalid", token=TOKEN)
    value["clusters"][0]["cluster"]["proxy-url"] = bench.cluster.url
    assert open_kubernetes(None, "train", say=bench.said.append, env=write(tmp_path / "k", value)).runs() == []


def test_the_name_in_the_servers_certificate_may_be_another(tmp_path: Path) -> None:
    value = config("https://127.0.0.1:1", token="t")
    value["clusters"][0]["cluster"]["tls-server-name"] = "api.inside"
    http = connect(None, write(tmp_path / "k", value)).http
    asked: list[Any] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.extensions.get("sni_hostname"))
        return httpx2.Response(200)

    http._transport = httpx2.MockTransport(answer)
    http.get("/apis")
    assert asked == ["api.inside"]


def test_a_login_command_may_give_a_certificate(tmp_path: Path) -> None:
    status = {"clientCertificateData": "-- cert --", "clientKeyData": "-- key --"}
    loaded: list[tuple[str, str]] = []

    class Tls:
        def load_cert_chain(self, file: str) -> None:
            loaded.append((file, Path(file).read_text()))

    command = UserExec("client.authentication.k8s.io/v1", "echo", args=[json.dumps({"status": status})])
    login = ExecLogin(command, tls=Tls())  # type: ignore[arg-type]
    request = next(login.sync_auth_flow(httpx2.Request("GET", "https://x")))
    assert "Authorization" not in request.headers
    (file, text) = loaded[0]
    assert text == "-- cert --\n-- key --"
    assert not Path(file).exists()


class Faulty:
    """A server that answers, but the calls of these numbers."""

    def __init__(self, message: str, *faults: int) -> None:
        self.calls = 0
        transport = httpx2.MockTransport(lambda request: self._answer(request, message, faults))
        connection = Connection(httpx2.Client(transport=transport, base_url="https://s"), "https://s", "c")
        self.api = Api(connection, "train", say=lambda _: None, clock=Ticks().clock())

    def _answer(self, request: httpx2.Request, message: str, faults: tuple[int, ...]) -> httpx2.Response:
        self.calls += 1
        if self.calls in faults:
            raise httpx2.ReadError(message, request=request)
        return httpx2.Response(200, json={"metadata": {"name": "x"}})


TLS_FAULTS = {
    "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate": "certificate-authority of context c",
    "[SSL: WRONG_VERSION_NUMBER] wrong version number": "is https right",
    "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required": "is https right",
}
PASSING_FAULTS = [
    "[SSL: UNEXPECTED_EOF_WHILE_READING] EOF",
    "[SSL: DECRYPTION_FAILED_OR_BAD_RECORD_MAC] decryption failed or bad record mac",
    "[SSL: TLSV1_ALERT_INTERNAL_ERROR] tlsv1 alert internal error",
]


@pytest.mark.parametrize("message", TLS_FAULTS)
def test_what_no_other_try_mends_is_no_silence(message: str) -> None:
    server = Faulty(message, 1)
    with pytest.raises(ApiError) as caught:
        server.api.read(POD, "x")
    error = as_error(caught.value, server.api.place)
    assert type(error) is ServiceError and server.calls == 1
    assert TLS_FAULTS[message] in error.problems[0].hint and message in error.problems[0].what


@pytest.mark.parametrize("message", [*TLS_FAULTS, *PASSING_FAULTS])
def test_of_a_server_that_has_answered_a_fault_of_tls_is_one_connections(message: str) -> None:
    server = Faulty(message, *([2] if message in TLS_FAULTS else [1, 3]))
    assert server.api.read(POD, "x") and server.api.read(POD, "x")
    server = Faulty(message, *range(2, 99))
    server.api.read(POD, "x")
    with pytest.raises(ApiError) as caught:
        server.api.read(POD, "x")
    assert isinstance(as_error(caught.value, server.api.place), SilentError) and server.calls == 1 + ATTEMPTS


class Identities(ThreadingHTTPServer):
    """Takes each connection for the login that was the newest when it was made, as a server does with a certificate,
    and answers those of the valid one alone."""

    daemon_threads = True

    def __init__(self, logins: Path) -> None:
        self.logins = logins
        self.valid = 1
        self.at_once = threading.Barrier(1)
        self.news = threading.Event()
        super().__init__(("127.0.0.1", 0), Identity)

    @property
    def count(self) -> int:
        """How often somebody has logged in."""
        return len(self.logins.read_text()) if self.logins.exists() else 0


class Identity(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Identities

    def setup(self) -> None:
        super().setup()
        self.login = self.server.count

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        known = self.login == self.server.valid
        if not known or self.login == 1:
            self.server.at_once.wait()
        self.send_response(200 if known else 401)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if not known:
            parts = ['{"kind": "Status", "reason": "Unauthorized", "message": "Unauthorized"}']
        elif "watch" in self.path:
            parts = ["first\n", "second\n"]
        else:
            parts = ['{"metadata": {"resourceVersion": "1"}, "items": []}']
        for part in parts:
            if part == "second\n":
                self.server.news.wait()
            self.wfile.write(f"{len(part):x}\r\n{part}\r\n".encode())
        self.wfile.write(b"0\r\n\r\n")


class TestACertificateThatIsRenewed:
    """Connections that were begun with the old one are kept by nobody."""

    @pytest.fixture
    def server(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Identities]:
        monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", lambda *_: None)
        with Identities(tmp_path / "logins") as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            yield server
            server.news.set()
            server.shutdown()
            thread.join()

    @pytest.fixture
    def api(self, server: Identities, tmp_path: Path) -> Iterator[Api]:
        status = {"clientCertificateData": "cert", "clientKeyData": "key", "expirationTimestamp": "{ends}"}
        script = f"""
with open({str(server.logins)!r}, "a") as file:
    file.write("x")
ends = "2000-01-01T00:00:00Z" if os.path.exists({str(tmp_path / "short")!r}) else "2999-01-01T00:00:00Z"
print(json.dumps({{"status": {status!r}}}).replace("{{ends}}", ends))"""
        command = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(login(tmp_path, script))}
        url = f"http://127.0.0.1:{server.server_address[1]}"
        connection = connect(None, write(tmp_path / "k", config(url, exec=command)))
        api = Api(connection, "train", say=lambda _: None, clock=Ticks().clock())
        yield api
        api.close()

    def test_since_the_server_has_refused_it(self, server: Identities, api: Api) -> None:
        api.list(POD)
        server.valid = 2
        api.list(POD)
        assert server.count == 2

    def test_since_it_has_ended(self, server: Identities, api: Api, tmp_path: Path) -> None:
        (tmp_path / "short").touch()
        api.list(POD)
        (tmp_path / "short").unlink()
        server.valid = 2
        api.list(POD)
        api.list(POD)
        assert server.count == 2

    def test_what_others_read_meanwhile_goes_on(self, server: Identities, api: Api) -> None:
        lines = api.lines("/watch", {}, resource=POD, streams=Streams(), silence=60)
        assert next(lines) == "first"
        server.valid = 2
        api.list(POD)
        server.news.set()
        assert list(lines) == ["second"]
        api.list(POD)
        assert server.count == 2

    def test_of_many_that_are_refused_at_once_one_logs_in(self, server: Identities, api: Api) -> None:
        with ThreadPoolExecutor(8) as pool:
            server.at_once = threading.Barrier(8)
            list(pool.map(lambda _: api.list(POD), range(8)))
            server.valid = 2
            list(pool.map(lambda _: api.list(POD), range(8)))
        assert server.count == 2

    def test_the_old_ones_are_closed_when_nothing_is_read_from_them_any_more(self) -> None:
        made: list[httpx2.Client] = []

        def make() -> httpx2.Client:
            made.append(httpx2.Client(transport=httpx2.MockTransport(lambda _: httpx2.Response(200, text="said"))))
            return made[-1]

        connections = Connections(make)
        with httpx2.Client(transport=connections) as http:
            with http.stream("GET", "http://x") as response:
                connections.renew()
                assert [one.is_closed for one in made] == [False, False]
                assert response.read() == b"said"
            assert [one.is_closed for one in made] == [True, False]
            connections.renew()
        assert [one.is_closed for one in made] == [True, True, True]
