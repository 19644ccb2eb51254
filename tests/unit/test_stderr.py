"""What is said to nobody costs the lines: no command, no process and no exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankzero.errors import ExitCode
from tests.support.gone import unread_pipe

NEW_COMMAND = """
import os, sys, typer
from rankzero.__main__ import main
from rankzero.cli.main import app
from rankzero.errors import StoppedError

@app.command("new")
def new() -> None:
    {}

sys.argv[1:] = ["new"]
main()
"""


def typed(body: str, *, out: int = subprocess.PIPE, err: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """A command that does this, as a process of its own."""
    command = [sys.executable, "-c", NEW_COMMAND.format(body)]
    return subprocess.run(command, stdout=out, stderr=err, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ('raise StoppedError("stopped and saved")', ExitCode.STOPPED),
        ('typer.echo("a note", err=True); raise typer.Exit(3)', 3),
        ("int('one')", ExitCode.INTERNAL),
        ('typer.echo("a note", err=True)', ExitCode.DONE),
    ],
)
def test_a_command_keeps_its_exit_code_where_nobody_reads_what_it_says(body: str, code: int) -> None:
    """`rankzero train … 2>&1 | tee log`, where Ctrl-C has ended tee."""
    with unread_pipe() as writing:
        assert typed(body, out=writing, err=writing).returncode == code


def test_a_command_that_is_started_without_a_stderr_keeps_its_exit_code() -> None:
    """`rankzero … 2>&-`, or a supervisor that opens none."""
    for body, code in (("print(1)", ExitCode.DONE), ('raise StoppedError("stopped and saved")', ExitCode.STOPPED)):
        command = ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, NEW_COMMAND.format(body)]
        assert subprocess.run(command, capture_output=True, timeout=300, check=False).returncode == code


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_result_that_is_read_in_part_is_no_failure(size: int) -> None:
    """`rankzero … | head`."""
    with unread_pipe() as writing:
        done = typed(f'typer.echo("x" * {size}); typer.echo("more")', out=writing)
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "")


def test_a_terminal_that_is_closed_is_no_failure() -> None:
    ours, theirs = os.openpty()
    os.close(ours)
    try:
        done = typed('typer.echo("done")', out=theirs, err=theirs)
    finally:
        os.close(theirs)
    assert done.returncode == ExitCode.DONE


def test_another_pipe_that_breaks_is_a_failure() -> None:
    done = typed('raise BrokenPipeError(32, "Broken pipe")')
    assert done.returncode == ExitCode.INTERNAL
    assert "internal error: BrokenPipeError: [Errno 32] Broken pipe" in done.stderr


def test_a_process_of_a_launcher_keeps_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "said.py").write_text('import sys\nprint("a line", file=sys.stderr)\nsys.exit(75)\n', encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "rankzero.start", "said"]
    with unread_pipe() as writing:
        done = subprocess.run(command, env=env, stderr=writing, timeout=300, check=False)
    assert done.returncode == ExitCode.STOPPED
