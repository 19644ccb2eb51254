"""The devices as their driver has them and as torch sees them. torch is asked in a process of its own, which takes
seconds; a crash there is a finding."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rankzero.doctor.finding import Finding, look, ok, wrong
from rankzero.errors import ExitCode
from rankzero.machine import (
    Gpu,
    available_memory,
    cpu_computes,
    cuda_chooses,
    local_gpu_count,
    nvidia_gpus,
    shown_gpus,
    usable_cores,
    usable_memory,
)
from rankzero.wording import counted

_SECONDS = 300
_ASKED = """
import json, torch
cuda = torch.cuda.is_available()
facts = {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip, "available": cuda}
if cuda:
    facts["count"] = torch.cuda.device_count()
    facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    facts["bfloat16"] = torch.cuda.is_bf16_supported(including_emulation=False)
    facts["sum"] = [float(torch.ones(1000, device=f"cuda:{i}").sum()) for i in range(facts["count"])]
facts["distributed"] = torch.distributed.is_available()
print(json.dumps(facts))
"""
"""What torch says, with a little work on every GPU."""


def devices(env: Mapping[str, str]) -> Iterator[Finding]:
    """CPU and memory, GPUs and driver, what torch makes of them, NCCL."""
    native = [name for name in ("bfloat16", "float16") if cpu_computes(name)]
    computes = f", computes {' and '.join(native)}" if native else ""
    memory = f"{usable_memory() / 1e9:.1f} GB of memory, {available_memory() / 1e9:.1f} GB free"
    yield ok("machine", f"{counted(usable_cores(), 'core')}{computes}, {memory}")
    gpus, shown = nvidia_gpus(), local_gpu_count(env)
    if not shown:
        hidden = "; CUDA_VISIBLE_DEVICES hides them" if gpus else ""
        yield ok("GPUs", f"none: training is on the CPU{hidden}")
    elif cuda_chooses(gpus, env):
        what = (
            f"{shown} of {_kinds(gpus)}, driver {_driver()}; only torch knows which, for CUDA numbers the fastest first"
        )
        yield look("GPUs", what, "set CUDA_DEVICE_ORDER=PCI_BUS_ID, for the numbers of nvidia-smi")
    else:
        usable = shown_gpus(gpus, env)
        words = _kinds(usable.values()) or counted(shown, "GPU")
        hidden = f"; CUDA_VISIBLE_DEVICES shows {len(usable)} of {len(gpus)}" if 0 < len(usable) < len(gpus) else ""
        yield ok("GPUs", f"{words}, driver {_driver()}{hidden}")
        yield from _taken(usable)
    if importlib.util.find_spec("torch") is not None:
        yield from _torch(shown)


def _kinds(gpus: Iterable[Gpu]) -> str:
    names = Counter(f"{gpu.name}, {gpu.memory / 1e9:.0f} GB" for gpu in gpus)
    return "; ".join(f"{count} × {name}" for name, count in names.items())


def _taken(gpus: Mapping[int, Gpu]) -> Iterator[Finding]:
    busy = [str(number) for number, gpu in gpus.items() if gpu.free < 0.5 * gpu.memory]
    if busy:
        what = f"less than half is free on GPU {', '.join(busy)}"
        yield look("GPU memory", what, "nvidia-smi shows whose processes they are; end them, or hide these GPUs")


def _driver() -> str:
    if not shutil.which("nvidia-smi"):
        return "not NVIDIA's"
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "does not answer"
    return done.stdout.partition("\n")[0].strip() or "does not answer"


def _torch(shown: int) -> Iterator[Finding]:
    """What torch sees of `shown` GPUs."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _ASKED], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        facts = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        fix = "look for processes in state D; a driver that hangs needs a reboot"
        yield wrong("torch", f"does not answer in {_SECONDS} s", fix, ExitCode.CONFIG)
        return
    except (ValueError, IndexError):
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no word")
        fix = "python -c 'import torch; torch.ones(1, device=\"cuda\")' shows all of it"
        yield wrong("torch", f"ended with {done.returncode}: {last.strip()}", fix, ExitCode.CONFIG)
        return
    build = f"CUDA {facts['cuda']}" if facts["cuda"] else f"ROCm {facts['hip']}" if facts["hip"] else "CPU"
    if shown and not facts["available"]:
        yield _unseen(facts, build)
        return
    words = f"{facts['version']}, built for {build}"
    if facts["available"]:
        bfloat16 = "bfloat16" if facts["bfloat16"] else "no bfloat16"
        yield ok("torch", f"{words}; computes on {counted(facts['count'], 'GPU')}, {bfloat16}")
        yield ok("NCCL", facts["nccl"])
    else:
        yield ok("torch", words)
    if not facts["distributed"]:
        yield wrong("torch", "this torch has no torch.distributed", "install another build", ExitCode.CONFIG)


def _unseen(facts: Mapping[str, Any], build: str) -> Finding:
    if build == "CPU":
        what, fix = "this build of torch is for CPUs, and the machine has GPUs", "pip install torch from PyPI's index"
    else:
        what = f"torch is built for {build}, and cannot use the GPUs"
        fix = f"a driver that is new enough for {build}, or a torch built for an older one"
    return wrong("torch", f"{facts['version']}: {what}", fix, ExitCode.CONFIG)
