"""What a checkpoint costs a step: the wait for its copy in memory, beside the wait for the whole of it.

    python benchmarks/saving.py [--parameters 150] [--repeats 5] [--directory DIR]

Full weights in float32 with AdamW's two moments, 12 bytes a parameter, on this machine's CPU. The checkpoints go to
DIR (default: a temporary directory) and are deleted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from transformers import PretrainedConfig

from rankzero.engine.checkpoint import Position
from rankzero.engine.device import pick_device
from rankzero.engine.distributed import World
from rankzero.engine.parallel.replicas import Replicated
from rankzero.engine.saving import Saver
from rankzero.run_dir.lease import Lease
from rankzero.run_dir.paths import RunDir

WIDTH = 4096


class Layers(torch.nn.Sequential):
    """Square matrices."""

    def __init__(self, millions: int) -> None:
        super().__init__(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(max(1, millions * 10**6 // WIDTH**2))))
        self.config = PretrainedConfig()


def main() -> None:
    parser = argparse.ArgumentParser(description="What a checkpoint costs a step.")
    parser.add_argument("--parameters", type=int, default=150, metavar="MILLIONS")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        measure(options.parameters, options.repeats, RunDir(Path(name) / "run"))


def measure(millions: int, repeats: int, run_dir: RunDir) -> None:
    """Save so many times, alternately with and without a step that waits for the end."""
    parallel = Replicated(
        Layers(millions),
        lambda parameters: torch.optim.AdamW(parameters.values(), lr=1e-9),
        world=World(),
        device=pick_device(0),
    )
    parallel.module(torch.ones(1, WIDTH)).sum().backward()
    parallel.step()
    parallel.zero_grad()
    run_dir.checkpoints.mkdir(parents=True)
    lease = Lease(run_dir.root)
    lease.acquire()
    waits, wholes, step = [], [], 0
    with Saver(run_dir, lease, parallel, World(), meta={}, keep=1, step=0) as saver:
        for _ in range(repeats + 1):
            step += 1
            started = time.perf_counter()
            saver.save(Position(step=step))
            waits.append(time.perf_counter() - started)
            saver.wait()
            wholes.append(time.perf_counter() - started)
    lease.release()
    gigabytes = parallel.snapshot().nbytes / 1e9
    shares = sorted(wait / whole for wait, whole in zip(waits[1:], wholes[1:], strict=True))
    print(f"{gigabytes:.2f} GB; medians of {repeats}, the first left out")
    print(f"a step waits    {median(waits[1:]):.2f} s")
    print(f"the whole save  {median(wholes[1:]):.2f} s, {gigabytes / median(wholes[1:]):.2f} GB/s")
    print(f"share           {100 * median(shares):.1f} % ({100 * shares[0]:.1f} to {100 * shares[-1]:.1f})")


if __name__ == "__main__":
    main()
