"""After runs with faults, what there was of them: the numbers of docs/reliability.md."""

from __future__ import annotations

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    from tests.faults.scene import COUNTS

    if COUNTS:
        terminalreporter.write_sep("=", "faults")
        for name, count in COUNTS.items():
            terminalreporter.write_line(f"{count:7}  {name}")
