"""rankzero on one GPU, beside TRL or transformers' Trainer: speed, utilisation, memory, time to the first step.

    python benchmarks/gpu.py --write              everything, in under nine minutes; writes benchmarks/README.md
    python benchmarks/gpu.py --device cpu --quick tiny models on a CPU: whether the benchmark works, no figures

Models are made from config with random weights, rows of random words; nothing is downloaded. Ours is the command
`rankzero train`, the peer benchmarks/gpu_peer.py; both train on the same rows, one after the other in changing order,
each in a process of its own. Ends with the tests of tests/gpu. What is not installed is left out, with the reason.
Imports no torch, which would hold memory of the GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_bench import Bench, say
from gpu_cells import CELLS, FULL, QUICK, Sizes
from gpu_table import choices_list, figures_table, peak_flops, render, write_between_markers

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"
BENCH_PYTHON = HERE.parent / ".venv-bench" / "bin" / "python"
MINUTES = 8.5
TEST_SECONDS = 120.0
"""Kept for tests/gpu at the end."""
PROBE = """
import json, torch
cuda = torch.cuda.is_available()
facts = {"torch": torch.__version__, "cuda": torch.version.cuda, "device": None, "bytes": 0}
if cuda:
    facts |= {"device": torch.cuda.get_device_name(0), "bytes": torch.cuda.get_device_properties(0).total_memory}
print(json.dumps(facts))
"""


def probe(command: Sequence[str]) -> dict[str, Any]:
    """What a short process prints as JSON; {} where it cannot."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
    return found


def run_gpu_tests(seconds: float, *, cpu: bool) -> str:
    """The last line of pytest over tests/gpu, which skips what this machine cannot do."""
    if find_spec("pytest") is None:
        return "not run: pytest is not installed"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE.parent / "tests" / "gpu")]
    env = {**os.environ, **({"CUDA_VISIBLE_DEVICES": ""} if cpu else {})}
    try:
        done = subprocess.run(
            command, cwd=HERE.parent, env=env, capture_output=True, text=True, check=False, timeout=max(seconds, 1)
        )
    except subprocess.TimeoutExpired as stopped:
        said = (stopped.stdout or b"").decode(errors="replace").splitlines()
        return f"stopped after {seconds:.0f} s: {said[-1] if said else ''}"
    say(done.stdout[-6000:])
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return f"{lines[-1] if lines else done.stderr[-300:]} (exit code {done.returncode})"


def headline(gpu: dict[str, Any], peers: dict[str, str], ours: dict[str, str], sizes: Sizes, command: str) -> str:
    """When, on what, with which versions, and how to repeat it."""
    device = f"{gpu['device']}, {gpu['bytes'] / 2**30:.0f} GiB" if gpu["device"] else "CPU"
    versions = ["; ".join(f"{name} {value}" for name, value in found.items()) for found in (ours, peers)]
    return (
        f"{date.today().isoformat()}; {device}; CUDA {gpu['cuda']}, Python {platform.python_version()}, "
        f"{platform.system()}. Ours: {versions[0]}. Peer: {versions[1] or 'none'}.\n\n"
        f"`{command}`\n\n"
        f"{sizes.steps} steps of {sizes.batch} rows, at most {sizes.max_length:,} tokens a row, random words: lengths "
        f"log-normal around {sizes.median_length}, a fifth to three fifths of a row trained. Steps from "
        f"{sizes.warm_up + 1} on count. Adapters: rank 16 on all linear layers of the text model. Medians."
    )


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny models, few steps: whether it works")
    parser.add_argument("--only", action="append", metavar="TEXT", help="only cells with this in their name")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="when to be done; what is left then is left out")
    parser.add_argument("--peer-python", help="python of an environment with trl; default: .venv-bench, or this one")
    parser.add_argument("--no-tests", action="store_true", help="leave tests/gpu out")
    parser.add_argument("--work", type=Path, help="empty directory to work in; default: a temporary one")
    parser.add_argument("--out", type=Path, help="also write the results to this file")
    parser.add_argument("--write", action="store_true", help="write the results into benchmarks/README.md")
    given = parser.parse_args(arguments)
    if given.quick and given.write:
        parser.error("a quick look is no result: --write needs a run without --quick")
    return given


def benchmark(given: argparse.Namespace, work: Path, command: str) -> str:
    """Run everything. Returns the results in markdown."""
    gpu = probe([sys.executable, "-c", PROBE])
    if not gpu:
        raise SystemExit("torch is not installed here: pip install 'rankzero[train]'")
    if given.device == "cuda" and not gpu["device"]:
        raise SystemExit("torch sees no GPU here; --device cpu --quick tries the benchmark itself out")
    python = given.peer_python or (str(BENCH_PYTHON) if BENCH_PYTHON.is_file() else sys.executable)
    tests = 0.0 if given.no_tests else TEST_SECONDS
    peer_script = str(HERE / "gpu_peer.py")
    bench = Bench(
        work=work,
        sizes=QUICK if given.quick else FULL,
        cpu=given.device == "cpu",
        quick=given.quick,
        peer_python=python,
        ends=time.monotonic() + given.minutes * 60 - tests,
        peers=probe([python, peer_script, "--probe"]),
    )
    bench.run([cell for cell in CELLS if not given.only or any(text in cell.name for text in given.only)])
    parameters = {shape: facts["parameters"] for shape, facts in bench.facts.items()}
    peak = peak_flops(gpu["device"]) if gpu["device"] and not bench.cpu else None
    if peak is None:
        bench.skip("MFU: what this device can do at most is not known")
    outcome = "left out" if given.no_tests else run_gpu_tests(bench.left() + tests, cpu=bench.cpu)
    head = headline(gpu, bench.peers, probe([sys.executable, peer_script, "--probe"]), bench.sizes, command)
    return render(
        head, figures_table(bench.results, parameters, peak), choices_list(bench.results), bench.skipped, outcome
    )


def main(arguments: Sequence[str] | None = None) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that what was started is ended
    given = parse_arguments(arguments)
    command = shlex.join(["python", "benchmarks/gpu.py", *(sys.argv[1:] if arguments is None else arguments)])
    with tempfile.TemporaryDirectory(prefix="rankzero-bench-") as temporary:
        work = (given.work or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        results = benchmark(given, work, command)
    print(results)
    if given.out is not None:
        given.out.write_text(results + "\n", encoding="utf-8")
    if given.write:
        README.write_text(write_between_markers(README.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
