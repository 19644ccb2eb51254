"""Packages beyond the training stack that a run cannot do without. Pure; knows not what is installed."""

from __future__ import annotations

from dataclasses import dataclass

from rankzero.errors import Problem
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.shardings import sharding_section

_QUANTIZATION = "'rankzero[quantization]'"


@dataclass(frozen=True, slots=True)
class Package:
    """One that a field asks for."""

    field: str
    module: str
    for_pip: str
    """As pip calls it."""
    gpus_only: bool = False
    """Whether it is of no use without a GPU, so that on a CPU its lack is not what is wrong."""
    instead: str = ""
    """What trains as well without it."""

    @property
    def problem(self) -> Problem:
        """What to say where it is missing."""
        return Problem(f"{self.module} is not installed", self.field, f"pip install {self.for_pip}")

    @property
    def problem_here(self) -> Problem:
        """The same on one's own machine, where the spec is as easily changed as what is installed."""
        more = f", or take {self.instead}" if self.instead else ""
        return Problem(self.problem.what, self.field, f"{self.problem.hint}{more}")


def packages_for(spec: RunSpec) -> list[Package]:
    """All that the run asks for."""
    model, zero = spec.model, sharding_section(spec.train.sharding).reads_deepspeed_file
    known = [
        (zero, Package("train.sharding", "deepspeed", "'rankzero[deepspeed]'", instead="train.sharding: fsdp")),
        (model.quantization == "nf4", Package("model.quantization", "bitsandbytes", _QUANTIZATION)),
        (
            spec.train.optimizer == "adamw_8bit",
            Package("train.optimizer", "bitsandbytes", _QUANTIZATION, instead="optimizer: adamw"),
        ),
        (model.kernels == "liger", _for_gpus("model.kernels", "liger_kernel", "'rankzero[liger]'")),
        (model.kernels == "hub", _for_gpus("model.kernels", "kernels", "kernels")),
        (model.attention == "flash_attention_2", _for_gpus("model.attention", "flash_attn", "flash-attn")),
        (model.attention == "flash_attention_3", _for_gpus("model.attention", "flash_attn_interface", "flash-attn-3")),
    ]
    return [package for asked, package in known if asked]


def _for_gpus(field: str, module: str, for_pip: str) -> Package:
    return Package(field, module, for_pip, gpus_only=True)
