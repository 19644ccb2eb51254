"""FSDP2: weights, gradients and optimizer state lie in equal parts on all processes, block by block, or on those of
each node (hsdp.py). Experts may lie whole instead, some on each process of a group (model/expert_exchange.py).

The optimizer sees each rank's parts as plain tensors: it works element by element and need not know of the others.
Adapters are saved whole, by the main rank, as a replica saves them; full weights are saved by every rank, its parts.
Knows nothing of steps or of data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from rankzero.engine.console import logger
from rankzero.engine.device import Device
from rankzero.engine.distributed import World, sum_over_ranks
from rankzero.engine.gradient_sum import GradientSum
from rankzero.engine.parallel.base import OPTIMIZER_FILE, Snapshot, restore_optimizer
from rankzero.engine.parallel.expert_group import ExpertGroup
from rankzero.engine.parallel.formats import (
    NothingToWrite,
    ShardedSnapshot,
    WholeSnapshot,
    is_sharded,
    read_sharded_optimizer,
    read_tensors,
    read_weights,
    whole_on_main,
)
from rankzero.engine.parallel.half_sums import HalfSums
from rankzero.engine.parallel.masters import copies_in
from rankzero.engine.parallel.parts import Cut, Uncut, cut_of, local
from rankzero.engine.parallel.placing import check_same_model, take_from_main, tensors
from rankzero.errors import ConfigError
from rankzero.model.expert_exchange import Mixture, mixtures_of, place_mixture
from rankzero.model.load import kept_in_float32
from rankzero.model.low_bits import tensor_outline
from rankzero.model.parts import blocks
from rankzero.model.weights import file_layout, saved_buffers
from rankzero.spec.run_spec import RunSpec, Sharding


class Fsdp:
    """Fully sharded data parallelism for adapters, quantised bases and full fine-tuning."""

    same_passes = True

    def __init__(
        self,
        module: Any,
        make_optimizer: Callable[..., torch.optim.Optimizer],
        *,
        spec: RunSpec,
        world: World,
        device: Device,
        dtype: torch.dtype,
        among: int | None = None,
    ) -> None:
        """Rank 0's weights count; the others may come with the same module on the meta device. Raises ConfigError.

        `make_optimizer` is given parts of weights by name, and as `begins` the place of each in its whole weight.
        `among`: so many neighbouring ranks have all of the model, and the next ones have it again; None: all of them.
        """
        self.name: Sharding = "fsdp" if among is None else "hsdp"
        self._world, self._cut = world, Cut(world, device, among=among)
        self._adapters = isinstance(module, PeftModel)
        size = spec.train.expert_parallel
        group = self._group = ExpertGroup(world, device, size) if size > 1 else None
        self._cuts = (self._cut,) if group is None else (self._cut, group.cut)
        kept = kept_in_float32(module, copies_in(module, dtype))
        self._own = wrap(module, self._cut, spec, world, dtype, group, kept)
        if self._adapters:  # which call the model inside for each token, past the weights that are in no block
            register_fsdp_forward_method(module, "generate")
        self.model = self.module = module
        self._layout = file_layout(module)
        self._parameters: dict[str, torch.nn.Parameter] = dict(module.named_parameters())
        self._parts = {
            name: torch.nn.Parameter(local(parameter))
            for name, parameter in self._parameters.items()
            if parameter.requires_grad
        }
        self._half = HalfSums(self._parameters[name] for name in self._parts)
        own = [self._parameters[name] for name in self._own if name in self._parts]
        self._sum_of_experts = None if group is None else GradientSum(own, group.holders)
        self._kept, self._uncut = kept, Uncut(world.world_size)
        self._sum_of_kept = GradientSum(self._parameters[name] for name in self._parts if name in kept)
        begins = {name: self._cut_of(name).begin(self._shape(name)) for name in self._parts}
        self.optimizer = make_optimizer(self._parts, begins=begins)

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        if self._adapters:  # their gradients are small enough to be summed whole over the passes and travel once
            self.model.set_requires_gradient_sync(last)
        elif self._cut.copies > 1:  # parts are summed over the passes, and travel to the other copies once
            self.model.set_requires_all_reduce(last)
        self._half.begin_pass()
        if loss.requires_grad:
            torch.autograd.backward(loss)
        self._half.take_all()

    def reduce_gradients(self, max_grad_norm: float | None, *, loss_scale: float = 1.0) -> torch.Tensor:
        self._half.give_all()
        if self._sum_of_experts is not None:
            self._sum_of_experts.finish()
        self._sum_of_kept.finish()
        squares: list[torch.Tensor] = []
        for name, part in self._parts.items():
            gradient = self._parameters[name].grad
            part.grad = torch.zeros_like(part) if gradient is None else local(gradient)
            if loss_scale != 1:
                part.grad.mul_(1 / loss_scale)
            square = torch.linalg.vector_norm(part.grad, dtype=torch.float32).square()
            square /= self._cut_of(name).copies  # each part counts once
            squares.append(square.to(squares[0].device) if squares else square)  # offloaded or not
        norm = sum_over_ranks(torch.stack(squares).sum().to(self._cut.device)).sqrt()
        if max_grad_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self._parts.values(), max_grad_norm, norm)
        return norm

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, part.grad) for name, part in self._parts.items() if part.grad is not None)

    def trained(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, part.detach()) for name, part in self._parts.items())

    def step(self) -> None:
        self.optimizer.step()

    def zero_grad(self) -> None:
        for name, part in self._parts.items():
            part.grad = self._parameters[name].grad = None
        self._half.drop()

    def snapshot(self) -> Snapshot:
        if not self._adapters:
            return ShardedSnapshot(self._weights() | self._optimizer_state(), self._cuts, self._world.world_size)
        weights, optimizer = self._on_main(self._weights()), self._on_main(self._optimizer_state())
        return WholeSnapshot(self._layout, weights, optimizer) if self._world.is_main else NothingToWrite()

    def load(self, directory: Path) -> None:
        self.load_weights(directory)
        if is_sharded(directory):
            parts = read_sharded_optimizer(
                directory, self._parts, lambda name, part, shape: self._cut_of(name).spread(part, shape)
            )
        else:
            whole = read_tensors(directory / OPTIMIZER_FILE)
            parts = {key: self._cut_of(key.rpartition("/")[0]).mine(tensor).clone() for key, tensor in whole.items()}
        restore_optimizer(self.optimizer, self._parts, parts)

    def load_weights(self, directory: Path) -> None:
        self.module.reshard()  # an evaluation leaves what is in no block whole
        weights = self._weights()

        def mine(name: str, whole: torch.Tensor) -> torch.Tensor:
            own = weights[name]
            return cut_of(own, self._cuts).mine(whole) if isinstance(own, DTensor) else whole

        read_weights(self._layout, weights, directory, mine)

    def export_state(self) -> dict[str, torch.Tensor] | None:
        return self._on_main(self._weights())

    def _weights(self) -> dict[str, torch.Tensor]:
        """What is saved of the model: its adapters, or all parameters and the buffers that belong to its state."""
        state = {**self._parameters, **saved_buffers(self.module)}
        saved = {name: state[name].detach() for name in self._layout.names.values()}
        own = {name: shape for name, shape in self._own.items() if name in saved}
        return saved | {name: self._cut_of(name).spread(saved[name], shape) for name, shape in own.items()}

    def _optimizer_state(self) -> dict[str, torch.Tensor]:
        """`<parameter name>/<state name>` for every tensor of the optimizer's state, as DTensors where it is cut."""
        return {
            f"{name}/{key}": self._cut_of(name).spread(value, self._shape(name) if value.ndim else value.shape)
            for name, part in self._parts.items()
            for key, value in self.optimizer.state.get(part, {}).items()
        }

    def _cut_of(self, name: str) -> Cut | Uncut:
        if name in self._kept:
            return self._uncut
        return self._cut if self._group is None or name not in self._own else self._group.cut

    def _shape(self, name: str) -> torch.Size:
        """Of the whole weight."""
        return self._own[name] if name in self._own else self._parameters[name].shape

    def _on_main(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return whole_on_main(state, self._cuts, self._world)


spread = Fsdp


def wrap(
    model: Any,
    cut: Cut,
    spec: RunSpec,
    world: World,
    dtype: torch.dtype,
    group: ExpertGroup | None,
    kept: Collection[str],
) -> dict[str, torch.Size]:
    """Spread `model` over the ranks in place. A collective; raises ConfigError. With a `group` its experts are not
    spread, but lie on its ranks; returns the shapes that they have in a whole model, by name. What is `kept` in float32
    beside weights that travel in `dtype`, by name, every rank has whole: one unit gathers one precision.

    A block is put on the device whole, cut, and let go before the next one comes, so that no device ever holds more
    than its parts and one block.
    """
    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        hint = f"this is {torch.__version__}; install the newest one, or take train.sharding: ddp"
        raise ConfigError("FSDP2 needs a newer version of torch", where="train.sharding", hint=hint)
    check_same_model(model)
    _detach_quantised_state(model)
    precision = _precision(model, dtype)
    keep: OffloadPolicy = OffloadPolicy()
    if spec.train.offload == "all":
        keep = CPUOffloadPolicy(pin_memory=cut.device.type == "cuda")
    waiting = [] if group is None else mixtures_of(model)
    shapes: dict[str, torch.Size] = {}
    placed: list[torch.Tensor] = []
    for name, unit in [*units(model), ("", model)]:
        take_from_main(unit, world, cut.device, leave=placed)
        placed += [parameter for own, parameter in unit.named_parameters(prefix=name) if own in kept]
        _check_unit(name, unit, placed)
        if group is not None:
            parts = set(unit.modules())
            for mixture in [one for one in waiting if one.module in parts]:
                waiting.remove(mixture)
                shapes |= {f"{mixture.name}.{own}": _shape_of(mixture, own) for own in mixture.tensors}
                place_mixture(mixture, model, group, rounded=precision.param_dtype)
                placed += [tensor for _, _, tensor in tensors(mixture.module)]
        beside = {parameter for parameter in unit.parameters() if not parameter.ndim}
        beside |= {tensor for tensor in placed if isinstance(tensor, torch.nn.Parameter)}
        fully_shard(unit, mesh=cut.mesh, mp_policy=precision, offload_policy=keep, ignored_params=beside)
        # Sums, not means: each rank's loss is already its share of the whole global batch's.
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)
    model.set_reduce_scatter_unused_params(True)  # ranks may differ in what their rows use, such as experts
    return shapes


