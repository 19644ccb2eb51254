"""Which precision a run computes in: by what the device does natively, never by what it only emulates."""

from __future__ import annotations

import platform

import pytest
import torch

from rankzero.engine.device import Device, computes_bfloat16, computes_float16, memory_limit, pick_dtype
from rankzero.errors import ConfigError
from rankzero.machine import CPU_FEATURES_VARIABLE

CPU, GPU = Device("cpu"), Device("cuda")


@pytest.mark.parametrize(
    ("architecture", "features", "bfloat16", "float16"),
    [
        ("x86_64", "avx2 avx512f", False, False),
        ("x86_64", "avx512f avx512_bf16", True, False),
        ("x86_64", "avx512_bf16 avx512_fp16 amx_bf16", True, True),
        ("x86_64", "amx_bf16", True, False),
        ("x86_64", "bf16 asimdhp", False, False),
        ("aarch64", "asimd asimdhp bf16", True, True),
        ("aarch64", "asimd asimdhp", False, True),
        ("x86_64", "", False, False),
    ],
)
def test_what_a_cpu_computes(
    architecture: str, features: str, bfloat16: bool, float16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: architecture)
    monkeypatch.setenv(CPU_FEATURES_VARIABLE, features)
    assert (computes_bfloat16(CPU), computes_float16(CPU)) == (bfloat16, float16)
    assert pick_dtype("auto", CPU) is (torch.bfloat16 if bfloat16 else torch.float32), "float16 only when asked for"


def gpu(monkeypatch: pytest.MonkeyPatch, *, bfloat16: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bfloat16 or including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _index: "Tesla V100")


@pytest.mark.parametrize(("count", "words"), [(1, "1 thread)"), (4, "4 threads)")])
def test_threads_are_counted_as_people_count(count: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    assert CPU.describe().endswith(f" {words}")


def test_a_gpu_without_bfloat16_computes_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu(monkeypatch, bfloat16=False)
    assert pick_dtype("auto", GPU) is pick_dtype("float16", GPU) is torch.float16
    assert pick_dtype("auto", GPU, loss_scaling=False) is torch.float32
    with pytest.raises(ConfigError, match="bfloat16 was asked for, but Tesla V100") as refused:
        pick_dtype("bfloat16", GPU)
    assert refused.value.problems[0].hint.endswith("which takes float16 here")


def test_a_gpu_with_bfloat16_computes_that(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu(monkeypatch, bfloat16=True)
    assert pick_dtype("auto", GPU) is pick_dtype("auto", GPU, loss_scaling=False) is torch.bfloat16
    assert pick_dtype("float16", GPU) is torch.float16 and pick_dtype("float32", GPU) is torch.float32


@pytest.mark.parametrize("wanted", ["bfloat16", "float16"])
def test_what_is_only_emulated_is_refused(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CPU_FEATURES_VARIABLE, "avx2")
    with pytest.raises(ConfigError, match=f"{wanted} was asked for") as refused:
        pick_dtype(wanted, CPU)  # type: ignore[arg-type]
    assert refused.value.problems[0].hint.endswith("which takes float32 here")


@pytest.mark.parametrize(
    ("free", "own", "planned"),
    [(78, 0, 80), (76, 0, 80), (30, 46, 80), (60, 0, 60), (20, 30, 50)],
    ids=["the driver's", "the most that is nobody's", "own", "another process", "both"],
)
def test_a_gpu_that_others_use_is_planned_with_less(
    monkeypatch: pytest.MonkeyPatch, free: int, own: int, planned: int
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _index: (free * 10**9, 80 * 10**9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _index: own * 10**9)
    assert memory_limit(Device("cuda"), 1) == planned * 10**9
