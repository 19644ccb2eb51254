"""Connections that can be begun anew. Whose one is was settled by the certificate at its beginning, so one that is kept
stays with a login that has ended. Knows no login."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import httpx2


class Connections(httpx2.BaseTransport):
    """Those of the newest client that `make` has made; and of older ones as long as something is read from them."""

    def __init__(self, make: Callable[[], httpx2.Client]) -> None:
        """`make` opens no connection yet."""
        self._make = make
        self._lock = threading.Lock()
        self._newest = make()
        self._reading: dict[httpx2.Client, set[object]] = {self._newest: set()}

    def renew(self) -> None:
        """Requests from now on go over new connections; what is under way over old ones comes to its end."""
        with self._lock:
            self._newest = self._make()
            self._reading[self._newest] = set()
        self._close_old()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send it."""
        mark = object()
        with self._lock:
            client = self._newest
            self._reading[client].add(mark)
        over = partial(self._over, client, mark)
        try:
            response = client.send(request, stream=True)
        except BaseException:
            over()
            raise
        if not isinstance(response.stream, httpx2.SyncByteStream):
            raise TypeError(type(response.stream))
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_Body(response.stream, over),
            extensions=response.extensions,
        )

    def close(self) -> None:
        """Let go of all of them."""
        with self._lock:
            clients = list(self._reading)
        for client in clients:
            client.close()

    def _over(self, client: httpx2.Client, mark: object) -> None:
        with self._lock:
            self._reading.get(client, set()).discard(mark)
        self._close_old()

    def _close_old(self) -> None:
        with self._lock:
            old = [one for one, reading in self._reading.items() if one is not self._newest and not reading]
            for one in old:
                del self._reading[one]
        for one in old:
            one.close()


class _Body(httpx2.SyncByteStream):
    """An answer's, as it comes over the wire."""

    def __init__(self, stream: httpx2.SyncByteStream, over: Callable[[], None]) -> None:
        self._stream = stream
        self._over = over

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._stream)

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            self._over()
