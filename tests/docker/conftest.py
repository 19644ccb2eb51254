"""The real image, built once, and runs of it on this machine's docker daemon.

RANKZERO_TEST_IMAGE names an image that is there already. Else it is built, on RANKZERO_TEST_BASE_IMAGE, or on a base
that docker/base-image.sh makes. Pip's settings (PIP_INDEX_URL and the like) are those of this environment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rankzero.launch import labels
from rankzero.launch.backend import LogLine, LogQuery
from rankzero.launch.backends.docker.backend import DockerBackend
from rankzero.launch.evidence import Evidence
from rankzero.launch.plan import make_plan
from rankzero.launch.render import render
from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.resolve import resolve
from rankzero.spec.run_spec import RunSpec

ROOT = Path(__file__).parents[2]
BASE = "rankzero-base:cpu"
PIP_SETTINGS = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs the daemon."""
    reason = missing()
    for item in items:
        if "tests/docker" in str(item.path):
            item.add_marker(pytest.mark.docker)
            item.add_marker(pytest.mark.timeout(1800))
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def missing() -> str:
    """Why there can be no docker here; nothing where there is."""
    if not shutil.which("docker"):
        return "there is no docker command"
    if docker("info", check=False).returncode != 0:
        return "no docker daemon answers"
    return ""


def docker(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run docker; a failure shows what it said."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0 or not check, f"docker {' '.join(arguments)}\n{(done.stdout + done.stderr)[-4000:]}"
    return done


@pytest.fixture(scope="session")
def image() -> str:
    """The image of the Dockerfile."""
    given = os.environ.get("RANKZERO_TEST_IMAGE")
    if given:
        return given
    base = os.environ.get("RANKZERO_TEST_BASE_IMAGE") or base_image()
    settings = [part for name in PIP_SETTINGS if name in os.environ for part in ("--build-arg", name)]
    extras = "EXTRAS=train,quantization,vision,deepspeed,jupyter"
    chosen = ["--build-arg", f"BASE_IMAGE={base}", "--build-arg", extras]
    arguments = ["-f", "docker/Dockerfile", *chosen, *settings, "-t", "rankzero:test"]
    docker("build", "--quiet", "--network", "host", *arguments, ".")
    return "rankzero:test"


def base_image() -> str:
    """The one that is made without a registry; skips where it cannot be made."""
    if docker("image", "inspect", BASE, check=False).returncode == 0:
        return BASE
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        pytest.skip("no base image: set RANKZERO_TEST_BASE_IMAGE, or be root and have debootstrap")
    done = subprocess.run([str(ROOT / "docker/base-image.sh"), BASE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return BASE


class DockerRun:
    """One run spec on docker."""

    def __init__(
        self, image: str, inputs: Path, run: RunSpec, num_nodes: int, nproc_per_node: int, cache: bool
    ) -> None:
        self.backend = DockerBackend()
        self.name = str(run.name)
        self._image = image
        self._claim = f"test-{uuid.uuid4().hex[:8]}"
        cluster = ClusterSpec.model_validate(
            {
                **{"image": image, "kind": "docker", "gpu": False, "grace_period_seconds": 60},
                "resources": {"limits": {"cpu": 1}},  # one core each: more threads than cores wait for each other
                **{"num_nodes": num_nodes, "nproc_per_node": nproc_per_node, "rendezvous_timeout_seconds": 120},
                "storage": {
                    "inputs": {"mount": "/inputs", "host_path": str(inputs), "read_only": True},
                    "outputs": {"mount": "/outputs", "claim": self._claim, "size": "1Gi"},
                    **({"cache": {"mount": "/cache", "claim": f"{self._claim}-cache", "size": "1Gi"}} if cache else {}),
                },
            }
        )
        self.objects = render(make_plan(resolve(run), cluster))

    def submit(self) -> None:
        self.backend.submit(self.objects, print, replace=True)

    def follow(self, act: Callable[[LogLine], None] = lambda line: None) -> list[LogLine]:
        """All lines to the end of the run."""
        lines = []
        for line in self.backend.logs(self.name, LogQuery(follow=True)):
            print(f"[{line.node}] {line.text}")
            lines.append(line)
            act(line)
        return lines

    def evidence(self) -> Evidence:
        return self.backend.collect(self.name)

    def container(self, node: int) -> str:
        return f"rankzero-{self.name}-{node}"

    def codes(self) -> list[int | None]:
        """Exit codes by node; None for one that runs."""
        pods = [pod for pod in self.evidence().pods if labels.role_of(pod) == labels.NODE_ROLE]
        states = [pod["status"]["containerStatuses"][0]["state"] for pod in pods]
        return [state["terminated"]["exitCode"] if "terminated" in state else None for state in states]

    def wait_for_steps(self, steps: int) -> None:
        """Until so many steps are in metrics.jsonl, by looking into node 0."""
        path = f"/outputs/runs/{self.name}/metrics.jsonl"
        deadline = time.monotonic() + 300
        while docker("exec", self.container(0), "cat", path, check=False).stdout.count("\n") < steps:
            assert None in self.codes(), self.evidence().logs
            assert time.monotonic() < deadline, self.evidence().logs
            time.sleep(0.1)

    def wait_for_end(self, nodes: list[int]) -> None:
        docker("wait", *(self.container(node) for node in nodes))

    def remove(self) -> None:
        self.backend.delete(self.name, claims=True, say=print)
        volume = f"rankzero-{self._claim}"
        # where the run had been deleted already
        docker("volume", "rm", "--force", volume, f"{volume}.used-by.{self.name}")

    def metrics(self) -> list[dict[str, Any]]:
        """metrics.jsonl, from the volume."""
        path = f"/outputs/runs/{self.name}/metrics.jsonl"
        volume = f"rankzero-{self._claim}:/outputs:ro"
        text = docker("run", "--rm", "--volume", volume, self._image, "cat", path).stdout
        return [json.loads(line) for line in text.splitlines()]


@contextmanager
def makes_runs(image: str) -> Iterator[Callable[..., DockerRun]]:
    """Make runs; whatever they leave is removed, results and all."""
    made: list[DockerRun] = []

    def make(inputs: Path, run: RunSpec, *, num_nodes: int, nproc_per_node: int, cache: bool = False) -> DockerRun:
        made.append(DockerRun(image, inputs, run, num_nodes, nproc_per_node, cache))
        return made[-1]

    try:
        yield make
    finally:
        for one in made:
            one.remove()


@pytest.fixture
def docker_run(image: str) -> Iterator[Callable[..., DockerRun]]:
    """Runs of one test."""
    with makes_runs(image) as make:
        yield make
