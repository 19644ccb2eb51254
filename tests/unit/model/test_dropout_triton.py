"""The kernel for dropout, in Triton's interpreter: the same values are dropped as by operations on integers."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from rankzero.model import dropout
from rankzero.model.dropout import Share, by_kernel, drop, factors

COMPARE = """
import torch
from rankzero.model.dropout import Share, factors
from rankzero.model.dropout_triton import dropped

torch.manual_seed(0)
for channels in (1, 2, 7, 300, 1025, 2048):
    for p in (0.05, 0.5):
        keys, share = torch.randint(-(2**31), 2**31 - 1, (3, 5), dtype=torch.int32), Share.of(p)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            values = torch.randn(3, 5, channels).to(dtype)
            kept = torch.where(factors(keys, channels, share) > 0, values, torch.zeros_like(values))
            assert torch.equal(dropped(values, keys, share.below, 1.0), kept), (channels, p, dtype)
            if dtype is not torch.bfloat16:  # to which the interpreter does not round as a GPU does
                scaled = (values * factors(keys, channels, share)).to(dtype)
                assert torch.equal(dropped(values, keys, share.below, share.factor), scaled), (channels, p, dtype)
        one = torch.randn(3, 5, channels)
        everywhere = torch.where(factors(keys[:, :1].expand(3, 5), channels, share) > 0, one, torch.zeros_like(one))
        assert torch.equal(dropped(one, keys[:, :1], share.below, 1.0), everywhere)
print("the same")
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton, which comes with torch for GPUs")
def test_it_drops_what_operations_on_integers_drop() -> None:
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", COMPARE], capture_output=True, text=True, check=False, env=env)
    assert done.stdout == "the same\n", done.stderr[-2000:]


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from rankzero.model.dropout_triton import _drop

names = _drop.arg_names
for values in ("*bf16", "*fp16", "*fp32"):
    types = {"values": values, "keys": "*i32", "out": values, "channels": "i32", "below": "i32", "scale": "fp32"}
    types |= {"BLOCK": "constexpr"}
    assert list(types) == names
    made = triton.compile(
        ASTSource(fn=_drop, signature=types, constexprs={"BLOCK": 1024}), target=GPUTarget("cuda", 90, 32)
    )
    assert len(made.asm["cubin"]) > 1000 and "sm_90" in made.asm["ptx"]
print("compiled")
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton, which comes with torch for GPUs")
def test_it_compiles_for_an_h100(tmp_path: Path) -> None:
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, check=False, env=env)
    assert done.stdout == "compiled\n", done.stderr[-2000:]


def test_a_cpu_has_none() -> None:
    assert not by_kernel(torch.device("cpu"))


def test_where_it_cannot_be_made_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_device: torch.device) -> bool:
        raise RuntimeError("ptxas not found\nand more")

    monkeypatch.setattr(dropout, "_gives_the_same", broken)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: True)
    dropout._kernel_is_right.cache_clear()
    with caplog.at_level("WARNING", logger="rankzero.model"):
        assert not dropout._kernel_is_right(0) and not dropout._kernel_is_right(0)
    dropout._kernel_is_right.cache_clear()
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == "[MODEL] dropout takes many kernels, not one: Triton says ptxas not found"


def test_dropout_asks_it_for_scaled_values(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, share, values = torch.arange(6, dtype=torch.int32).view(2, 3) * 77777, Share.of(0.3), torch.randn(2, 3, 40)
    wanted = drop(values, keys, share)

    def alone(values: torch.Tensor, keys: torch.Tensor, share: Share, scale: float) -> torch.Tensor:
        return torch.where(factors(keys, values.shape[-1], share) > 0, values * scale, torch.zeros_like(values))

    monkeypatch.setattr(dropout, "by_kernel", lambda _device: True)
    monkeypatch.setattr(dropout, "alone", alone)
    assert torch.equal(drop(values, keys, share), wanted)
