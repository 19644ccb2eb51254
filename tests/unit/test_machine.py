"""What is read of the machine, from files that a test writes: Linux on other CPUs, and systems that say nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rankzero import machine
from rankzero.machine import (
    available_memory,
    cpu_features,
    cpu_kind,
    local_gpu_count,
    usable_cores,
    usable_memory,
)

XEON = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Some CPU
flags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16
bugs\t\t: none

processor\t: 1
flags\t\t: fpu
"""
GRAVITON = """processor\t: 0
Features\t: fp asimd asimdhp bf16
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (XEON, {"fpu", "avx2", "avx512f", "avx512_bf16", "amx_bf16"}),
        (GRAVITON, {"fp", "asimd", "asimdhp", "bf16"}),
        ("processor\t: 0\n", set()),
        (None, set()),
    ],
)
def test_the_first_cpu_says_what_it_can(
    text: str | None, found: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANKZERO_CPU_FEATURES", raising=False)
    monkeypatch.setattr(machine, "_CPU_INFO", tmp_path / "cpuinfo")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert cpu_features() == found
    monkeypatch.setenv("RANKZERO_CPU_FEATURES", "avx2 fma")
    assert cpu_features() == {"avx2", "fma"}, "the variable is believed"
    monkeypatch.setenv("RANKZERO_CPU_FEATURES", "")
    assert not cpu_features()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (XEON, "GenuineIntel family 6 model 143, amx_bf16 avx2 avx512_bf16 avx512f"),
        (XEON.replace("143", "85"), "GenuineIntel family 6 model 85, amx_bf16 avx2 avx512_bf16 avx512f"),
        (GRAVITON, "implementer 0x41 part 0xd40, asimd asimdhp bf16"),
        ("processor\t: 0\n", ""),
        (None, ""),
    ],
)
def test_cpus_that_may_round_otherwise_are_of_other_kinds(
    text: str | None, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANKZERO_CPU_FEATURES", raising=False)
    monkeypatch.setattr(machine, "_CPU_INFO", tmp_path / "cpuinfo")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert cpu_kind() == kind


V2 = {"cpu.max": "100000 100000", "memory.max": "1000000", "memory.current": "700000"}
V2["memory.stat"] = "anon 1\ninactive_file 200000\n"
V1 = {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000", "memory/memory.limit_in_bytes": "1000000"}
V1 |= {"memory/memory.usage_in_bytes": "700000", "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 200000\n"}


@pytest.mark.parametrize("files", [V2, V1], ids=["v2", "v1"])
def test_a_containers_limits_are_those_of_its_cgroup(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert (usable_cores(), usable_memory(), available_memory()) == (1, 1_000_000, 500_000)


NONE_V2 = {"cpu.max": "max 100000", "memory.max": "max", "memory.current": "700000"}
NONE_V1 = {**V1, "cpu/cpu.cfs_quota_us": "-1", "memory/memory.limit_in_bytes": str(2**63 - 4096)}


@pytest.mark.parametrize("files", [NONE_V2, NONE_V1, {}], ids=["v2", "v1", "none"])
def test_without_limits_all_of_the_machine_is_there(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(machine, "_MEMORY_INFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _pid: set(range(7)), raising=False)
    for name, text in {**files, "meminfo": "MemAvailable: 5 kB"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert (usable_cores(), usable_memory(), available_memory()) == (7, installed, 5 * 1024)


def test_gpus_of_amd_that_a_container_may_not_use_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel lists the nodes of all and refuses what their files say."""
    for number, simds in enumerate((0, 256, 256)):  # the first is a CPU
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "properties").write_text(f"cpu_cores_count 0\nsimd_count {simds}\n")
    read = Path.read_text

    def read_text(path: Path, *arguments: Any, **named: Any) -> str:
        if path == tmp_path / "2/properties":
            raise PermissionError(1, "Operation not permitted", str(path))
        return read(path, *arguments, **named)

    monkeypatch.setattr(machine, "_AMD_NODES", tmp_path)
    monkeypatch.setattr(machine, "_nvidia_count", lambda: 0)
    assert local_gpu_count({}) == 2
    monkeypatch.setattr(Path, "read_text", read_text)
    assert local_gpu_count({}) == 1
    monkeypatch.setattr(machine, "_AMD_NODES", tmp_path / "none")
    assert local_gpu_count({}) == 0
