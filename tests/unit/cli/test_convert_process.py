"""`rankzero data convert` as a process of its own: in a pipeline, and stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.unit.data.support import user_assistant

COMMAND = (sys.executable, "-m", "rankzero", "data", "convert")
ROWS = [user_assistant("q", "a"), user_assistant("r", "b")]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize("flags", [(), ("--json",)])
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1"])
def test_rows_alone_are_in_its_output(name: str, flags: tuple[str, ...], rows: Path) -> None:
    done = subprocess.run(
        [*COMMAND, rows, "-o", name, "--to", "jsonl", *flags], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == ROWS
    assert '"rows_in": 2' in done.stderr if flags else "2 rows in, 2 written" in done.stderr


def test_into_a_pipe_that_has_a_name(rows: Path, tmp_path: Path) -> None:
    pipe, taken = tmp_path / "pipe.jsonl", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: taken.append(pipe.read_text()))
    reader.start()
    done = subprocess.run([*COMMAND, rows, "-o", pipe], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:  # nobody has written: let the reader go
        pipe.write_text("")
    reader.join()
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in taken[0].splitlines()] == ROWS
    assert "2 rows in, 2 written" in done.stdout
