"""DeepSpeed's ZeRO: optimizer state and gradients in parts on all processes (stage 2), or weights too (stage 3).

Checkpoints are as the other ways to shard write them, so that a run can go on under any of them: adapters whole, by
the main rank; full weights by every rank, its rows. DeepSpeed's own checkpoints are pickled, and not used.
Knows nothing of steps or of data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from peft import PeftModel
from torch.distributed.tensor import DTensor

from rankzero.engine.console import logger
from rankzero.engine.device import Device
from rankzero.engine.distributed import World, broadcast_object
from rankzero.engine.parallel.base import OPTIMIZER_FILE, WEIGHTS_DIRECTORY, Snapshot
from rankzero.engine.parallel.formats import (
    NothingToWrite,
    ShardedSnapshot,
    WholeSnapshot,
    is_sharded,
    read_sharded,
    read_tensors,
    sharded_tensors,
)
from rankzero.engine.parallel.parts import Cut, local
from rankzero.engine.parallel.placing import check_same_model
from rankzero.engine.parallel.zero.config import computes_in_bfloat16, effective_config, ignored_keys, left_off
from rankzero.engine.parallel.zero.engine import (
    Trained,
    as_stored,
    check_options,
    cut_weights,
    drop_gradients,
    gradient_norm,
    import_deepspeed,
    join_processes,
    shape_of,
    start,
    whole_frozen,
)
from rankzero.errors import StorageError
from rankzero.model.weights import file_layout, saved_buffers
from rankzero.spec.run_spec import RunSpec

Tensors = dict[str, torch.Tensor]
Named = Iterator[tuple[str, torch.Tensor]]


def deepspeed_config(spec: RunSpec, world: World, device: Device, dtype: torch.dtype) -> dict[str, Any]:
    """What DeepSpeed is started with, before anything is loaded.

    Raises ConfigError where DeepSpeed is missing, and with every problem of the user's file.
    """
    import_deepspeed(device)
    config = effective_config(spec, world.world_size, dtype)
    if spec.train.deepspeed is not None:
        check_options(config, spec.train.deepspeed)
    return config


class Zero:
    """ZeRO-2 and ZeRO-3, with and without offload, for adapters, quantised bases and full fine-tuning."""

    same_passes = True

    def __init__(
        self,
        module: Any,
        make_optimizer: Callable[[dict[str, torch.nn.Parameter]], torch.optim.Optimizer],
        *,
        spec: RunSpec,
        world: World,
        device: Device,
        dtype: torch.dtype,
    ) -> None:
        """Rank 0's weights count. ZeRO-3: the others may come with the same module on the meta device.

        Raises ConfigError as `deepspeed_config` does.
        """
        self.name = spec.train.sharding
        self._world, self._device = world, device.torch_device
        config = deepspeed_config(spec, world, device, dtype)
        deepspeed = import_deepspeed(device)
        ignored = ignored_keys(spec)
        if ignored:
            logger.info("[MODEL] %s: the run spec decides %s", spec.train.deepspeed, ", ".join(ignored))
        for key in left_off(spec):
            words = "[MODEL] %s: %s is left off: with it DeepSpeed takes weights for one another"
            logger.info(words, spec.train.deepspeed, key)
        join_processes(deepspeed, world, device)
        check_same_model(module)
        self._adapters = isinstance(module, PeftModel)
        self._cut = Cut(world, device)
        self._layout = file_layout(module)
        shapes = {name: p.shape for name, p in module.named_parameters() if p.requires_grad}
        rounds = computes_in_bfloat16(spec, dtype)
        stored = as_stored(module) if rounds and world.is_main else {}
        if spec.train.sharding == "zero3":
            held = torch.bfloat16 if rounds else None
            cut_weights(deepspeed, module, config, self._device, held)
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._shapes = shapes
        self.module = module
        self.optimizer = _optimizer_for(self._parameters, shapes, make_optimizer, self._device)
        self.model = start(deepspeed, module, self.optimizer, config)
        self._trained = Trained(self.model, self.optimizer)
        self._frozen: Tensors = {}
        """This rank's rows, on the CPU, of what rounding has changed and nothing moves: results have it as it was."""
        self._take_unrounded(stored)
        self._trained.require_same_weights(self._parameters, self._device)

    def _take_unrounded(self, stored: Tensors) -> None:
        """Begin with what the main rank's weights, `stored`, were before they were rounded. A collective, for one after
        the other; `stored` is empty afterwards."""
        parameters = dict(self.module.named_parameters())
        for name in broadcast_object(list(stored)):
            parameter = parameters[name]
            whole = torch.empty(shape_of(parameter), dtype=torch.float32, device=self._device)
            if self._world.is_main:
                whole.copy_(stored.pop(name))
            dist.broadcast(whole, src=0)
            if parameter.requires_grad:
                self._trained.set_master(parameter, whole)
            else:
                self._frozen[name] = self._rows(whole)

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        self.model.set_gradient_accumulation_boundary(last)
        self.model.backward(loss * self._world.world_size)  # DeepSpeed takes means over the ranks, and we want sums

    def reduce_gradients(self, max_grad_norm: float | None, *, loss_scale: float = 1.0) -> torch.Tensor:
        del max_grad_norm  # DeepSpeed has it in its configuration, and clips as it steps, by this same norm
        if loss_scale != 1:
            raise ValueError("float16 is refused with DeepSpeed, which does not let its gradients be divided")
        return gradient_norm(self.model)

    def trained(self) -> Named:
        return ((name, self._trained.part(parameter).detach()) for name, parameter in self._parameters.items())

    def step(self) -> None:
        self.model.step()

    def zero_grad(self) -> None:
        drop_gradients(self.model)

    def snapshot(self) -> Snapshot:
        if not self._adapters:
            rows = {name: self._rows(whole) for source in (self._weights, self._state) for name, whole in source()}
            return ShardedSnapshot(rows, (self._cut,), self._world.world_size, on_host_already=True)
        weights, optimizer = self._on_main(self._weights()), self._on_main(self._state())
        return WholeSnapshot(self._layout, weights, optimizer) if self._world.is_main else NothingToWrite()

    def load(self, directory: Path) -> None:
        self.load_weights(directory)
        if is_sharded(directory):
            saved = self._read_rows(directory, [name for name in sharded_tensors(directory) if "/" in name])
        else:
            saved = read_tensors(directory / OPTIMIZER_FILE)
        steps = [tensor for key, tensor in saved.items() if key.endswith("/step")]
        if not steps:
            return
        if any(not torch.equal(step, steps[0]) for step in steps):
            hint = "continue with the train.sharding that it was saved with"
            raise StorageError("DeepSpeed counts one number of steps for all weights", where=str(directory), hint=hint)
        states = {key: key.rpartition("/") for key in sorted(saved) if not key.endswith("/step")}
        kept = {key: of for key, of in states.items() if of[0] in self._parameters}  # others are not trained any more
        self._trained.make_room_for_state(sorted({state for _, _, state in kept.values()}), steps[0])
        for key, (name, _, state) in kept.items():
            self._check_fit(name, saved[key], directory)
            self._trained.set_state(self._parameters[name], state, self._whole(saved[key]))

    def load_weights(self, directory: Path) -> None:
        buffers = dict(self.module.named_buffers())
        if is_sharded(directory):
            names = [name for name in sharded_tensors(directory) if name in self._parameters or name in buffers]
            saved = self._read_rows(directory, names)
        else:
            saved = self._layout.read(directory / WEIGHTS_DIRECTORY)
        for name in sorted(saved):
            if name in buffers:
                buffers[name].copy_(self._whole(saved[name]))
            elif name in self._parameters:
                self._check_fit(name, saved[name], directory)
                self._trained.set_weight(self._parameters[name], self._whole(saved[name]))

    def export_state(self) -> Tensors | None:
        return self._on_main(self._weights())

    def _weights(self) -> Named:
        """What a checkpoint has of the model, whole, one after the other. A collective."""
        saved = set(self._layout.names.values())
        for name, parameter in self.module.named_parameters():
            if name not in saved:
                continue
            if parameter.requires_grad:
                yield name, self._trained.weight(parameter)
            else:
                own = self._frozen.get(name)
                yield name, whole_frozen(parameter).float() if own is None else self._whole(own)
        yield from ((name, buffer) for name, buffer in saved_buffers(self.module).items() if name in saved)

    def _state(self) -> Named:
        """`<parameter name>/<state name>` for all that the optimizer keeps, one after the other. A collective."""
        names = self._trained.state_names()
        for name, parameter in self._parameters.items() if names else ():
            yield f"{name}/step", self._trained.steps()
            for state in names:
                yield f"{name}/{state}", self._trained.state(parameter, state)

    def _on_main(self, whole: Iterable[tuple[str, torch.Tensor]]) -> Tensors:
        """All of it on the CPU of the main rank; {} on the others."""
        return {name: value.cpu() for name, value in whole if self._world.is_main}

    def _rows(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's rows of a tensor, on the CPU, as a DTensor of all of it."""
        return self._cut.spread(self._cut.mine(whole).to("cpu", copy=True), whole.shape)

    def _read_rows(self, directory: Path, names: list[str]) -> Tensors:
        """This rank's rows of tensors in a sharded checkpoint, on the CPU. A collective; raises StorageError."""
        found, room = sharded_tensors(directory), {}
        for name in names:
            shape, dtype = found[name]
            rows = self._cut.mine(torch.empty(shape, device="meta"))
            room[name] = self._cut.spread(torch.empty(rows.shape, dtype=dtype), shape)
        read_sharded(room, directory)
        return room

    def _whole(self, saved: torch.Tensor) -> torch.Tensor:
        """All of a tensor whose rows lie on the ranks; others are whole. A collective."""
        return self._cut.gather(local(saved), saved.shape) if isinstance(saved, DTensor) else saved

    def _check_fit(self, name: str, saved: torch.Tensor, directory: Path) -> None:
        """Raise StorageError where a saved tensor is of another model."""
        wanted = self._shapes[name]
        if wanted != saved.shape:
            shapes = f"{tuple(saved.shape)} is saved, {tuple(wanted)} is needed"
            what = f"the checkpoint does not fit this model: {shapes}"
            raise StorageError(what, where=f"{directory} {name}")


def _optimizer_for(
    parameters: dict[str, torch.nn.Parameter],
    shapes: dict[str, torch.Size],
    make_optimizer: Callable[[dict[str, torch.nn.Parameter]], torch.optim.Optimizer],
    device: torch.device,
) -> torch.optim.Optimizer:
    """An optimizer for parameters that may have been cut already: their shapes decide on weight decay."""
    one = torch.zeros(1, device=device)
    stand_ins = {name: torch.nn.Parameter(one.expand(shape)) for name, shape in shapes.items()}
    optimizer = make_optimizer(stand_ins)
    real = {id(stand_in): parameters[name] for name, stand_in in stand_ins.items()}
    for group in optimizer.param_groups:
        group["params"] = [real[id(stand_in)] for stand_in in group["params"]]
    return optimizer


spread = Zero
