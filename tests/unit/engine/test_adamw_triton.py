"""The kernel of bfloat16's AdamW, in Triton's interpreter, and compiled for a GPU that is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from rankzero.engine import adamw_bfloat16
from rankzero.engine.adamw_bfloat16 import by_kernel

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton, which comes with torch for GPUs")

COMPARE = """
import torch
from rankzero.engine import adamw_bfloat16

adamw_bfloat16.KERNEL_ELEMENTS = 3000  # of 5,000: the places of a second part go on
assert adamw_bfloat16.moves_the_same(torch.device("cpu"))
print("the same")
"""

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from rankzero.engine.adamw_triton import _move

bf16, number = "*bf16", "fp32"
names = _move.arg_names
for gradient in ("*bf16", "*fp32"):
    for kahan in (False, True):
        types = dict.fromkeys(names[:4], bf16) | {"gradients": gradient} | dict.fromkeys(names[5:10], "i32")
        types |= dict.fromkeys(names[10:16], number) | {"KAHAN": "constexpr", "BLOCK": "constexpr"}
        source = ASTSource(fn=_move, signature=types, constexprs={"KAHAN": kahan, "BLOCK": 1024})
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
        assert len(made.asm["cubin"]) > 1000 and "sm_90" in made.asm["ptx"]
print("compiled")
"""


def said(program: str, **env: str) -> str:
    env = {**os.environ, **env}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=env)
    return done.stdout + done.stderr[-2000:]


@needs_triton
def test_it_moves_weights_as_operations_do() -> None:
    assert said(COMPARE, TRITON_INTERPRET="1") == "the same\n"


@needs_triton
def test_it_compiles_for_an_h100(tmp_path: Any) -> None:
    assert said(COMPILE, TRITON_CACHE_DIR=str(tmp_path)) == "compiled\n"


def test_a_cpu_has_none() -> None:
    assert not by_kernel(torch.device("cpu"))


@pytest.mark.parametrize("wrong", [False, True])
def test_where_it_is_of_no_use_that_is_said(
    wrong: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_device: torch.device) -> bool:
        if wrong:
            return False
        raise RuntimeError("ptxas not found\nand more")

    monkeypatch.setattr(adamw_bfloat16, "moves_the_same", broken)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: True)
    adamw_bfloat16._kernel_is_right.cache_clear()
    with caplog.at_level("WARNING", logger="rankzero.engine"):
        assert not adamw_bfloat16._kernel_is_right(0) and not adamw_bfloat16._kernel_is_right(0)
    adamw_bfloat16._kernel_is_right.cache_clear()
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.endswith("moves weights elsewhere" if wrong else "Triton says ptxas not found")
