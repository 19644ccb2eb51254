"""Runs on a real Slurm: to the end, and to the same end however often they are stopped, preempted or out of time."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankzero.api.clusters import ClusterRun, find_run, submit
from rankzero.errors import ConfigError
from rankzero.launch.backend import LogQuery
from rankzero.launch.backends.slurm.backend import SlurmBackend
from rankzero.launch.backends.slurm.command import Job, Slurm
from rankzero.launch.status import summarise
from tests.slurm.conftest import Cluster, worker_processes
from tests.support.tiny import chat_rows, tiny_model, write_jsonl

STEPS = 60
GRACE_SECONDS = 90
CHECK_SECONDS = 35
"""Slurm looks twice a minute at which jobs are about to be out of time."""
FROZEN_SECONDS = 5.0
"""Of each moment in which a run that is held moves on by a step or so."""


class Site:
    """One directory that the nodes and this machine share, and runs in it."""

    def __init__(self, root: Path, slurm: Cluster) -> None:
        self.root, self.slurm = root, slurm
        tiny_model(root / "model")
        write_jsonl(root / "train.jsonl", chat_rows(37))
        directories = {
            name: {"mount": str(root / name), "host_path": str(root / name)} for name in ("outputs", "cache")
        }
        directories["inputs"] = {"mount": str(root), "host_path": str(root)}
        for name in ("outputs", "cache"):
            (root / name).mkdir()
        cluster = {
            **{
                "kind": "slurm",
                "num_nodes": 2,
                "gpu": False,
                "grace_period_seconds": GRACE_SECONDS,
                "storage": directories,
            },
            **{"slurm": {"python": sys.executable}, "env": {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}},
        }
        self.cluster = root / "cluster.yaml"
        self.cluster.write_text(yaml.safe_dump(cluster))
        self.backend = SlurmBackend(root / "outputs/slurm", Slurm(os.environ), sleep=lambda _seconds: time.sleep(0.2))

    def submit(self, name: str, overrides: dict[str, Any] | None = None, **cluster: Any) -> ClusterRun:
        spec = {
            "name": name,
            "model": {"name": f"{self.root}/model", "dtype": "float32"},
            "data": {"train": f"{self.root}/train.jsonl"},
            "lora": {"r": 4, "dropout": 0.1, "target_modules": "all-linear"},
            "train": {"max_steps": STEPS, "global_batch_size": 8, "learning_rate": 0.01},
            "checkpoint": {"every": 20},
            "tracking": {"tensorboard": False},
        }
        return submit({**spec, **(overrides or {})}, str(self.cluster), cluster_overrides=cluster)

    def number(self, name: str) -> str:
        return (self.root / f"outputs/slurm/{name}/job").read_text().strip()

    def job(self, name: str) -> Job:
        number = self.number(name)
        return Slurm(os.environ).jobs([number])[number]

    def curve(self, name: str) -> list[tuple[int, float]]:
        path = self.root / f"outputs/runs/{name}/metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [(row["step"], row["loss"]) for row in rows if "loss" in row]

    def said(self, name: str) -> str:
        return "\n".join(f"[{line.node}] {line.text}" for line in self.backend.logs(name, LogQuery(tail=40)))

    def wait(self, name: str, what: str, done: Callable[[], bool], seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, f"{what}\n{self.said(name)}\n{self.slurm.logs()}"
            time.sleep(0.1)

    def stops(self, name: str) -> int:
        """How often its processes have said that they stop."""
        logs = [self.root / f"outputs/slurm/{name}/logs/node-{node}.log" for node in (0, 1)]
        return sum(log.read_text(errors="replace").count("[STOP]") for log in logs if log.exists())

    def wait_until_queued_again(self, name: str, restarts: int) -> None:
        self.wait(name, "no end", lambda: self.job(name).restarts == restarts or self.job(name).is_over)
        assert self.job(name).restarts == restarts, self.job(name)

    @contextmanager
    def held(self, name: str, step: int) -> Iterator[None]:
        """From this step on the run hardly moves, until a signal to stop wakes it or this ends."""
        self.wait(name, f"no step {step}", lambda: bool(self.curve(name)) and self.curve(name)[-1][0] >= step)
        over = threading.Event()
        before = self.stops(name)

        def hold(process: int) -> None:
            with suppress(ProcessLookupError):
                while not over.is_set() and self.stops(name) == before:
                    os.kill(process, signal.SIGSTOP)
                    moves_on = time.monotonic() + FROZEN_SECONDS
                    while time.monotonic() < moves_on and self.stops(name) == before:
                        over.wait(0.1)
                    os.kill(process, signal.SIGCONT)
                    over.wait(0.02)

        one, *_ = worker_processes(self.number(name))
        thread = threading.Thread(target=hold, args=(one,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@pytest.fixture(scope="module")
def site(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"), slurm)


@pytest.fixture(scope="module")
def undisturbed(site: Site) -> list[tuple[int, float]]:
    """The curve of a run to which nothing happens, and what is seen of it meanwhile."""
    run = site.submit("undisturbed")
    lines = list(site.backend.logs("undisturbed", LogQuery(follow=True)))
    status = run.status()
    assert (status.phase, status.exit_code, status.step) == ("Succeeded", 0, STEPS), [line.text for line in lines]
    assert {line.node for line in lines} == {0, 1} and any("step 60/60" in line.text for line in lines)
    assert all(line.time is not None for line in lines if line.text.startswith("[NODE]"))
    assert [(node.host, node.state) for node in status.nodes] == [("n0", "Completed"), ("n1", "Completed")]
    return site.curve("undisturbed")


def test_two_nodes_train_to_the_end(site: Site, undisturbed: list[tuple[int, float]]) -> None:
    assert [step for step, _ in undisturbed] == list(range(1, STEPS + 1))
    (row,) = [row for row in summarise(site.backend.runs()) if row.run == "undisturbed"]
    assert (row.kind, row.phase) == ("slurm", "Succeeded")
    assert find_run(site.backend, "undisturbed") == "undisturbed"
    removed = site.backend.delete("undisturbed", claims=False, say=print)
    assert removed[0].startswith("directory") and site.curve("undisturbed") == undisturbed


@pytest.mark.timeout(1500)  # four starts and a look of Slurm at its time limits; a loaded machine takes minutes
def test_stopped_preempted_and_out_of_time_it_comes_to_the_same_end(
    site: Site, undisturbed: list[tuple[int, float]]
) -> None:
    name, slurm, prepared = "disturbed", site.slurm, {"slurm.prepare_partition": "low"}
    run = site.submit(name, **prepared)
    with site.held(name, 5):
        run.cancel()
    status = run.status()
    assert (status.phase, status.exit_code, site.job(name).state) == ("Stopped", 75, "FAILED"), site.said(name)
    stopped_at = len(site.curve(name))
    assert 5 <= stopped_at < STEPS

    site.submit(name, **prepared)
    with site.held(name, stopped_at + 5):
        slurm.say("sbatch", "--partition=high", "--nodes=2", "--output=/dev/null", "--wrap=true")
        site.wait_until_queued_again(name, 1)
    preempted_at = len(site.curve(name))
    assert stopped_at < preempted_at < STEPS

    with site.held(name, preempted_at + 5):
        begun = site.job(name).started
        assert begun is not None
        minutes = math.ceil(((datetime.now(UTC) - begun).total_seconds() + CHECK_SECONDS) / 60)
        slurm.say("scontrol", "update", f"JobId={site.number(name)}", f"TimeLimit={minutes}")
        site.wait_until_queued_again(name, 2)
    slurm.say("scontrol", "update", f"JobId={site.number(name)}", "TimeLimit=UNLIMITED")
    late_at = len(site.curve(name))
    assert preempted_at < late_at < STEPS

    lines = list(site.backend.logs(name, LogQuery(follow=True)))
    status = run.status()
    assert (status.phase, status.exit_code) == ("Succeeded", 0), [line.text for line in lines]
    assert site.curve(name) == undisturbed, "to the last bit"
    state = site.root / f"outputs/slurm/{name}"
    assert [line.split()[0] for line in (state / "nodes/prepare").read_text().splitlines()] == ["begin", "end"]
    assert "[DONE] prepared" in (state / "logs/prepare.log").read_text()


def test_what_cannot_be_prepared_never_starts(site: Site) -> None:
    missing = {"data": {"train": f"{site.root}/nothing-here.jsonl"}}
    run = site.submit("unprepared", missing, prepare="always")
    site.wait("unprepared", "no end", lambda: run.status().phase == "Failed")
    status = run.status()
    assert status.exit_code in (65, 78) and "nothing-here.jsonl" in status.verdict
    site.wait("unprepared", "it is left in the queue", lambda: site.job("unprepared").is_over)
    assert not (site.root / "outputs/slurm/unprepared/nodes/0").exists()


def test_what_is_wrong_for_good_is_not_tried_again(site: Site) -> None:
    run = site.submit("wrong", {"data": {"train": f"{site.root}/nothing-here.jsonl"}}, num_nodes=1)
    list(site.backend.logs("wrong", LogQuery(follow=True)))
    status = run.status()
    assert status.phase == "Failed" and status.exit_code in (65, 78) and status.restarts == 0
    assert "nothing-here.jsonl" in status.verdict


def test_variables_of_the_shell_do_not_make_it_another_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = {
        **{"SBATCH_JOB_NAME": "mine", "SBATCH_ARRAY_INX": "0-1", "SBATCH_OUTPUT": "/dev/null", "SBATCH_WAIT": "1"},
        **{"SBATCH_PARTITION": "high", "SBATCH_NO_REQUEUE": "1", "SLURM_LABELIO": "1", "SLURM_STDERRMODE": "none"},
        **{"SQUEUE_PARTITION": "high", "SCANCEL_STATE": "PENDING"},
    }
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    missing = {"data": {"train": f"{site.root}/nothing-here.jsonl"}}
    run = site.submit("shell", missing, num_nodes=1, **{"slurm.partition": "low"})
    site.wait("shell", "no end", lambda: run.status().phase == "Failed")
    for name in shell:
        monkeypatch.delenv(name)
    said = site.slurm.say("scontrol", "show", "job", site.number("shell"))
    for fact in ("JobName=rankzero-shell", "Partition=low", "Requeue=1", "slurm-shell.log"):
        assert fact in said, said
    lines = list(site.backend.logs("shell", LogQuery()))
    assert any("nothing-here.jsonl" in line.text for line in lines)
    assert not any(line.text.startswith("0: ") for line in lines), "srun's labels"


def test_a_node_that_cannot_begin_ends_the_run(site: Site) -> None:
    """The other one would wait for it for half an hour, and as often again as it may be started."""
    line = '[ "$SLURMD_NODENAME" != n1 ]'
    run = site.submit("half", **{"slurm.setup": [line]})
    site.wait("half", "no end", lambda: run.status().phase == "Failed")
    status = run.status()
    assert status.exit_code == 1 and f"slurm.setup: this line failed: {line}" in status.verdict
    assert [node.state for node in status.nodes] == ["Exit 75", "Exit 1"]
    site.wait("half", "its job goes on", lambda: site.job("half").is_over)


def test_what_srun_cannot_start_is_said(site: Site) -> None:
    """Here there is no Pyxis."""
    run = site.submit("container", **{"slurm.runtime": "pyxis", "slurm.image": "/nowhere.sqsh"})
    site.wait("container", "no end", lambda: run.status().phase == "Failed")
    status = run.status()
    assert status.exit_code == 70 and [finding.code for finding in status.findings] == ["slurm-not-started"]
    assert "unrecognized option '--container-image=/nowhere.sqsh'" in status.verdict
    assert "unrecognized option" in site.said("container")


def test_what_no_node_has_is_said(site: Site) -> None:
    with pytest.raises(ConfigError, match="slurm.partition"):
        site.submit("impossible", **{"slurm.partition": "nope"})
    with pytest.raises(ConfigError, match="resources.memory"):
        site.submit("impossible", **{"resources.memory": "900Gi"})
    assert not (site.root / "outputs/slurm/impossible").exists()
    run = site.submit("impossible", num_nodes=5)
    site.wait("impossible", "no reason", lambda: site.job("impossible").reason not in ("", "None"))
    status = run.status()
    assert status.phase == "Pending" and status.findings[0].code == "slurm-impossible"
    assert "num_nodes" in status.findings[0].fix
    run.cancel()
    assert run.status().phase == "Stopped"
