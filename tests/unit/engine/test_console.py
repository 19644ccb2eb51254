"""Results alone on stdout, whatever libraries print while they are made."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rankzero.engine.console import print_result, results_alone_on_stdout


def test_what_libraries_print_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    print_result("before")
    with results_alone_on_stdout():
        print("a library says something")
        os.write(1, b"another, in C\n")
        subprocess.run([sys.executable, "-c", "print('a child')"], check=True)
    print_result("after")
    captured = capfd.readouterr()
    assert captured.out == "before\nafter\n"
    assert set(captured.err.splitlines()) == {"a library says something", "another, in C", "a child"}


def test_stdout_is_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="x"), results_alone_on_stdout():
        raise ValueError("x")
    print_result("after")
    assert capfd.readouterr().out == "after\n"
