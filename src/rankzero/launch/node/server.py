"""Node 0's side of the control channel: connections to all nodes, judged by the Coordinator."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from rankzero.launch.node.channel import Channel, Message
from rankzero.launch.node.coordinator import Coordinator, Order

TICK_SECONDS = 0.5


class Server:
    """Listens until closed. `identity` is what every node must say of the run to be let in."""

    def __init__(self, port: int, coordinator: Coordinator, identity: Message) -> None:
        self._coordinator, self._identity = coordinator, identity
        self._lock = threading.RLock()
        self._channels: dict[int, Channel] = {}
        self._node_of: dict[Channel, int] = {}
        self._closed = threading.Event()
        self._socket = socket.create_server(("", port), backlog=1024)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        threading.Thread(target=self._tick, daemon=True).start()

    def close(self) -> None:
        """Hang up on everybody."""
        self._closed.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            channels = list(self._channels.values())
        for channel in channels:
            channel.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _address = self._socket.accept()
            except OSError:
                return  # closed
            Channel(connection, self._received).open()

    def _received(self, channel: Channel, message: Message | None) -> None:
        with self._lock:
            now = time.monotonic()
            if message is None:
                self._hung_up(channel, now)
            elif "hello" in message:
                self._hello(channel, message, now)
            elif channel in self._node_of:
                self._heard(self._node_of[channel], message, now)

    def _hello(self, channel: Channel, message: Message, now: float) -> None:
        node = message.get("node")
        theirs = message.get("hello")
        if theirs != self._identity or not isinstance(node, int):
            differs = (
                theirs
                if not isinstance(theirs, dict)
                else {
                    key: (theirs.get(key), value) for key, value in self._identity.items() if theirs.get(key) != value
                }
            )
            channel.send({"refused": f"node 0 is of another run or layout (theirs, node 0's): {differs}"})
            channel.close()
            return
        older = self._channels.get(node)
        if older is not None:
            self._node_of.pop(older, None)
            older.close()
        self._channels[node], self._node_of[channel] = channel, node
        channel.send({"welcome": True})
        self._carry_out(self._coordinator.joined(node, now))

    def _heard(self, node: int, message: Message, now: float) -> None:
        if "ready" in message:
            self._carry_out(self._coordinator.joined(node, now))
        elif "ended" in message:
            lost = bool(message.get("peer_lost"))
            self._carry_out(self._coordinator.node_ended(node, int(message["ended"]), now, peer_lost=lost))

    def _hung_up(self, channel: Channel, now: float) -> None:
        node = self._node_of.pop(channel, None)
        if node is not None and self._channels.get(node) is channel:
            del self._channels[node]
            self._carry_out(self._coordinator.lost(node, now))

    def _tick(self) -> None:
        while not self._closed.wait(TICK_SECONDS):
            with self._lock:
                self._carry_out(self._coordinator.tick(time.monotonic()))

    def _carry_out(self, orders: Sequence[Order]) -> None:
        for order in orders:
            channel = self._channels.get(order.node)
            if channel is not None:
                channel.send(order.message)
        if not self._coordinator.running:
            waiting = {"waiting": self._coordinator.missing()}
            for node in list(self._coordinator.present):
                channel = self._channels.get(node)
                if channel is not None:
                    channel.send(waiting)
