"""One step of the product on a real device, from within: kernels, gaps, waits of the host, memory; as it was foretold.

    python benchmarks/gpu_profile.py --shape qwen3-8b --method LoRA --out profile.md
    python benchmarks/gpu_profile.py --device cpu --quick      whether it works: operations instead of kernels

The session and the step are those of `rankzero train`, on the rows of benchmarks/gpu.py. Five steps: one that warms up,
one that is timed alone, one under the profiler, one with lines of Python recorded too (slower, so only its gaps are
told), and one that counts what the host waits for, by line. gpu_outlook.py's figures stand beside where they can be
had: it needs torch's CPU build, so make them elsewhere (`gpu_outlook.py --json >> expected.jsonl`), for `--expected`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_cells import CELLS, FULL, QUICK, draw_images, make_rows
from gpu_session import METHODS, find_cell, prepare, run_step
from gpu_trace import END, STEP, Event, find_gaps, gaps_table, of_the_step, read_events, report, table

HERE = Path(__file__).resolve().parent
GIB = 2**30


def make_model(shape: str, directory: Path, *, cpu: bool, quick: bool) -> Path:
    """Random weights and rows, made in a process of its own where they are not there yet. Returns the rows."""
    rows = directory / "rows.jsonl"
    if rows.exists():
        return rows
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(HERE / "gpu_shapes.py"), shape, str(directory)]
    command += ["--device", "cpu" if cpu else "cuda", *(["--quick"] if quick else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    facts = json.loads(done.stdout.splitlines()[-1])
    sizes = QUICK if quick else FULL
    names = draw_images(directory / "images", sizes, 64) if "vl" in shape else []
    images = [f"images/{name}" for name in names]
    lines = [json.dumps(row) + "\n" for row in make_rows(sizes, facts["words"], images=images)]
    (directory / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    rows.write_text("".join(lines), encoding="utf-8")
    return rows


def synchronize(kind: str) -> None:
    """Until the device has done all that it was given."""
    import torch

    if kind == "cuda":
        torch.cuda.synchronize()


def timed(session: Any, number: int, kind: str) -> tuple[float, Any]:
    """(seconds of a step without a profiler, its work)."""
    synchronize(kind)
    before = time.perf_counter()
    work = run_step(session, number)
    synchronize(kind)
    return time.perf_counter() - before, work


def profiled(session: Any, number: int, kind: str, *, lines: bool, trace: Path) -> tuple[list[Event], Event]:
    """Events of a step, and its mark; the raw trace goes to `trace`."""
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if kind == "cuda" else [])]
    synchronize(kind)
    with profile(activities=activities, with_stack=lines) as profiler, record_function(STEP):
        run_step(session, number)
        with record_function(END):
            synchronize(kind)
    profiler.export_chrome_trace(str(trace))
    return of_the_step(read_events(json.loads(trace.read_text(encoding="utf-8", errors="replace"), strict=False)))


def memory(session: Any, kind: str) -> list[tuple[str, str]]:
    """What was planned, and what it came to."""
    import torch

    from rankzero.engine.device import peak_memory

    found = [("planned", session.memory.expected_bytes), ("allocated at most", peak_memory(session.device))]
    if kind == "cuda":
        free, whole = torch.cuda.mem_get_info()
        found += [
            ("reserved at most", torch.cuda.max_memory_reserved()),
            ("allocated now", torch.cuda.memory_allocated()),
            ("in use on the device now, by all", whole - free),
        ]
    return [(name, f"{size / GIB:.2f}") for name, size in found]


def expected(given: argparse.Namespace) -> dict[str, Any] | str:
    """gpu_outlook.py's figures of the same step; why not, where there are none."""
    if given.quick:
        return "not foretold: a quick look has other sizes"
    if given.expected is not None:
        for line in given.expected.read_text(encoding="utf-8").splitlines():
            found: dict[str, Any] = json.loads(line)
            if [found["shape"], found["method"], found["set"]] == [given.shape, given.method, given.set]:
                return found
        return f"{given.expected} has no line of this cell and these changes"
    command = [sys.executable, str(HERE / "gpu_outlook.py"), "--json", "--shape", given.shape, "--method", given.method]
    command += [part for change in given.set for part in ("--set", change)]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"not foretold: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}"
    found = json.loads(done.stdout.splitlines()[-1])
    return found


