"""What this process may use of the machine: cores, instructions, GPUs, memory with a container's limits, the network,
its cache's place. Standard library only."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from rankzero.errors import ConfigError

CPU_FEATURES_VARIABLE = "RANKZERO_CPU_FEATURES"
_CPU_INFO = Path("/proc/cpuinfo")
_CGROUP = Path("/sys/fs/cgroup")
"""Of version 2, or with a directory for each of version 1's controllers."""
_MEMORY_INFO = Path("/proc/meminfo")
_AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")


def usable_cores() -> int:
    """Cores of the affinity mask, or fewer where a cgroup's CPU quota is lower; at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _first_of("cpu.max").partition(" ")
    if not quota:
        quota, period = _first_of("cpu/cpu.cfs_quota_us"), _first_of("cpu/cpu.cfs_period_us")
    if not quota.isdecimal() or not period.isdecimal():  # "max" and -1 are no quota
        return cores
    return max(1, min(cores, int(quota) // int(period)))


def threads_of_a_process(processes: int) -> int:
    """What each of so many processes here computes with on the CPU: its share of the cores, or OMP_NUM_THREADS."""
    told = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return max(1, int(told) if told.isdecimal() else usable_cores() // processes)


def _first_of(*names: str) -> str:
    """What the first of these files of the cgroup that is there says."""
    for name in names:
        with suppress(OSError, UnicodeDecodeError):
            return (_CGROUP / name).read_text(encoding="ascii").strip()
    return ""


def _memory_limit() -> int | None:
    """In bytes; version 1 says of none a number that no machine has."""
    limit = _first_of("memory.max", "memory/memory.limit_in_bytes")
    return int(limit) if limit.isdecimal() else None


def cpu_features() -> frozenset[str]:
    """What instructions the CPU has, by Linux's names (avx512_bf16). Empty where the system does not say (macOS).

    Whatever depends on them asks here. The names in RANKZERO_CPU_FEATURES, separated by spaces, are believed instead of
    what the CPU says: where a virtual machine hides some, or to run as on another CPU.
    """
    told = os.environ.get(CPU_FEATURES_VARIABLE)
    if told is not None:
        return frozenset(told.split())
    told_by_cpu = _first_cpu()
    return frozenset((told_by_cpu.get("flags") or told_by_cpu.get("Features") or "").split())


def cpu_kind() -> str:
    """Which CPU this is, and the instructions by which libraries choose how to multiply: those of one kind round alike.
    Empty where the system does not say."""
    told_by_cpu = _first_cpu()
    kind = " ".join(f"{words}{told_by_cpu[key]}" for key, words in _KIND.items() if told_by_cpu.get(key))
    return f"{kind}, {' '.join(sorted(cpu_features() & _CHOSEN_BY))}" if kind else ""


_KIND = {
    **{"vendor_id": "", "cpu family": "family ", "model": "model "},  # x86
    **{"CPU implementer": "implementer ", "CPU part": "part "},  # Arm
}
_CHOSEN_BY = frozenset(
    ("avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16")
    + ("amx_int8", "amx_bf16", "amx_fp16", "asimd", "asimdhp", "bf16", "i8mm", "sve", "sve2")
)
"""A virtual machine may hide some of what the same CPU has elsewhere."""


def _first_cpu() -> dict[str, str]:
    """What Linux tells of the first CPU, by its names."""
    if not _CPU_INFO.is_file():
        return {}
    first, _, _ = _CPU_INFO.read_text(encoding="utf-8", errors="replace").strip().partition("\n\n")
    told = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in told}


def cpu_computes(precision: str) -> bool:
    """Whether the CPU multiplies numbers of a precision (bfloat16, float16) natively."""
    any_of, arm = _IN_PRECISION[precision]
    features = cpu_features()
    return bool(features & any_of) or (platform.machine() in {"aarch64", "arm64"} and arm in features)


_IN_PRECISION = {
    "bfloat16": (frozenset({"avx512_bf16", "amx_bf16"}), "bf16"),
    "float16": (frozenset({"avx512_fp16", "amx_fp16"}), "asimdhp"),
}
"""Instructions of x86, and the one of Arm."""


def usable_memory() -> int:
    """Bytes of the machine's memory, or fewer where a cgroup's limit is lower."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _memory_limit()
    return installed if limit is None else min(installed, limit)


def available_memory() -> int:
    """Bytes that this process can still take without anything being swapped out or killed: what the kernel can free is
    counted, and a cgroup's limit. 0 where the system does not say."""
    free = _number_after(_MEMORY_INFO, "MemAvailable:") * 1024
    limit, used = _memory_limit(), _first_of("memory.current", "memory/memory.usage_in_bytes")
    if limit is None or not used.isdecimal():
        return free
    files = _number_after(_CGROUP / "memory.stat", "inactive_file")
    files = files or _number_after(_CGROUP / "memory/memory.stat", "total_inactive_file")
    return max(0, min(free, limit - int(used) + files))


def _number_after(table: Path, word: str) -> int:
    """Of the line that begins with `word`, the number behind it; 0 where there is none."""
    try:
        lines = table.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [word]), 0)


