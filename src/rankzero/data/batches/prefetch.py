"""Results made one ahead of their use, by a thread of their own. Knows nothing of what the results are.

While the device computes a pass, the next one is read, decoded and sent. Both spend their time outside the
interpreter's lock, so a thread is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def ahead(function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result]:
    """`function` of each item in order, the next one under way while the caller works with the last.

    What `function` raises is raised when its result is due, not before, and nothing is begun behind it. Whoever stops
    early closes the iterator, which waits for the one that is under way.
    """
    left = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as thread:

        def begin() -> Future[Result] | None:
            for item in left:
                return thread.submit(function, item)
            return None

        under_way = begin()
        while under_way is not None:
            result = under_way.result()
            under_way = begin()
            yield result
