"""Nodes that meet over the loopback device: let in, turned away, told, and heard to their last word."""

from __future__ import annotations

import errno
import itertools
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from rankzero.errors import ConfigError, ServiceError, StoppedError
from rankzero.launch.node import client as client_module
from rankzero.launch.node import server as server_module
from rankzero.launch.node.client import Client, Wait
from rankzero.launch.node.coordinator import Coordinator
from rankzero.launch.node.platform import Place
from rankzero.launch.node.server import Server
from rankzero.launch.node.settings import TOKEN_VARIABLE
from rankzero.launch.node.submission import Submission

IDENTITY = {"run": "r", "spec": "abc", "nproc": 1, "nodes": 2}


def never() -> bool:
    return False


def wait() -> Wait:
    return Wait(20.0, lambda _text: None)


OURS = Submission({TOKEN_VARIABLE: "of this submission"})


def node(
    number: int,
    port: int,
    *,
    identity: dict[str, Any] | None = None,
    submission: Submission = OURS,
    said: list[str] | None = None,
) -> Client:
    place = Place(number, 2, 1, "127.0.0.1", control_port=port)
    return Client(place, identity or IDENTITY, submission, (said if said is not None else []).append)


def await_message(client: Client, key: str) -> dict[str, Any]:
    while True:
        message = client.next(20.0)
        assert message is not None, f"no {key} came"
        if key in message:
            return message


@contextmanager
def serving(nodes: int = 2) -> Iterator[tuple[Server, list[str]]]:
    said: list[str] = []
    server = Server(0, Coordinator(nodes, nodes), IDENTITY, OURS, said.append)
    try:
        yield server, said
    finally:
        server.close()


def test_they_meet_and_start() -> None:
    with serving() as (server, _):
        first, second = node(0, server.port), node(1, server.port)
        assert first.connect(never, wait())
        assert await_message(first, "waiting") == {"waiting": [1]}
        assert second.connect(never, wait())
        assert await_message(first, "start") == await_message(second, "start") == {"start": 1, "nodes": [0, 1]}
        second.close()
        assert "node 1 is gone" in await_message(first, "again")["again"]
        first.close()


def test_a_node_that_is_leaving_is_gone_before_it_hangs_up() -> None:
    with serving() as (server, _):
        first, second = node(0, server.port), node(1, server.port)
        assert first.connect(never, wait()) and second.connect(never, wait())
        await_message(first, "start")
        second.send({"ended": 75, "leaving": True})
        assert await_message(first, "again") == {"again": "node 1 was stopped", "gentle": True}
        first.close()
        second.close()


@pytest.mark.parametrize("attempt", range(20))
def test_last_words_arrive_though_node_0_leaves_at_once(attempt: int) -> None:
    """Node 0 alone meets an error that ends the run: the others must not take it for a lost node and wait."""
    with serving() as (server, _):
        first, second = node(0, server.port), node(1, server.port)
        assert first.connect(never, wait()) and second.connect(never, wait())
        await_message(second, "start")
        first.send({"ended": 77, "why": {"because": f"gated {attempt}"}})
        first.close()
    assert await_message(second, "end") == {"end": 77, "because": f"gated {attempt}"}
    assert await_message(second, "lost")
    second.close()


def test_a_node_of_another_run_is_turned_away_and_our_log_alone_says_why() -> None:
    with serving() as (server, said):
        stranger = node(1, server.port, identity={**IDENTITY, "spec": "xyz"})
        with pytest.raises(ConfigError, match="another run, layout or submission") as caught:
            stranger.connect(never, wait())
        assert "abc" not in str(caught.value)
        assert "turned away" in said[0] and "xyz" in said[0]


@pytest.mark.parametrize("token", ["", "of an older submission"])
def test_who_lacks_the_submissions_secret_is_told_nothing_and_changes_nothing(token: str) -> None:
    with serving() as (server, said):
        first = node(0, server.port)
        assert first.connect(never, wait())
        for _ in range(3):
            with pytest.raises(ConfigError, match="has turned this node away"):
                node(1, server.port, submission=Submission({TOKEN_VARIABLE: token})).connect(never, wait())
        assert said == ["turned away somebody who does not belong to this submission"]
        assert first.next(1.0) == {"waiting": [1]}
        first.close()


def test_what_was_overheard_cannot_be_said_again() -> None:
    """Each connection is asked something else."""
    with serving() as (server, said), socket.create_connection(("127.0.0.1", server.port), timeout=300) as stranger:
        hello = {"identity": IDENTITY, "node": 1, "incarnation": "x"}
        proof = OURS.proof("0123", hello)
        lines = stranger.makefile()
        assert "challenge" in json.loads(lines.readline())
        for message in ({"ended": 78}, {"hello": hello, "proof": proof}, {"hello": hello, "proof": 5}):
            stranger.sendall(json.dumps(message).encode() + b"\n")
        answers = [json.loads(line) for line in (lines.readline(), lines.readline()) if line]
        assert all(answer in ({}, {"refused": True}) for answer in answers)
        assert len(said) == 1


