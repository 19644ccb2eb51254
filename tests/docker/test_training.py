"""Real training in containers: the same losses as here, and nothing lost when one of them is stopped or killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankzero.launch.backend import LogQuery
from rankzero.launch.pods import parse_pod
from rankzero.spec.run_spec import RunSpec
from tests.docker.conftest import DockerRun, docker, makes_runs
from tests.support.in_container import SLOW_DOWN, SUSPEND
from tests.support.runs import metrics, run_here
from tests.support.tiny import chat_rows, tiny_model, write_jsonl

LOSS_TOLERANCE = 1e-4
LONG = 30
"""Epochs of five steps: long enough to be met in the middle."""
MakeRun = Callable[..., DockerRun]


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model and data, as containers find them at /inputs."""
    directory = tmp_path_factory.mktemp("inputs")
    directory.chmod(0o755)
    tiny_model(directory / "model")
    write_jsonl(directory / "train.jsonl", chat_rows(37))
    for path in directory.rglob("*"):  # weights are written for their owner alone, and containers are somebody else
        path.chmod(0o755 if path.is_dir() else 0o644)
    return directory


def spec(name: str, inputs: str, output_dir: str, epochs: float) -> RunSpec:
    return RunSpec.model_validate(
        {
            "name": name,
            "model": {"name": f"{inputs}/model", "dtype": "float32"},
            "data": {"train": f"{inputs}/train.jsonl"},
            "lora": {"r": 4, "dropout": 0.0, "target_modules": "all-linear"},
            "train": {"num_train_epochs": epochs, "global_batch_size": 8, "learning_rate": 0.01},
            "checkpoint": {"every": 5},
            "tracking": {"tensorboard": False},
            "output_dir": output_dir,
        }
    )


@pytest.fixture(scope="module")
def uninterrupted(image: str, inputs: Path) -> list[dict[str, Any]]:
    """The curve of two containers that nothing happens to."""
    with makes_runs(image) as make:
        run = make(inputs, spec("uninterrupted", "/inputs", "runs", LONG), num_nodes=2, nproc_per_node=1)
        run.submit()
        run.follow()
        assert run.codes() == [0, 0], run.evidence().logs
        return run.metrics()


def losses(curve: list[dict[str, Any]]) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in curve]


@pytest.mark.parametrize(("num_nodes", "nproc_per_node"), [(2, 1), (1, 2)])
def test_containers_train_like_one_process(
    num_nodes: int, nproc_per_node: int, inputs: Path, docker_run: MakeRun, tmp_path: Path
) -> None:
    here = spec("here", str(inputs), str(tmp_path), 3)
    run_here(here)
    name = f"layout-{num_nodes}x{nproc_per_node}"
    layout = {"num_nodes": num_nodes, "nproc_per_node": nproc_per_node}
    run = docker_run(inputs, spec(name, "/inputs", "runs", 3), **layout)
    run.submit()
    lines = run.follow()
    assert run.codes() == [0] * num_nodes, run.evidence().logs
    assert {line.node for line in lines} == set(range(num_nodes))
    for found, expected in zip(losses(run.metrics()), losses(metrics(here)), strict=True):
        assert found == pytest.approx(expected, rel=LOSS_TOLERANCE)
    for pod in run.evidence().pods:
        assert pod["status"]["phase"] == "Succeeded"
        ended = parse_pod(pod).ended
        assert ended is not None and ended.words is not None and ended.words.outcome == "done"


@pytest.mark.faults
@pytest.mark.parametrize(("how", "code"), [("stop", 75), ("kill", 137)])
def test_a_run_goes_on_after_one_container_was_lost(
    how: str, code: int, inputs: Path, uninterrupted: list[dict[str, Any]], docker_run: MakeRun
) -> None:
    """`docker stop` is the eviction of a pod, `docker kill` the death of a node."""
    run = docker_run(inputs, spec(f"lost-{how}", "/inputs", "runs", LONG), num_nodes=2, nproc_per_node=1)
    run.submit()
    run.wait_for_steps(7)
    docker(how, run.container(1))
    assert run.codes()[1] == code, run.evidence().logs
    lost = next(pod for pod in run.evidence().pods if pod["metadata"]["name"].endswith("-1"))
    if how == "stop":
        words = json.loads(lost["status"]["containerStatuses"][0]["state"]["terminated"]["message"])
        assert words["outcome"] == "stopped" and words["checkpoint"] >= 7
    run.submit()
    run.follow()
    assert run.codes() == [0, 0], run.evidence().logs
    assert losses(run.metrics()) == losses(uninterrupted), "to the last bit: the layout is the same"


