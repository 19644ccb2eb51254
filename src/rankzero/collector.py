"""When Python looks for reference cycles. Importing a training stack makes half a million objects and hardly a cycle:
looking through them again and again takes a fifth of the imports' time, and at the end of the process a second or two.

Only what is rankzero's own process is told anything for longer than a call: a notebook's objects are not ours to keep.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_USUAL = gc.get_threshold()
_SELDOM = (50_000, *_USUAL[1:])
"""A look at so many more objects than at the last one, while modules are imported."""


def look_seldom() -> None:
    """From the start of a process of ours, until `look_as_usual`."""
    gc.set_threshold(*_SELDOM)


def look_as_usual() -> None:
    """Once what a command needs is imported: all that is there stays to the end, and is looked through no more; of what
    comes later cycles go as early as ever. Nothing happens where `look_seldom` was not called."""
    if gc.get_threshold() == _SELDOM:
        gc.freeze()
        gc.set_threshold(*_USUAL)


@contextmanager
def without_collector() -> Iterator[None]:
    """Not at all meanwhile, where many objects are made and next to no cycles. What cycles there are go afterwards."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
