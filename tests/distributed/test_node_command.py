"""Two nodes of one run: to the end, killed, stopped, refused, late."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rankzero.launch.node.prepared import begin, end
from rankzero.launch.node.settings import TOKEN_VARIABLE, Mirror
from rankzero.spec.run_spec import RunSpec
from tests.support.nodes import Pods
from tests.support.runs import metrics, run_here, run_root, small_spec

pytestmark = [pytest.mark.distributed, pytest.mark.faults]

MakePods = Callable[..., Pods]


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[MakePods]:
    """Make the pods of a run; whatever the test does, none outlives it."""
    made: list[Pods] = []

    def make(spec: RunSpec, name: str = "pods", **settings: Any) -> Pods:
        folder = tmp_path / name
        folder.mkdir()
        made.append(Pods(folder, spec, **settings))
        return made[-1]

    yield make
    for run in made:
        run.end()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> list[float]:
    """Losses of the uninterrupted run of one process."""
    spec = small_spec(tmp_path_factory.mktemp("whole"), tiny, **LONG)
    run_here(spec)
    return losses(spec)


LONG = {"train__num_train_epochs": 15, "checkpoint__every": 5, "eval__every": 30, "lora__dropout": 0.0}
"""60 steps, some seconds."""


def losses(spec: RunSpec) -> list[float]:
    return [line["loss"] for line in metrics(spec)]


def codes(run: Pods) -> list[int]:
    return [process.wait(timeout=300) for process in run.processes]


@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_node_is_replaced_and_the_other_waits_in_place(
    lost: int, tmp_path: Path, tiny: Path, pods: MakePods, whole: list[float]
) -> None:
    spec = small_spec(tmp_path, tiny, **LONG)
    run = pods(spec)
    started = [run.start(0), run.start(1)]
    run.wait_for_step(12)
    children = psutil.Process(started[lost].pid).children(recursive=True)
    started[lost].kill()
    replacement = run.start(lost)
    assert replacement.wait(timeout=300) == 0, run.log(0) + run.log(1)
    assert started[1 - lost].wait(timeout=300) == 0, run.log(0) + run.log(1)
    assert losses(spec) == pytest.approx(whole, abs=1e-4)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    assert "is gone" in run.log(1 - lost)


@pytest.mark.slow
def test_a_copy_on_each_node_outlives_a_node(tmp_path: Path, tiny: Path, pods: MakePods) -> None:
    """All weights, on two nodes of two processes each."""
    full = {"lora": None, "train__sharding": "hsdp", "train__num_train_epochs": 4, "checkpoint__every": 2}
    alone, spec = (small_spec(tmp_path / name, tiny, **{**LONG, **full}) for name in ("alone", "nodes"))
    run_here(alone)
    run = pods(spec, nproc_per_node=2)
    first, second = run.start(0), run.start(1)
    run.wait_for_step(5)
    second.kill()
    replacement = run.start(1)
    assert replacement.wait(timeout=300) == 0, run.log(0) + run.log(1)
    assert first.wait(timeout=300) == 0, run.log(0)
    assert ", hsdp" in run.log(0)
    assert losses(spec) == pytest.approx(losses(alone), rel=1e-4)


def test_a_stopped_node_saves_with_the_others_and_its_replacement_goes_on(
    tmp_path: Path, tiny: Path, pods: MakePods, whole: list[float]
) -> None:
    spec = small_spec(tmp_path, tiny, **LONG)
    run = pods(spec)
    second = run.start(1)  # before there is a node 0 to meet
    first = run.start(0)
    run.wait_for_step(12)
    second.send_signal(signal.SIGTERM)
    assert second.wait(timeout=300) == 75, run.log(1)
    said = run.said(1)
    assert said["outcome"] == "stopped"
    assert said["checkpoint"] == said["step"] >= 12
    replacement = run.start(1)
    assert replacement.wait(timeout=300) == 0, run.log(0) + run.log(1)
    assert first.wait(timeout=300) == 0, run.log(0)
    assert losses(spec) == pytest.approx(whole, abs=1e-4)
    assert (run.said(0)["outcome"], run.said(1)["outcome"]) == ("done", "done")
    assert run.said(0)["step"] == run.said(0)["total_steps"] == run.said(0)["checkpoint"] == 60
    assert f"continuing from step {said['checkpoint']} bit-exactly" in run.log(0)


def test_all_stopped_at_once(tmp_path: Path, tiny: Path, pods: MakePods) -> None:
    spec = small_spec(tmp_path, tiny, **LONG)
    run = pods(spec)
    started = [run.start(0), run.start(1)]
    run.wait_for_step(3)
    for process in started:
        process.send_signal(signal.SIGTERM)
    assert codes(run) == [75, 75], run.log(0) + run.log(1)
    assert run.said(0)["checkpoint"] == run.said(0)["step"]


def test_a_killed_process_ends_its_node_with_70(tmp_path: Path, tiny: Path, pods: MakePods) -> None:
    """Its platform starts another one, which goes on from what was saved."""
    spec = small_spec(tmp_path, tiny, **LONG)
    run = pods(spec, num_nodes=1)
    node = run.start(0)
    run.wait_for_step(3)
    (worker,) = [child for child in psutil.Process(node.pid).children() if "rankzero.engine.worker" in child.cmdline()]
    worker.kill()
    assert node.wait(timeout=300) == 70, run.log(0)
    assert "SIGKILL" in run.said(0)["what"]


def test_stopped_while_its_processes_start(tmp_path: Path, tiny: Path, pods: MakePods) -> None:
    run = pods(small_spec(tmp_path, tiny), num_nodes=1)
    process = run.start(0)
    while not any("rankzero.engine.worker" in child.cmdline() for child in psutil.Process(process.pid).children()):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 75, run.log(0)
    assert run.said(0)["outcome"] == "stopped"


@pytest.mark.slow
def test_a_stop_flag_ends_all_nodes(tmp_path: Path, tiny: Path, pods: MakePods) -> None:
    spec = small_spec(tmp_path, tiny, **LONG)
    run = pods(spec)
    run.start(0), run.start(1)
    run.wait_for_step(3)
    (run_root(spec) / "stop").touch()
    assert codes(run) == [75, 75], run.log(0) + run.log(1)


def test_bad_data_ends_both_at_once_with_65(tmp_path: Path, tiny: Path, pods: MakePods) -> None:
    spec = small_spec(tmp_path, tiny)
    Path(str(spec.data.train)).write_text('{"messages": []}\n')
    run = pods(spec)
    run.start(0), run.start(1)
    assert codes(run) == [65, 65], run.log(0) + run.log(1)
    said = [run.said(node) for node in (0, 1)]
    assert any("messages" in message["what"] for message in said)
    assert all(message["exit_code"] == 65 for message in said)


def test_who_does_not_come_is_named_once(tmp_path: Path, tiny: Path, pods: MakePods) -> None:
    """Each pod that gives up is a restart that is charged, so node 0 alone does; the others wait for the next one."""
    run = pods(small_spec(tmp_path, tiny), num_nodes=3, rendezvous_seconds=20.0)
    first, other = run.start(0), run.start(2)
    assert first.wait(timeout=300) == 69, run.log(0) + run.log(2)
    assert other.poll() is None, run.log(2)
    other.send_signal(signal.SIGTERM)
    assert other.wait(timeout=300) == 75
    assert "node 1 did not come" in run.said(0)["what"], run.log(0) + run.log(2)
    assert run.said(0)["hint"]


def test_without_node_0(tmp_path: Path, tiny: Path, pods: MakePods) -> None:
    run = pods(small_spec(tmp_path, tiny), rendezvous_seconds=1.5)
    run.start(1)
    assert codes(run) == [69]
    assert "node 0 was not reached" in run.said(1)["what"]
    assert "refuses connections" in run.said(1)["what"]


def test_a_node_of_another_run_is_refused(tmp_path: Path, tiny: Path, pods: MakePods) -> None:
    run = pods(small_spec(tmp_path, tiny), num_nodes=2)
    other = pods(small_spec(tmp_path, tiny, train__seed=7), "other", env={}, num_nodes=2)
    other.env |= {name: run.env[name] for name in ("RANKZERO_CONTROL_PORT", "MASTER_PORT")}
    first = run.start(0)
    stranger = other.start(1)
    assert stranger.wait(timeout=300) == 78
    assert "another run" in other.said(1)["what"]
    assert first.poll() is None


@pytest.mark.parametrize(
    ("changes", "mirrors", "why"),
    [
        ({"tracking__langfuse": True}, (), "LANGFUSE_HOST is not set"),
        ({"model__attention": "flash_attention_3"}, (), "flash_attn_interface is not installed"),
        ({}, (Mirror("file:///nowhere", "/elsewhere", "upload"),), "is not in /elsewhere"),
    ],
)
def test_all_nodes_of_a_refused_run_end_at_once(
    tmp_path: Path,
    pods: MakePods,
    changes: dict[str, Any],
    mirrors: tuple[Mirror, ...],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whichever comes last, and nobody waits as long as for a node that is on its way."""
    monkeypatch.delenv("LANGFUSE_HOST", raising=False)
    run = pods(
        small_spec(tmp_path, tmp_path / "no-model", **changes), num_nodes=3, rendezvous_seconds=1800, mirrors=mirrors
    )
    for node in (1, 0, 2):
        run.start(node)
    assert codes(run) == [78, 78, 78], "\n".join(map(run.log, range(3)))
    assert all(why in run.said(node)["what"] for node in range(3))


