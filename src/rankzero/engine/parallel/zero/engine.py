"""DeepSpeed itself: started quietly on the process group that is there, its gradients, and what it keeps in parts.

All use of DeepSpeed is here. Knows nothing of files or of steps.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import torch
import torch.distributed as dist

from rankzero.engine.device import Device
from rankzero.engine.distributed import World, sum_over_ranks
from rankzero.engine.parallel.zero.config import ZERO
from rankzero.errors import ConfigError, Problem


def import_deepspeed(device: Device) -> Any:
    """The package, for this device and without its log lines. Raises ConfigError where it cannot be used."""
    os.environ.setdefault("DS_ACCELERATOR", device.kind)
    try:
        import deepspeed
        from deepspeed import ops
        from deepspeed.runtime import utils
        from deepspeed.utils import logger
    except ImportError as error:
        raise ConfigError(
            f"zero2 and zero3 need DeepSpeed: {error}",
            where="train.sharding",
            hint="pip install 'rankzero[deepspeed]', or take train.sharding: fsdp",
        ) from error
    if not hasattr(utils, "combine_grad_norm_groups"):
        raise ConfigError(
            f"DeepSpeed {deepspeed.__version__} is too old: it overlooks gradients that are not finite",
            where="train.sharding",
            hint="pip install --upgrade 'rankzero[deepspeed]'",
        )
    if device.kind == "cpu":
        ops.__compatible_ops__ = {}  # or it compiles, for the better part of a minute, what only inference uses
    logger.setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    return deepspeed


def check_options(config: dict[str, Any], path: str) -> None:
    """Raise ConfigError with all that DeepSpeed refuses in the `zero_optimization` of a user's file."""
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from pydantic import ValidationError

    hint = "the installed DeepSpeed decides which keys there are: https://www.deepspeed.ai/docs/config-json"
    try:
        DeepSpeedZeroConfig(**config[ZERO])
    except ValidationError as error:
        raise ConfigError(
            Problem(problem["msg"], ".".join([f"{path} {ZERO}", *map(str, problem["loc"])]), hint)
            for problem in error.errors()
        ) from error


def join_processes(deepspeed: Any, world: World, device: Device) -> None:
    """Let DeepSpeed use the run's process group, or one of this process alone. A collective."""
    os.environ["LOCAL_RANK"] = str(world.local_rank)
    if not dist.is_initialized():
        alone = dist.HashStore()  # type: ignore[attr-defined]  # torch has it without declaring it
        dist.init_process_group(device.backend, store=alone, rank=0, world_size=1)
    deepspeed.init_distributed(dist_backend=device.backend)


def cut_weights(
    deepspeed: Any,
    module: torch.nn.Module,
    config: dict[str, Any],
    device: torch.device,
    dtype: torch.dtype | None,
) -> None:
    """ZeRO-3: leave each rank its parts of every weight, with rank 0's values, in `dtype` where given.

    One weight after the other is put on the device whole, cut, and let go. Ranks other than 0 may come with tensors
    on the meta device; their parameters are then new objects. A collective.
    """
    fresh: dict[int, torch.nn.Parameter] = {}
    for part in reversed(list(module.modules())):  # the weights of parts inside are cut before the part itself
        own = {key: parameter for key, parameter in part._parameters.items() if parameter is not None}
        for key, parameter in own.items():
            if id(parameter) not in fresh:
                wanted = dtype if dtype is not None and parameter.is_floating_point() else parameter.dtype
                if parameter.is_meta:
                    value = torch.empty(parameter.shape, dtype=wanted, device=device)
                    fresh[id(parameter)] = torch.nn.Parameter(value, parameter.requires_grad)
                else:
                    parameter.data = parameter.data.to(wanted)
                    fresh[id(parameter)] = parameter
            part._parameters[key] = fresh[id(parameter)]
        if own:
            deepspeed.zero.Init(module=part, config_dict_or_path=config)
    for holder, key, value in list(_other_tensors(module)):
        holder[key] = torch.empty(value.shape, dtype=value.dtype, device=device) if value.is_meta else value.to(device)
        if value.numel():
            dist.broadcast(holder[key].reshape(-1).view(torch.uint8), src=0)


def _other_tensors(module: torch.nn.Module) -> Iterator[tuple[MutableMapping[str, Any], str, torch.Tensor]]:
    """What holds it, its name there, and the tensor: buffers, and tensors that are plain attributes."""
    for part in module.modules():
        holders: tuple[MutableMapping[str, Any], ...] = (part._buffers, vars(part))
        for holder in holders:
            for key, value in holder.items():
                if isinstance(value, torch.Tensor):
                    yield holder, key, value


