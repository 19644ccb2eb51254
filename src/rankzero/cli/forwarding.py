"""Ports of this machine that lead into pods, as commands forward them until Ctrl-C. Knows not who answers there."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rankzero.errors import ConfigError, ServiceError, UsageError

if TYPE_CHECKING:
    from rankzero.spec.cluster_spec import ClusterSpec

LOOPBACK = "127.0.0.1"
_LOOK_SECONDS = 0.1


def kubectl(spec: ClusterSpec, what: str, hint: str = "install it") -> list[str]:
    """The program that does what is asked, and the place. Raises ConfigError where it is not installed."""
    program = shutil.which("kubectl")
    if program is None:
        raise ConfigError(f"kubectl is not installed, which {what}", hint=hint)
    context = [] if spec.context is None else ["--context", spec.context]
    return [program, *context, "-n", spec.namespace]


def forward(program: Sequence[str], target: str, ports: str, ready: Callable[[], None] = lambda: None) -> None:
    """Have kubectl forward a port until Ctrl-C; `ready` is called when it listens. Raises ServiceError where it ends by
    itself."""
    words = [*program, "port-forward", target, ports, "--address", LOOPBACK]
    process = subprocess.Popen(words, stdout=2)  # it speaks of each connection; standard output is for the URL
    try:
        with _sigterm_ends(process):
            if _listens(process, int(ports.partition(":")[0])):
                ready()
            code = process.wait()
    except KeyboardInterrupt:
        process.terminate()  # a signal that was not typed reaches this process alone
        process.wait()
        code = 0
    finally:
        process.kill()
    if code:
        raise ServiceError(f"kubectl port-forward ended with {code}", where=target, hint="its own words are above")


def _listens(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until a program listens, or has ended. Returns whether it listens."""
    while process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex((LOOPBACK, port)) == 0:
                return True
        time.sleep(_LOOK_SECONDS)
    return False


def until_interrupted(command: Sequence[str]) -> int:
    """Run a program until it ends by itself or by Ctrl-C, which it hears too. Returns its exit code; 0 after Ctrl-C."""
    process = subprocess.Popen(command)
    try:
        with _sigterm_ends(process):
            return process.wait()
    except KeyboardInterrupt:
        process.wait()
        return 0
    finally:
        process.kill()


@contextmanager
def _sigterm_ends(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """SIGTERM, which reaches this process alone, ends the program too, and then this one: else it would live on, with
    its port."""
    ended = False

    def end(_number: int, _frame: object) -> None:
        nonlocal ended
        ended = True
        process.terminate()

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if ended:
            sys.exit(128 + signal.SIGTERM)


def listen(port: int | None, usual: int) -> socket.socket:
    """A port of the loopback device: this one, else the usual one, else any that is free. Raises UsageError where it
    cannot be had."""
    tries = [usual, 0] if port is None else [port]
    for one in tries:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((LOOPBACK, one))
            listening.listen()
        except OSError as error:
            listening.close()
            refused = error
        else:
            return listening
    hint = "another --port, or none: then one is found that is free"
    raise UsageError(f"port {tries[-1]} cannot be used: {refused.strerror}", where="--port", hint=hint)
