"""`python -m rankzero.launch.node.relay PORT`: standard input and output as one connection to a port of this pod's
loopback. Knows nothing of what is said."""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import suppress

_CHUNK = 1 << 16


def main() -> None:
    """Until the other side has said everything, or nobody listens here."""
    try:
        server = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    except OSError as error:
        sys.exit(f"port {sys.argv[1]} of the pod: {error.strerror}; the same command starts what should listen there")
    with server:
        threading.Thread(target=_send, args=(server,), daemon=True).start()
        with suppress(ConnectionResetError, BrokenPipeError):
            while data := server.recv(_CHUNK):
                while data:
                    data = data[os.write(1, data) :]


def _send(server: socket.socket) -> None:
    with suppress(OSError):  # whoever reads from it sees why
        while data := os.read(0, _CHUNK):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main()
