"""What a tracker's server costs a step, in whatever mood it is.

    python benchmarks/trackers.py [--steps 320] [--hidden 256] [--json FILE]

A tiny model is trained in this process with a Langfuse on loopback that is well, dead, slow (5 s a request) or lying
(500, 401, a web page). The process that sends is suspended for some steps and goes on for as many, in turns: printed is
the median step while it may run ÷ the median step while it may not, its spread (half of the width that holds 95 % of
such ratios over the run's turns drawn again), and how long the run takes from its last step to its end, where the
sender gets a bounded time for what is left. What sends is the same for all trackers that are servers: a process that
reads the run directory. Ends with 1 where a ratio is more than 1 % over 1 by more than its spread.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import choice
from statistics import median

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
MOODS = ("well", "dead", "slow", "error", "refused", "garbage")
SLOW_SECONDS = 5.0
TURN = 8
"""Steps: about a second."""
DRAWS = 1000
MOST = 1.01
_STATUS = {"error": 500, "refused": 401}


@dataclass(frozen=True)
class Measured:
    """Of one mood."""

    ratio: float
    spread: float
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


def sender() -> psutil.Process | None:
    """The process that sends, where it has been started."""
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "rankzero.track.send" in child.cmdline():
                return child
    return None


def one_run(mood: str, directory: Path, model: Path, steps: int) -> Measured:
    """A run whose sender is suspended for every second turn of steps."""
    from tests.support.runs import run_here, small_spec

    from rankzero.engine.hooks import Hooks

    directory.mkdir()
    turns: list[list[float]] = [[]]
    before = time.perf_counter()

    def step_ends(step: int, _facts: object) -> None:
        nonlocal before
        now = time.perf_counter()
        turns[-1].append(now - before)
        if step % TURN == 0:
            process = sender()
            if process is None:
                raise RuntimeError("nothing is sent")
            if len(turns) % 2:
                process.suspend()
            else:
                process.resume()
            turns.append([])
        before = time.perf_counter()

    changes = {"train__max_steps": steps, "checkpoint__every": steps}
    with server(mood) as url:
        os.environ |= {"LANGFUSE_HOST": url, "LANGFUSE_PUBLIC_KEY": "pk-lf-bench", "LANGFUSE_SECRET_KEY": "sk-lf-bench"}
        spec = small_spec(directory, model, eval_rows=0, tracking__langfuse=True, **changes)
        run_here(spec, log_level="ERROR", hooks=Hooks(step_ends=step_ends))
        over = time.perf_counter() - before
    # The first turn warms up. Each pair is a turn without the sender and the one with it that follows.
    whole = [turn for turn in turns[1:] if len(turn) == TURN]
    pairs = list(zip(whole[::2], whole[1::2], strict=False))
    again = sorted(_ratio([choice(pairs) for _ in pairs]) for _ in range(DRAWS))
    spread = (again[int(0.975 * DRAWS)] - again[int(0.025 * DRAWS)]) / 2
    return Measured(_ratio(pairs), spread, 1000 * median(sum((on for _, on in pairs), [])), over)


def _ratio(pairs: Sequence[tuple[list[float], list[float]]]) -> float:
    return median(sum((on for _, on in pairs), [])) / median(sum((off for off, _ in pairs), []))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    from tests.support.tiny import tiny_model

    found: dict[str, Measured] = {}
    print(f"{'server':<9}{'ratio':>8}{'spread':>9}{'step ms':>9}{'to the end s':>14}")
    with tempfile.TemporaryDirectory() as name:
        os.environ["RANKZERO_CACHE"] = f"{name}/cache"
        model = tiny_model(Path(name) / "model", hidden=options.hidden, layers=4)
        for mood in MOODS:
            of = found[mood] = one_run(mood, Path(name) / mood, model, options.steps)
            numbers = f"{of.ratio:>8.4f}{of.spread:>9.4f}{of.step_ms:>9.2f}{of.end_seconds:>14.2f}"
            print(f"{mood:<9}{numbers}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({mood: asdict(of) for mood, of in found.items()}, indent=2) + "\n")
    sys.exit(any(of.ratio - of.spread > MOST for of in found.values()))


if __name__ == "__main__":
    main()