def process_started() -> float:
    """When this process was started, on the monotonic clock, in seconds; without /proc (macOS): now."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
        return time.monotonic() - (uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return time.monotonic()


def offline() -> bool:
    """Whether the environment forbids the network, in any of the ways that users know."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
    return any(os.environ.get(name, "").strip().lower() in {"1", "true", "yes", "on"} for name in names)


def cache_root() -> Path:
    """$RANKZERO_CACHE, else $XDG_CACHE_HOME/rankzero, else ~/.cache/rankzero. Not created here. Raises ConfigError for
    the `~` of who has no home: one who is a number alone, as in a container, where nothing sets HOME."""
    own, shared = os.environ.get("RANKZERO_CACHE"), os.environ.get("XDG_CACHE_HOME")
    path = os.path.expanduser(own or f"{shared or '~/.cache'}/rankzero")
    if path.partition("/")[0] == "~":  # ~nobody is a name
        raise ConfigError("no home directory", where="cache", hint="set HOME, or RANKZERO_CACHE to a directory")
    return Path(path)


_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def local_gpu_count(env: Mapping[str, str]) -> int:
    """GPUs that a process here may use: what the environment shows, else what the drivers list."""
    return len(local_gpus(env))


def local_gpus(env: Mapping[str, str]) -> tuple[str, ...]:
    """The same, each by its number or UUID, as the environment has it. Drivers read up to the first that is none."""
    shown = next((env[name] for name in _VISIBLE if name in env), None)
    if shown is None:
        return tuple(str(number) for number in range(_nvidia_count() or _amd_count()))
    entries = [entry.strip() for entry in shown.split(",")]
    if not entries[0] or entries[0].startswith("-"):
        return ()
    there = _nvidia_count() + _amd_count()
    usable = takewhile(lambda entry: entry and not entry.startswith("-") and not _is_beyond(entry, there), entries)
    return tuple(dict.fromkeys(usable))[:there]


def _is_beyond(entry: str, there: int) -> bool:
    return entry.isdecimal() and int(entry) >= there


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, as its driver describes it. Memory is in bytes."""

    name: str
    memory: int
    free: int
    capability: tuple[int, int]
    """NVIDIA's number of what it can compute: from (8, 0) on bfloat16."""
    uuid: str = ""


def nvidia_gpus() -> tuple[Gpu, ...]:
    """NVIDIA's GPUs, whatever CUDA_VISIBLE_DEVICES says; none where their driver does not answer."""
    if not shutil.which("nvidia-smi"):
        return ()
    asked = "--query-gpu=name,memory.total,memory.free,compute_cap,uuid"
    command = ["nvidia-smi", asked, "--format=csv,noheader,nounits"]
    try:
        done = _asked(command)
        return tuple(_gpu(line) for line in done.stdout.splitlines() if line.count(",") == 4)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return ()


def _gpu(line: str) -> Gpu:
    name, memory, free, capability, uuid = (word.strip() for word in line.split(","))
    major, _, minor = capability.partition(".")
    return Gpu(name, int(memory) << 20, int(free) << 20, (int(major), int(minor or 0)), uuid)


def shown_gpus(gpus: Sequence[Gpu], env: Mapping[str, str]) -> dict[int, Gpu]:
    """Of all GPUs those that a process here may use, by their driver's numbers, as docker takes them; CUDA's may be
    others (`cuda_chooses`). One of which the environment shows a part (MIG) is none of them."""
    entries = local_gpus(env)
    return {number: gpu for number, gpu in enumerate(gpus) if any(_means(entry, number, gpu) for entry in entries)}


def cuda_chooses(gpus: Sequence[Gpu], env: Mapping[str, str]) -> bool:
    """Whether CUDA alone knows which of all GPUs the environment shows: they are of several kinds, some are hidden, and
    it says which by a number. CUDA numbers the fastest first; its driver's tools, by the bus."""
    if env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) < 2:
        return False
    entries = local_gpus(env)
    return len(entries) < len(gpus) and any(entry.isdecimal() for entry in entries)


def _means(entry: str, number: int, gpu: Gpu) -> bool:
    """The beginning of a UUID is enough, as for the driver."""
    return int(entry) == number if entry.isdecimal() else gpu.uuid.startswith(entry)


def _nvidia_count() -> int:
    if shutil.which("nvidia-smi"):
        try:
            done = _asked(["nvidia-smi", "-L"])
        except (OSError, subprocess.TimeoutExpired):
            return 0
        return sum(1 for line in done.stdout.splitlines() if line.startswith("GPU "))
    devices = Path("/dev")
    return sum(1 for entry in devices.glob("nvidia[0-9]*") if re.fullmatch(r"nvidia\d+", entry.name))


def _asked(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """In a group of its own: ended by a terminal's Ctrl-C it would say that there is no GPU."""
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, process_group=0)


def _amd_count() -> int:
    return sum(map(_has_simds, _AMD_NODES.glob("*/properties")))


def _has_simds(node: Path) -> bool:
    """Whether a node is a GPU, by its properties: CPUs are nodes without SIMDs. One that a container may not use says
    nothing."""
    try:
        match = re.search(r"simd_count (\d+)", node.read_text(encoding="utf-8"))
    except OSError:
        return False
    return match is not None and int(match.group(1)) > 0
