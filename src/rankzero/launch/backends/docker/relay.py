"""A port of this machine that leads to one on a container's loopback: a `docker exec` for each connection, so that the
container listens to nobody else, wherever its daemon is. Knows nothing of what is said."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence

from rankzero.launch.backends.docker.command import PROGRAM
from rankzero.launch.backends.docker.pod import container_name


def relay(listening: socket.socket, pod: str, port: int) -> None:
    """Carry connections until KeyboardInterrupt, which ends those that are open."""
    command = [PROGRAM, "exec", "--interactive", container_name(pod)]
    command += ["python", "-P", "-m", "rankzero.launch.node.relay"]
    carried: list[subprocess.Popen[bytes]] = []
    try:
        while True:
            connection, _ = listening.accept()
            carried = [one for one in carried if one.poll() is None]
            carried.append(_carry(connection, [*command, str(port)]))
    finally:
        for one in carried:
            one.kill()
            one.wait()


def _carry(connection: socket.socket, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """The connection is the command's input and output, and its alone."""
    with connection:
        return subprocess.Popen(command, stdin=connection.fileno(), stdout=connection.fileno())
