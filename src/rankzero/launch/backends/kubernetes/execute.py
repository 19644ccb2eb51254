"""A command run in a pod through the API: its output, and whether it succeeded. Knows no run.

The API answers an exec with a WebSocket (RFC 6455) whose messages begin with the number of a channel; Kubernetes calls
that v4.channel.k8s.io. It cannot say that standard input ends, so a command has to know how much it is sent.
"""

from __future__ import annotations

import base64
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from rankzero.errors import ServiceError
from rankzero.launch.backend import Ended, Hear
from rankzero.launch.backends.kubernetes.api import CLOSED, STALLED, UPGRADED_SILENCE, Api
from rankzero.launch.untyped_json import maps, text

PROTOCOL = "v4.channel.k8s.io"
_IN, _OUT, _ERR, _STATUS = 0, 1, 2, 3
_CONTINUED, _BINARY, _CLOSE, _PING, _PONG = 0, 2, 8, 9, 10
LAST_WORDS_SECONDS = 60.0
"""How long it may take to say why no more is taken."""
_MOST_STDERR = 2000
_CHUNK = 1 << 15
_NOT_FOUND = 127

Receive = Callable[[int], bytes]
"""At most so many bytes, as they come; none at the end."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command runs."""

    pod: str
    container: str
    """The API has to be told where there are several: sites put theirs beside ours."""


def execute(api: Api, place: Place, command: Sequence[str]) -> str:
    """What a command has printed. Raises ApiError where the API refuses it or the connection breaks, ServiceError where
    the command fails."""
    out: list[bytes] = []
    ended = stream(api, place, command, out.append)
    if ended.code:
        said = ended.words.strip().splitlines()[-1:] or [f"exit code {ended.code}"]
        raise ServiceError(f"{command[0]} in the pod failed: {said[0]}", where=f"pod {place.pod}")
    return b"".join(out).decode(errors="replace")


def stream(api: Api, place: Place, command: Sequence[str], hear: Hear, stdin: IO[bytes] | None = None) -> Ended:
    """Run a command to its end; `stdin` is sent whole before its output is heard. Raises ApiError, or ServiceError
    where the connection breaks or the platform could not run it."""
    key = base64.b64encode(os.urandom(16)).decode()
    headers = {"Sec-WebSocket-Key": key, "Sec-WebSocket-Version": "13", "Sec-WebSocket-Protocol": PROTOCOL}
    asked: dict[str, str | Sequence[str]] = {"stdout": "true", "stderr": "true", "command": list(command)}
    asked |= {"container": place.container} if place.container else {}
    asked |= {"stdin": "true"} if stdin is not None else {}
    err = b""
    with api.upgraded(f"exec {place.pod}", place.pod, "exec", asked, headers) as (receive, send):
        peer = _Peer(receive, send, place.pod)
        while stdin is not None and (data := stdin.read(_CHUNK)):
            if not peer.takes(_frame(_BINARY, bytes([_IN]) + data)):
                break  # the command may have ended before it was sent all: what came says why
        for message in messages(peer.receive, peer.takes):
            channel, data = message[:1], message[1:]
            if channel == bytes([_OUT]):
                hear(data)
            elif channel == bytes([_ERR]):
                err = (err + data.replace(b"\0", b""))[-_MOST_STDERR:]
            elif channel == bytes([_STATUS]):
                return _ended(json.loads(data), err.decode(errors="replace"), place.pod)
    raise ServiceError("the connection broke before the command ended", where=f"pod {place.pod}", hint="try again")


class _Peer:
    """The other end of a connection. When it takes no more, what it has said is heard, but not for ever: a command that
    waits for the rest of its input would beat without end."""

    def __init__(self, receive: Receive, send: Callable[[bytes], None], pod: str) -> None:
        self._receive, self._send, self._pod = receive, send, pod
        self._until = math.inf

    def takes(self, data: bytes) -> bool:
        """Send something. Returns whether it was taken; raises ServiceError where nobody knows how much of it was."""
        try:
            self._send(data)
        except STALLED as error:
            what = f"it took nothing of what it was sent for {UPGRADED_SILENCE:.0f} s"
            raise ServiceError(what, where=f"pod {self._pod}", hint="try again") from error
        except CLOSED:
            self._until = min(self._until, time.monotonic() + LAST_WORDS_SECONDS)
            return False
        return True

    def receive(self, most: int) -> bytes:
        return self._receive(most) if time.monotonic() < self._until else b""


def _ended(status: Mapping[str, Any], words: str, pod: str) -> Ended:
    """What the last channel says: Success, or the exit code among the causes of a Failure."""
    if status.get("status") == "Success":
        return Ended(0, words)
    causes = {text(cause, "reason"): text(cause, "message") for cause in maps(status, "details", "causes")}
    code = causes.get("ExitCode", "")
    if code.isdecimal():
        return Ended(int(code), words)
    said = text(status, "message")
    if "executable file not found" in said or "no such file or directory" in said:
        return Ended(_NOT_FOUND, said)
    raise ServiceError(f"the command could not be run: {said}", where=f"pod {pod}")


def messages(receive: Receive, send: Callable[[bytes], object]) -> Iterator[bytes]:
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
    size = len(data)
    if size <= 125:
        length = bytes([0x80 | size])
    elif size < 1 << 16:
        length = bytes([0x80 | 126]) + size.to_bytes(2)
    else:
        length = bytes([0x80 | 127]) + size.to_bytes(8)
    return bytes([0x80 | code]) + length + bytes(4) + data


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
