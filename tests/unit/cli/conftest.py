"""A directory with a run and a cluster spec, and a fake cluster that they speak of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from rankzero.launch.backends.kubernetes.streams import Clock
from tests.support.cli import Cli, Done
from tests.support.fake_cluster import FakeCluster

RUN = "name: r\nmodel: {name: o/m}\ndata: {train: /outputs/t.jsonl}\n"
CLUSTER = """
image: i
namespace: train
num_nodes: 2
gpu: false
prepare: never
storage: {outputs: {mount: /outputs, claim: outputs, size: 1Gi}}
"""


@dataclass
class Place:
    """Type commands, see what the cluster has."""

    cli: Cli
    cluster: FakeCluster
    directory: Path
    done: list[Done] = field(default_factory=list)

    def __call__(self, line: str) -> Done:
        """A command's outcome."""
        self.done.append(self.cli(line))
        return self.done[-1]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Place]:
    cluster = FakeCluster().start()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path)))
    monkeypatch.delenv("RANKZERO_CLUSTER", raising=False)
    impatient = partial(Clock, sleep=lambda seconds: None)
    monkeypatch.setattr("rankzero.launch.backends.kubernetes.api.Clock", impatient)
    Path("run.yaml").write_text(RUN, encoding="utf-8")
    Path("cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    yield Place(Cli(capfd, monkeypatch), cluster, tmp_path)
    cluster.stop()
