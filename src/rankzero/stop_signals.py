"""The signals that ask this process to stop: who hears them, for a while. Knows nothing of what is stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


def stop_signals() -> list[int]:
    """What asks this process to stop. A SIGHUP that is ignored already, as under nohup, does not."""
    hung_up = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, signal.SIGINT, *hung_up]


@contextmanager
def signals_to(handler: Callable[[int], None], numbers: Iterable[int]) -> Iterator[None]:
    """Call `handler` on these signals for the duration. Only a program's main thread can; in another, whoever is there
    hears them as before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, lambda received, _frame: handler(received)) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


@contextmanager
def signals_also_to(handler: Callable[[int], None]) -> Iterator[None]:
    """Call `handler` on what asks this process to stop, and then whoever hears that already."""
    before = {number: one for number in stop_signals() if callable(one := signal.getsignal(number))}

    def both(number: int) -> None:
        handler(number)
        before[number](number, None)

    with signals_to(both, before):
        yield


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold back what asks this process to stop until the block is done: what it starts is known by then to who ends
    it."""
    held: list[int] = []
    try:
        with signals_to(held.append, stop_signals()):
            yield
    finally:
        for number in held[:1]:
            signal.raise_signal(number)
