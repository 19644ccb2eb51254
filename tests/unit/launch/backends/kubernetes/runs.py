"""What the tests of the Kubernetes backend share: a run's objects, and a backend that talks to the fake cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2

from rankzero.launch.backends.kubernetes.api import Api
from rankzero.launch.backends.kubernetes.auth import connect
from rankzero.launch.backends.kubernetes.backend import KubernetesBackend
from rankzero.launch.backends.kubernetes.streams import Clock
from rankzero.launch.labels import Manifest
from rankzero.launch.plan import make_plan
from rankzero.launch.render import render
from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.resolve import resolve
from rankzero.spec.run_options import RunOptions, SmokeSettings
from rankzero.spec.run_spec import RunSpec
from tests.support.fake_cluster import FakeCluster

STORAGE = {
    "outputs": {"mount": "/outputs", "claim": "outputs", "size": "1Gi"},
    "cache": {"mount": "/cache", "claim": "cache", "size": "1Gi"},
}


def objects(
    *,
    name: str = "r",
    steps: int = 10,
    allow_changes: tuple[str, ...] = (),
    run: dict[str, Any] | None = None,
    submitter: str = "",
    smoke: SmokeSettings | None = None,
    **cluster: Any,
) -> list[Manifest]:
    """The rendered objects of a run of two nodes."""
    data = {"train": "/outputs/t.jsonl"}
    spec = {"name": name, "model": {"name": "o/m"}, "data": data, "train": {"max_steps": steps}, **(run or {})}
    place = {"image": "i", "namespace": "train", "num_nodes": 2, "prepare": "never", "storage": STORAGE, **cluster}
    plan = make_plan(
        resolve(RunSpec.model_validate(spec)),
        ClusterSpec.model_validate(place),
        options=RunOptions(allow_changes=allow_changes, smoke=smoke),
        submitter=submitter,
    )
    return render(plan)


@dataclass
class Ticks:
    """A clock that sleeping moves."""

    seconds: float = 0.0
    slept: list[float] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def sleep(self, seconds: float) -> None:
        """Let time pass, and other threads come to their turn."""
        with self._lock:
            self.seconds += seconds
            self.slept.append(seconds)
            assert self.seconds < 5_000, "waits for ever"
        time.sleep(0)

    def clock(self) -> Clock:
        """As the backend takes it."""
        return Clock(self.sleep, lambda: self.seconds, lambda: datetime(2026, 11, 21, 8, tzinfo=UTC))


class Said(list[str]):
    """What was said, and what somebody who hears it does."""

    def __init__(self) -> None:
        super().__init__()
        self.reactions: dict[str, Callable[[], None]] = {}

    def append(self, line: str) -> None:
        """Hear a line."""
        super().append(line)
        for words in [words for words in self.reactions if words in line]:
            self.reactions.pop(words)()


@dataclass
class Bench:
    """A fake cluster and a backend for it."""

    cluster: FakeCluster
    directory: Path
    said: Said = field(default_factory=Said)
    ticks: Ticks = field(default_factory=Ticks)

    def api(self, *, read_timeout: float | None = None) -> Api:
        """Calls to the cluster."""
        path = self.cluster.kubeconfig(self.directory)
        connection = connect(None, {"KUBECONFIG": str(path)})
        if read_timeout is not None:
            connection.http.timeout = httpx2.Timeout(read_timeout)
        return Api(connection, "train", say=self.said.append, clock=self.ticks.clock())

    def backend(self, *, wait: bool = True, read_timeout: float | None = None) -> KubernetesBackend:
        """A backend of its own connections."""
        return KubernetesBackend(self.api(read_timeout=read_timeout), wait=wait)

    def submit(self, manifests: list[Manifest], *, wait: bool = True, replace: bool = True) -> None:
        """Submit, noting what is said."""
        self.backend(wait=wait).submit(manifests, self.said.append, replace=replace)

    def heard(self, words: str) -> bool:
        """Whether something of the kind was said."""
        return any(words in line for line in self.said)
