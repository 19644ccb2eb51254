"""Hybrid sharding: FSDP2 among the processes of a node, of which each node has a copy. Weights never leave a node;
gradients are summed over nodes once a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rankzero.engine.device import Device
from rankzero.engine.distributed import World, gather_objects
from rankzero.engine.parallel.fsdp import Fsdp
from rankzero.errors import ConfigError
from rankzero.spec.run_spec import RunSpec


def spread(
    module: Any,
    make_optimizer: Callable[..., torch.optim.Optimizer],
    *,
    spec: RunSpec,
    world: World,
    device: Device,
    dtype: torch.dtype,
) -> Fsdp:
    """As the other shardings. Raises ConfigError where nodes differ, or have their ranks in turns."""
    _require_like_nodes(world)
    return Fsdp(
        module,
        make_optimizer,
        spec=spec,
        world=world,
        device=device,
        dtype=dtype,
        among=world.local_world_size,
    )


def _require_like_nodes(world: World) -> None:
    """A collective: all ranks are told alike."""
    found = gather_objects((world.local_world_size, world.rank % world.local_world_size == world.local_rank))
    sizes = sorted({size for size, _ in found})
    what = ""
    if len(sizes) > 1:
        what = f"hsdp needs as many processes on each node, and there are {' and '.join(map(str, sizes))}"
    elif not all(in_order for _, in_order in found):
        what = "hsdp needs the ranks of a node to follow each other"
    if what:
        raise ConfigError(what, where="train.sharding", hint="start them so, or take train.sharding: fsdp")
