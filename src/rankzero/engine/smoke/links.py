"""What the link between the processes of this machine, or from it to the others, should give by what the system says of
it. Asks nvidia-smi and /sys; knows no torch."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_NETWORK = Path("/sys/class/net")
_INFINIBAND = Path("/sys/class/infiniband")
_ROUTES = Path("/proc/net/route")
_PCIE_GIGABYTES_A_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""One way, by generation: transfers per second less their encoding (8b/10b, then 128b/130b, then flits)."""


@dataclass(frozen=True, slots=True)
class Link:
    """The slowest part of the way between two ranks."""

    name: str
    bytes_per_second: float
    """One way."""


def link_of(*, cuda: bool, other_hosts: bool, env: Mapping[str, str]) -> Link | None:
    """The link that this machine's processes use; None where nobody knows it: a machine's memory, a virtual network."""
    if other_hosts:
        return (_infiniband() if cuda else None) or _ethernet(env)
    return (_nvlink() or _pcie()) if cuda else None


def _ask(*arguments: str) -> str:
    """nvidia-smi's answer; empty where there is none."""
    if not shutil.which("nvidia-smi"):
        return ""
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _nvlink() -> Link | None:
    """The links of the first GPU together: `Link 0: 26.562 GB/s`."""
    rates = re.findall(r"Link \d+: ([\d.]+) GB/s", _ask("nvlink", "--status", "--id=0"))
    total = sum(map(float, rates))
    return Link(f"NVLink, {len(rates)} links", total * 1e9) if total else None


def _pcie() -> Link | None:
    """The narrowest of the GPUs."""
    answer = _ask("--query-gpu=pcie.link.gen.max,pcie.link.width.max", "--format=csv,noheader")
    found = [(int(gen), int(width)) for gen, width in re.findall(r"^(\d+), (\d+)$", answer, flags=re.MULTILINE)]
    known = [
        Link(f"PCIe {gen} x{width}", _PCIE_GIGABYTES_A_LANE[gen] * width * 1e9)
        for gen, width in found
        if gen in _PCIE_GIGABYTES_A_LANE
    ]
    return min(known, key=lambda link: link.bytes_per_second, default=None)


def _infiniband() -> Link | None:
    """All active ports together, which NCCL uses side by side: `200 Gb/sec (4X HDR)`."""
    rates = [
        float(_read(port / "rate").partition(" ")[0] or 0)
        for port in _INFINIBAND.glob("*/ports/*")
        if "ACTIVE" in _read(port / "state")
    ]
    return Link(f"InfiniBand or RoCE, {len(rates)} ports", sum(rates) * 1e9 / 8) if sum(rates) else None


def _ethernet(env: Mapping[str, str]) -> Link | None:
    """The device of the default route, or the one that the environment names. A virtual one says -1."""
    named = env.get("NCCL_SOCKET_IFNAME") or env.get("GLOO_SOCKET_IFNAME") or ""
    name = named if (_NETWORK / named).is_dir() and named else _default_device()
    if not name or name == "lo":
        return None
    speed = _read(_NETWORK / name / "speed")
    return Link(f"{name}, Ethernet", int(speed) * 1e6 / 8) if speed.isdigit() and int(speed) > 0 else None


def _default_device() -> str:
    """Of the route to 0.0.0.0."""
    rows = [line.split() for line in _read(_ROUTES).splitlines()[1:]]
    return next((row[0] for row in rows if len(row) > 1 and row[1] == "00000000"), "")


def _read(path: Path) -> str:
    """Empty where there is none: some drivers refuse to be asked."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
