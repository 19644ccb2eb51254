"""Where a run computes: known to all ranks alike, since what is decided by it must be the same on all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankzero.engine import place
from rankzero.engine.device import Device
from rankzero.engine.distributed import World
from rankzero.engine.place import place_of_all, place_of_rank
from rankzero.forecast.devices import ETHERNET, RDMA_PER_GPU, Network
from rankzero.forecast.forecast import Place

TWO_NODES = World(rank=0, world_size=16, local_rank=0, local_world_size=8)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A GPU that nothing is asked of but its name and memory; returns where devices for RDMA would be."""
    monkeypatch.setattr(place, "memory_limit", lambda _device, _local: 80)
    monkeypatch.setattr(place, "hardware", lambda _device: "H100")
    monkeypatch.setattr(place, "_RDMA_DEVICES", tmp_path / "infiniband")
    return tmp_path / "infiniband"


def test_what_lies_between_nodes_is_told_by_devices(gpu: Path) -> None:
    device = Device("cuda")
    assert place_of_rank(device, TWO_NODES) == Place("cuda", "H100", 80, 0, 16, Network(8, ETHERNET))
    gpu.mkdir()
    (gpu / "uverbs0").touch()
    assert place_of_rank(device, TWO_NODES).network == Network(8, 8 * RDMA_PER_GPU)
    one = World(rank=0, world_size=8, local_rank=0, local_world_size=8)
    assert place_of_rank(device, one).network == Network(8, 0.0), "one node has nothing between nodes"
    assert place_of_rank(Device("cpu"), TWO_NODES).processes_a_node == 8


def test_all_ranks_know_the_least_of_them(gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = Place("cuda", "H100", 80, 0, 16, Network(8, 400.0))
    poor = replace(fast, limit=79, network=Network(8, 100.0))
    monkeypatch.setattr(place, "gather_objects", lambda _own: [fast, poor])
    assert place_of_all(Device("cuda"), TWO_NODES) == replace(fast, limit=79, network=Network(8, 100.0))
    monkeypatch.setattr(place, "gather_objects", lambda _own: [fast, replace(poor, network=None)])
    assert place_of_all(Device("cuda"), TWO_NODES).network is None


def test_nodes_of_different_sizes_are_none(gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = (Place("cuda", "H100", 80, 0, 12, Network(size, 100.0)) for size in (8, 4))
    monkeypatch.setattr(place, "gather_objects", lambda _own: [large, small])
    assert place_of_all(Device("cuda"), TWO_NODES).processes_a_node == 1
