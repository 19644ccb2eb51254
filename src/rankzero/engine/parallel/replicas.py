"""A replica on every process: gradients are summed once a step, beside its last pass, and rank 0 saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from rankzero.engine.device import Device
from rankzero.engine.distributed import World, broadcast_parameters
from rankzero.engine.gradient_sum import GradientSum
from rankzero.engine.parallel.base import WEIGHTS_DIRECTORY, Snapshot, optimizer_tensors, restore_optimizer
from rankzero.engine.parallel.formats import (
    NothingToWrite,
    WholeSnapshot,
    is_sharded,
    model_state,
    read_optimizer,
    read_sharded,
)
from rankzero.model.weights import load_weights
from rankzero.spec.run_spec import RunSpec, Sharding


class Replicated:
    """Data parallelism without a wrapper."""

    name: Sharding = "ddp"

    def __init__(
        self,
        module: Any,
        make_optimizer: Callable[[dict[str, torch.nn.Parameter]], torch.optim.Optimizer],
        *,
        world: World,
        device: Device,
        same_passes: bool = False,
    ) -> None:
        """`same_passes`: ranks meet within the passes of `module`. Gradients then travel when the last pass is over:
        no rank should wait for another in two places at once."""
        self.same_passes = same_passes
        self.model = self.module = module.to(device.torch_device)
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._world = world
        broadcast_parameters(self._parameters.values())
        self._sum = GradientSum(self._parameters.values())
        self.optimizer = make_optimizer(self._parameters)

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        self._sum.begin_pass(last=last and not self.same_passes)
        if loss.requires_grad:
            torch.autograd.backward(loss)

    def reduce_gradients(self, max_grad_norm: float | None, *, loss_scale: float = 1.0) -> torch.Tensor:
        self._sum.finish()
        parameters = list(self._parameters.values())
        gradients = [p.grad for p in parameters if p.grad is not None]
        if loss_scale != 1:
            torch._foreach_mul_(gradients, 1 / loss_scale)
        norm = norm_of(gradients)
        if max_grad_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, max_grad_norm, norm)
        return norm

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, p.grad) for name, p in self._parameters.items() if p.grad is not None)

    def step(self) -> None:
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def snapshot(self) -> Snapshot:
        if not self._world.is_main:
            return NothingToWrite()
        state = {} if isinstance(self.module, PeftModel) else model_state(self.module)
        trained = {name: parameter.detach() for name, parameter in self._parameters.items()}
        fixed = {name: parameter for name, parameter in self.module.named_parameters() if not parameter.requires_grad}
        moving = {name: tensor for name, tensor in state.items() if name not in fixed} | trained
        frozen = {name: tensor for name, tensor in state.items() if name in fixed}
        return WholeSnapshot(self.module, moving, optimizer_tensors(self.optimizer, self._parameters), frozen)

    def load(self, directory: Path) -> None:
        self.load_weights(directory)
        restore_optimizer(self.optimizer, self._parameters, read_optimizer(directory))

    def load_weights(self, directory: Path) -> None:
        if is_sharded(directory):
            read_sharded(model_state(self.module), directory)
        else:
            load_weights(self.module, directory / WEIGHTS_DIRECTORY)

    def export_state(self) -> dict[str, torch.Tensor] | None:
        return None


def norm_of(gradients: list[torch.Tensor]) -> torch.Tensor:
    """The global norm, added up in float32 whatever precision the gradients have."""
    if all(gradient.dtype is torch.float32 for gradient in gradients):
        return torch.nn.utils.get_total_norm(gradients)
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
    return torch.stack(norms).square().sum().sqrt()


def spread(
    module: Any,
    make_optimizer: Callable[[dict[str, torch.nn.Parameter]], torch.optim.Optimizer],
    *,
    spec: RunSpec,
    world: World,
    device: Device,
    dtype: torch.dtype,
) -> Replicated:
    """As the other shardings; what is computed in which precision is the loop's matter here."""
    return Replicated(module, make_optimizer, world=world, device=device)
