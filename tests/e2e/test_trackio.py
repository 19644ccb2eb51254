"""Runs in Trackio: in its files here, and on a server of it on loopback. `make test-trackers` installs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rankzero.errors import StoppedError
from rankzero.run_dir.paths import RunDir
from rankzero.track.send import Delivery
from rankzero.track.trackio import connect, problems
from tests.support.cli import Cli
from tests.support.ports import free_port
from tests.support.runs import log, metrics, run_here, run_root, small_spec, stop_in

pytestmark = [
    pytest.mark.trackers,
    # Not imported here: it decides where its files are when it is.
    pytest.mark.skipif(find_spec("trackio") is None, reason="`make test-trackers` installs Trackio"),
]
TOKEN = "canary-of-a-write-token"


def rows(directory: Path, table: str = "metrics") -> list[tuple[int, dict[str, Any]]]:
    """What the only project's file has, in the order of its steps."""
    import sqlite3

    [file] = directory.glob("*.db")
    with sqlite3.connect(file) as database:
        found = database.execute(f"SELECT step, metrics FROM {table} ORDER BY step, id").fetchall()
    return [(step, json.loads(values)) for step, values in found]


def numbers(found: list[tuple[int, dict[str, Any]]], name: str) -> list[tuple[int, float]]:
    return [(step, values[name]) for step, values in found if name in values]


def test_files_of_a_run_stopped_and_continued(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number once, answers as tables; what was sent and not noted is sent again, and kept once."""
    place = tmp_path / "trackio"
    monkeypatch.setenv("TRACKIO_DIR", str(place))
    asked = {"every": 4, "prompts": ["Who?", "What?"], "max_new_tokens": 3}
    spec = small_spec(tmp_path, tiny, tracking__trackio=True, eval=asked)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(6))
    run_here(spec, log_level="INFO")
    assert "trackio has the whole run: `trackio show --project rankzero`" in log(spec)
    check(rows(place), spec)
    noted = run_root(spec) / "tracking/trackio.json"
    noted.write_text(json.dumps(json.loads(noted.read_text()) | {"last": {"metrics": 3}, "names": []}))
    Delivery("trackio", connect, RunDir(run_root(spec)), spec).round()
    check(rows(place), spec)


def check(found: list[tuple[int, dict[str, Any]]], spec: Any) -> None:
    assert numbers(found, "train/loss") == [(row["step"], row["loss"]) for row in metrics(spec)]
    evaluated = [(row["step"], row["eval_loss"]) for row in metrics(spec) if "eval_loss" in row]
    assert numbers(found, "eval/eval_loss") == evaluated
    answers = [json.loads(line) for line in (run_root(spec) / "samples.jsonl").read_text().splitlines()]
    tables = [values["samples"] for _, values in found if "samples" in values]
    assert {table["_type"] for table in tables} == {"trackio.table"}
    assert [answer for table in tables for answer in table["_value"]] == answers


@contextmanager
def trackio_server(directory: Path, port: int) -> Iterator[None]:
    """`trackio show`, as a person starts it."""
    env = {**os.environ, "TRACKIO_DIR": str(directory), "TRACKIO_WRITE_TOKEN": TOKEN}
    program = f"import trackio; trackio.show(open_browser=False, block_thread=True, server_port={port})"
    directory.mkdir(exist_ok=True)
    with (directory / "log").open("ab") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", program], env=env, stdout=said, stderr=said, start_new_session=True
        )
    try:
        until = time.monotonic() + 300
        while time.monotonic() < until and process.poll() is None:
            try:
                if httpx2.get(f"http://127.0.0.1:{port}/version").is_success:
                    break
            except httpx2.HTTPError:
                time.sleep(0.3)
        else:
            raise AssertionError((directory / "log").read_text())
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_server_that_comes_back(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    port = free_port()
    monkeypatch.setenv("TRACKIO_SERVER_URL", f"http://127.0.0.1:{port}/?write_token={TOKEN}")
    spec = small_spec(tmp_path, tiny, tracking__trackio=True, train__max_steps=3, eval_rows=0)
    run_here(spec)
    assert "rankzero track sync" in log(spec) and TOKEN not in log(spec)
    with trackio_server(tmp_path / "server", port):
        for _ in range(2):
            done = cli(f"track sync {run_root(spec)}")
            assert (done.code, done.err) == (0, "")
        found = rows(tmp_path / "server")
    assert numbers(found, "train/loss") == [(row["step"], row["loss"]) for row in metrics(spec)]
    written = "".join(path.read_text(errors="replace") for path in run_root(spec).rglob("*") if path.is_file())
    assert TOKEN not in written


def test_what_is_missing_is_said_before_the_run() -> None:
    assert problems({}) == []
    assert [p.what for p in problems({"TRACKIO_SERVER_URL": "http://x"})] == ["TRACKIO_WRITE_TOKEN is not set"]
    assert problems({"TRACKIO_SERVER_URL": "http://x?write_token=t"}) == []
    assert "Spaces" in problems({"TRACKIO_SPACE_ID": "me/space"})[0].what