def test_stopped_while_it_waits(tmp_path: Path, tiny: Path, pods: MakePods) -> None:
    run = pods(small_spec(tmp_path, tiny))
    process = run.start(0)
    while "RANKZERO" not in "".join(psutil.Process(process.pid).environ()) or not listening(process.pid):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 75
    assert run.said(0)["outcome"] == "stopped"


def listening(pid: int) -> bool:
    return any(c.status == psutil.CONN_LISTEN for c in psutil.Process(pid).net_connections())


def test_preparation_then_training(tmp_path: Path, tiny: Path, pods: MakePods) -> None:
    marker = tmp_path / "cache" / "prepared.json"
    spec = small_spec(tmp_path, tiny)
    run = pods(spec, num_nodes=1, prepared_marker=str(marker))
    node = run.start(0)
    assert run.start(0, module="rankzero.launch.node.prepare").wait(timeout=300) == 0, run.log(0)
    assert json.loads(marker.read_text())["ok"] is True
    assert node.wait(timeout=300) == 0, run.log(0)
    assert "[DONE] prepared" in run.log(0)


def test_a_failed_preparation_ends_training_with_its_error(tmp_path: Path, tiny: Path, pods: MakePods) -> None:
    marker = tmp_path / "prepared.json"
    spec = small_spec(tmp_path, tiny)
    Path(str(spec.data.train)).write_text("{}\n")
    run = pods(spec, num_nodes=1, prepared_marker=str(marker), env={TOKEN_VARIABLE: "secret-of-this-submission"})
    assert run.start(0, module="rankzero.launch.node.prepare").wait(timeout=300) == 65, run.log(0)
    assert run.start(0).wait(timeout=300) == 65
    assert "unknown row shape" in run.log(0) or "keys are" in run.log(0)


