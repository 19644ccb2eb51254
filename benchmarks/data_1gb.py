"""A large JSONL file checked and tokenised: time, rows and tokens per second, peak memory of the process tree.

    python benchmarks/data_1gb.py MODEL_DIRECTORY [--megabytes 1000] [--workers N]

The rows are chats of one to three exchanges cut out of the Python standard library's sources, so that the text is
neither random nor repeated. Nothing is downloaded; the file lives in a temporary directory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from rankzero.data.progress import show_progress
from rankzero.data.tokenize import TokenRules, prepare
from rankzero.data.validate import check
from rankzero.spec.run_spec import SourceSpec


class PeakMemory:
    """Samples the resident memory of this process and its children. Shared pages count once (PSS)."""

    def __init__(self) -> None:
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            own = psutil.Process()
            self.peak = max(self.peak, sum(_pss(process) for process in [own, *own.children(recursive=True)]))


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:  # ended meanwhile
        return 0


def _cpu_seconds() -> float:
    """Of this process and of those that it has waited for: what the work costs, however busy the machine is."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def write_rows(path: Path, size: int) -> int:
    """Chats of about 1 KB until the file has `size` bytes; returns their number."""
    text = "\n".join(
        source.read_text(encoding="utf-8", errors="ignore")
        for source in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    )
    rng = random.Random(0)
    rows = 0
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size:
            lines = []
            for _ in range(500):
                turns = []
                for i in range(2 * rng.choice((1, 1, 2, 3))):
                    start = rng.randrange(len(text) - 4000)
                    length = int(rng.lognormvariate(4.5 if i % 2 == 0 else 6.0, 0.7))
                    content = text[start : start + min(length, 4000)].strip() or "empty"
                    turns.append({"role": ("user", "assistant")[i % 2], "content": content})
                lines.append(json.dumps({"messages": turns}, ensure_ascii=False) + "\n")
            file.writelines(lines)
            rows += len(lines)
    return rows


def measure(label: str, size: int, rows: int, work: Callable[[Callable[[int], None]], Any]) -> Any:
    """Run and print what it took."""
    with PeakMemory() as memory, show_progress(label, size) as advance:
        begun, cpu_begun = time.perf_counter(), _cpu_seconds()
        result = work(advance)
        seconds, cpu_seconds = time.perf_counter() - begun, _cpu_seconds() - cpu_begun
    numbers = {
        "step": label,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "rows_per_second": round(rows / seconds),
        "megabytes_per_second": round(size / seconds / 1e6, 1),
        "peak_memory_megabytes": round(memory.peak / 1e6),
    }
    if hasattr(result, "stats"):
        numbers["tokens_per_second"] = round(result.stats.tokens / seconds)
        numbers |= {"tokens": result.stats.tokens, "trained_tokens": result.stats.supervised_tokens}
    print(json.dumps(numbers), flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="directory with a tokenizer")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=None)
    given = parser.parse_args()

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(given.model)
    with tempfile.TemporaryDirectory(prefix="rankzero-data-bench-") as folder:
        path = Path(folder) / "train.jsonl"
        rows = write_rows(path, given.megabytes * 1_000_000)
        size = os.path.getsize(path)
        print(json.dumps({"rows": rows, "megabytes": round(size / 1e6), "cores": os.cpu_count()}), flush=True)
        sources = [SourceSpec(path=str(path))]
        report = measure("check", size, rows, lambda p: check(sources, workers=given.workers, progress=p))
        report.raise_if_bad()

        def tokenise(advance: Callable[[int], None]) -> Any:
            return prepare(
                sources, tokenizer, TokenRules(), Path(folder) / "cache", workers=given.workers, progress=advance
            )

        dataset = measure("tokenise", size, rows, tokenise)
        measure("tokenise again", size, rows, tokenise)
        measure("read all rows", size, len(dataset), lambda _: [dataset.row(i) for i in range(len(dataset))] and None)


if __name__ == "__main__":
    main()