def beside(foretold: dict[str, Any] | str, seconds: float, peak: str, launched: int, waited: int) -> str:
    """Measured figures beside gpu_outlook's."""
    if isinstance(foretold, str):
        return foretold
    rows = [
        ("seconds of the step", f"{foretold['seconds']:.3f}", f"{seconds:.3f}"),
        ("memory of all tensors, GiB", f"{foretold['most'] / GIB:.2f}", peak),
        ("operations, kernels", f"{foretold['operations']:,}", f"{launched:,}"),
        ("waits of the host", sum(foretold["waits"].values()), waited),
    ]
    return table(("", "by gpu_outlook.py", "measured"), rows)


def waits_by_line(session: Any, number: int, kind: str) -> dict[tuple[str, str], int]:
    """What the host waits for in a step, by operation and line."""
    from gpu_counts import Waits

    with Waits(kind) as waits:
        run_step(session, number)
    return dict(waits.found)


def look(given: argparse.Namespace, work_in: Path) -> str:
    """Everything, in markdown."""
    cpu, cell = given.device == "cpu", find_cell(given.shape, given.method)
    model = work_in / ("quick" if given.quick else "full") / given.shape
    rows, sizes = make_model(given.shape, model, cpu=cpu, quick=given.quick), QUICK if given.quick else FULL
    import torch

    if not cpu and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here; --device cpu --quick tries the profile itself out")
    prepared = prepare(cell, sizes, model=model, rows=rows, changes=given.set, cpu=cpu)
    session, kind = prepared.session(), prepared.device.kind
    timed(session, 0, kind)
    if kind == "cuda":
        torch.cuda.reset_peak_memory_stats()  # loading and the first look are not what is planned
    seconds, work = timed(session, 1, kind)
    memories = memory(session, kind)
    trace, with_lines = work_in / "step.json", work_in / "lines.json"
    events, mark = profiled(session, 2, kind, lines=False, trace=trace)
    if given.trace is not None:
        given.trace.parent.mkdir(parents=True, exist_ok=True)
        given.trace.write_bytes(gzip.compress(trace.read_bytes()))
    passes = len(session.train.step(2).passes)
    changes = "".join(f", {change}" for change in given.set)
    implementation = session.attention.implementation or "transformers' own choice"
    packed = "rows end to end" if session.attention.padding_free else "padded rows"
    parts = [
        f"## {cell.name}{changes}",
        f"{prepared.device.describe()}, torch {torch.__version__}. A step: **{seconds:.3f} s** for {work.tokens:,} "
        f"tokens in {len(work.passes)} passes, {work.tokens / seconds:,.0f} tokens/s; the next one under the profiler "
        f"{mark.length / 1e6:.3f} s. {session.memory}. Attention: {implementation}, {packed}.",
        report(events, mark, passes),
        table(("memory", "GiB"), memories),
    ]
    if kind == "cuda":
        later, its_mark = profiled(session, 3, kind, lines=True, trace=with_lines)
        parts += ["The longest gaps of a step whose lines were recorded, which makes the host slower:"]
        parts += [gaps_table(find_gaps(later, its_mark), its_mark)]
    waited: dict[tuple[str, str], int] = {}
    if session.compiled is None:
        waited = waits_by_line(session, 4, kind)
        lines = [(name, count, place) for (name, place), count in sorted(waited.items(), key=lambda one: -one[1])]
        parts += [table(("the host asks for values by", "count", "line"), lines)]
    else:
        parts += ["What the host waits for is not counted by line: compiled blocks would be taken apart for it."]
    kernels = sum(event.kind == "gpu" for event in events)
    del session
    parts += [beside(expected(given), seconds, dict(memories)["allocated at most"], kernels, sum(waited.values()))]
    return "\n\n".join(parts)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", default="qwen3-8b", choices=sorted({cell.shape for cell in CELLS}))
    parser.add_argument("--method", default="LoRA", choices=METHODS)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=JSON")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="a tiny model: whether it works")
    parser.add_argument("--expected", type=Path, metavar="FILE", help="lines of gpu_outlook.py --json, made elsewhere")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="write the tables, too")
    parser.add_argument("--trace", type=Path, metavar="FILE.json.gz", help="keep the raw trace, for chrome://tracing")
    parser.add_argument("--work", type=Path, help="where models are made, and kept; default: a temporary directory")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    given = parse_arguments(arguments)
    if given.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with tempfile.TemporaryDirectory(prefix="rankzero-profile-") as temporary:
        work = (given.work or Path(temporary)).resolve()
        os.environ |= {"HF_HUB_OFFLINE": "1", "RANKZERO_CACHE": str(work / "cache")}
        told = look(given, work)
    print(told)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(told + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
