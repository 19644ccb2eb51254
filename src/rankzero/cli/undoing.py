"""Commands that write something whole or not at all, also where a signal ends them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from rankzero.errors import StopNow


@contextmanager
def undone_where_stopped() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that is closed, end the block as an error does, so that nothing half-written
    stays, and then the process with the status that shells give to such an end. A further one changes nothing."""
    from rankzero.stop_signals import signals_to, stop_signals

    heard: list[int] = []

    def stop(number: int) -> None:
        heard.append(number)
        if len(heard) == 1:
            raise StopNow

    try:
        with signals_to(stop, (number for number in stop_signals() if number != signal.SIGINT)):
            yield
    except StopNow:
        raise SystemExit(128 + heard[0]) from None
