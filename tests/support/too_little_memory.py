"""Allocations that fail where a pass has too many rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def out_of_memory_beyond(model: Any, *, rows: int) -> Iterator[list[int]]:
    """Within, a pass of more rows has no memory. Gives the rows of those that had."""
    passes: list[int] = []

    def look(_module: Any, _arguments: Any, named: dict[str, Any]) -> None:
        count = len(named["input_ids"])
        if count > rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        passes.append(count)

    hook = model.register_forward_pre_hook(look, with_kwargs=True)
    try:
        yield passes
    finally:
        hook.remove()
