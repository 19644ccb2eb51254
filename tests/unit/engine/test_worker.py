"""How a start takes what its run needs."""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack
from pathlib import Path

import pytest

from rankzero.engine.worker import hold
from rankzero.run_dir import lease as leases
from rankzero.run_dir.lease import Lease


def test_who_is_watched_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that waits for half a minute says what for."""
    monkeypatch.setattr(leases, "WATCH_SECONDS", 0.0)
    lease = Lease(tmp_path)
    lease.path.write_text(json.dumps({"token": 1, "beat": 0, "host": "elsewhere", "pid": 7}), encoding="utf-8")
    with caplog.at_level(logging.INFO, "rankzero"), ExitStack() as stack:
        hold(lease, stack)
        lease.check()
    assert f"[STEP] {lease.path} names process 7 on elsewhere; watching for " in caplog.text
    assert "pid" not in lease.read()