def units(model: Any) -> list[tuple[str, torch.nn.Module]]:
    """What is cut, gathered and let go by itself, before the rest of the model: its blocks, but for those that share a
    weight (Zamba's layers with attention), which would be two weights once each had cut it. Warned of where there are
    none: a step gathers all of the model then."""
    found = blocks(model)
    users = Counter(weight for _, block in found for weight in block.parameters())
    alone = [(name, block) for name, block in found if all(users[weight] == 1 for weight in block.parameters())]
    if not alone:
        logger.warning(
            "[STEP] FSDP2 finds no blocks in %s that it could gather one by one: each device holds all of its weights "
            "while it computes",
            type(model).__name__,
        )
    return alone


def _shape_of(mixture: Mixture, name: str) -> torch.Size:
    return tensor_outline(mixture.module, name).shape


def _precision(model: Any, dtype: torch.dtype) -> MixedPrecisionPolicy:
    """Trained weights travel in the precision that they compute in; their gradients are summed in float32. What blocks
    are given stays as it is, as in a replica: OLMo 2's and Ernie's cosines are float32. In float16 it is rounded, too:
    there a replica's weights are float32.

    A frozen base travels as it is, quantised or not, and adapters in float32: autocast rounds those as in a replica.
    """
    if isinstance(model, PeftModel) or dtype is torch.float32:
        return MixedPrecisionPolicy()
    rounds = dtype is torch.float16
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=rounds)


def _check_unit(name: str, unit: torch.nn.Module, placed: Collection[torch.Tensor]) -> None:
    """Raise ConfigError where FSDP2 could not train what it is to cut of a unit: all but what is `placed`."""
    beside = {id(tensor) for tensor in placed}
    trained = [p for p in unit.parameters() if p.requires_grad and not isinstance(p, DTensor) and id(p) not in beside]
    what = None
    if any(not parameter.ndim for parameter in trained):
        what = "has a trained number that cannot be cut"
    elif len({parameter.dtype for parameter in trained}) > 1:
        what = "has trained weights of several precisions"
    if what is not None:
        hint = "take train.sharding: ddp, or leave that part out of train.parts"
        raise ConfigError(f"FSDP2: {name or 'the model'} {what}", where="train.sharding", hint=hint)


def _detach_quantised_state(model: Any) -> None:
    """Let bitsandbytes' layers keep the scales of their weights themselves: a part of a weight cannot carry them."""
    for module in model.modules():
        state = getattr(module._parameters.get("weight"), "quant_state", None)
        if state is not None:
            module.quant_state = state
