"""How a start takes what its run needs."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankzero.engine import saving, worker
from rankzero.engine.checkpoint import generators_kept
from rankzero.engine.worker import hold, run
from rankzero.errors import ConfigError, StorageError
from rankzero.run_dir import lease as leases
from rankzero.run_dir.lease import Lease
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from tests.support.runs import run_here, run_root, small_spec


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


def meanwhile(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Have something happen once while a start reads its rows, which may take an hour."""
    own, left = worker.read_inputs, [happens]

    def read_inputs(*args: Any, **kwargs: Any) -> Any:
        read = own(*args, **kwargs)
        if left:
            left.pop()()
        return read

    monkeypatch.setattr(worker, "read_inputs", read_inputs)


def test_who_comes_second_to_a_new_run_leaves_what_the_first_has_made(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both found no directory, and the second waited for the first one's tokens."""
    spec = small_spec(tmp_path, tiny)
    root = run_root(spec)
    first = Lease(root)

    def begins() -> None:
        first.acquire()
        (root / "report.json").write_text("of the first")

    meanwhile(monkeypatch, begins)
    try:
        with pytest.raises(StorageError, match="in use by process"):
            run_here(spec)
        assert (root / "report.json").read_text() == "of the first"
        assert not (root / "run.yaml").exists() and not (root / "metrics.jsonl").exists()
    finally:
        first.release()


def finishes(spec: RunSpec) -> None:
    assert run_here(spec)["steps"] == 4


def test_what_another_setting_has_saved_meanwhile_is_not_continued(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(tmp_path, tiny, train__num_train_epochs=1)
    other = spec.model_copy(update={"train": spec.train.model_copy(update={"seed": 7})})
    meanwhile(monkeypatch, partial(finishes, other))
    with pytest.raises(ConfigError, match=r"train\.seed"):
        run_here(spec)
    assert "seed: 7" in (run_root(spec) / "run.yaml").read_text()


@pytest.mark.parametrize(("available", "waits"), [(400_000, True), (40_000_000, False)], ids=["tight", "ample"])
def test_steps_wait_for_a_checkpoint_whose_copy_would_take_what_they_need(
    available: int, waits: bool, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is less than half of what is free in both."""
    monkeypatch.setattr(saving, "available_memory", lambda: available)
    said: list[str] = []
    monkeypatch.setattr(saving.logger, "debug", lambda words, *_: said.append(words))
    run_here(small_spec(tmp_path, tiny, eval_rows=0, train__max_steps=1))
    assert any("no memory for a copy" in words for words in said) == waits
