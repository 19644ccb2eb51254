"""The command line as a user types it, in this process where that is enough."""

from __future__ import annotations

import functools
import shlex
import sys
from dataclasses import dataclass

import pytest
import typer.main

from rankzero.cli.main import main

_PARSER = functools.cache(typer.main.get_command)
"""Of all commands, made once and not for each line: that takes longer than many a command."""


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str


class Cli:
    """`cli("train run.yaml lora=null")`."""

    def __init__(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capfd, self._monkeypatch = capfd, monkeypatch

    def __call__(self, line: str) -> Done:
        self._capfd.readouterr()
        code = 0
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["rankzero", *shlex.split(line)])
            patch.setattr(typer.main, "get_command", _PARSER)
            try:
                main()
            except SystemExit as exit_:
                code = int(exit_.code or 0) if not isinstance(exit_.code, str) else 1
        captured = self._capfd.readouterr()
        return Done(code, captured.out, captured.err)
