"""Spreading a model with FSDP2: rank 0's weights to all ranks, each block a unit of its own, then what is left.

Knows nothing of gradients or of files.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import PeftModel
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from rankzero.engine.distributed import World
from rankzero.engine.parallel.parts import Cut
from rankzero.engine.parallel.placing import check_same_model, take_from_main
from rankzero.errors import ConfigError
from rankzero.model.blocks import blocks
from rankzero.spec.run_spec import RunSpec


def wrap(model: Any, cut: Cut, spec: RunSpec, world: World, dtype: torch.dtype) -> None:
    """Spread `model` over the ranks in place. A collective; raises ConfigError.

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
    for name, unit in [*blocks(model), ("", model)]:
        take_from_main(unit, world, cut.device)
        _check_unit(name, unit)
        numbers = {parameter for parameter in unit.parameters() if not parameter.ndim}
        fully_shard(unit, mesh=cut.mesh, mp_policy=precision, offload_policy=keep, ignored_params=numbers)
        # Sums, not means: each rank's loss is already its share of the whole global batch's.
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)
    model.set_reduce_scatter_unused_params(True)  # ranks may differ in what their rows use, such as experts


def _precision(model: Any, dtype: torch.dtype) -> MixedPrecisionPolicy:
    """Trained weights travel in the precision that they compute in; their gradients are summed in float32.

    A frozen base travels as it is, quantised or not, and adapters in float32: autocast rounds those as in a replica.
    """
    if isinstance(model, PeftModel) or dtype is torch.float32:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)


def _check_unit(name: str, unit: torch.nn.Module) -> None:
    """Raise ConfigError where FSDP2 could not train a unit."""
    trained = [p for p in unit.parameters() if p.requires_grad and not isinstance(p, DTensor)]
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
