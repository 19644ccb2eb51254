"""Lines of JSON over a TCP connection, with heartbeats. Knows nothing of what they say."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

BEAT_SECONDS = 3.0
SILENT_SECONDS = 15.0
"""A connection that has said nothing for this long is dead, whatever the network says."""

Message = dict[str, Any]
_LONGEST_LINE = 64 * 1024


class Channel:
    """One connection. Messages go to `received` from a thread of its own; None is the last: it is lost."""

    def __init__(self, connection: socket.socket, received: Callable[[Channel, Message | None], None]) -> None:
        self._socket, self._received = connection, received
        self._write = threading.Lock()
        self._closed = threading.Event()
        self._heard = time.monotonic()
        connection.settimeout(1.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def open(self) -> None:
        """Begin to listen and to beat."""
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    def send(self, message: Message) -> None:
        """Say something. A connection that is gone is noticed by the listener, so this does not raise."""
        with self._write, suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """Hang up."""
        self._closed.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _listen(self) -> None:
        pending = b""
        while not self._closed.is_set():
            try:
                block = self._socket.recv(4096)
            except TimeoutError:
                if time.monotonic() - self._heard > SILENT_SECONDS:
                    break
                continue
            except OSError:
                break
            if not block:
                break
            self._heard = time.monotonic()
            *lines, pending = (pending + block).split(b"\n")
            if len(pending) > _LONGEST_LINE or not all(self._deliver(line) for line in lines):
                break  # not one of ours
        self._received(self, None)
        self.close()

    def _deliver(self, line: bytes) -> bool:
        try:
            message = json.loads(line)
        except ValueError:
            return False
        if not isinstance(message, dict):
            return False
        if message:  # an empty one is a heartbeat
            self._received(self, message)
        return True

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            self.send({})
