"""Tests of several ranks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Refuse a test of ZeRO that would run where DeepSpeed is not installed: it passes wherever somebody has it."""
    for item in items:
        values = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
        needs_it = bool({"zero2", "zero3"} & {value for value in values if isinstance(value, str)})
        if needs_it and item.get_closest_marker("deepspeed") is None:
            raise pytest.UsageError(f"{item.nodeid}: mark it with deepspeed, which `make test` leaves out")