def start(deepspeed: Any, module: Any, optimizer: torch.optim.Optimizer, config: Any) -> Any:
    """A DeepSpeed engine around `module`, whose optimizer then works on this rank's parts. A collective.

    ZeRO-3 gathers weights that something else than their own module reads, such as adapters on tensors of experts, in
    the engine's forward pass alone; `module.generate`, where there is one, then does so too.
    """
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config, dist_init_required=False)
    if engine.zero_optimization_partition_weights() and hasattr(module, "generate"):
        module.generate = _gathering(module, module.generate)
    return engine


def _gathering(module: torch.nn.Module, generate: Callable[..., Any]) -> Callable[..., Any]:
    from deepspeed.runtime.zero.parameter_offload import ZeROOrderedDict

    def generate_gathering(*args: Any, **kwargs: Any) -> Any:
        watched = [part._parameters for part in module.modules() if isinstance(part._parameters, ZeROOrderedDict)]
        for parameters in watched:
            parameters._in_forward = True
        try:
            return generate(*args, **kwargs)
        finally:
            for parameters in watched:
                parameters._in_forward = False

    return generate_gathering


def gradient_norm(engine: Any) -> torch.Tensor:
    """The norm of all ranks' reduced gradients, a scalar; infinite where one is not finite. A collective."""
    from deepspeed.runtime.utils import combine_grad_norm_groups

    optimizer = engine.optimizer
    stage_3 = engine.zero_optimization_stage() == 3
    norm: torch.Tensor = (
        combine_grad_norm_groups(optimizer._get_norm_groups()) if stage_3 else optimizer.scaled_global_norm()
    )
    return norm


def drop_gradients(engine: Any) -> None:
    """Forget the step's gradients, as DeepSpeed itself does where one is not finite."""
    optimizer = engine.optimizer
    optimizer.zero_grad(set_to_none=True)
    if engine.zero_offload_optimizer() is not None:
        optimizer.reset_cpu_buffers()
    if engine.zero_optimization_stage() == 3:
        optimizer.averaged_gradients = {}
        return
    optimizer.micro_step_id = -1
    for kept in (optimizer.averaged_gradients, optimizer.all_grad_tensors):
        kept.update(dict.fromkeys(kept))