@pytest.mark.parametrize("number", [-1, 2, True, "0", 1.0, None, 10**9])
def test_a_number_that_no_node_has_is_turned_away(number: Any) -> None:
    with serving() as (server, said), pytest.raises(ConfigError, match="has turned this node away"):
        client = node(1, server.port)
        client._place = replace(client._place, node=number)
        client.connect(never, wait())
    assert "a node that says it is number" in said[0]


def test_what_is_no_node_is_hung_up_on() -> None:
    with serving() as (server, _), socket.create_connection(("127.0.0.1", server.port), timeout=300) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while stranger.recv(4096):
            pass  # a heartbeat


def test_a_proxy_that_takes_connections_for_node_0_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "RETRY_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as proxy:

        def hang_up() -> None:
            while True:
                try:
                    proxy.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=hang_up)
        thread.start()
        place = Place(1, 2, 1, "127.0.0.1", control_port=proxy.getsockname()[1])
        with pytest.raises(ServiceError, match="takes connections but does not answer"):
            Client(place, IDENTITY, OURS, lambda _text: None).connect(never, Wait(0.2, lambda _text: None))
        proxy.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_port_that_is_taken_is_named() -> None:
    with serving() as (server, _), pytest.raises(ServiceError, match=f"port {server.port}"):
        Server(server.port, Coordinator(2, 2), IDENTITY, OURS, lambda _text: None)


def test_a_connection_that_cannot_be_taken_keeps_no_node_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where too many files are open for a moment, or where somebody hangs up at once."""
    taken, own = itertools.count(), socket.socket.accept

    def accept(listening: socket.socket) -> tuple[socket.socket, Any]:
        if next(taken) < 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return own(listening)

    monkeypatch.setattr(server_module, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(socket.socket, "accept", accept)
    with serving() as (server, said):
        first = node(0, server.port)
        assert first.connect(never, wait())
        first.close()
    assert next(taken) > 2 and len(said) == 1 and "Too many open files" in said[0]


def test_many_nodes_are_not_told_of_each_other_one_by_one() -> None:
    sent: list[str] = []

    class Recorded:
        def send(self, message: dict[str, Any]) -> None:
            sent.append(json.dumps(message))

        def finish(self) -> None:
            pass

        def ended(self, _seconds: float) -> bool:
            return True

        def close(self) -> None:
            pass

    with serving(1000) as (server, _):
        for number in range(1, 1000):
            channel: Any = Recorded()
            server.challenge(channel)
            challenge = json.loads(sent[-1])["challenge"]
            hello = {"identity": IDENTITY, "node": number, "incarnation": str(number)}
            server._received(channel, {"hello": hello, "proof": OURS.proof(challenge, hello)})
        server._tell_who_is_missing()
        told = len(sent)
        server._tell_who_is_missing()
        assert len(sent) == told, "nothing has changed"
    waiting = [text for text in sent if "waiting" in text]
    assert 999 <= len(waiting) <= 999 * 20, "once a tick at most, not once for each that comes"
    assert max(map(len, waiting)) < 100


ORPHANS = """
import ctypes, os, subprocess, time
from rankzero.launch.node.pid1 import reap_orphans
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans come to us, as to PID 1
# They end when nobody holds the other end of the pipe, so after the shell, which buries those that end before it.
read, write = os.pipe()
ours = subprocess.Popen(["sh", "-c", f"cat <&{read} & cat <&{read} &"], pass_fds=[read])
ours.wait()
os.close(write)
reaped, deadline = [], time.monotonic() + 300
while len(reaped) < 2 and time.monotonic() < deadline:
    reaped += reap_orphans({ours.pid})
mine = subprocess.Popen(["true"])
os.waitid(os.P_PID, mine.pid, os.WEXITED | os.WNOWAIT)
assert reap_orphans({mine.pid}) == []
assert mine.wait() == 0, "our own keeps its exit code"
print(len(reaped))
"""


def test_orphans_are_buried_and_our_own_are_left_to_their_keeper() -> None:
    done = subprocess.run([sys.executable, "-c", ORPHANS], capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.returncode) == ("2\n", 0), done.stderr


def test_of_two_pods_of_one_node_the_newer_stays() -> None:
    """A pod that was deleted by force lives on where its node is cut off: it must not take the place back and back."""
    with serving() as (server, _):
        first, old = node(0, server.port), node(1, server.port)
        assert first.connect(never, wait()) and old.connect(never, wait())
        assert await_message(first, "start")["start"] == 1
        new = node(1, server.port)
        assert new.connect(never, wait())
        assert await_message(old, "replaced")
        assert "node 1 was started again" in await_message(first, "again")["again"]
        first.send({"ready": True})
        assert await_message(new, "start")["start"] == 2
        with pytest.raises(StoppedError, match="another pod has taken the place of node 1"):
            old.connect(never, wait())
        first.send({"ended": 0})
        new.send({"ended": 0})
        assert await_message(new, "end")["end"] == 0, "the second start was not disturbed"
        for client in (first, old, new):
            client.close()


def test_a_node_that_connects_again_is_the_same_one() -> None:
    with serving() as (server, _):
        first, second = node(0, server.port), node(1, server.port)
        for _ in range(2):
            assert first.connect(never, wait()) and second.connect(never, wait())
            assert await_message(second, "start")
        first.close()
        second.close()