@pytest.mark.faults
def test_a_container_that_is_stopped_while_it_loads_saves_nothing_and_loses_nothing(
    inputs: Path, uninterrupted: list[dict[str, Any]], docker_run: MakeRun
) -> None:
    run = docker_run(inputs, spec("loading", "/inputs", "runs", LONG), num_nodes=2, nproc_per_node=1)
    run.submit()
    next(line for line in run.backend.logs(run.name, LogQuery(follow=True)) if line.node == 1)
    docker("stop", run.container(1))
    assert run.codes()[1] == 75, run.evidence().logs
    run.submit()
    run.follow()
    assert run.codes() == [0, 0], run.evidence().logs
    assert losses(run.metrics()) == losses(uninterrupted)


@pytest.mark.faults
def test_a_suspended_rank_is_ended_and_a_slow_one_is_named(
    inputs: Path, uninterrupted: list[dict[str, Any]], docker_run: MakeRun
) -> None:
    """Docker starts nothing again; the same command does."""
    run = docker_run(inputs, spec("suspended", "/inputs", "runs", LONG), num_nodes=2, nproc_per_node=1)
    run.submit()
    run.wait_for_steps(7)
    docker("exec", run.container(1), "python", "-c", SUSPEND)
    run.wait_for_end([0, 1])
    assert run.codes() == [69, 69], run.evidence().logs
    assert "was suspended (SIGSTOP) while the others waited" in str(run.evidence().logs)
    run.submit()
    run.wait_for_steps(30)
    docker("exec", "--detach", run.container(1), "python", "-c", SLOW_DOWN)
    run.follow()
    assert run.codes() == [0, 0], run.evidence().logs
    metrics = run.metrics()
    assert losses(metrics) == losses(uninterrupted), "to the last bit: the layout is the same"
    assert metrics[-1]["straggler"].startswith("rank 1 on "), metrics[-1]


def test_a_prepared_run_is_cancelled_and_resumes(
    inputs: Path, uninterrupted: list[dict[str, Any]], docker_run: MakeRun
) -> None:
    run = docker_run(inputs, spec("cancelled", "/inputs", "runs", LONG), num_nodes=2, nproc_per_node=1, cache=True)
    run.submit()
    job = next(one for one in run.evidence().objects if one["kind"] == "Job")
    assert job["status"]["conditions"][0]["type"] == "Complete"
    run.wait_for_steps(3)
    run.backend.cancel(run.name, print)
    assert run.codes() == [75, 75], run.evidence().logs
    run.submit()
    run.follow()
    assert run.codes() == [0, 0], run.evidence().logs
    assert losses(run.metrics()) == losses(uninterrupted), "to the last bit: the layout is the same"


def test_delete_leaves_nothing_but_the_results(inputs: Path, docker_run: MakeRun) -> None:
    run = docker_run(inputs, spec("deleted", "/inputs", "runs", 1), num_nodes=1, nproc_per_node=1)
    run.submit()
    run.follow()
    run.backend.delete(run.name, claims=False, say=print)
    label = f"label=rankzero.dev/run={run.name}"
    for kind in (("ps", "--all"), ("network", "ls"), ("volume", "ls")):
        assert docker(*kind, "--quiet", "--filter", label).stdout == ""
    assert run.metrics(), "the claim is kept"


def test_the_image_is_what_pods_expect(image: str) -> None:
    config = json.loads(docker("image", "inspect", image).stdout)[0]["Config"]
    assert config["User"] == "1000:1000" and not config["Entrypoint"]
    labels = config["Labels"]
    assert labels["org.opencontainers.image.title"] == "rankzero"
    assert not [line for line in config["Env"] if line.startswith(("PIP_", "UV_"))], "nothing of the build's settings"
    script = (
        "import os, rankzero, torch, transformers; open(os.path.expanduser('~/x'), 'w'); print(rankzero.__version__)"
    )
    for user in ("1000:1000", "12345:0"):  # some clusters choose the user
        done = docker("run", "--rm", "--network", "none", "--user", user, image, "python", "-c", script)
        assert done.stdout.strip()
    shown = docker(
        "run", "--rm", "--network", "none", image, "sh", "-c", "head -1 $(command -v torchrun); torchrun --help"
    )
    assert shown.stdout.startswith("#!/opt/rankzero/bin/python") and "usage: torchrun" in shown.stdout
    assert "Usage" in docker("run", "--rm", "--network", "none", image).stdout
