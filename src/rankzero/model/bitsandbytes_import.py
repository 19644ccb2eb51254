"""What bitsandbytes does as it is imported, which peft does wherever it is installed: made quiet, and quick.

It decorates functions that hardly anything calls by `torch.compile`, which loads torch's compiler for it: seconds of
CPU in each process. Here they are compiled when the first of their calls comes, as torch does with their code anyway.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial, wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_BACKENDS = "bitsandbytes.backends."
"""Where the functions are that it compiles."""


def arrange() -> None:
    """From now on, for this process. Imports nothing; done again, it changes nothing."""
    logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(_is_about_us)
    if not any(isinstance(finder, _Backends) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Backends())


def _is_about_us(record: logging.LogRecord) -> bool:
    """False for what it says on a CPU with avx512_bf16: that it lacks kernels for a layout which no layer takes here
    (`quantize.keep_layout`)."""
    return "gemm_4bit_forward" not in record.getMessage()


class _Backends(MetaPathFinder):
    """Finds its modules where they are, and has their functions compiled later."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(_BACKENDS):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = partial(_execute, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


def _execute(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    import torch

    compiled_at_once = torch.compile
    torch.compile = _compiled_when_called  # type: ignore[assignment]
    try:
        execute(module)
    finally:
        torch.compile = compiled_at_once


def _compiled_when_called(function: Callable[..., Any] | None = None, **settings: Any) -> Callable[..., Any]:
    """`torch.compile`, as a decorator with or without settings."""
    if function is None:
        return partial(_compiled_when_called, **settings)

    @cache
    def compiled() -> Callable[..., Any]:
        import torch

        return torch.compile(function, **settings)

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return compiled()(*arguments, **named)

    return call
