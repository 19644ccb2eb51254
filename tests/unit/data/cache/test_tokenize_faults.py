"""prepare in several processes, and killed in the middle."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from rankzero.data.cache.tokenize import TokenRules, prepare
from rankzero.spec.run_spec import SourceSpec
from tests.support.tiny import chat_rows, tiny_tokenizer, write_jsonl

pytestmark = pytest.mark.faults


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(write_jsonl(tmp_path / "train.jsonl", chat_rows(50)))


def left_behind(cache: Path) -> list[str]:
    return [entry.name for entry in (cache / "tokenized").glob("*") if not entry.name.endswith(".lock")]


DRIVER = """
import sys, time
from pathlib import Path
import rankzero.data.pool, rankzero.data.cache.segments as segments, rankzero.data.cache.tokenize as tokenize
from rankzero.spec.run_spec import SourceSpec
from tests.support.tiny import tiny_tokenizer

original = segments.record_batch

def slow(*args):
    print("writing", flush=True)
    time.sleep(float(sys.argv[3]))
    return original(*args)

if __name__ == "__main__":
    segments.record_batch = slow
    workers = int(sys.argv[4])
    rankzero.data.pool.SMALL_BYTES = 0
    tokenizer = tiny_tokenizer()
    print("ready", flush=True)
    sys.stdin.readline()
    dataset = tokenize.prepare(
        [SourceSpec(path=sys.argv[1])], tokenizer, tokenize.TokenRules(), Path(sys.argv[2]), workers=workers
    )
    print("done", dataset.directory.name, len(dataset), flush=True)
"""


def start(tmp_path: Path, path: str, cache: Path, *, pause: float, workers: int = 1) -> subprocess.Popen[str]:
    """A process that has everything loaded and prepares once it is told to."""
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(DRIVER))
    command = [sys.executable, str(script), path, str(cache), str(pause), str(workers)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_two_processes_at_once_write_once(tmp_path: Path, path: str, own_cache: Path) -> None:
    both = [start(tmp_path, path, own_cache, pause=0.5) for _ in range(2)]
    for process in both:
        go(process)
    outputs = [process.communicate(timeout=300)[0].split("\n") for process in both]
    assert sorted(output.count("writing") for output in outputs) == [0, 1]
    assert outputs[0][-2] == outputs[1][-2] and outputs[0][-2].startswith("done")
    assert len(left_behind(own_cache)) == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_while_preparing(tmp_path: Path, path: str, own_cache: Path, workers: int) -> None:
    process = start(tmp_path, path, own_cache, pause=60, workers=workers)
    go(process)
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= workers - 1
    process.send_signal(signal.SIGKILL)
    process.wait(300)
    (staged,) = left_behind(own_cache)
    assert staged.endswith(".partial")
    dataset = prepare([SourceSpec(path=path)], tiny_tokenizer(), TokenRules(), own_cache)
    assert len(dataset) == 50
    assert left_behind(own_cache) == [dataset.directory.name], "the next attempt clears up"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and any(child.is_running() for child in children):
        time.sleep(0.05)
    assert not any(child.is_running() for child in children), "workers must not outlive their parent"
