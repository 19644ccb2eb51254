"""Hybrid sharding: FSDP2 among the processes of a node, of which each node has a copy. Weights never leave a node;
gradients are summed over nodes once a step. All else is fsdp.py's; which nodes can have one, engine/place.py knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rankzero.engine.device import Device
from rankzero.engine.distributed import World
from rankzero.engine.parallel.fsdp import Fsdp
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
    """As the other shardings. Nodes have equally many ranks, which follow each other (engine/place.py)."""
    return Fsdp(
        module,
        make_optimizer,
        spec=spec,
        world=world,
        device=device,
        dtype=dtype,
        among=world.local_world_size,
    )
