"""Whether RDMA can register its buffers is known before anything hangs on it."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from rankzero.errors import ConfigError
from rankzero.launch.node.pid1 import allow_locking

NONE, IPC_LOCK = "0000000000000000", "0000000000004000"


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The limits; the last counts."""
    found = [(65536, 8 * 2**20)]
    monkeypatch.setattr(resource, "getrlimit", lambda _what: found[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _what, both: found.append(both))
    return found


def status(folder: Path, capabilities: str) -> Path:
    path = folder / "status"
    path.write_text(f"Name:\tpython\nCapEff:\t{capabilities}\nCapBnd:\t{IPC_LOCK}\n")
    return path


def test_too_little_is_an_error_with_cause_and_fix(tmp_path: Path, limits: list[tuple[int, int]]) -> None:
    with pytest.raises(ConfigError, match="may lock 8,192 KiB") as caught:
        allow_locking(status(tmp_path, NONE))
    assert "LimitMEMLOCK=infinity" in str(caught.value) and "user: 0" in str(caught.value)


def test_the_soft_limit_is_raised_as_far_as_it_goes(tmp_path: Path, limits: list[tuple[int, int]]) -> None:
    limits[:] = [(65536, resource.RLIM_INFINITY)]
    allow_locking(status(tmp_path, NONE))
    assert limits[-1] == (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def test_the_capability_counts_where_it_has_an_effect(tmp_path: Path, limits: list[tuple[int, int]]) -> None:
    allow_locking(status(tmp_path, IPC_LOCK))
