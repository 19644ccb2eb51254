"""rankzero on one GPU, beside TRL or transformers' Trainer: speed, utilisation, memory, time to the first step.

    python benchmarks/gpu.py --write              everything, in under nine minutes; writes benchmarks/README.md
    python benchmarks/gpu.py --results FILE.json  adds to what earlier commands have left in FILE.json: pieces
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
from pathlib import Path
from typing import Any

import gpu_tests
from gpu_bench import Bench, say
from gpu_cells import CELLS, FULL, QUICK, Sizes
from gpu_results import Kept, OtherMachineError, load
from gpu_table import choices_list, figures_table, peak_flops, render, write_between_markers

import rankzero

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


def probe(command: Sequence[str], env: dict[str, str] | None = None) -> dict[str, Any]:
    """What a short process prints as JSON; {} where it cannot."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
    return found


def headline(kept: Kept, sizes: Sizes) -> str:
    """When, on what, with which versions, and how to repeat it."""
    machine = kept.machine
    device = f"{machine['device']}, {machine['bytes'] / 2**30:.0f} GiB" if machine["device"] else "CPU"
    found = [{"rankzero": machine["rankzero"], **machine["ours"]}, kept.peers]
    versions = ["; ".join(f"{name} {value}" for name, value in one.items()) for one in found]
    days = sorted({piece["day"] for piece in kept.pieces})
    commands = "\n\n".join(dict.fromkeys(f"`{piece['command']}`" for piece in kept.pieces))
    return (
        f"{' to '.join(dict.fromkeys((days[0], days[-1])))}; {device}; CUDA {machine['cuda']}, "
        f"Python {machine['python']}, {machine['system']}. Ours: {versions[0]}. Peer: {versions[1] or 'none'}.\n\n"
        f"{commands}\n\n"
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
    parser.add_argument(
        "--unsloth", type=Path, metavar="PATH", help="python of an environment with unsloth, or bundle.py's directory"
    )
    parser.add_argument("--no-tests", action="store_true", help="leave tests/gpu out")
    parser.add_argument("--work", type=Path, help="empty directory to work in; default: a temporary one")
    parser.add_argument(
        "--results", type=Path, metavar="FILE.json", help="read where it exists, added to, written after every run"
    )
    parser.add_argument(
        "--again", action="append", default=[], metavar="TEXT", help="forget what has this in its name, there"
    )
    parser.add_argument("--write", action="store_true", help="write the results into benchmarks/README.md")
    given = parser.parse_args(arguments)
    if given.quick and given.write:
        parser.error("a quick look is no result: --write needs a run without --quick")
    if given.again and given.results is None:
        parser.error("--again is about what --results has")
    return given


def this_machine() -> dict[str, Any]:
    """What figures belong to. Raises SystemExit where torch is missing."""
    facts = probe([sys.executable, "-c", PROBE])
    if not facts:
        raise SystemExit("torch is not installed here: pip install 'rankzero[train]'")
    ours = probe([sys.executable, str(HERE / "gpu_peer.py"), "--probe"])
    return facts | {
        "rankzero": rankzero.__version__,
        "ours": ours,
        "python": platform.python_version(),
        "system": platform.system(),
    }


def unsloth_versions(path: Path) -> dict[str, str]:
    """Of Unsloth and what it runs on. Raises SystemExit where it is not there."""
    python, there = (sys.executable, str(path.resolve())) if path.is_dir() else (str(path), "")
    found = probe([python, str(HERE / "gpu_peer.py"), "--probe"], {**os.environ, "PYTHONPATH": there})
    if "unsloth" not in found:
        raise SystemExit(f"{path} has no unsloth: python benchmarks/bundle.py --peer unsloth makes a directory with it")
    beside = ("transformers", "trl", "xformers")
    return {"unsloth": found["unsloth"]} | {f"{name} of unsloth": found[name] for name in beside if name in found}


def benchmark(given: argparse.Namespace, work: Path, command: str) -> str:
    """Run everything that is not known yet. Returns the results in markdown."""
    begun = time.monotonic()
    machine = this_machine() | {"sizes": "quick" if given.quick else "full"}
    if given.device == "cuda" and not machine["device"]:
        raise SystemExit("torch sees no GPU here; --device cpu --quick tries the benchmark itself out")
    if given.device == "cpu":
        machine["device"] = None
    python = given.peer_python or (str(BENCH_PYTHON) if BENCH_PYTHON.is_file() else sys.executable)
    peers = probe([python, str(HERE / "gpu_peer.py"), "--probe"])
    if given.unsloth is not None:
        peers |= unsloth_versions(given.unsloth)
    try:
        kept = load(given.results, machine, peers)
    except OtherMachineError as error:
        raise SystemExit(str(error)) from None
    kept.forget(given.again)
    kept.pieces.append({"day": date.today().isoformat(), "command": command})
    kept.save()
    tests = 0.0 if given.no_tests or kept.tests_left == 0 else TEST_SECONDS
    bench = Bench(
        kept=kept,
        work=work,
        sizes=QUICK if given.quick else FULL,
        cpu=given.device == "cpu",
        quick=given.quick,
        peer_python=python,
        unsloth=given.unsloth,
        ends=begun + given.minutes * 60 - tests,
        peers=peers,
    )
    bench.run([cell for cell in CELLS if not given.only or any(text in cell.name for text in given.only)])
    peak = peak_flops(machine["device"]) if machine["device"] else None
    if peak is None:
        bench.skip("MFU: what this device can do at most is not known")
    if given.no_tests:
        ended = "left out by this command"
    elif kept.tests_left == 0:
        ended = "by an earlier command"
    else:
        log = kept.beside(".tests.txt") or work / "tests.txt"
        outcome = gpu_tests.run(bench.left() + tests, kept.tests, cpu=bench.cpu, log=log, show=say)
        kept.tests, kept.tests_left, ended = kept.tests | outcome.tests, outcome.left, outcome.ended
        kept.save()
    samples = dict(sorted(kept.samples.items(), key=lambda one: CELLS.index(one[0][0])))
    figures, choices = figures_table(samples, kept.parameters, peak), choices_list(samples)
    told = gpu_tests.summary(kept.tests, kept.tests_left or 0, ended)
    return render(headline(kept, bench.sizes), figures, choices, bench.skipped, told)


def main(arguments: Sequence[str] | None = None) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that what was started is ended
    given = parse_arguments(arguments)
    command = shlex.join(["python", "benchmarks/gpu.py", *(sys.argv[1:] if arguments is None else arguments)])
    os.environ["PYTHONPATH"] = gpu_tests.python_path()  # whatever directory a process works in
    with tempfile.TemporaryDirectory(prefix="rankzero-bench-") as temporary:
        work = (given.work or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        results = benchmark(given, work, command)
    print(results)
    if given.write:
        README.write_text(write_between_markers(README.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