def test_an_older_preparation_is_not_taken_for_this_one(tmp_path: Path, tiny: Path, pods: MakePods) -> None:
    marker = tmp_path / "prepared.json"
    spec = small_spec(tmp_path, tiny)
    older = small_spec(tmp_path, tiny, train__seed=9)
    end(marker, older, "", None, starts=begin(marker, older, ""))
    run = pods(spec, num_nodes=1, prepared_marker=str(marker))
    process = run.start(0)
    while not psutil.Process(process.pid).num_threads():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) in (75, -signal.SIGTERM)


def test_a_secret_in_the_environment_is_shown_nowhere(tmp_path: Path, tiny: Path, pods: MakePods) -> None:
    spec = small_spec(tmp_path, tiny)
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"name": "canary-4711/none"})})
    run = pods(spec, num_nodes=1, env={"HF_TOKEN": "canary-4711", "HF_HUB_OFFLINE": "1"})
    assert run.start(0).wait(timeout=300) != 0
    assert "canary-4711" not in run.log(0) + (run.folder / "termination-0").read_text()
    assert "[hidden]" in run.log(0)


def test_retryable_codes_are_raised_where_the_platform_wants_it(tmp_path: Path, tiny: Path, pods: MakePods) -> None:
    run = pods(small_spec(tmp_path, tiny), rendezvous_seconds=1.0, retry_exit_offset=128, max_restarts=1)
    assert run.start(1).wait(timeout=300) == 69 + 128
    assert run.start(1).wait(timeout=300) == 69, "the one restart is used up, and the platform counts none"
    assert run.said(1)["exit_code"] == 69


def test_fewer_nodes_where_fewer_are_enough(tmp_path: Path, tiny: Path, pods: MakePods, whole: list[float]) -> None:
    spec = small_spec(tmp_path, tiny, **LONG)
    run = pods(spec, num_nodes=2, min_nodes=1)
    first, second = run.start(0, module="tests.support.impatient_node"), run.start(1)
    run.wait_for_step(12)
    second.kill()
    assert first.wait(timeout=300) == 0, run.log(0)
    assert losses(spec) == pytest.approx(whole, abs=1e-3)
    assert "rows, not bit-exactly" in run.log(0)
