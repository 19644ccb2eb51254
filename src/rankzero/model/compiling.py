"""Compiling a model block by block, and keeping what was compiled for the next process. Knows no training loop.

All blocks of a kind share one compiled form, so how long compiling takes does not depend on how many there are.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import platform
import shutil
import stat
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from rankzero.cache.uses import use
from rankzero.errors import ConfigError, StorageError
from rankzero.machine import cache_root, cpu_features
from rankzero.model.parts import blocks
from rankzero.run_dir.atomic import whole_file

_log = logging.getLogger("rankzero.model")

_PACKAGES = ("torch", "triton", "transformers", "peft", "liger-kernel", "rankzero")


def compile_blocks(model: Any) -> str:
    """Have every block compiled when it is first called, for lengths that vary; names of weights stay as they are.

    What an earlier process has compiled for the same model on the same machine is taken from the cache. Returns the
    key to give to `save_artifacts`. Raises ConfigError where there is no compiler, or nothing for it.
    """
    _check_compiler()
    found = blocks(model)
    if not found:
        what = f"{type(model).__name__} has no blocks that could be compiled"
        raise ConfigError(what, where="train.torch_compile", hint="leave it out")
    key = artifact_key(model)
    load_artifacts(key)
    for _, block in found:
        block.compile(dynamic=True)
    return key


def artifact_key(model: Any) -> str:
    """Names what is compiled for this model, by config, form, versions and machine. A key that is too coarse costs
    time and nothing else: torch itself compares what it loads with what it is to compute."""
    config = model.config.to_dict()
    for name in ("_name_or_path", "name_or_path"):
        config.pop(name, None)
    form = [(name, str(p.dtype), tuple(p.shape), p.requires_grad) for name, p in model.named_parameters()]
    recomputes = any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    facts = [config, form, str(model), recomputes, _versions(), _machine()]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def load_artifacts(key: str) -> bool:
    """Take over what `save_artifacts` has kept under `key`; whether there was any.

    Loading it unpickles and runs machine code. That is why only a file that belongs to this user is read, and one that
    nobody else may write: whoever can change files in your cache could as well change your programs.
    """
    path = _path(key)
    use(path.parent)
    try:
        status = path.stat()
        if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            _log.warning("%s is not used: others than you could have written it", path)
            return False
        content = path.read_bytes()
    except OSError:
        return False
    try:
        loaded = torch.compiler.load_cache_artifacts(content) is not None
    except Exception as error:  # whatever a damaged file makes of torch's reader: it is only a cache
        _log.debug("%s cannot be loaded: %s", path, error)
        loaded = False
    if not loaded:
        path.unlink(missing_ok=True)
    return loaded


def save_artifacts(key: str) -> bool:
    """Keep all that this process has compiled or loaded so far, in one step; whether there was any.

    For one process of a run, once the first step and the first evaluation have compiled. A cache that cannot be
    written is no error.
    """
    saved = torch.compiler.save_cache_artifacts()
    if saved is None:
        return False
    path = _path(key)
    try:
        with whole_file(path) as file:
            os.fchmod(file.fileno(), stat.S_IRUSR | stat.S_IWUSR)
            file.write(saved[0])
    except StorageError as error:
        _log.debug("what was compiled is not kept: %s", error)
        return False
    return True


def _path(key: str) -> Path:
    return cache_root() / "compiled" / key / "artifacts.bin"


def _check_compiler() -> None:
    """On a GPU triton compiles, and calls a C compiler for what starts its kernels; on a CPU a C++ compiler does."""
    on_gpu = torch.cuda.is_available()
    names = ("gcc", "cc", "clang") if on_gpu else ("g++", "c++", "clang++")
    own = os.environ.get("CC" if on_gpu else "CXX")
    if on_gpu and importlib.util.find_spec("triton") is None:
        what, hint = "triton is not installed", "install torch for CUDA, which brings it, or leave it out"
    elif not any(shutil.which(name) for name in ((own,) if own else names)):
        what, hint = f"there is no compiler: none of {', '.join(names)}", f"install {names[0]}, or leave it out"
    else:
        return
    raise ConfigError(what, where="train.torch_compile", hint=hint)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _machine() -> list[str]:
    if torch.cuda.is_available():
        return [torch.cuda.get_device_name(), str(torch.version.cuda)]
    # What is compiled uses every instruction that the CPU has, and would crash on one that lacks some of them.
    return [platform.machine(), torch.backends.cpu.get_cpu_capability(), *sorted(cpu_features())]
