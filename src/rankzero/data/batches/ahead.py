"""Results made by a thread while the caller works with earlier ones. Knows nothing of batches.

While the device computes a pass, the next one is read, decoded and sent. Both spend their time outside the
interpreter's lock, so a thread is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def _nothing() -> None:
    """Nothing is expected behind the last item."""


class Ahead(Generic[_Item, _Result]):
    """`make` of items in order, one of them ahead of its use."""

    def __init__(self, make: Callable[[_Item], _Result], *, same: Callable[[_Item, _Item], bool]) -> None:
        """`same`: whether the result for one item does for another."""
        self._make, self._same = make, same
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._under_way: tuple[_Item, Future[_Result]] | None = None

    def each(self, items: Iterable[_Item], then: Callable[[], _Item | None] = _nothing) -> Generator[_Result]:
        """The result of each item. When the last one is due, `then` is asked which item will be first the next time.

        What `make` raises is raised when its result is due, not before, and nothing is begun behind it. Whoever stops
        early closes the iterator, which waits for the one that is under way.
        """
        left = iter(items)
        item = next(left, None)
        try:
            while item is not None:
                result = self._begun(item).result()
                self._under_way = None
                item = next(left, None)
                following = then() if item is None else item
                if following is not None:
                    self._begun(following)
                yield result
        finally:
            if item is not None:
                self.forget()

    def forget(self) -> None:
        """Wait for what is under way, and drop it."""
        if self._under_way is not None:
            self._under_way[1].exception()  # of no interest any more
            self._under_way = None

    def _begun(self, item: _Item) -> Future[_Result]:
        if self._under_way is not None and not self._same(self._under_way[0], item):
            self.forget()
        if self._under_way is None:
            self._under_way = item, self._thread.submit(self._make, item)
        return self._under_way[1]
