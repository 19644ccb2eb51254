"""Files to rows to tokens to batches. No torch before loader.py; nothing of models.

`rankzero.data.check` and `rankzero.data.show` are for callers: they need a tokenizer, which is above this room, so they
are looked for there when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankzero.api.data import check as check
    from rankzero.api.data import show as show

_PUBLIC = ("check", "show")


if not TYPE_CHECKING:  # where any name would be there, a slip too

    def __getattr__(name: str) -> Any:
        if name in _PUBLIC:
            return getattr(importlib.import_module("rankzero.api.data"), name)
        raise AttributeError(f"module 'rankzero.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
