"""Jupyter in a warm pod, and where its token is kept. Opens no connection to it."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass, field
from typing import IO, Any, Protocol
from urllib.parse import urlencode

from rankzero.errors import ConfigError
from rankzero.launch.backend import Backend
from rankzero.launch.node.settings import WARM_DIR
from rankzero.launch.warm.pods import WarmPod
from rankzero.launch.warm.sync import WORK, asked

_PROGRAM = ["python", "-P", "-m", "rankzero.launch.node.jupyter", WARM_DIR, WORK, "start"]
_TOKEN_BYTES = 32


class Keeper(Protocol):
    """Where tokens stay while pods come and go."""

    def read(self) -> str:
        """The token; nothing where there is none."""

    def write(self, token: str) -> None:
        """Keep it instead of any other."""


@dataclass(frozen=True, slots=True)
class Jupyter:
    """A server that listens."""

    pod: str
    port: int
    """On the pod's loopback."""
    page: str
    """Where a browser begins; nothing where it has no pages."""
    token: str = field(repr=False)
    started: bool = False
    """It did not run before."""

    def url(self, port: int) -> str:
        """Of the port of this machine that leads there, with the token."""
        return f"http://127.0.0.1:{port}/{self.page}?{urlencode({'token': self.token})}"


def start(backend: Backend, pod: WarmPod, keeper: Keeper | None = None) -> Jupyter:
    """The pod's server, started where it does not run. One that runs keeps its token, and the keeper learns of it.

    Raises ConfigError where the image has no Jupyter, ServiceError where it does not start.
    """
    kept = keeper.read() if keeper is not None else ""
    token = kept or secrets.token_urlsafe(_TOKEN_BYTES)
    if keeper is not None and not kept:
        keeper.write(token)
    with _piped(token.encode()) as stdin:
        found: dict[str, Any] = json.loads(asked(backend, pod.name, [*_PROGRAM, str(len(token))], stdin))
    if found.get("absent"):
        build = "`make image EXTRAS=train,quantization,vision,serve,jupyter`"
        hint = f"build it with the extra `jupyter` ({build}), then `rankzero dev up`"
        raise ConfigError("the image has no Jupyter", where="cluster.yaml image", hint=hint)
    if keeper is not None and found["token"] != token:
        keeper.write(found["token"])
    return Jupyter(pod.name, found["port"], found["page"], found["token"], bool(found.get("started")))


def _piped(data: bytes) -> IO[bytes]:
    """A few bytes as a file that is on no disk."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as file:
        file.write(data)
    return os.fdopen(reading, "rb")
