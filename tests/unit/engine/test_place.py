"""Where a run computes: known to all ranks alike, since what is decided by it must be the same on all of them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankzero.engine import place
from rankzero.engine.device import Device
from rankzero.engine.distributed import World
from rankzero.engine.place import place_of_all, place_of_rank, require_like_nodes
from rankzero.errors import ConfigError
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


def gathered(*places: Place, hosts: str, local: str) -> Any:
    """What all ranks say: the places again and again, on hosts of these names, with these numbers there."""
    on = zip(itertools.cycle(places), hosts, map(int, local), strict=False)
    return lambda _own: [(place, (host, number, place.processes_a_node)) for place, host, number in on]


def test_all_ranks_know_the_least_of_them(gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = Place("cuda", "H100", 80, 0, 4, Network(2, 400.0))
    poor = replace(fast, limit=79, network=Network(2, 100.0))
    monkeypatch.setattr(place, "gather_objects", gathered(fast, poor, hosts="aabb", local="0101"))
    assert place_of_all(Device("cuda"), TWO_NODES) == replace(fast, limit=79, network=Network(2, 100.0))


@pytest.mark.parametrize(
    ("hosts", "local", "what"),
    [
        pytest.param("aabb", "0101", "", id="as torchrun has them"),
        pytest.param("aabb", "1010", "", id="other GPUs first"),
        pytest.param("aaaa", "0101", "", id="two pods of one machine"),
        pytest.param("abab", "0011", "the ranks of a node to follow each other", id="in turns"),
        pytest.param("abba", "0101", "the ranks of a node to follow each other", id="crosswise"),
        pytest.param("aaaa", "0011", "the ranks of a node to follow each other", id="in turns on hosts of one name"),
    ],
)
def test_nodes_are_alike(gpu: Path, hosts: str, local: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Place("cuda", "H100", 80, 0, 4, Network(2, 100.0))
    monkeypatch.setattr(place, "gather_objects", gathered(one, hosts=hosts, local=local))
    assert place_of_all(Device("cuda"), TWO_NODES).processes_a_node == (1 if what else 2)
    monkeypatch.setattr(
        place, "gather_objects", lambda _own: [(*pair, 2) for pair in zip(hosts, map(int, local), strict=True)]
    )
    if not what:
        require_like_nodes(TWO_NODES)
        return
    with pytest.raises(ConfigError, match=f"hsdp needs {what}"):
        require_like_nodes(TWO_NODES)


def test_nodes_of_different_sizes_are_none(gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = (Place("cuda", "H100", 80, 0, 3, Network(size, 100.0)) for size in (2, 1))
    seats = [(large, ("a", 0, 2)), (large, ("a", 1, 2)), (small, ("b", 0, 1))]
    monkeypatch.setattr(place, "gather_objects", lambda _own: seats)
    assert place_of_all(Device("cuda"), TWO_NODES).processes_a_node == 1
    monkeypatch.setattr(place, "gather_objects", lambda _own: [seat for _, seat in seats])
    with pytest.raises(ConfigError, match="as many processes on each node, and there are 1 and 2"):
        require_like_nodes(TWO_NODES)
