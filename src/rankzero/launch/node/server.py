"""Node 0's side of the control channel: connections to all nodes, judged by the Coordinator."""

from __future__ import annotations

import errno
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rankzero.errors import ServiceError
from rankzero.launch.node.channel import Channel, Message
from rankzero.launch.node.coordinator import Coordinator, Order
from rankzero.launch.node.submission import Submission

TICK_SECONDS = 0.5
PARTING_SECONDS = 2.0
RETRY_SECONDS = 0.5
"""How long after a connection that could not be taken the next one is waited for."""
MOST_NAMED = 9
"""Missing nodes that are told by number."""


class Server:
    """Listens until closed. `identity` is what every node must say of the run to be let in.

    Raises ServiceError where the port is taken.
    """

    def __init__(
        self, port: int, coordinator: Coordinator, identity: Message, submission: Submission, say: Callable[[str], None]
    ) -> None:
        self._coordinator, self._identity, self._submission, self._say = coordinator, identity, submission, say
        self._lock = threading.RLock()
        self._channels: dict[int, Channel] = {}
        self._node_of: dict[Channel, int] = {}
        self._challenges: dict[Channel, str] = {}
        self._incarnation: dict[int, str] = {}
        """Which pod each node is."""
        self._replaced: set[tuple[int, str]] = set()
        """Pods that newer ones have followed. They may live on where a machine is cut off, and come back."""
        self._told: set[str] = set()
        self._waiting_told: dict[int, list[int]] = {}
        self._closed = threading.Event()
        self._socket = _listen(port)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        threading.Thread(target=self._tick, daemon=True).start()

    def close(self) -> None:
        """Hang up on everybody, when what was said has arrived."""
        self._closed.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            channels = list(self._channels.values())
        for channel in channels:
            channel.finish()
        parting = time.monotonic() + PARTING_SECONDS
        for channel in channels:
            channel.ended(max(0.0, parting - time.monotonic()))
            channel.close()

    def _accept(self) -> None:
        told = False
        while not self._closed.is_set():
            try:
                self._let_in()
            except OSError as error:
                if self._closed.wait(RETRY_SECONDS):
                    return
                if not told:  # too many files are open, say, or one that came is gone again
                    told = True
                    self._say(f"a connection could not be taken, which is tried on: {error.strerror or error}")

    def _let_in(self) -> None:
        """Wait for a connection, and begin to listen to it. Raises OSError."""
        connection, _address = self._socket.accept()
        try:
            channel = Channel(connection, self._received)
        except OSError:
            connection.close()
            raise
        channel.open()
        self.challenge(channel)

    def challenge(self, channel: Channel) -> None:
        """Ask who is there. Nothing is told to whoever cannot answer."""
        with self._lock:
            self._challenges[channel] = secrets.token_hex(16)
            channel.send({"challenge": self._challenges[channel]})

    def _received(self, channel: Channel, message: Message | None) -> None:
        with self._lock:
            now = time.monotonic()
            if message is None:
                self._challenges.pop(channel, None)
                self._hung_up(channel, now)
            elif "hello" in message:
                self._hello(channel, message, now)
            elif channel in self._node_of:
                self._heard(self._node_of[channel], message, now)
                if message.get("leaving"):  # gone from here on, though it may still copy its results for minutes
                    self._hung_up(channel, now)

    def _hello(self, channel: Channel, message: Message, now: float) -> None:
        hello = message["hello"]
        trouble = self._trouble(hello, self._challenges.pop(channel, ""), message.get("proof"))
        if trouble:
            if trouble not in self._told:  # once: whoever asks without end does not fill the log
                self._told.add(trouble)
                self._say(f"turned away {trouble}")
            channel.send({"refused": True})
            channel.finish()
            return
        node = int(hello["node"])
        if not self._take_place(node, str(hello.get("incarnation", ""))):
            channel.send({"replaced": True})
            channel.finish()
            return
        older = self._channels.get(node)
        if older is not None:
            self._node_of.pop(older, None)
            older.send({"replaced": True})
            older.finish()
        self._channels[node], self._node_of[channel] = channel, node
        self._waiting_told.pop(node, None)
        channel.send({"welcome": True})
        self._carry_out(self._coordinator.joined(node, now))

    def _trouble(self, hello: Any, challenge: str, proof: object) -> str:
        """Why somebody is not let in, for our own log; empty where nothing is wrong."""
        if not isinstance(hello, dict) or not challenge or not self._submission.accepts(challenge, hello, proof):
            return "somebody who does not belong to this submission"
        theirs = hello.get("identity")
        if not isinstance(theirs, dict) or theirs != self._identity:
            known = theirs if isinstance(theirs, dict) else {}
            differs = {key: (known.get(key), value) for key, value in self._identity.items() if known.get(key) != value}
            return f"a node of another run or layout (theirs, ours): {differs}"
        node = hello.get("node")
        if not isinstance(node, int) or isinstance(node, bool) or not 0 <= node < self._coordinator.num_nodes:
            return f"a node that says it is number {str(node)[:20]!r} of {self._coordinator.num_nodes}"
        return ""

    def _take_place(self, node: int, incarnation: str) -> bool:
        """Whether this pod is the node from now on: the one that came last is, and one that was followed is not."""
        if (node, incarnation) in self._replaced:
            return False
        before = self._incarnation.get(node)
        if before not in (None, incarnation):
            self._replaced.add((node, str(before)))
        self._incarnation[node] = incarnation
        return True

    def _heard(self, node: int, message: Message, now: float) -> None:
        if "ready" in message:
            self._carry_out(self._coordinator.joined(node, now))
        elif "over" in message:
            self._carry_out(self._coordinator.loop_over(node))
        elif "ended" in message:
            lost, why = bool(message.get("peer_lost")), message.get("why")
            code = int(message["ended"])
            self._carry_out(self._coordinator.node_ended(node, code, now, peer_lost=lost, why=why))

    def _hung_up(self, channel: Channel, now: float) -> None:
        node = self._node_of.pop(channel, None)
        if node is not None and self._channels.get(node) is channel:
            del self._channels[node]
            self._carry_out(self._coordinator.lost(node, now))

    def _tick(self) -> None:
        while not self._closed.wait(TICK_SECONDS):
            with self._lock:
                self._carry_out(self._coordinator.tick(time.monotonic()))
                self._tell_who_is_missing()

    def _carry_out(self, orders: Sequence[Order]) -> None:
        for order in orders:
            channel = self._channels.get(order.node)
            if channel is not None:
                channel.send(order.message)

    def _tell_who_is_missing(self) -> None:
        """To those who wait, when it has changed: a thousand nodes that come one by one are a million pairs."""
        if self._coordinator.running:
            self._waiting_told.clear()
            return
        missing = self._coordinator.missing()[:MOST_NAMED]
        for node in list(self._coordinator.present):
            channel = self._channels.get(node)
            if channel is not None and self._waiting_told.get(node) != missing:
                channel.send({"waiting": missing})
                self._waiting_told[node] = missing


def _listen(port: int) -> socket.socket:
    """On every address of both families, where there are both."""
    try:
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                raise
            return socket.create_server(("", port), backlog=1024)  # a host without IPv6
    except OSError as error:
        hint = "another command listens there: with host networking, one node of all runs fits on a host"
        raise ServiceError(f"cannot listen: {error.strerror}", where=f"port {port}", hint=hint) from error
