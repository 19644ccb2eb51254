"""Replicas of all but the experts of a mixture, which lie on the ranks of a group: each has some of them whole, with
their gradients and their optimizer state, and tokens travel (model/expert_exchange.py).

Passes are collectives. A gradient of a rank's own experts is the sum over the tokens of its whole group already, so it
is summed over the other groups alone. Every rank saves its experts. Knows nothing of steps or of data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from rankzero.engine.device import Device
from rankzero.engine.distributed import World, broadcast_parameters, sum_over_ranks
from rankzero.engine.gradient_sum import GradientSum
from rankzero.engine.parallel.base import (
    OPTIMIZER_FILE,
    Snapshot,
    optimizer_tensors,
    restore_optimizer,
)
from rankzero.engine.parallel.expert_group import ExpertGroup
from rankzero.engine.parallel.formats import (
    ShardedSnapshot,
    is_sharded,
    read_sharded_optimizer,
    read_tensors,
    read_weights,
    whole_on_main,
)
from rankzero.engine.parallel.masters import Frozen, Masters, copies_in
from rankzero.engine.parallel.replicas import Replicated, norm_of
from rankzero.model.expert_exchange import place_experts
from rankzero.model.load import kept_in_float32
from rankzero.model.weights import file_layout
from rankzero.spec.run_spec import RunSpec


class ReplicatedBesideExperts(Replicated):
    """Full fine-tuning, with a replica of everything but experts on every rank."""

    def __init__(
        self,
        module: Any,
        make_optimizer: Callable[..., torch.optim.Optimizer],
        *,
        world: World,
        device: Device,
        dtype: torch.dtype,
        group: ExpertGroup,
        own: Mapping[str, torch.Size],
    ) -> None:
        """`module` has the experts of this rank alone, all ranks with the values of the same files; `dtype` as of
        `Replicated`; `own`: the shapes that the weights of experts have in a whole model, by name. `make_optimizer` is
        given weights by name, and as `begins` the place in its whole weight of each that is cut."""
        self.same_passes = True
        self.model = self.module = module.to(device.torch_device)
        self._layout = file_layout(module)
        self._world, self._group, self._own, self._cut = world, group, own, group.cut
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        broadcast_parameters(p for name, p in trained.items() if name not in own)
        self._masters = Masters(trained, dtype, stay=kept_in_float32(module, dtype))
        self._frozen = Frozen(module, dtype)
        self._parameters, computed = self._masters.weights, self._masters.computed
        self._add_up_passes()
        rest = [p for name, p in self._parameters.items() if name not in own]
        self._experts = [p for name, p in self._parameters.items() if name in own]
        self._sum = GradientSum(rest, computed=computed)
        self._sum_of_experts = GradientSum(self._experts, group.holders, computed=computed)
        begins = {name: self._cut.begin(shape) for name, shape in own.items()}
        self.optimizer = make_optimizer(self._parameters, begins=begins)

    def reduce_gradients(self, max_grad_norm: float | None, *, loss_scale: float = 1.0) -> torch.Tensor:
        """Each expert counts once in the norm, on whichever rank it is."""
        self._half.give_all()
        self._sum.finish()
        self._sum_of_experts.finish()
        parameters = list(self._parameters.values())
        if loss_scale != 1:
            torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], 1 / loss_scale)
        rest, own = (
            norm_of([p.grad for p in of if p.grad is not None]).square().to(self._cut.device)
            for of in (self._sum.parameters, self._experts)
        )
        norm = (rest + sum_over_ranks(own) / self._group.groups).sqrt()
        if max_grad_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, max_grad_norm, norm)
        return norm

    def snapshot(self) -> Snapshot:
        return ShardedSnapshot(self._weights() | self._optimizer_state(), (self._cut,), self._world.world_size)

    def load(self, directory: Path) -> None:
        self.load_weights(directory)
        if is_sharded(directory):
            state = read_sharded_optimizer(
                directory, self._parameters, lambda name, part, _shape: self._spread(name, part)
            )
        else:
            whole = read_tensors(directory / OPTIMIZER_FILE)
            state = {key: self._mine(key.rpartition("/")[0], tensor).clone() for key, tensor in whole.items()}
        restore_optimizer(self.optimizer, self._parameters, state)

    def load_weights(self, directory: Path) -> None:
        read_weights(self._layout, self._weights(), directory, self._mine)
        self._masters.round()
        self._frozen.round()

    def export_state(self) -> dict[str, torch.Tensor] | None:
        return whole_on_main(self._weights(), (self._cut,), self._world)

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: self._spread(name, tensor) for name, tensor in self._state().items()}

    def _optimizer_state(self) -> dict[str, torch.Tensor]:
        state = optimizer_tensors(self.optimizer, self._parameters)
        return {key: self._spread(key.rpartition("/")[0], tensor) for key, tensor in state.items()}

    def _spread(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A weight, or state of its optimizer, as part of the whole one where it is cut."""
        return self._cut.spread(tensor, self._own[name]) if name in self._own and tensor.ndim else tensor

    def _mine(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        return self._cut.mine(whole) if name in self._own else whole


def spread(
    module: Any,
    make_optimizer: Callable[..., torch.optim.Optimizer],
    *,
    spec: RunSpec,
    world: World,
    device: Device,
    dtype: torch.dtype,
) -> Replicated:
    """As the other shardings."""
    group = ExpertGroup(world, device, spec.train.expert_parallel)
    shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
    cut = place_experts(module, group)
    if isinstance(module, PeftModel):  # its adapters are whole
        return Replicated(module, make_optimizer, world=world, device=device, same_passes=True)
    own = {name: shapes[name] for name in cut}
    return ReplicatedBesideExperts(
        module,
        make_optimizer,
        world=world,
        device=device,
        dtype=copies_in(module, dtype),
        group=group,
        own=own,
    )
