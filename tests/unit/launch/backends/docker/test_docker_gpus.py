"""GPUs of several runs on one machine: docker gives each container those that it is asked for, and keeps no account."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rankzero.errors import ConfigError, ServiceError
from rankzero.launch import labels
from rankzero.launch.backends.docker.backend import DockerBackend
from rankzero.launch.backends.docker.command import Answer, Docker
from rankzero.launch.backends.docker.gpus import had
from tests.unit.launch.backends.docker.docker_objects import Manifest, objects, pod
from tests.unit.launch.backends.docker.fake_docker import Daemon


@pytest.fixture
def backend(daemon: Daemon) -> DockerBackend:
    """Of a machine with three GPUs."""
    docker = Docker(lambda arguments, env: Answer(*daemon.execute(arguments, env)))
    return DockerBackend(docker, gpus=lambda env: ("0", "1", "2"))


def run_of(name: str, *counts: int, prepare: bool = False) -> list[Manifest]:
    """A run whose nodes ask for so many GPUs."""
    pods = [pod(node) for node in range(len(counts))]
    for one, count in zip(pods, counts, strict=True):
        one["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = str(count)
    every = objects(*pods, prepare=prepare)
    for one in every:
        metadata = one["metadata"]
        if labels.RUN in metadata.get("labels", {}):
            metadata["name"] = metadata["name"].replace("tiny", name)
            metadata["labels"][labels.RUN] = name
    templates = [one["spec"]["template"] for one in every if one["kind"] == "Job"]
    for one in templates:
        one["metadata"]["labels"][labels.RUN] = name
    for one in [*templates, *(one for one in every if one["kind"] == "Pod")]:
        one["spec"]["volumes"][0]["configMap"]["name"] = name
    return every


def devices(daemon: Daemon, container: str) -> list[str]:
    (request,) = daemon.container(f"rankzero-{container}")["HostConfig"]["DeviceRequests"]
    found: list[str] = request["DeviceIDs"]
    return found


def test_a_run_gets_gpus_that_no_other_run_has(daemon: Daemon, backend: DockerBackend) -> None:
    said: list[str] = []
    for name in ("a", "b"):
        backend.submit(run_of(name, 1), said.append)
    assert [devices(daemon, one) for one in ("a-0", "b-0")] == [["0"], ["1"]]
    daemon.finish("rankzero-a-0", 0)
    backend.submit(run_of("c", 1, 1), said.append)
    assert [devices(daemon, one) for one in ("c-0", "c-1")] == [["0"], ["2"]]
    assert not [line for line in said if "shared" in line]


def test_gpus_are_shared_where_too_few_are_free_and_that_is_said(daemon: Daemon, backend: DockerBackend) -> None:
    said: list[str] = []
    backend.submit(run_of("a", 2), said.append)
    backend.submit(run_of("b", 1), said.append)
    told = "GPU 0 of this machine is shared with the run a: no other is free"
    assert "shared" not in dict(backend.survey(run_of("b", 1)).has)["rights"], "it is there already"
    assert dict(backend.survey(run_of("c", 1)).has)["rights"].endswith(told)
    backend.submit(run_of("c", 1), said.append)
    assert devices(daemon, "c-0") == ["0"] and told in said
    assert "shared with the runs a, b, c" in dict(backend.survey(run_of("d", 3)).has)["rights"]
    with pytest.raises(ConfigError, match="ask for 4 GPUs; this machine has 3 to use"):
        backend.submit(run_of("d", 4), said.append)


def test_a_node_that_is_replaced_gets_no_gpu_of_those_that_stay(daemon: Daemon, backend: DockerBackend) -> None:
    said: list[str] = []
    backend.submit(run_of("a", 1), said.append)
    backend.submit(run_of("b", 1, 1), said.append)
    assert [devices(daemon, one) for one in ("b-0", "b-1")] == [["1"], ["2"]]
    for ended in ("a-0", "b-1"):
        daemon.finish(f"rankzero-{ended}", 137)
    backend.submit(run_of("b", 1, 1), said.append)
    assert [devices(daemon, one) for one in ("b-0", "b-1")] == [["1"], ["0"]]


def test_a_run_that_is_being_prepared_has_its_gpus_already(daemon: Daemon, backend: DockerBackend) -> None:
    """Its containers are made, and start when it is prepared. Of one whose submit was ended they never do."""
    daemon.behave(refuses={"start": "a submit that was killed got as far as this"})
    with pytest.raises(ServiceError):
        backend.submit(run_of("a", 1, prepare=True), lambda line: None)
    containers = Docker(lambda arguments, env: Answer(*daemon.execute(arguments, env))).containers(labels.RUN)
    made = datetime(2026, 1, 1, 0, 0, 9, tzinfo=UTC)
    assert had(containers, "b", "", made).others == {"0": ("a",)}
    assert had(containers, "b", "", made + timedelta(days=1)).others == {}
