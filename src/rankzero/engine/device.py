"""What this process computes on: device, native precision, threads, memory. Knows nothing of models or data."""

from __future__ import annotations

import os
import platform
import resource
from dataclasses import dataclass
from pathlib import Path

import torch

from rankzero.errors import ConfigError
from rankzero.machine import usable_cores, usable_memory
from rankzero.spec.run_spec import Dtype


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
        return f"{self.kind} ({platform.machine()}, {torch.get_num_threads()} threads)"


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


def computes_bfloat16(device: Device) -> bool:
    """Whether the device multiplies bfloat16 natively; emulation can be fifty times slower than float32."""
    if device.kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.kind == "mps":
        return True
    flags = _cpu_flags()
    return bool(flags & {"avx512_bf16", "amx_bf16"}) or (platform.machine() in {"aarch64", "arm64"} and "bf16" in flags)


def _cpu_flags() -> frozenset[str]:
    """Instruction sets of the CPU; empty where the system does not say (macOS)."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.is_file():
        return frozenset()
    for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"flags", "Features"}:
            return frozenset(value.split())
    return frozenset()


def pick_dtype(wanted: Dtype, device: Device) -> torch.dtype:
    """The precision of matrix products. Raises ConfigError where bfloat16 is asked for and only emulated."""
    if wanted == "float32":
        return torch.float32
    native = computes_bfloat16(device)
    if wanted == "bfloat16" and not native:
        raise ConfigError(
            f"bfloat16 was asked for, but {device.describe()} does not compute it natively",
            where="model.dtype",
            hint="use model.dtype: auto (leave out --bf16), which takes float32 here",
        )
    return torch.bfloat16 if native else torch.float32


def set_threads(local_world_size: int) -> None:
    """Share the cores among the processes of this machine, unless the user has set OMP_NUM_THREADS."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, usable_cores() // local_world_size))


def memory_limit(device: Device, local_world_size: int) -> int:
    """Bytes of memory that one process may plan with: its GPU's, or its share of the machine's."""
    if device.kind == "cuda":
        return int(torch.cuda.get_device_properties(device.index).total_memory)
    return usable_memory() // local_world_size


def peak_memory(device: Device) -> int:
    """Bytes at the highest point so far: allocated on the GPU, or resident in this process."""
    if device.kind == "cuda":
        return torch.cuda.max_memory_allocated(device.index)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024
