"""A replica on every process: gradients are summed once a step, beside its last pass, and rank 0 saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from rankzero.engine.device import Device
from rankzero.engine.distributed import World, broadcast_parameters
from rankzero.engine.gradient_sum import GradientSum
from rankzero.engine.parallel.base import Snapshot, optimizer_tensors, restore_optimizer
from rankzero.engine.parallel.formats import (
    NothingToWrite,
    WholeSnapshot,
    model_state,
    read_optimizer,
    read_weights,
)
from rankzero.engine.parallel.half_sums import HalfSums
from rankzero.engine.parallel.masters import Frozen, Masters, copies_in
from rankzero.model.load import kept_in_float32
from rankzero.model.weights import file_layout
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
        dtype: torch.dtype = torch.float32,
        same_passes: bool = False,
    ) -> None:
        """`dtype`: which float32 weights are computed with in a copy of, as `copies_in` says. `same_passes`: ranks
        meet within the passes of `module`. Gradients then travel when the last pass is over: no rank should wait for
        another in two places at once."""
        self.same_passes = same_passes
        self.model = self.module = module.to(device.torch_device)
        self._layout = file_layout(module)
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._world = world
        broadcast_parameters(trained.values())
        self._masters = Masters(trained, dtype, stay=kept_in_float32(module, dtype))
        self._frozen = Frozen(module, dtype)
        self._parameters = self._masters.weights
        self._add_up_passes()
        self._sum = GradientSum(self._parameters.values(), computed=self._masters.computed)
        self.optimizer = make_optimizer(self._parameters)

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        self._half.begin_pass()
        self._last_pass = last
        self._sum.begin_pass(last=last and not self.same_passes)
        if loss.requires_grad:
            torch.autograd.backward(loss)

    def _add_up_passes(self) -> None:
        """Before whatever else asks for gradients as a pass leaves them: weights have that of the step by then."""
        self._half, self._last_pass = HalfSums(self._parameters.values()), False
        for weight in self._parameters.values():
            if weight in self._half:
                weight.register_post_accumulate_grad_hook(self._add_half)  # type: ignore[no-untyped-call]

    def _add_half(self, weight: Any) -> None:
        self._half.take(weight)
        if self._last_pass:
            self._half.give(weight)

    def reduce_gradients(self, max_grad_norm: float | None, *, loss_scale: float = 1.0) -> torch.Tensor:
        self._half.give_all()
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

    def trained(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, p.detach()) for name, p in self._parameters.items())

    def step(self) -> None:
        self.optimizer.step()
        self._masters.round()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self._half.drop()

    def snapshot(self) -> Snapshot:
        if not self._world.is_main:
            return NothingToWrite()
        saved, state = set(self._layout.names.values()), self._state()
        fixed = {name for name, parameter in self.module.named_parameters() if not parameter.requires_grad}
        moving = {name: tensor for name, tensor in state.items() if name in saved - fixed}
        frozen = {name: tensor for name, tensor in state.items() if name in saved & fixed}
        return WholeSnapshot(self._layout, moving, optimizer_tensors(self.optimizer, self._parameters), frozen)

    def load(self, directory: Path) -> None:
        self.load_weights(directory)
        restore_optimizer(self.optimizer, self._parameters, read_optimizer(directory))

    def load_weights(self, directory: Path) -> None:
        read_weights(self._layout, self._state(), directory, lambda _name, whole: whole)
        self._masters.round()
        self._frozen.round()

    def export_state(self) -> dict[str, torch.Tensor] | None:
        if not self._masters.computed:
            return None
        return {name: tensor.cpu() for name, tensor in self._state().items()} if self._world.is_main else {}

    def _state(self) -> dict[str, torch.Tensor]:
        """The model's, with what was rounded in place of what is computed with."""
        masters = {name: master.detach() for name, master in self._parameters.items()}
        return model_state(self.module) | self._frozen.whole | masters


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
    """As the other shardings."""
    return Replicated(module, make_optimizer, world=world, device=device, dtype=copies_in(module, dtype))
