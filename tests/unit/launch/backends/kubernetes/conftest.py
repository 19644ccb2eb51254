"""A fake cluster for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_cluster import FakeCluster
from tests.unit.launch.backends.kubernetes.runs import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    cluster = FakeCluster().start()
    yield Bench(cluster, tmp_path)
    cluster.stop()
