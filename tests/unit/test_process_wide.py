"""A change to the whole process that several threads need at different times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rankzero.process_wide import ProcessWide


def test_the_first_makes_it_and_the_last_undoes_it() -> None:
    said: list[str] = []

    @contextmanager
    def change() -> Iterator[None]:
        said.append("made")
        yield
        said.append("undone")

    changed = ProcessWide(change)
    for _ in range(2):
        changed.__enter__()
        changed.__enter__()
        changed.__exit__(None, None, None)
        assert said == ["made"]
        changed.__exit__(None, None, None)
        assert said == ["made", "undone"]
        said.clear()


def test_one_that_cannot_be_made_is_not_undone() -> None:
    tries = iter([True, False])

    @contextmanager
    def change() -> Iterator[None]:
        if next(tries):
            raise OSError("no such descriptor")
        yield

    changed = ProcessWide(change)
    with pytest.raises(OSError, match="descriptor"), changed:
        pass
    with changed:
        pass
