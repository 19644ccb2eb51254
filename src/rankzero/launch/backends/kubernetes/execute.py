"""A command run in a pod through the API: its output, and whether it succeeded. Knows no run.

The API answers an exec with a WebSocket (RFC 6455) whose messages begin with the number of a channel; Kubernetes calls
that v4.channel.k8s.io. Nothing is sent to the command, so of the WebSocket no more than reading is here.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator, Sequence

from rankzero.errors import ServiceError
from rankzero.launch.backends.kubernetes.api import Api

PROTOCOL = "v4.channel.k8s.io"
_OUT, _ERR, _STATUS = 1, 2, 3
_CONTINUED, _CLOSE, _PING, _PONG = 0, 8, 9, 10
_MOST_STDERR = 2000

Receive = Callable[[int], bytes]
"""At most so many bytes, as they come; none at the end."""


def execute(api: Api, pod: str, command: Sequence[str]) -> str:
    """What a command has printed. Raises ApiError where the API refuses it or the connection breaks, ServiceError where
    the command fails."""
    key = base64.b64encode(os.urandom(16)).decode()
    headers = {"Sec-WebSocket-Key": key, "Sec-WebSocket-Version": "13", "Sec-WebSocket-Protocol": PROTOCOL}
    out: list[bytes] = []
    err = b""
    status = None
    with api.upgraded(f"exec {pod}", pod, "exec", command, headers) as (receive, send):
        for message in messages(receive, send):
            channel, data = message[:1], message[1:]
            if channel == bytes([_OUT]):
                out.append(data)
            elif channel == bytes([_ERR]):
                err = (err + data)[-_MOST_STDERR:]
            elif channel == bytes([_STATUS]):
                status = json.loads(data)
                break
    if status is None:
        raise ServiceError("the connection broke before the command ended", where=f"pod {pod}", hint="try again")
    if status.get("status") != "Success":
        said = err.decode(errors="replace").strip().splitlines()[-1:] or [str(status.get("message", ""))]
        raise ServiceError(f"{command[0]} in the pod failed: {said[0]}", where=f"pod {pod}")
    return b"".join(out).decode(errors="replace")


def messages(receive: Receive, send: Callable[[bytes], None]) -> Iterator[bytes]:
    """Whole messages of a WebSocket, till it closes or breaks off."""
    reader = _Reader(receive)
    message = b""
    while (head := reader.take(2)) is not None:
        last, code, length = head[0] & 0x80, head[0] & 0x0F, head[1] & 0x7F
        if length > 125:
            size = reader.take(2 if length == 126 else 8)
            if size is None:
                return
            length = int.from_bytes(size)
        mask = reader.take(4) if head[1] & 0x80 else b""
        data = reader.take(length)
        if data is None or mask is None:
            return
        if mask:
            data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
        if code == _CLOSE:
            return
        if code == _PING:
            send(_frame(_PONG, data))
        elif code != _PONG:
            message = message + data if code == _CONTINUED else data
            if last:
                yield message
                message = b""


def _frame(code: int, data: bytes) -> bytes:
    """What a client sends is masked; a mask of zeros is one."""
    return bytes([0x80 | code, 0x80 | len(data)]) + bytes(4) + data


class _Reader:
    def __init__(self, receive: Receive) -> None:
        self._receive, self._rest = receive, bytearray()

    def take(self, length: int) -> bytes | None:
        """So many bytes; None where the stream ends before."""
        while len(self._rest) < length:
            more = self._receive(1 << 20)
            if not more:
                return None
            self._rest += more
        taken = bytes(self._rest[:length])
        del self._rest[:length]
        return taken
