"""Several processes that run a function of a test together. They are forked from one that has the engine imported,
since importing takes longer than most of what they do."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 400


def on_ranks(directory: Path, world_size: int, function: Callable[..., None], *arguments: Any) -> tuple[list[int], str]:
    """Run `function(rank, *arguments)` in `world_size` processes that find their place in the environment.

    Returns their exit codes, negative for signals, and what they wrote to stderr. `directory` is for files of theirs.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rankzero.engine.worker", "rankzero.engine.parallel.fsdp"])
    common = {**os.environ, "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
    if Path("/sys/class/net/lo").exists():
        common["GLOO_SOCKET_IFNAME"] = "lo"
    said = [directory / f"stderr-{rank}" for rank in range(world_size)]
    processes = []
    for rank in range(world_size):
        env = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        process = context.Process(target=_rank, args=(env, said[rank], function, rank, *arguments))
        process.start()
        processes.append(process)
    for process in processes:
        process.join(PATIENCE_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
    text = "\n".join(path.read_text(errors="replace") for path in said if path.exists())
    return [-1000 if process.exitcode is None else process.exitcode for process in processes], text


def _rank(env: dict[str, str], said: Path, function: Callable[..., None], rank: int, *arguments: Any) -> None:
    os.environ.clear()
    os.environ.update(env)
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    function(rank, *arguments)
