"""Where a run computes, as forecasts know it: of each process its device and memory, and what lies between them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from rankzero.engine.device import Device, memory_limit
from rankzero.engine.distributed import World, gather_objects
from rankzero.forecast.devices import Network, assumed_network
from rankzero.forecast.forecast import Place
from rankzero.machine import usable_cores

_RDMA_DEVICES = Path("/dev/infiniband")


def place_of_rank(device: Device, world: World, free: int = 0) -> Place:
    """Of this process. Whether nodes have RDMA between them is told by its devices, which a pod has if it asks for
    them; how fast it is, or Ethernet, is assumed."""
    limit = memory_limit(device, world.local_world_size)
    alone = world.local_world_size == world.world_size
    rdma = any(_RDMA_DEVICES.glob("uverbs*"))
    network = Network(world.local_world_size, 0.0) if alone else assumed_network(world.local_world_size, rdma=rdma)
    return Place(device.kind, hardware(device), limit, free, world.world_size, network)


def place_of_all(device: Device, world: World) -> Place:
    """The same on every rank: what the first of them has, with the memory of the one that has the least, and a network
    that is as slow as the slowest. Where nodes have different numbers of processes nothing is said of nodes: each
    process is taken for one. A collective."""
    places: list[Place] = gather_objects(place_of_rank(device, world))
    networks = [place.network for place in places if place.network is not None]
    network = min(networks, key=lambda network: network.between) if len(networks) == len(places) else None
    if network is not None and len({place.processes_a_node for place in places}) > 1:
        network = replace(network, processes_a_node=1)
    return replace(places[0], limit=min(place.limit for place in places), network=network)


def hardware(device: Device) -> str:
    """As `forecast/without_torch.py` calls it too."""
    if device.kind == "cuda":
        return torch.cuda.get_device_name(device.index)
    return f"{device.kind}, {usable_cores()} cores"
