"""What this process computes on: device, native precision, threads, memory. Knows nothing of models or data."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from rankzero.errors import ConfigError
from rankzero.machine import available_memory, cpu_computes, threads_of_a_process, usable_memory
from rankzero.spec.run_spec import Dtype
from rankzero.wording import counted

TAKEN_BY_NOBODY = 0.05
"""Share of a GPU's memory that may be taken without another plan: plans of the same run should be the same."""


@dataclass(frozen=True, slots=True)
class Device:
    """One process's device. `kind` is torch's own name; ROCm calls itself cuda."""

    kind: str
    index: int = 0

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.kind) if self.kind in {"cpu", "mps"} else torch.device(self.kind, self.index)

    @property
    def backend(self) -> str:
        """The collective library that serves this device."""
        return "nccl" if self.kind == "cuda" else "gloo"

    @property
    def name(self) -> str:
        """The hardware, as far as it decides how numbers are rounded."""
        if self.kind == "cuda":
            return torch.cuda.get_device_name(self.index)
        capability = torch.backends.cpu.get_cpu_capability()
        return f"{self.kind} ({platform.machine()}, {capability}, {torch.get_num_threads()} threads)"

    @property
    def adds_in_fixed_order(self) -> bool:
        """Whether the same numbers have the same sum every time; some of a GPU's kernels add as threads come."""
        return self.kind == "cpu"

    def describe(self) -> str:
        if self.kind == "cuda":
            return f"{torch.cuda.get_device_name(self.index)} (cuda:{self.index})"
        return f"{self.kind} ({platform.machine()}, {counted(torch.get_num_threads(), 'thread')})"


def pick_device(local_rank: int) -> Device:
    """CUDA (or ROCm) where there is one, then Apple MPS, then the CPU."""
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        if local_rank >= count:
            raise ConfigError(
                f"process {local_rank} on this machine has no GPU: there are {count}",
                where="--nproc-per-node",
                hint=f"use at most {count} processes, or hide the GPUs with CUDA_VISIBLE_DEVICES= to run on the CPU",
            )
        torch.cuda.set_device(local_rank)
        return Device("cuda", local_rank)
    if torch.backends.mps.is_available():
        return Device("mps")
    return Device("cpu")


@contextmanager
def without_cudnn_attention(device: Device) -> Iterator[None]:
    """While it trains: cuDNN makes a plan for each shape of attention that it has not seen, for some 70 ms (one H200,
    torch 2.11), and every pass has another."""
    if device.kind != "cuda":
        yield
        return
    before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def computes_bfloat16(device: Device) -> bool:
    """Whether the device multiplies bfloat16 natively; emulation can be fifty times slower than float32."""
    if device.kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.kind == "mps" or cpu_computes("bfloat16")


def computes_float16(device: Device) -> bool:
    """Whether the device multiplies float16 natively."""
    return device.kind != "cpu" or cpu_computes("float16")


def pick_dtype(wanted: Dtype, device: Device, *, loss_scaling: bool = True) -> torch.dtype:
    """The precision of matrix products. Raises ConfigError where one is asked for that is only emulated.

    auto: bfloat16; on GPUs without it float16, unless the run cannot do with `loss_scaling`; else float32.
    """
    if wanted == "float32":
        return torch.float32
    native = {"bfloat16": computes_bfloat16(device), "float16": computes_float16(device)}
    best = "float16" if native["float16"] and device.kind == "cuda" and loss_scaling else "float32"
    best = "bfloat16" if native["bfloat16"] else best
    if wanted != "auto" and not native[wanted]:
        raise ConfigError(
            f"{wanted} was asked for, but {device.describe()} does not compute it natively",
            where="model.dtype",
            hint=f"use model.dtype: auto{' (leave out --bf16)' * (wanted == 'bfloat16')}, which takes {best} here",
        )
    chosen: torch.dtype = getattr(torch, best if wanted == "auto" else wanted)
    return chosen


def set_threads(local_world_size: int) -> None:
    """Share the cores among the processes of this machine, unless the user has set OMP_NUM_THREADS."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads_of_a_process(local_world_size))


def memory_limit(device: Device, local_world_size: int) -> int:
    """Bytes of memory that one process may plan with: its share of the machine's, or its GPU's; without what others
    have taken of it, where that is more than the driver and a context take."""
    if device.kind == "cuda":
        free, total = torch.cuda.mem_get_info(device.index)
        available = free + torch.cuda.memory_reserved(device.index)
        return int(total if total - available <= TAKEN_BY_NOBODY * total else available)
    return usable_memory() // local_world_size


def free_memory(device: Device, local_world_size: int) -> int:
    """Bytes that one process may take at the moment; 0 where the system does not say."""
    if device.kind == "cuda":
        return int(torch.cuda.mem_get_info(device.index)[0])
    return available_memory() // local_world_size


def peak_memory(device: Device) -> int:
    """Bytes at the highest point so far: allocated on the GPU, or resident in this process."""
    if device.kind == "cuda":
        return torch.cuda.max_memory_allocated(device.index)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024
