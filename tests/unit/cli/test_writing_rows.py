"""Commands that write rows, as processes of their own: in a pipeline, and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.unit.data.support import user_assistant
from tests.unit.datasets.support import fire_row, trajectory, write_array

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


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_its_output_may_be_a_file_that_a_shell_made(force: tuple[str, ...], rows: Path, tmp_path: Path) -> None:
    """`> FILE` and `>> FILE`: it stays that file, and what is in it stays."""
    log = tmp_path / "out.jsonl"
    log.write_text('{"before": 1}\n')
    inode = log.stat().st_ino
    with log.open("ab") as out:
        command = [*COMMAND, rows, "-o", "/dev/stdout", "--to", "jsonl", *force]
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
        out.write(b'{"after": 1}\n')
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in log.read_text().splitlines()] == [{"before": 1}, *ROWS, {"after": 1}]
    assert log.stat().st_ino == inode and "2 rows in, 2 written" in done.stderr


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


STOPPED = """
import importlib, os, signal, sys
place, name = sys.argv.pop(1), sys.argv.pop(1)
module = importlib.import_module(place)
real = getattr(module, name)
def stopping(*arguments):
    done = real(*arguments)
    os.kill(os.getpid(), signal.SIGTERM)
    return done
setattr(module, name, stopping)
from rankzero.cli.main import main
main()
"""
"""Of a command: SIGTERM comes as it has called a function."""

FIRE = "data fire --input raw --output_dir out --image_dir img --splits train"


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("rankzero.data.convert.writers write_text", "data convert in.jsonl -o out/rows.jsonl"),
        ("rankzero.data.convert.writers _cell", "data convert in.jsonl -o out/rows.parquet"),
        ("rankzero.datasets.frame write_text", f"{FIRE} --skip-images"),
        ("rankzero.datasets.images.resolve _write", f"{FIRE} --images store"),
        ("rankzero.datasets.frame write_text", "data volcano --input v.json --output_dir out --image_dir img"),
        ("rankzero.data.inspect.validate _checker", "data check in.jsonl --quarantine out/bad.jsonl"),
    ],
)
def test_a_stop_leaves_nothing_half_written(call: str, line: str, rows: Path, tmp_path: Path) -> None:
    for folder in ("raw", "out", "store/gqa/images"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "store/gqa/images/1.jpg").write_bytes(b"a picture")
    write_array(tmp_path / "raw/FIRE-train.json", [fire_row("a", "gqa/images/1.jpg", trajectory(2))])
    write_array(
        tmp_path / "v.json", [{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}]
    )
    command = [sys.executable, "-c", STOPPED, *call.split(), *line.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert not [*(tmp_path / "out").iterdir(), *tmp_path.glob("img/**/.tmp-*")]
