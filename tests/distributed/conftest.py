"""Tests of several ranks."""

from __future__ import annotations

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a test of ZeRO that `make test` would run, where DeepSpeed is not installed: it passes wherever somebody
    has it."""
    callspec = getattr(item, "callspec", None)  # of a parametrised test
    values = () if callspec is None else callspec.params.values()
    needs_it = any(value in ("zero2", "zero3") for value in values if isinstance(value, str))
    if needs_it and item.get_closest_marker("deepspeed") is None:
        pytest.fail("mark it with deepspeed, which `make test` leaves out")
