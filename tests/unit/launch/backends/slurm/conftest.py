"""SlurmBackend on a Slurm that only remembers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankzero.launch.backends.slurm.backend import SlurmBackend
from rankzero.launch.backends.slurm.command import Slurm
from rankzero.launch.backends.slurm.state import Part, RunState
from rankzero.launch.labels import Manifest
from rankzero.launch.plan import make_plan
from rankzero.launch.render import render
from rankzero.launch.status import run_status
from rankzero.launch.status.model import RunStatus
from rankzero.spec.cluster_load import load_cluster_spec
from rankzero.spec.load import load_run_spec
from rankzero.spec.resolve import resolve
from tests.unit.launch.backends.slurm.fake_slurm import FakeJob, FakeSlurm

AT = 1_795_347_000


class Site:
    """A backend over a fake Slurm, and the file system that its nodes share."""

    def __init__(self, root: Path) -> None:
        self.root, self.slurm = root, FakeSlurm()
        self.env = {"PATH": "/bin", "HF_TOKEN": "hf_secret0000", "AWS_SECRET_ACCESS_KEY": "not asked for"}
        self.pauses = 0
        self.said: list[str] = []
        slurm = Slurm(self.env, self.slurm.execute)
        self.backend = SlurmBackend(root / "slurm", slurm, env=self.env, sleep=self.sleep, say=self.said.append)

    def sleep(self, _seconds: float) -> None:
        self.pauses += 1
        assert self.pauses < 100, "waits for ever"

    def objects(self, *more: str, name: str = "r") -> list[Manifest]:
        run = resolve(load_run_spec(None, [f"name={name}", "model.name=o/m", "data.train=o/d"], env={}).spec)
        outputs = f"storage.outputs={{mount: {self.root}, host_path: {self.root}}}"
        settings = ["kind=slurm", "num_nodes=2", "gpu=false", outputs, *more]
        return render(make_plan(run, load_cluster_spec(None, settings, env={}).spec))

    def submit(self, *more: str, **options: Any) -> None:
        self.backend.submit(self.objects(*more), self.said.append, **options)

    def becomes(self, state: str, reason: str = "", *, restarts: int = 0) -> None:
        """The newest job does."""
        self.slurm.jobs[max(self.slurm.jobs)] = FakeJob(state, reason, restarts)

    def note(self, node: int, *lines: str, restart: int = 0, words: dict[str, Any] | None = None, at: int = AT) -> None:
        """`begin` or `end CODE`, as the node's script does."""
        job = max(self.slurm.jobs)
        with (self.root / f"slurm/r/nodes/{node}").open("a") as file:
            for index, line in enumerate(lines):
                word, _, code = line.partition(" ")
                file.write(f"{word} {job} {restart} {at + index} {code or f'host{node}'}\n")
        if words is not None:
            (self.root / f"slurm/r/nodes/{node}.words").write_text(json.dumps({"rankzero": 1, **words}))

    def log(self, node: Part, text: str, at: int = AT) -> None:
        """What a part of the run prints, at a time of Slurm's."""
        path = RunState(self.root / "slurm/r").log(node)
        with path.open("a") as file:
            file.write(text)
        os.utime(path, (at, at))

    def batch_log(self, text: str, at: int = AT) -> None:
        """What the batch script and srun print, at a time of Slurm's."""
        path = self.root / "slurm-r.log"
        path.write_text(text)
        os.utime(path, (at, at))

    def is_cancelled(self, job: str) -> bool:
        return RunState(self.root / "slurm/r").is_cancelled(job)

    def status(self) -> RunStatus:
        return run_status(self.backend.collect("r"))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def prepared(site: Site) -> Callable[..., None]:
    """Submits a run that is prepared; job 17 does that, and 18 is the run."""
    cache = f"storage.cache={{mount: {site.root}/c, host_path: {site.root}/c}}"
    return lambda *more, **options: site.submit(cache, "slurm.prepare_partition=cpu", *more, **options)


def note_preparation(site: Site, *lines: str, words: dict[str, Any] | None = None) -> None:
    path = site.root / "slurm/r/nodes/prepare"
    with path.open("a") as file:
        for index, line in enumerate(lines):
            word, _, code = line.partition(" ")
            file.write(f"{word} 17 0 {AT + index} {code or 'cpu0'}\n")
    if words is not None:
        path.with_suffix(".words").write_text(json.dumps({"rankzero": 1, **words}))
