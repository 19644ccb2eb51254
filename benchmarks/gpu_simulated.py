"""An H100 that is not there: tensors of shapes alone, and what operations on them would read, write and multiply.

A small library (simulated_cuda.cpp) lets torch's CPU build take tensors for a GPU's; torch's FakeTensorMode gives them
shapes. Nothing is computed, so what reads a value gets a made-up one, and is counted as a wait for the device.
"""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NAME, MEMORY = "NVIDIA H100 80GB HBM3", int(79.1 * 2**30)


def load_device(directory: Path) -> None:
    """Build the library where it is not yet, and load it. Before torch is imported."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise SystemExit("torch is not installed")
    torch, built = Path(found.origin).parent, directory / "simulated_cuda.so"
    if (torch / "lib" / "libtorch_cuda.so").exists():
        raise SystemExit("a GPU is only simulated under torch's CPU build: this one has a device of that name itself")
    if not built.exists():
        directory.mkdir(parents=True, exist_ok=True)
        include = [f"-I{torch / 'include'}", f"-I{torch / 'include/torch/csrc/api/include'}"]
        link = [f"-L{torch / 'lib'}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch / 'lib'}"]
        source = str(Path(__file__).with_name("simulated_cuda.cpp"))
        subprocess.run(
            ["g++", "-O1", "-shared", "-fPIC", "-std=c++20", *include, source, "-o", str(built), *link], check=True
        )
    ctypes.CDLL(str(built), mode=ctypes.RTLD_GLOBAL)


def pretend() -> None:
    """Let torch.cuda tell of this device, and torch's own kernels that a CPU build lacks have shapes."""
    import bitsandbytes  # noqa: F401  which looks for a real device when it is imported
    import torch
    from torch._subclasses import fake_tensor
    from torch.nn import functional
    from transformers import masking_utils

    from rankzero.engine import adamw_bfloat16
    from rankzero.model import dropout, fused_lora, varlen

    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.set_device = cuda.synchronize = cuda.set_rng_state = lambda *_: None
    cuda.empty_cache = cuda._lazy_init = lambda: None
    cuda.is_initialized = lambda: True
    cuda.get_device_capability = lambda *_: (9, 0)
    cuda.get_device_name = lambda *_: NAME
    cuda.get_device_properties = lambda *_: SimpleNamespace(name=NAME, major=9, minor=0, total_memory=MEMORY)
    cuda.mem_get_info = lambda *_: (MEMORY - 2**29, MEMORY)
    cuda.memory_reserved = cuda.max_memory_allocated = lambda *_: 0
    cuda.is_bf16_supported = lambda **_: True
    cuda.get_rng_state = lambda *_: torch.zeros(16, dtype=torch.uint8)
    cuda.Event = lambda **_: SimpleNamespace(
        record=lambda *_: None, elapsed_time=lambda *_: 1.0, query=lambda: True, synchronize=lambda: None
    )
    torch._C._cuda_getCurrentRawStream = lambda *_: 0  # type: ignore[attr-defined]
    torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[assignment,method-assign]
    masking_utils.is_tracing = lambda *_: False
    fake_tensor.CONSTANT_NUMEL_LIMIT = 0  # else operations on single numbers are computed, on the device too
    normed, silu, dropped, moved = _kernels(torch)
    varlen.computes_attention = lambda _device, **_: True  # type: ignore[assignment]
    adamw_bfloat16.by_kernel = lambda device: device.type == "cuda"
    adamw_bfloat16._move_by_kernel = lambda flat, gradient, *_: moved(flat, gradient)
    for module in (dropout, fused_lora):
        module.by_kernel = lambda device: device.type == "cuda"  # type: ignore[assignment]
        module.alone = lambda values, *_: dropped(values)  # type: ignore[assignment]
    on_cpu = functional.rms_norm

    def rms_norm(x: Any, shape: Any, weight: Any = None, eps: Any = None) -> Any:
        return normed(x, weight) if x.device.type == "cuda" else on_cpu(x, shape, weight, eps)

    functional.rms_norm, functional.silu = rms_norm, lambda x, inplace=False: silu(x)


def _kernels(torch: Any) -> tuple[Callable[..., Any], ...]:
    """RMS norm and SiLU as two kernels, else many; dropout and bfloat16's AdamW as one each."""
    library = torch.library.Library("simulated", "DEF")
    _kernels.kept = library  # type: ignore[attr-defined]
    library.define("norm(Tensor x, Tensor w) -> (Tensor, Tensor)")
    library.define("norm_backward(Tensor g, Tensor x, Tensor r, Tensor w) -> (Tensor, Tensor)")
    library.define("drop(Tensor x) -> Tensor")
    library.define("silu_backward(Tensor g, Tensor x) -> Tensor")
    library.define("move(Tensor(a!)[] weights, Tensor gradient) -> ()")
    ops, fake = torch.ops.simulated, torch.library.register_fake
    fake("simulated::norm", lambda x, w: (torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=torch.float32)))
    fake("simulated::norm_backward", lambda g, x, r, w: (torch.empty_like(x), torch.empty_like(w)))
    fake("simulated::drop", lambda x: torch.empty_like(x))
    fake("simulated::silu_backward", lambda g, x: torch.empty_like(x))

    fake("simulated::move", lambda weights, gradient: None)

    class Norm(torch.autograd.Function):  # type: ignore[misc,name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any, w: Any) -> Any:
            out, deviation = ops.norm(x, w)
            ctx.save_for_backward(x, deviation, w)
            return out

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            of_x, of_w = ops.norm_backward(gradient, *ctx.saved_tensors)
            return of_x, of_w if ctx.needs_input_grad[1] else None

    class Silu(torch.autograd.Function):  # type: ignore[misc,name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return torch._C._nn.silu(x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return ops.silu_backward(gradient, *ctx.saved_tensors)

    return Norm.apply, Silu.apply, ops.drop, ops.move
