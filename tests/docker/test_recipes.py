"""A recipe of each way to spread a model, in containers of the real image: the losses of one process here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rankzero.spec.load import load_run_spec
from rankzero.spec.run_spec import RunSpec
from tests.docker.conftest import DockerRun, docker
from tests.support.recipes import CASES, SMALL, model_of
from tests.support.runs import metrics, run_here

LOSS_TOLERANCE = 1e-4
HAS_DEEPSPEED = ("python", "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('deepspeed') is None)")
MakeRun = Callable[..., DockerRun]
SAME_EVERYWHERE = ("train.max_steps=6", "train.learning_rate=0.002", "train.global_batch_size=8", "model.dtype=float32")
"""Few steps: what rounding does differently grows with each."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a recipe is run here."""

    recipe: str
    sharding: str
    num_nodes: int
    nproc_per_node: int


LAYOUTS = (
    Layout("llama-pytorchjob", "auto", num_nodes=2, nproc_per_node=1),
    Layout("qwen3-vl-32b-fire-4gpu", "fsdp", num_nodes=1, nproc_per_node=2),
    Layout("qwen3-30b-qlora-2x8", "zero2", num_nodes=2, nproc_per_node=1),
    Layout("qwen3-30b-full-2x8", "zero3", num_nodes=2, nproc_per_node=1),
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.recipe)
def test_recipe_in_containers(
    layout: Layout,
    image: str,
    cli: Any,
    docker_run: MakeRun,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if layout.sharding.startswith("zero") and docker("run", "--rm", image, *HAS_DEEPSPEED, check=False).returncode:
        pytest.skip("this image was built without deepspeed (EXTRAS)")
    inputs = tmp_path_factory.mktemp("inputs")
    assert cli(f"init --recipe {layout.recipe} -o {tmp_path / 'recipe'}").code == 0
    here = recipe_spec(layout.recipe, tmp_path / "recipe", inputs, cli)
    assert here.train.sharding == layout.sharding, "the kind that this recipe is here for"
    readable(inputs)
    run = docker_run(
        *(inputs, inside(here, inputs, f"recipe-{layout.sharding}")),
        num_nodes=layout.num_nodes,
        nproc_per_node=layout.nproc_per_node,
    )
    run.submit()
    run.follow()
    assert run.codes() == [0] * layout.num_nodes, run.evidence().logs
    one = here.model_copy(update={"train": here.train.model_copy(update={"sharding": "ddp"})})
    run_here(one.model_copy(update={"output_dir": str(tmp_path / "runs")}))
    expected = metrics(one.model_copy(update={"output_dir": str(tmp_path / "runs")}))
    found = run.metrics()
    assert [row["step"] for row in found] == [row["step"] for row in expected]
    for ours, theirs in zip(found, expected, strict=True):
        for name in ours.keys() & {"loss", "eval_loss"}:
            assert ours[name] == pytest.approx(theirs[name], rel=LOSS_TOLERANCE), (name, ours["step"])
    assert found[-1]["loss"] < found[1]["loss"]


def recipe_spec(recipe: str, files: Path, inputs: Path, cli: Any) -> RunSpec:
    """The recipe's own file, with a tiny model and its data below `inputs`."""
    case = CASES[recipe]
    model, made = model_of(case, inputs / "model"), case.write(inputs, cli)
    env = {"MODEL_ID": str(model), "MODEL_URI": str(model), **made.env}
    text = (files / "run.yaml").read_text()
    named = [] if "${MODEL_" in text else [f"model.name={model}"]
    changed = [*(f"{name}={value}" for name, value in SMALL.items()), *SAME_EVERYWHERE, *named]
    overrides = [*changed, *made.overrides]
    return load_run_spec(files / "run.yaml", overrides, env=env).spec


def inside(spec: RunSpec, inputs: Path, name: str) -> RunSpec:
    """The same spec as containers find its files."""
    moved = spec.model_dump_json().replace(str(inputs), "/inputs")
    return RunSpec.model_validate_json(moved).model_copy(update={"name": name, "output_dir": "runs"})


def readable(directory: Path) -> None:
    """Weights are written for their owner alone, and containers are somebody else."""
    directory.chmod(0o755)
    for path in directory.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
