"""How many GPUs this machine offers, without importing torch. Knows nothing else of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def local_gpu_count(env: Mapping[str, str]) -> int:
    """GPUs that a process here may use: what the environment shows, else what the drivers list."""
    for name in _VISIBLE:
        if name in env:
            shown = [entry.strip() for entry in env[name].split(",")]
            usable = [entry for entry in shown if entry and not entry.startswith("-")]
            return min(len(usable), _nvidia_count() + _amd_count()) if usable else 0
    return _nvidia_count() or _amd_count()


def _nvidia_count() -> int:
    if shutil.which("nvidia-smi"):
        try:
            done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return 0
        return sum(1 for line in done.stdout.splitlines() if line.startswith("GPU "))
    devices = Path("/dev")
    return sum(1 for entry in devices.glob("nvidia[0-9]*") if re.fullmatch(r"nvidia\d+", entry.name))


def _amd_count() -> int:
    nodes = Path("/sys/class/kfd/kfd/topology/nodes")
    if not nodes.is_dir():
        return 0
    simds = (re.search(r"simd_count (\d+)", p.read_text(encoding="utf-8")) for p in nodes.glob("*/properties"))
    return sum(1 for match in simds if match and int(match.group(1)) > 0)  # CPUs are nodes without SIMDs
