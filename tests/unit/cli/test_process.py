"""The command line as its own process: light, quick, and with the exit codes that a shell sees."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cpu_time import of_children

HEAVY = ("torch", "transformers", "datasets", "numpy", "peft", "pyarrow", "rich", "pydantic", "yaml")


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rankzero", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def test_importing_the_command_line_imports_nothing_heavy() -> None:
    code = f"import sys, rankzero.cli.main; print(sorted(set(sys.modules) & set({HEAVY!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_reading_a_spec_imports_nothing_of_the_engine() -> None:
    code = (
        "import sys; from rankzero.spec.load import load_run_spec; from rankzero.spec.resolve import resolve;"
        "resolve(load_run_spec(None, ['model.name=m', 'data.train=t'], env={}).spec);"
        f"print(sorted(set(sys.modules) & set({HEAVY[:7]!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_help_answers_at_once(tmp_path: Path) -> None:
    """0.2 s of work on an idle machine; the same work costs up to twice that where another program shares the core."""

    def ask() -> None:
        assert run("--help", cwd=tmp_path).returncode == 0

    assert min(of_children(ask) for _ in range(5)) < 0.45


@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        (["--version"], 0, "rankzero ", ""),
        (["train"], 2, "", "error: nothing to train"),
        (["--nope"], 2, "", "error: --nope: no such option"),
        (["train", "nope.yaml"], 78, "", "error: nope.yaml: no such file"),
        (["init"], 0, "wrote run.yaml", ""),
    ],
)
def test_exit_codes(tmp_path: Path, words: list[str], code: int, out: str, err: str) -> None:
    done = run(*words, cwd=tmp_path)
    assert done.returncode == code
    assert done.stdout.startswith(out)
    assert done.stderr.startswith(err)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_before_there_is_a_run(number: int, code: int, tmp_path: Path) -> None:
    """While the spec is read, here from a pipe that nobody writes to."""
    os.mkfifo(tmp_path / "run.yaml")
    process = subprocess.Popen(
        [sys.executable, "-m", "rankzero", "train", "run.yaml"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    descriptor = os.open(tmp_path / "run.yaml", os.O_WRONLY)  # returns once the other side is reading
    try:
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    finally:
        os.close(descriptor)
    assert process.returncode == code, err
    assert "Traceback" not in err
