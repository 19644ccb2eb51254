"""Where a run computes, as forecasts know it: of each process its device and memory, and what lies between them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from rankzero.engine.device import Device, memory_limit
from rankzero.engine.distributed import World, gather_objects
from rankzero.errors import ConfigError
from rankzero.forecast.devices import Network, assumed_network
from rankzero.forecast.forecast import Place
from rankzero.machine import threads_of_a_process, usable_cores

_RDMA_DEVICES = Path("/dev/infiniband")


def place_of_rank(device: Device, world: World, free: int = 0) -> Place:
    """Of this process. Whether nodes have RDMA between them is told by its devices, which a pod has if it asks for
    them; how fast it is, or Ethernet, is assumed."""
    limit = memory_limit(device, world.local_world_size)
    alone = world.local_world_size == world.world_size
    rdma = any(_RDMA_DEVICES.glob("uverbs*"))
    network = Network(world.local_world_size, 0.0) if alone else assumed_network(world.local_world_size, rdma=rdma)
    threads = threads_of_a_process(world.local_world_size) if device.kind == "cpu" else 1
    return Place(device.kind, hardware(device), limit, free, world.world_size, network, threads)


def place_of_all(device: Device, world: World) -> Place:
    """The same on every rank: what the first of them has, with the memory of the one that has the least, and a network
    that is as slow as the slowest. Where nodes are not alike nothing is said of them: each process is taken for one. A
    collective."""
    found: list[tuple[Place, Seat]] = gather_objects((place_of_rank(device, world), _seat(world)))
    places = [place for place, _ in found]
    networks = [place.network for place in places if place.network is not None]
    network = min(networks, key=lambda network: network.between) if len(networks) == len(places) else None
    if network is not None and _unlike([seat for _, seat in found]):
        network = replace(network, processes_a_node=1)
    threads = min(place.threads for place in places)
    return replace(places[0], limit=min(place.limit for place in places), network=network, threads=threads)


def require_like_nodes(world: World) -> None:
    """Raise ConfigError on every rank where nodes have different numbers of ranks, or ranks that do not follow each
    other. A collective."""
    if what := _unlike(gather_objects(_seat(world))):
        hint = "start them so, or take train.sharding: fsdp"
        raise ConfigError(f"hsdp needs {what}", where="train.sharding", hint=hint)


Seat = tuple[str, int, int]
"""Of a rank: its host, its number there, and how many the host has."""


def _seat(world: World) -> Seat:
    return socket.gethostname(), world.local_rank, world.local_world_size


def _unlike(seats: Sequence[Seat]) -> str:
    """What nodes lack to be alike, from the seats of all ranks in their order; nothing where they are."""
    sizes = sorted({size for *_, size in seats})
    if len(sizes) > 1:
        return f"as many processes on each node, and there are {' and '.join(map(str, sizes))}"
    blocks = [seats[first : first + sizes[0]] for first in range(0, len(seats), sizes[0])]
    on_one_host = all(len({host for host, *_ in block}) == 1 for block in blocks)
    each_once = all(len({local for _, local, _ in block}) == len(block) for block in blocks)
    return "" if on_one_host and each_once else "the ranks of a node to follow each other"


def hardware(device: Device) -> str:
    """As `forecast/without_torch.py` calls it too."""
    if device.kind == "cuda":
        return torch.cuda.get_device_name(device.index)
    return f"{device.kind}, {usable_cores()} cores"
