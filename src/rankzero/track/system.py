"""How busy this machine is, for trackers that show it: processors, memory, disk, GPUs. Linux; knows no tracker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

SYSTEM_SECONDS = 15.0
_GPU_SECONDS = 5.0
_GPU_FIELDS = {
    "utilization.gpu": "utilization_percentage",
    "memory.used": "memory_usage_megabytes",
    "power.draw": "power_usage_watts",
}


class Sampler:
    """Appends objects to a file of JSON lines, numbered on from what is in it. Raises OSError."""

    def __init__(self, path: Path, disk: Path) -> None:
        self._path, self._disk = path, disk
        lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
        self._number = len(lines)
        self._first = b"\n" if lines and not lines[-1].endswith(b"\n") else b""
        """What ends a line that a kill has cut off."""
        self._before = _processor_times()
        self._smi = shutil.which("nvidia-smi")

    def sample(self) -> None:
        """One object. Percentages are of the time since the one before."""
        now = _processor_times()
        row: dict[str, float] = {"step": self._number, "time": time.time()}
        if now is not None and self._before is not None and now[1] > self._before[1]:
            busy, total = now[0] - self._before[0], now[1] - self._before[1]
            row["cpu_utilization_percentage"] = round(100 * busy / total, 1)
        self._before = now
        row |= _memory() | self._gpus()
        usage = shutil.disk_usage(self._disk)
        row["disk_usage_percentage"] = round(100 * usage.used / usage.total, 1) if usage.total else 0.0
        with self._path.open("ab") as file:
            file.write(self._first + json.dumps(row).encode() + b"\n")
        self._number, self._first = self._number + 1, b""

    def _gpus(self) -> dict[str, float]:
        if self._smi is None:
            return {}
        command = [self._smi, f"--query-gpu=index,{','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"]
        values: dict[str, float] = {}
        with suppress(OSError, subprocess.SubprocessError):
            answer = subprocess.run(command, capture_output=True, text=True, timeout=_GPU_SECONDS, check=True)
            for line in answer.stdout.splitlines():
                index, *numbers = (part.strip() for part in line.split(","))
                for name, number in zip(_GPU_FIELDS.values(), numbers, strict=False):
                    with suppress(ValueError):  # [N/A]
                        values[f"gpu_{index}_{name}"] = float(number)
        return values


def _processor_times() -> tuple[int, int] | None:
    """Jiffies of all processors: busy, and in all. None where the system does not say."""
    try:
        fields = [int(part) for part in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return sum(fields) - fields[3] - fields[4], sum(fields)


def _memory() -> dict[str, float]:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        total, free = found["MemTotal"], found["MemAvailable"]
    except (OSError, ValueError, KeyError, IndexError):
        return {}
    used = (total - free) / 1024
    load = {"load_1_minute": os.getloadavg()[0]}
    return {
        "system_memory_usage_megabytes": round(used),
        "system_memory_usage_percentage": round(102400 * used / total, 1),
        **load,
    }
