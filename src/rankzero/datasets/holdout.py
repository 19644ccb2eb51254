"""A share of the rows held out by group, in fixed memory and in any order. Pure: from the seed and the groups alone.

Groups are placed on [0, 1) by a hash; those below a cut are held out. The cut is where the share of the rows comes
closest to what was asked for, with at least one group on either side.
"""

from __future__ import annotations

import hashlib
from array import array

from rankzero.errors import DataError

_BUCKETS = 1 << 20


class HoldOut:
    """First every row is counted, then every row can be asked for."""

    def __init__(self, fraction: float, seed: int) -> None:
        self._fraction, self._seed = fraction, seed
        self._rows = array("q", bytes(8 * _BUCKETS)) if fraction else array("q")
        self._cut = 0

    def count(self, group: str) -> None:
        """A row of this group."""
        if self._fraction:
            self._rows[self._place(group)] += 1

    def decide(self) -> None:
        """Place the cut. Raises DataError where one group is all there is."""
        if not self._fraction:
            return
        filled = [place for place, rows in enumerate(self._rows) if rows]
        if len(filled) < 2:
            hint = "leave --eval-fraction out, or give more rows"
            raise DataError("nothing can be held out: all rows have one image", hint=hint)
        wanted = sum(self._rows) * self._fraction
        held, best = 0, float("inf")
        for place in filled[:-1]:
            held += self._rows[place]
            if abs(held - wanted) >= best:
                break
            best, self._cut = abs(held - wanted), place + 1

    def holds(self, group: str) -> bool:
        """Whether rows of this group are held out."""
        return bool(self._fraction) and self._place(group) < self._cut

    def _place(self, group: str) -> int:
        digest = hashlib.sha256(f"{self._seed}:{group}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % _BUCKETS
