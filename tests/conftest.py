"""Every test: no network, its own cache, and no leftovers of one run's signal handlers or loggers in the next."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from rankzero.cache import uses
from rankzero.collector import look_as_usual, look_seldom

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before any import of huggingface_hub
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # before torch is imported; see rankzero.engine
# Nothing empty among them: that would be whatever directory a process begins in.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of a job that a script starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

look_seldom()  # while a million objects are made that stay: modules and what is collected of them


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what slow.txt names. Raises UsageError where a file of which all tests are collected lacks one of those;
    of some alone they are where tests are named, or only those that failed are run again."""
    lines = (Path(__file__).parent / "slow.txt").read_text(encoding="utf-8").splitlines()
    slow = {line for line in lines if line and not line.startswith("#")}
    for item in items:
        if item.nodeid in slow:
            item.add_marker("slow")
    if not config.getoption("lf", default=False) and not any("::" in argument for argument in config.args):
        whole = {item.nodeid.partition("::")[0] for item in items}
        lost = sorted(slow - {item.nodeid for item in items})
        if gone := [name for name in lost if name.partition("::")[0] in whole]:
            raise pytest.UsageError("tests/slow.txt names what is no test: " + ", ".join(gone))


def pytest_collection_finish() -> None:
    """What is there now stays to the end, in each of pytest-xdist's workers too."""
    look_as_usual()


_LOOPBACK = ("127.", "::1", "localhost")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse connections that would leave this machine."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not str(address[0]).startswith(_LOOPBACK):
            raise AssertionError(f"a test tried to connect to {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of this test's own, also for the processes that it starts."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("RANKZERO_CACHE", str(cache))
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    yield cache
    uses.release()


@pytest.fixture(autouse=True)
def own_signal_handlers() -> Iterator[None]:
    """What a test, or a main() that it calls, does to signals ends with it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture
def hung_up_on() -> Iterator[None]:
    """A SIGHUP asks this process, and those that it starts, to stop, also where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs in this process compute with one thread: for tiny models a second one only makes the first wait."""
    import torch

    threads = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def bfloat16_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs take this CPU for one that multiplies bfloat16, which not every one does: torch emulates it there."""
    from rankzero.machine import CPU_FEATURES_VARIABLE, cpu_features

    monkeypatch.setenv(CPU_FEATURES_VARIABLE, " ".join(sorted({*cpu_features(), "avx512_bf16"})))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A 2-layer Llama with random weights and a ChatML tokenizer."""
    from tests.support.tiny import tiny_model

    yield tiny_model(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Type a command; returns its exit code and output."""
    from tests.support.cli import Cli

    return Cli(capfd, monkeypatch)


# CI looks at the same examples every time, so that a red run means a change; elsewhere each run looks at new ones.
# How long an example takes says more of the machine's other work than of ours.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("new", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "new")
