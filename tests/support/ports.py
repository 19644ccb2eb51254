"""Ports of the loopback device for servers of tests."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
from contextlib import suppress

_FIRST, _MANY = 12_000, 18_000
"""Below what Linux gives to outgoing connections."""
_WORKERS = 16
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_TURNS = itertools.count(secrets.randbelow(_MANY // _WORKERS))


def free_port() -> int:
    """A port that was free a moment ago, of those that no outgoing connection is given in the meantime, and that no
    other worker of pytest and no earlier test of this one has been given: a run seeds `random`, and what two workers
    drew from it was the same."""
    while True:
        place = next(_TURNS) * _WORKERS + _WORKER
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", _FIRST + place % _MANY))
            return int(probe.getsockname()[1])
