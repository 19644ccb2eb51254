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
        self._listener = threading.Thread(target=self._listen, daemon=True)
        connection.settimeout(1.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def open(self) -> None:
        """Begin to listen and to beat."""
        self._listener.start()
        threading.Thread(target=self._beat, daemon=True).start()

    def send(self, message: Message) -> None:
        """Say something. Does not raise: where it fails the connection is over, which the listener tells."""
        with self._write:
            try:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
            except OSError:  # half a line may be out, so nothing after it could be understood
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """Say no more. The other side reads to the end and hangs up; closing at once may take back what was sent."""
        with self._write, suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def ended(self, seconds: float) -> bool:
        """Wait for the other side to hang up; whether it did."""
        self._listener.join(seconds)
        return not self._listener.is_alive()

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
