"""Shorthand for data tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rankzero.data.inspect.validate import CheckReport, check
from rankzero.data.rows.problems import RowProblem
from rankzero.errors import DataError, ExitCode, Problem
from rankzero.spec.run_spec import SourceSpec

GOOD = b'{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}'
GOOD_TEXT = b'{"text":"plain"}'


def write(path: Path, *lines: bytes, end: bytes = b"\n") -> str:
    """A file of these lines, as its path."""
    path.write_bytes(b"".join(line + end for line in lines))
    return str(path)


def check_file(path: str | Path, format: str = "auto") -> CheckReport:
    """The report on one file."""
    return check([SourceSpec.model_validate({"path": str(path), "format": format})])


def problems_of(path: str | Path, format: str = "auto") -> list[RowProblem]:
    """What is wrong with one file."""
    return [located.problem for located in check_file(path, format).problems]


def only_problem(path: str | Path, format: str = "auto") -> RowProblem:
    """The one thing that is wrong with a file."""
    found = problems_of(path, format)
    assert len(found) == 1, found
    return found[0]


def data_error(report: CheckReport) -> tuple[Problem, ...]:
    """The problems of the error that the report raises; its exit code is that of bad data."""
    with pytest.raises(DataError) as caught:
        report.raise_if_bad()
    assert caught.value.exit_code == ExitCode.DATA == 65
    return caught.value.problems


def chat(*turns: tuple[str, str] | tuple[str, str, bool]) -> dict[str, Any]:
    """A messages row of (role, content) or (role, content, loss)."""
    keys = ("role", "content", "loss")
    return {"messages": [dict(zip(keys, turn, strict=False)) for turn in turns]}


def user_assistant(*contents: str) -> dict[str, Any]:
    """A messages row of user and assistant in turn."""
    roles: Sequence[str] = ("user", "assistant")
    return chat(*((roles[i % 2], content) for i, content in enumerate(contents)))
