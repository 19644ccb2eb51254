"""What docker could not look up is not taken for what is not there: nothing follows from it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rankzero.errors import ConfigError, ServiceError
from rankzero.launch.backends.docker.backend import DockerBackend
from rankzero.launch.backends.docker.command import Answer, Docker, Kind
from tests.unit.launch.backends.docker.conftest import NODES, Submit, states
from tests.unit.launch.backends.docker.docker_objects import objects, pod
from tests.unit.launch.backends.docker.fake_docker import Daemon

UNREACHED = 'error during connect: Get "http://docker.example.com/v1.47/info": command [ssh] has exited with status 255'


@pytest.mark.parametrize("message", ["get rankzero-results: context deadline exceeded", "Internal Error", UNREACHED])
def test_a_volume_that_docker_could_not_look_up_keeps_what_is_noted_of_it(
    daemon: Daemon, submit: Submit, backend: DockerBackend, message: str
) -> None:
    submit()
    backend.delete("tiny", claims=False, say=print)
    other = pod(0)
    other["metadata"]["labels"]["rankzero.dev/run"] = "other"
    submit(other)
    daemon.behave(refuses={"volume inspect": message})
    for claims in (False, True):
        with pytest.raises(ServiceError, match=message.split(":")[0]):
            backend.delete("other", claims=claims, say=print)
    with pytest.raises(ServiceError):
        submit(other, replace=True)
    daemon.behave()
    said: list[str] = []
    backend.delete("other", claims=True, say=said.append)
    assert any("is also used by the run tiny, whose results may be on it; kept" in line for line in said)
    assert "rankzero-results" in daemon.state["volumes"]


def test_the_notes_of_a_volume_that_is_gone_go_with_it(daemon: Daemon, submit: Submit, backend: DockerBackend) -> None:
    submit()
    volumes = daemon.state["volumes"]
    del volumes["rankzero-results"]
    daemon.change(volumes=volumes)
    backend.delete("tiny", claims=False, say=print)
    assert not daemon.state["volumes"]


ABSENT = {
    "volume": [
        "Error: No such volume: results",
        "Error response from daemon: get results: no such volume",
        "Error response from daemon: volume results not found",
        'Error: inspecting object: no volume with name "results" found: no such volume',
        "Emulate Docker CLI using podman.\nError: no such volume results",
    ],
    "network": [
        "Error: No such network: results",
        "Error response from daemon: network results not found",
        "Error: network results: unable to find network with name or ID results: network not found",
        "Error: no such network results",
    ],
    "image": [
        "Error: No such image: results",
        "Error response from daemon: No such image: results:latest",
        "Error response from daemon: invalid reference format: repository name (library/Results) must be lowercase",
        "Error: results: image not known",
        'Error: unable to inspect "results": no such image',
    ],
}


@pytest.mark.parametrize(("kind", "said"), [(kind, said) for kind, every in ABSENT.items() for said in every])
def test_versions_of_docker_and_podman_say_that_there_is_none(kind: Kind, said: str) -> None:
    assert Docker(lambda arguments, env: Answer(1, "[]\n", said)).look_up(kind, "results") is None


@pytest.mark.parametrize("kind", ABSENT)
def test_what_docker_could_not_look_up_is_not_away(kind: Kind) -> None:
    said = f"Error response from daemon: {kind} results: context deadline exceeded"
    with pytest.raises(ServiceError, match="deadline"):
        Docker(lambda arguments, env: Answer(1, "[]\n", said)).look_up(kind, "results")


@pytest.mark.parametrize("message", ["context deadline exceeded", "Internal Server Error", UNREACHED])
def test_containers_that_docker_could_not_describe_are_not_away(
    daemon: Daemon, submit: Submit, backend: DockerBackend, message: str
) -> None:
    submit()
    daemon.behave(refuses={"inspect": message})
    calls: list[Callable[[], object]] = [
        backend.runs,
        lambda: backend.collect("tiny"),
        lambda: backend.cancel("tiny", print),
        lambda: backend.delete("tiny", claims=False, say=print),
        lambda: backend.submit(objects(pod(0)), print),
        lambda: backend.execute("tiny-0", ["true"], lambda _data: None),
    ]
    for call in calls:
        with pytest.raises(ServiceError, match=message.split(":")[0]) as refused:
            call()
        assert "does not run" not in str(refused.value)
    assert states(daemon) == dict.fromkeys(NODES, "running") and daemon.state["networks"]


FOUND = '[{"Id": "0aaa", "Name": "/first"}]'


@pytest.mark.parametrize(
    "said",
    [
        "Error: No such container: 1bbb",
        "WARNING: Error loading config file: config.json\nError response from daemon: No such container: 1bbb",
        'Error: inspecting object: no such container "1bbb"',
        'Error: no container with name or ID "1bbb" found: no such container',
        'Error: no such object: "1bbb"',
    ],
)
def test_a_container_that_was_removed_while_docker_looked_is_none(said: str) -> None:
    docker = Docker(lambda arguments, env: Answer(1, FOUND, said))
    assert [one["Id"] for one in docker.inspect("0aaa", "1bbb")] == ["0aaa"]
    with pytest.raises(ServiceError, match="docker inspect"):
        docker.inspect("0aaa", "1bbb", "2ccc")


def test_a_network_that_docker_could_not_look_up_is_not_left_behind(
    daemon: Daemon, submit: Submit, backend: DockerBackend
) -> None:
    submit()
    daemon.behave(refuses={"network inspect": "context deadline exceeded"})
    with pytest.raises(ServiceError, match="deadline"):
        backend.delete("tiny", claims=False, say=print)
    daemon.behave()
    assert "network rankzero-tiny" in backend.delete("tiny", claims=False, say=print)


def test_an_image_that_docker_could_not_look_up_is_not_said_to_be_away(daemon: Daemon, submit: Submit) -> None:
    daemon.behave(refuses={"image inspect": "context deadline exceeded"})
    with pytest.raises(ServiceError, match="deadline"):
        submit()


def test_podman_in_dockers_place_is_named_with_the_way_to_use_it() -> None:
    """`podman info` has other fields than docker's."""
    said = '{"host": {"hostname": "box", "cpus": 4, "memTotal": 1}, "store": {}, "registries": {}, "version": {}}'
    with pytest.raises(ConfigError, match=r"is podman[\s\S]*DOCKER_HOST=unix://"):
        Docker(lambda arguments, env: Answer(0, said, "")).host()


def test_a_docker_that_a_signal_ended_says_which() -> None:
    docker = Docker(lambda arguments, env: Answer(-9, '[{"Id": "0a', ""))
    for call in (lambda: docker.call("ps"), lambda: docker.inspect("0aaa"), lambda: docker.look_up("volume", "a")):
        with pytest.raises(ServiceError, match="was ended by SIGKILL"):
            call()
