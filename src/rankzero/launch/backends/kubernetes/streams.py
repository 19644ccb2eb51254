"""Open connections that several threads read from, and the clock they go by. Knows no objects."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import httpx2

from rankzero.launch.labels import Manifest


@dataclass(frozen=True, slots=True)
class Clock:
    """Time, so that tests have none of it."""

    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class Change:
    """What a watch saw. SYNC: `items` is all there is now. IDLE: the connection ended without news."""

    type: Literal["SYNC", "ADDED", "MODIFIED", "DELETED", "IDLE"]
    items: tuple[Manifest, ...] = ()


class Streams:
    """Open watches and log streams of several threads, so that one can end them all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[httpx2.Response] = set()
        self.stopped = threading.Event()

    @contextmanager
    def holding(self, response: httpx2.Response) -> Iterator[None]:
        """Keep a response where stop() finds it."""
        with self._lock:
            self._open.add(response)
        try:
            if self.stopped.is_set():
                _shut(response)
            yield
        finally:
            with self._lock:
                self._open.discard(response)

    def stop(self) -> None:
        """End them all; their readers see the end of the stream."""
        with self._lock:
            self.stopped.set()
            for response in self._open:
                _shut(response)


def _shut(response: httpx2.Response) -> None:
    """Closing a socket does not wake a thread that reads from it; shutting it down does."""
    stream = response.extensions.get("network_stream")
    own = stream.get_extra_info("socket") if stream is not None else None
    if isinstance(own, socket.socket):
        try:
            own.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other side was faster
            return


def split_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines as their writer ended them. (The client's own splitting also cuts at \\r, \\x85 and U+2028.)"""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")
