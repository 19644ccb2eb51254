"""What every process of every start waits for: no search for reference cycles through what imports left, nor pandas."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import small_spec

LAST_WORDS = """
import atexit, gc, json, os, sys
def tell():
    words = {"frozen": gc.get_freeze_count(), "threshold": gc.get_threshold(), "modules": list(sys.modules)}
    with open(os.path.join(os.path.dirname(__file__), f"told-{os.getpid()}.json"), "w") as file:
        json.dump({**words, "said": sys.argv}, file)
atexit.register(tell)
"""
A_STACK = 100_000
"""A training stack leaves more objects than that."""


def told(directory: Path, *command: str) -> list[dict[str, Any]]:
    """What each process of the command, with torch in it, says at its end."""
    (directory / "sitecustomize.py").write_text(LAST_WORDS)
    paths = os.pathsep.join([str(directory), os.environ["PYTHONPATH"]])
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], env=env, cwd=directory, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = []
    for path in directory.glob("told-*.json"):
        words = json.loads(path.read_text())
        path.unlink()
        if "torch" in words["modules"]:
            found.append(words)
    return found


@pytest.mark.parametrize("nproc", [1, 2])
def test_what_imports_left_is_not_looked_through(nproc: int, tmp_path: Path, tiny: Path, cli: Any) -> None:
    """One process is the command itself; of two, each is started by a launcher. Reading tokenised data needs no pandas,
    which is installed here; writing Arrow imports it, where it is there."""
    path = tmp_path / "run.yaml"
    path.write_text(small_spec(tmp_path, tiny, train__num_train_epochs=1).model_dump_json())
    assert cli(f"data prepare {path}").code == 0
    processes = told(tmp_path, "-m", "rankzero", "train", str(path), "--nproc-per-node", str(nproc))
    assert len(processes) == nproc
    for process in processes:
        assert process["frozen"] > A_STACK
        assert process["threshold"] == list(usual())
        assert "pyarrow" in process["modules"] and "pandas" not in process["modules"]


def test_a_smoke_test_s_process_too(tmp_path: Path) -> None:
    (process,) = told(tmp_path, "-m", "rankzero", "smoke", "--nproc-per-node", "1")
    assert process["frozen"] > A_STACK / 2 and process["threshold"] == list(usual())


def test_a_process_of_the_user_s_is_left_alone(tmp_path: Path, tiny: Path) -> None:
    """A notebook, say: what it made before is its own, and a cycle that it drops is to go."""
    spec = small_spec(tmp_path, tiny, train__num_train_epochs=1)
    script = tmp_path / "own.py"
    script.write_text(
        "import gc\nfrom rankzero.engine.worker import run\nfrom rankzero.spec.run_options import RunOptions\n"
        "from rankzero.spec.run_spec import RunSpec\ngc.set_threshold(900, 11, 12)\n"
        f"run(RunSpec.model_validate_json({spec.model_dump_json()!r}), RunOptions())\n"
    )
    (process,) = told(tmp_path, str(script))
    assert process["frozen"] == 0 and process["threshold"] == [900, 11, 12]


def usual() -> tuple[int, int, int]:
    """What Python begins with."""
    code = "import gc; print(*gc.get_threshold())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    first, second, third = map(int, done.stdout.split())
    return first, second, third
