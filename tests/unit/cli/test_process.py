"""The command line as its own process: light, quick, and with the exit codes that a shell sees."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_the_engine_s_libraries_say_nothing_by_themselves() -> None:
    """On CPUs with avx512_bf16 bitsandbytes advises a package as it is imported; here it does so on any."""
    code = (
        "import logging, rankzero.engine.worker, rankzero.model.merge;"
        "logging.getLogger('bitsandbytes.backends.cpu.ops').warning('pip install this')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_help_answers_at_once(tmp_path: Path) -> None:
    """The least of several runs, in time of the processor: what the machine's other work takes does not count."""
    best = 1e9
    for _ in range(8):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert run("--help", cwd=tmp_path).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if best < 0.3:
            return
    pytest.fail(f"rankzero --help took {best:.2f} s")


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


def test_an_interrupt_is_quiet(tmp_path: Path) -> None:
    """Ctrl-C while the spec is read, here from a pipe that nobody writes to."""
    os.mkfifo(tmp_path / "run.yaml")
    process = subprocess.Popen(
        [sys.executable, "-m", "rankzero", "train", "run.yaml"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    descriptor = os.open(tmp_path / "run.yaml", os.O_WRONLY)  # returns once the other side is reading
    try:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        os.close(descriptor)
    assert process.returncode == 130
    assert "Traceback" not in err
