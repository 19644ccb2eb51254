"""What each switch of a step gives on a GPU: a cell's step as rankzero makes it by default, and with one switch turned.

    python benchmarks/gpu_switches.py --shape qwen3-8b --method LoRA [--only TEXT] [--work DIRECTORY]

The session and the step are those of `rankzero train`, on the rows of benchmarks/gpu.py: every variant in a process of
its own, one after the other; two steps that warm up, then five that are timed one by one. `--device cpu --quick` tries
it out on a tiny model.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_cells import CELLS, FULL, QUICK
from gpu_profile import make_model, timed
from gpu_run import last_words
from gpu_session import METHODS, find_cell, prepare
from gpu_trace import table

from rankzero.forecast.devices import find_device

DEFAULT = "the default"
SWITCHES = {
    DEFAULT: (),
    "`model.kernels: liger`": ('model.kernels="liger"',),
    "`train.torch_compile: true`": ("train.torch_compile=true",),
    "`train.gradient_checkpointing: true`": ("train.gradient_checkpointing=true",),
    "`train.padding_free: false`": ("train.padding_free=false",),
    "`lora.dropout: 0.05`": ("lora.dropout=0.05",),
    "`train.micro_batch_tokens: 8192`": ("train.micro_batch_tokens=8192",),
    "`model.quantization: nf4`": ('model.quantization="nf4"',),
}
WARM, TIMED = 2, 5
MOST_SECONDS = 150.0


def measure(given: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Of this process's variant: seconds of each timed step, its tokens and passes, memory at most."""
    import torch

    from rankzero.engine.device import peak_memory

    cpu, cell = given.device == "cpu", find_cell(given.shape, given.method)
    model = work / ("quick" if given.quick else "full") / given.shape
    rows, sizes = make_model(given.shape, model, cpu=cpu, quick=given.quick), QUICK if given.quick else FULL
    begun = time.perf_counter()
    prepared = prepare(cell, sizes, model=model, rows=rows, changes=given.set, cpu=cpu)
    session, kind = prepared.session(), prepared.device.kind
    timed(session, 0, kind)
    first = time.perf_counter() - begun
    for number in range(1, WARM):
        timed(session, number, kind)
    if kind == "cuda":
        torch.cuda.reset_peak_memory_stats()
    numbers = range(WARM, WARM + (1 if given.quick else TIMED))
    found = [timed(session, number, kind) for number in numbers]
    return {
        "seconds": [seconds for seconds, _ in found],
        "tokens": [work.tokens for _, work in found],
        "passes": [len(work.passes) for _, work in found],
        "first": first,
        "peak": peak_memory(session.device),
        "device": prepared.device.name if kind == "cuda" else "",
        "parameters": json.loads((model / "facts.json").read_text(encoding="utf-8"))["parameters"],
    }


def row(name: str, found: dict[str, Any], usual: dict[str, Any] | None, cell: Any) -> tuple[str, ...]:
    """Of the table: the time of all timed steps together, since they differ in tokens."""
    seconds, tokens = sum(found["seconds"]), sum(found["tokens"])
    peak = find_device(found["device"])
    share = (
        "" if peak is None else f"{cell.flops_per_parameter * found['parameters'] * tokens / seconds / peak.matrix:.1%}"
    )
    against = "" if usual is None else f"{seconds / sum(usual['seconds']):.2f}"
    return (
        name,
        f"{tokens / seconds:,.0f}",
        share,
        against,
        f"{min(found['passes'])} to {max(found['passes'])}",
        f"{found['peak'] / 2**30:.1f} GiB",
        f"{found['first']:.1f} s",
        " ".join(f"{one:.3f}" for one in found["seconds"]),
    )


def compare(given: argparse.Namespace, work: Path) -> str:
    """Every variant in turn, as a table."""
    cell = find_cell(given.shape, given.method)
    rows, usual, failed = [], None, []
    chosen = {name: changes for name, changes in SWITCHES.items() if name == DEFAULT or wanted(name, given.only)}
    for name, changes in chosen.items():
        command = [sys.executable, __file__, "--child", "--shape", given.shape, "--method", given.method]
        command += ["--device", given.device, "--work", str(work), *(["--quick"] if given.quick else [])]
        command += [part for change in changes for part in ("--set", change)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            failed.append(f"- {name}: stopped after {MOST_SECONDS:.0f} s")
            continue
        if done.returncode != 0:
            print(done.stderr[-4000:], file=sys.stderr)
            failed.append(f"- {name}: {last_words(done.stderr)}")
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        usual = found if name == DEFAULT else usual
        rows.append(row(name, found, usual, cell))
        print(rows[-1], file=sys.stderr, flush=True)
    head = ("", "useful tokens/s", "MFU", "time ÷ default", "passes", "memory", "loading and first step", "steps, s")
    return "\n\n".join([f"## {cell.name}", table(head, rows), *(["\n".join(failed)] if failed else [])])


def wanted(name: str, only: Sequence[str]) -> bool:
    """Whether a variant was asked for."""
    return not only or any(text in name for text in only)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", default="qwen3-8b", choices=sorted({cell.shape for cell in CELLS}))
    parser.add_argument("--method", default="LoRA", choices=METHODS)
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="variants with this in their name")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="a tiny model: whether it works")
    parser.add_argument("--work", type=Path, help="where models are made, and kept; default: a temporary directory")
    parser.add_argument("--set", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with tempfile.TemporaryDirectory(prefix="rankzero-switches-") as temporary:
        work = (given.work or Path(temporary)).resolve()
        os.environ |= {"HF_HUB_OFFLINE": "1", "RANKZERO_CACHE": str(work / "cache")}
        print(json.dumps(measure(given, work)) if given.child else compare(given, work))


if __name__ == "__main__":
    main()
