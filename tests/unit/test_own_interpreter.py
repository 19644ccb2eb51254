"""No program of ours imports what lies in the user's working directory: a random.py there is not Python's."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import rankzero
from rankzero.launch.plan import make_plan
from rankzero.launch.render.sbatch_parts import command
from rankzero.spec.cluster_load import load_cluster_spec
from rankzero.spec.load import load_run_spec
from rankzero.spec.resolve import resolve

SOURCE = Path(rankzero.__file__).parent
SHELLS = {"'sh'", "'bash'"}


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every row of words that has Python import a module or run a text, in whatever place: with what is before it."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            rows = (
                node.elts if isinstance(node, ast.List | ast.Tuple) else node.args if isinstance(node, ast.Call) else ()
            )
            words = [ast.unparse(one) for one in rows]
            at = next((at for at, word in enumerate(words) if at and word in ("'-m'", "'-c'")), 0)
            if at and words[at - 1] not in SHELLS:
                yield f"{path.relative_to(SOURCE)}:{node.lineno}", words[:at]


def test_python_starts_modules_without_the_working_directory() -> None:
    found = list(commands())
    assert len(found) > 20
    unsafe = [where for where, before in found if before[-1] != "'-P'"]
    assert not unsafe


@pytest.mark.parametrize("runtime", ["none", "apptainer", "pyxis"])
def test_nodes_of_slurm_do_so_too(runtime: str) -> None:
    """They begin where all may write: in the directory of the results."""
    run = resolve(load_run_spec(None, ["name=r", "model.name=o/m", "data.train=o/d"], env={}).spec)
    settings = ["kind=slurm", "gpu=false", "storage.outputs={mount: /o, host_path: /o}", f"slurm.runtime={runtime}"]
    image = [] if runtime == "none" else ["slurm.image=/o/x.sif"]
    plan = make_plan(run, load_cluster_spec(None, settings + image, env={}).spec)
    words = shlex.split(command(plan, "rankzero.launch.node"))
    assert words[words.index("-m") - 2 :] == ["python3", "-P", "-m", "rankzero.launch.node", plan.config_dir]
