"""How a start takes what its run needs."""

from __future__ import annotations

import json
import logging
import random
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

from rankzero.engine.checkpoint import generators_kept
from rankzero.engine.worker import hold, run
from rankzero.run_dir import lease as leases
from rankzero.run_dir.lease import Lease
from rankzero.spec.run_options import RunOptions
from tests.support.runs import small_spec


def test_a_run_in_its_callers_process_leaves_the_random_generators_alone(tmp_path: Path, tiny: Path) -> None:
    def draws() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(()))]

    spec = small_spec(tmp_path, tiny, eval_rows=0, train__max_steps=1)
    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    draws()
    wanted = draws()
    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    draws()
    run(spec, RunOptions(log_level="WARNING"), own_process=False)
    assert draws() == wanted


def test_generators_of_every_gpu_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run seeds those of all GPUs, not of its own alone."""
    states = [torch.tensor([number], dtype=torch.uint8) for number in range(3)]

    def set_all(given: list[torch.Tensor]) -> None:
        states[:] = given

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: states[0])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state: states.__setitem__(0, state))
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: list(states))
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", set_all)
    with generators_kept():
        states[:] = [torch.tensor([9], dtype=torch.uint8)] * 3
    assert [int(state) for state in states] == [0, 1, 2]


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
