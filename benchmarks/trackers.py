"""What a tracker's server costs a step, in whatever mood it is.

    python benchmarks/trackers.py [--steps 300] [--rounds 5] [--hidden 256] [--json FILE]

A tiny model is trained in this process with a Langfuse on loopback that is well, dead, slow (5 s a request) or lying
(500, 401, a web page), each run beside one that sends nothing, first one and then the other first. Printed are the
median of the ratios of median times between two steps, their lowest and highest, and how long a run takes from its last
step to its end, where the sender gets a bounded time for what is left. What sends is the same for all trackers that are
servers: a process that reads the run directory. Ends with 1 where a median ratio is more than 1 % over 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
MOODS = ("well", "dead", "slow", "error", "refused", "garbage")
SLOW_SECONDS = 5.0
WARM_UP_STEPS = 10
MOST = 1.01
_STATUS = {"error": 500, "refused": 401}


@dataclass(frozen=True)
class Measured:
    """Of one mood, over all rounds."""

    ratio: float
    lowest: float
    highest: float
    step_ms: float
    end_seconds: float


@contextmanager
def server(mood: str) -> Iterator[str]:
    """The address of a Langfuse in this mood."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if mood == "slow":
                time.sleep(SLOW_SECONDS)
            answer = b"<html>welcome</html>" if mood == "garbage" else b"{}"
            with suppress(ConnectionError):  # who asks waits no longer
                self.send_response(_STATUS.get(mood, 200))
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, *_arguments: object) -> None:
            """Quiet."""

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{httpd.server_port}"
    if mood == "dead":
        httpd.server_close()
        yield url
        return
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    try:
        yield url
    finally:
        httpd.shutdown()
        httpd.server_close()


def one_run(mood: str | None, directory: Path, model: Path, steps: int) -> tuple[float, float]:
    """Median seconds between the ends of two steps, and seconds from the last one to the end of the run. None: nothing
    is sent."""
    from tests.support.runs import run_here, small_spec

    from rankzero.engine.hooks import Hooks

    directory.mkdir()
    ends: list[float] = []
    hooks = Hooks(step_ends=lambda _step, _facts: ends.append(time.perf_counter()))
    changes = {"train__max_steps": steps, "checkpoint__every": steps}
    with server(mood or "dead") as url:
        os.environ |= {"LANGFUSE_HOST": url, "LANGFUSE_PUBLIC_KEY": "pk-lf-bench", "LANGFUSE_SECRET_KEY": "sk-lf-bench"}
        spec = small_spec(directory, model, eval_rows=0, tracking__langfuse=mood is not None, **changes)
        run_here(spec, log_level="ERROR", hooks=hooks)
        over = time.perf_counter() - ends[-1]
    times = [after - before for before, after in zip(ends, ends[1:], strict=False)]
    return median(times[WARM_UP_STEPS:]), over


def measure(mood: str, directory: Path, model: Path, steps: int, rounds: int) -> Measured:
    """So many pairs of runs, with and without."""
    ratios, with_it, ends = [], [], []
    for turn in range(rounds):
        found: dict[str | None, float] = {}
        for which in (None, mood) if turn % 2 else (mood, None):
            found[which], over = one_run(which, directory / f"{mood}-{turn}-{which}", model, steps)
            if which is not None:
                ends.append(over)
        ratios.append(found[mood] / found[None])
        with_it.append(found[mood])
    return Measured(median(ratios), min(ratios), max(ratios), 1000 * median(with_it), median(ends))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    from tests.support.tiny import tiny_model

    found: dict[str, Measured] = {}
    print(f"{'server':<9}{'ratio':>8}{'lowest':>9}{'highest':>9}{'step ms':>9}{'to the end s':>14}")
    with tempfile.TemporaryDirectory() as name:
        os.environ["RANKZERO_CACHE"] = f"{name}/cache"
        model = tiny_model(Path(name) / "model", hidden=options.hidden, layers=4)
        one_run(None, Path(name) / "warm-up", model, 2 * WARM_UP_STEPS)
        for mood in MOODS:
            of = found[mood] = measure(mood, Path(name), model, options.steps, options.rounds)
            numbers = f"{of.ratio:>8.4f}{of.lowest:>9.4f}{of.highest:>9.4f}{of.step_ms:>9.2f}{of.end_seconds:>14.2f}"
            print(f"{mood:<9}{numbers}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({mood: asdict(of) for mood, of in found.items()}, indent=2) + "\n")
    sys.exit(any(of.ratio > MOST for of in found.values()))


if __name__ == "__main__":
    main()
