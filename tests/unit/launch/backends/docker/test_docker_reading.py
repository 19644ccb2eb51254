"""A docker volume read through a container that is there meanwhile."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest

from rankzero.errors import ConfigError, ServiceError
from rankzero.launch.backends.docker.backend import DockerBackend
from rankzero.launch.backends.docker.command import Answer, Docker
from rankzero.launch.render.reader import reader_pod
from rankzero.spec.cluster_spec import ClusterSpec
from tests.support.volume import run_python


class Daemon:
    """Remembers what it is asked, and runs what is executed."""

    def __init__(self, *volumes: str) -> None:
        self.volumes, self.calls = volumes, []  # type: tuple[str, ...], list[list[str]]
        self.running: str | None = None
        self.removing = set[str]()
        """Those that have ended, whose names docker does not give again before it is through with them."""
        self.options: list[str] = []
        self.refusal = "Error response from daemon: get rankzero-outputs: no such volume"

    def __call__(self, arguments: Sequence[str], _env: Mapping[str, str]) -> Answer:
        _, verb, *rest = arguments
        self.calls.append([verb, *rest])
        if verb == "volume":
            there = rest[-1] in self.volumes
            return Answer(0, "[{}]", "") if there else Answer(1, "[]", f"{self.refusal}\n")
        if verb == "info":
            return Answer(0, json.dumps({"Name": "box", "NCPU": 1, "MemTotal": 1, "SecurityOptions": self.options}), "")
        if verb == "run":
            name = rest[rest.index("--name") + 1]
            if name in {self.running, *self.removing}:
                return Answer(125, "", f'Conflict. The container name "/{name}" is already in use by container "x".')
            self.running = name
        if verb == "rm" and rest[-1] in self.removing:
            return Answer(1, "", f"Error response from daemon: removal of container {rest[-1]} is already in progress")
        if verb == "rm" and rest[-1] == self.running:
            self.running = None
        if verb == "inspect":
            running = '[{"State": {"Running": true}}]'
            there = rest[-1] == self.running
            return Answer(0, running, "") if there else Answer(1, "[]", f"Error: No such container: {rest[-1]}")
        if verb == "exec" and rest[0] != self.running:
            return Answer(1, "", f"Error response from daemon: No such container: {rest[0]}")
        if verb == "exec":
            try:
                return Answer(0, run_python(rest[1:]), "")
            except ServiceError as error:
                return Answer(1, "", str(error))
        return Answer(0, "", "")

    def end(self) -> None:
        """What runs ends by itself."""
        assert self.running is not None
        self.removing.add(self.running)
        self.running = None


def cluster(**storage: object) -> ClusterSpec:
    place = {"image": "i", "kind": "docker", "storage": {"outputs": {"mount": "/outputs", **storage}}}
    return ClusterSpec.model_validate(place)


def test_a_container_reads_the_volume_and_is_removed() -> None:
    daemon = Daemon("rankzero-outputs")
    pod = reader_pod(cluster(claim="outputs"), "pull-1")
    with DockerBackend(Docker(daemon)).reading(pod, print) as execute:
        assert execute(["python", "-P", "-c", "print('héllo')"]) == "héllo\n"
        with pytest.raises(ServiceError, match="ZeroDivisionError"):
            execute(["python", "-P", "-c", "1 / 0"])
    run = next(call for call in daemon.calls if call[0] == "run")
    assert run[run.index("--mount") + 1] == "type=volume,source=rankzero-outputs,target=/outputs,readonly"
    assert run[run.index("--user") + 1] == "1000:1000" and run[run.index("--network") + 1] == "none"
    assert daemon.calls[-1] == ["rm", "--force", "rankzero-pull-1"]


def test_a_container_that_ends_before_all_is_read_is_followed_by_another_one() -> None:
    """It ends by itself after an hour."""
    daemon, said = Daemon("rankzero-outputs"), list[str]()
    pod = reader_pod(cluster(claim="outputs"), "pull-1")
    with DockerBackend(Docker(daemon)).reading(pod, said.append) as execute:
        assert execute(["python", "-P", "-c", "print(1)"]) == "1\n"
        for number in (2, 3):
            daemon.end()
            assert execute(["python", "-P", "-c", f"print({number})"]) == f"{number}\n"
    names = ["rankzero-pull-1", "rankzero-pull-1-2", "rankzero-pull-1-3"]
    first, *others = (call for call in daemon.calls if call[0] == "run")
    for name, other in zip(names[1:], others, strict=True):
        assert other == [name if word == names[0] else word for word in first]
    assert [call[-1] for call in daemon.calls if call[0] == "rm"] == names and daemon.running is None
    assert said == [f"the container {name} has ended; another one reads on" for name in names[:2]]


@pytest.mark.parametrize("options", [["name=seccomp,profile=builtin"], ["name=selinux"]])
def test_a_directory_of_this_machine(options: list[str]) -> None:
    daemon = Daemon()
    daemon.options = options
    with DockerBackend(Docker(daemon)).reading(reader_pod(cluster(host_path="/srv/runs"), "pull-1"), print):
        pass
    run = next(call for call in daemon.calls if call[0] == "run")
    assert "type=bind,source=/srv/runs,target=/outputs,readonly" in run
    assert ("label=disable" in run) == (options == ["name=selinux"])


def test_a_volume_that_is_not_there_is_not_made() -> None:
    daemon = Daemon()
    pod = reader_pod(cluster(claim="outputs"), "pull-1")
    with pytest.raises(ConfigError, match="no docker volume"), DockerBackend(Docker(daemon)).reading(pod, print):
        pytest.fail("it read an empty volume")
    assert not [call for call in daemon.calls if call[0] == "run"]


def test_a_volume_that_docker_could_not_look_up_is_not_said_to_be_away() -> None:
    daemon = Daemon()
    daemon.refusal = "Error response from daemon: get rankzero-outputs: context deadline exceeded"
    pod = reader_pod(cluster(claim="outputs"), "pull-1")
    with pytest.raises(ServiceError, match="deadline"), DockerBackend(Docker(daemon)).reading(pod, print):
        pytest.fail("it read what it knows nothing of")