class Trained:
    """The trained weights of an engine and their optimizer state, whole, though each rank holds parts of them."""

    def __init__(self, engine: Any, optimizer: torch.optim.Optimizer) -> None:
        self._engine, self._zero, self._optimizer = engine, engine.optimizer, optimizer
        self._stage_3 = engine.zero_optimization_stage() == 3

    @property
    def parts(self) -> list[torch.Tensor]:
        """This rank's float32 parts of the weights, laid end to end: what the inner optimizer works on."""
        zero = self._zero
        return list(zero.fp32_partitioned_groups_flat if self._stage_3 else zero.single_partition_of_fp32_groups)

    def require_same_weights(self, named: dict[str, torch.nn.Parameter], device: torch.device) -> None:
        """Raise ConfigError, on every rank, where DeepSpeed finds other float32 values of a weight than the model
        computes with: what is saved would be wrong in silence. A collective of a number for each weight: ranks look at
        their own parts alone."""
        same = [self._same_values(parameter).to(device) for parameter in named.values()]
        total = sum_over_ranks(torch.stack(same)).tolist()
        whole = [shape_of(parameter).numel() for parameter in named.values()]
        wrong = [name for name, found, wanted in zip(named, total, whole, strict=True) if found != wanted]
        if wrong:
            import deepspeed

            raise ConfigError(
                f"DeepSpeed {deepspeed.__version__} holds other values of {len(wrong)} weights than are computed with, "
                f"such as {wrong[0]}",
                where="train.sharding",
                hint="take train.sharding: fsdp, or leave options out of the file of train.deepspeed",
            )

    def _same_values(self, parameter: Any) -> torch.Tensor:
        """How many values of a weight this rank's part of it has as they are computed with."""
        own, mapping = self.part(parameter), None if self._stage_3 else parameter._hp_mapping
        start = 0 if mapping is None else mapping.lp_fragment_address.start
        computed = (parameter.ds_tensor if self._stage_3 else parameter.detach()).flatten()
        computed = computed[start:][: len(own)].to(own.device)
        rounded = own.to(computed.dtype)
        if torch.equal(rounded, computed):
            return torch.tensor(rounded.numel())
        same: torch.Tensor = (rounded == computed) | (rounded.isnan() & computed.isnan())
        return same.sum()

    def part(self, parameter: Any) -> torch.Tensor:
        """This rank's part of a float32 weight, end to end; it may be empty. Not a collective."""
        from deepspeed.utils import safe_get_local_fp32_param

        if self._stage_3:
            own: torch.Tensor = safe_get_local_fp32_param(parameter).flatten()
            return own[: max(0, parameter.ds_numel - len(own) * dist.get_rank())]  # zeros are behind its end
        return torch.empty(0) if parameter._hp_mapping is None else parameter._hp_mapping.hp_fragment

    def weight(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """The float32 weight, on the device that computes. A collective."""
        from deepspeed.utils import safe_get_full_fp32_param

        return _known(safe_get_full_fp32_param(parameter))

    def set_weight(self, parameter: torch.nn.Parameter, value: torch.Tensor) -> None:
        """Put a float32 weight in place, also where the model computes with it. A collective."""
        from deepspeed.runtime.zero import GatheredParameters

        self.set_master(parameter, value)
        if not self._stage_3:
            parameter.data.copy_(value)
            return
        with GatheredParameters([parameter], modifier_rank=0):
            parameter.data.copy_(value)

    def set_master(self, parameter: torch.nn.Parameter, value: torch.Tensor) -> None:
        """Put a float32 weight in place for the optimizer alone. Not a collective."""
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_local_fp32_param

        if self._stage_3:
            safe_set_local_fp32_param(parameter, self._mine(parameter, value))
        else:
            safe_set_full_fp32_param(parameter, value)

    def state_names(self) -> list[str]:
        """Names of what the optimizer keeps for every weight; none before its first step.

        Raises RuntimeError where it has made one and keeps nothing: DeepSpeed has stepped with something else.
        """
        part = self.parts[0]
        state = self._optimizer.state.get(part, {})
        names = [key for key, value in state.items() if isinstance(value, torch.Tensor) and value.shape == part.shape]
        if not names and self._engine.global_steps > self._engine.skipped_steps:
            raise RuntimeError("DeepSpeed has made steps and keeps no state of its optimizer: none could be saved")
        self._link_state()
        return names

    def state(self, parameter: torch.nn.Parameter, key: str) -> torch.Tensor:
        """What the optimizer keeps for a weight, in its shape, on the device that computes. A collective."""
        from deepspeed.utils import safe_get_full_optimizer_state

        return _known(safe_get_full_optimizer_state(parameter, key))

    def steps(self) -> torch.Tensor:
        """How many steps the optimizer has made, a new scalar on the CPU."""
        step: torch.Tensor = self._optimizer.state[self.parts[0]]["step"]
        return step.detach().cpu().clone()

    def make_room_for_state(self, names: list[str], steps: torch.Tensor) -> None:
        """Zeros for every weight under each name, as after `steps` steps."""
        fused = self._optimizer.defaults.get("fused")
        for part in self.parts:
            self._optimizer.state[part] = {
                "step": steps.clone().to(part.device if fused else "cpu"),
                **{name: torch.zeros_like(part, requires_grad=False) for name in names},
            }
        self._link_state()

    def set_state(self, parameter: torch.nn.Parameter, key: str, value: torch.Tensor) -> None:
        """Put back what `state` gave, into the room that was made. Not a collective."""
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        if self._stage_3:
            safe_set_local_optimizer_state(parameter, self._mine(parameter, value), key)
        else:
            safe_set_full_optimizer_state(parameter, value, key)

    def _link_state(self) -> None:
        """ZeRO-2 finds a weight's state through links, which DeepSpeed makes once: before all of it is there."""
        from deepspeed.utils import lazy_init_hp_params_optimizer_state

        if not self._stage_3:
            for group, part in zip(self._zero.bit16_groups, self.parts, strict=True):
                lazy_init_hp_params_optimizer_state(group, part, self._optimizer.state)

    def _mine(self, parameter: Any, value: torch.Tensor) -> torch.Tensor:
        """This rank's part of a whole tensor, with zeros behind its end: ZeRO-3's parts are all equally long."""
        length = parameter.ds_tensor.numel()
        flat = value.detach().reshape(-1)
        part = flat[min(len(flat), length * dist.get_rank()) :][:length].float()
        return torch.nn.functional.pad(part, (0, length - len(part)))


def as_stored(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """By name, the weights that bfloat16 would round, as they are now, also when DeepSpeed has them: in the memory that
    they have, which may be their files' pages."""
    values = {name: p.detach() for name, p in module.named_parameters() if p.is_floating_point() and not p.is_meta}
    return {name: value for name, value in values.items() if not torch.equal(value.bfloat16().to(value), value)}


def shape_of(parameter: Any) -> torch.Size:
    """Of a whole weight, of which this rank may have a part."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


def whole_frozen(parameter: Any) -> torch.Tensor:
    """The value of a weight that is not trained. A collective."""
    if not hasattr(parameter, "ds_id"):
        value: torch.Tensor = parameter.detach()
        return value
    from deepspeed.runtime.zero import GatheredParameters

    with GatheredParameters([parameter]):
        whole: torch.Tensor = parameter.detach().clone()
    return whole


def _known(value: torch.Tensor | None) -> torch.Tensor:
    if value is None:
        raise TypeError("DeepSpeed does not train this parameter")
    return value
