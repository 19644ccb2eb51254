"""What `make` hands on: to docker, and of the tests to their targets."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_the_image_gets_what_make_was_given() -> None:
    given = ["EXTRAS=train,deepspeed", "TORCH_INDEX=https://index.example/cpu", "BASE_IMAGE=base:1", "IMAGE=mine:2"]
    done = subprocess.run(["make", "-n", "image", *given], cwd=ROOT, capture_output=True, text=True, check=True)
    words = done.stdout.split()
    built = {words[at + 1] for at, word in enumerate(words) if word == "--build-arg"}
    assert set(given[:3]) <= built
    assert words[words.index("-t") + 1] == "mine:2"


def test_all_tests_that_need_deepspeed_are_where_make_looks_for_them() -> None:
    directories = next(
        line.partition(":=")[2].split()
        for line in (ROOT / "Makefile").read_text().splitlines()
        if line.startswith("DEEPSPEED_TESTS")
    )
    marked = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"^[^#\n]*(mark\.deepspeed|NEEDS_DEEPSPEED)", path.read_text(), re.MULTILINE)
        and path.name != Path(__file__).name
    ]
    assert "tests/distributed/test_zero.py" in marked
    assert [path for path in marked if not path.startswith(tuple(f"{name}/" for name in directories))] == []


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("linted", [0, 1])
def test_no_test_runs_where_lint_fails(linted: int, tmp_path: Path) -> None:
    """Though tests are collected beside it."""
    (tmp_path / "bin").mkdir()
    for name in ("python", "ruff", "mypy", "lint-imports"):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/ran\n[ {name} != mypy ] || exit {linted}\n')
        program.chmod(0o755)
    for name in (".torch", ".dev"):
        (tmp_path / name).touch()
    done = subprocess.run(["make", "test", f"VENV={tmp_path}"], cwd=ROOT, capture_output=True, text=True, check=False)
    ran = (tmp_path / "ran").read_text()
    assert (done.returncode == 0, ran.count("--collect-only"), " or slow or " in ran) == (not linted, 1, not linted)
