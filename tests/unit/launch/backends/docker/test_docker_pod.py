"""A Pod as the arguments of `docker create`, and `docker inspect` as a Pod. Pure."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from rankzero.errors import ConfigError
from rankzero.launch import labels
from rankzero.launch.backend import LogLine, LogQuery
from rankzero.launch.backends.docker.command import Answer, Docker, Host
from rankzero.launch.backends.docker.evidence import POD, RESTARTS, objects_of, pod_of
from rankzero.launch.backends.docker.gpus import Had, share_gpus
from rankzero.launch.backends.docker.pod import Container, Mount, container_of, mount_option
from rankzero.launch.log_lines import Wanted
from rankzero.launch.pods import parse_pod
from tests.unit.launch.backends.docker.docker_objects import job, pod

HOST = Host(name="box", cpus=4, memory=8 * 2**30)


def option(container: Container, name: str) -> list[str]:
    return [value for key, value in zip(container.options, container.options[1:], strict=False) if key == name]


def test_options_are_those_of_the_pod() -> None:
    made = container_of(pod(1), HOST)
    assert made.name == "rankzero-tiny-1"
    assert option(made, "--hostname") == option(made, "--network-alias") == ["tiny-1"]
    assert option(made, "--stop-timeout") == ["42"]
    assert option(made, "--shm-size") == [str(2 * 2**30)]
    assert option(made, "--user") == ["1000:1000"] and option(made, "--group-add") == ["1000"]
    assert option(made, "--cap-drop") == ["ALL"] and option(made, "--security-opt") == ["no-new-privileges"]
    assert option(made, "--memory") == option(made, "--memory-swap") == [str(2**30)]
    assert option(made, "--cpus") == ["4"], "no more than there are"
    assert option(made, "--entrypoint") == ["python"] and made.command[0] == "-P"
    assert made.env == {"POD_NAME": "tiny-1", "NODE_NAME": "box", "HOME": "/tmp", "RANKZERO_NODE": "1"}
    assert made.mounts == (
        Mount("config", "config", "/etc/rankzero", read_only=True),
        Mount("scratch", "tmp", "/tmp"),
        Mount("claim", "results", "/outputs"),
    )


def test_limits_are_left_out_where_the_machine_has_none() -> None:
    made = container_of(pod(), Host("box", 4, 2**30, limits_memory=False, limits_swap=False, limits_cpu=False))
    assert not {"--memory", "--memory-swap", "--cpus"} & set(made.options)


@pytest.mark.parametrize(("limits", "size"), [({"memory": "1Gi"}, 2**30), ({"memory": "99Gi"}, 2**33), ({}, 2**32)])
def test_shared_memory_without_a_limit_is_as_large_as_memory_allows(limits: dict[str, str], size: int) -> None:
    one = pod()
    one["spec"]["containers"][0]["resources"] = {"limits": limits}
    one["spec"]["volumes"][1] = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    assert option(container_of(one, HOST), "--shm-size") == [str(size)]


def test_directories_of_this_machine_and_of_its_memory() -> None:
    one = pod()
    one["spec"]["volumes"] += [
        {"name": "data", "hostPath": {"path": "/srv/data", "type": "Directory"}},
        {"name": "fast", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ]
    one["spec"]["containers"][0]["volumeMounts"] += [
        {"name": "data", "mountPath": "/data", "subPath": "a/b", "readOnly": True},
        {"name": "fast", "mountPath": "/fast"},
    ]
    made = container_of(one, HOST)
    assert made.mounts[-1] == Mount("directory", "/srv/data/a/b", "/data", read_only=True)
    assert option(made, "--tmpfs") == [f"/fast:mode=1777,exec,size={2**30}"]


def test_arguments_alone_leave_the_image_s_entry_point() -> None:
    one = pod()
    del one["spec"]["containers"][0]["command"]
    one["spec"]["containers"][0]["args"] = ["--help"]
    made = container_of(one, HOST)
    assert "--entrypoint" not in made.options and made.command == ("--help",)


def test_everything_that_docker_cannot_play_is_named_at_once() -> None:
    one = pod()
    one["spec"]["initContainers"] = [{"name": "first"}]
    one["spec"]["volumes"].append({"name": "s", "secret": {"secretName": "s"}})
    container = one["spec"]["containers"][0]
    container["envFrom"] = [{"secretRef": {"name": "s"}}]
    container["volumeMounts"][3]["subPath"] = "inner"
    container["resources"]["limits"]["rdma/ib"] = "1"
    with pytest.raises(ConfigError) as raised:
        container_of(one, HOST)
    text = str(raised.value)
    assert all(word in text for word in ("initContainers", "secret", "envFrom", "subPath of outputs", "rdma/ib"))
    assert len(raised.value.problems) == 5


@pytest.mark.parametrize("source", [{"fieldRef": {"fieldPath": "status.podIP"}}, {"configMapKeyRef": {"name": "x"}}])
def test_a_variable_that_docker_cannot_know(source: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="env X"):
        container_of(pod(0, [{"name": "X", "valueFrom": source}]), HOST)


def test_no_gpu_is_shared() -> None:
    pods = [pod(0), pod(1), pod(2)]
    for one, count in zip(pods, (2, 0, 1), strict=True):
        if count:
            one["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = str(count)
    assert share_gpus(pods, ("0", "1", "2"), Had({}, {})) == [("0", "1"), (), ("2",)]
    with pytest.raises(ConfigError, match="ask for 3 GPUs; this machine has 2 to use"):
        share_gpus(pods, ("0", "1"), Had({}, {}))


@pytest.mark.parametrize(
    ("said", "options"),
    [
        (["name=seccomp,profile=builtin", "name=selinux", "name=cgroupns"], ["label=disable", "no-new-privileges"]),
        (["name=seccomp,profile=builtin", "name=cgroupns"], ["no-new-privileges"]),
        (None, ["no-new-privileges"]),
    ],
)
def test_selinux_does_not_keep_a_container_from_what_it_mounts(said: list[str] | None, options: list[str]) -> None:
    info = json.dumps({"Name": "box", "NCPU": 4, "MemTotal": 8 * 2**30, "SecurityOptions": said})
    host = Docker(lambda arguments, env: Answer(0, info, "")).host()
    assert sorted(option(container_of(pod(0), host), "--security-opt")) == options


def test_a_path_may_hold_a_comma() -> None:
    assert mount_option("bind", "/a,b", "/c", read_only=True) == 'type=bind,"source=/a,b",target=/c,readonly'


def inspected(asked: dict[str, Any], **state: Any) -> dict[str, Any]:
    base = {"Status": "running", "Running": True, "ExitCode": 0, "Error": "", "OOMKilled": False}
    times = {"StartedAt": "2026-01-01T00:01:00.5Z", "FinishedAt": "0001-01-01T00:00:00Z"}
    return {
        "Id": "abc",
        "Image": "sha256:1",
        "Created": "2026-01-01T00:00:00.123456789Z",
        "Config": {"Labels": {**asked["metadata"]["labels"], POD: json.dumps(asked), RESTARTS: "2"}},
        "State": {**base, **times, **state},
        "NetworkSettings": {"Networks": {"rankzero-tiny": {"IPAddress": "172.18.0.2"}}},
    }


ENDED = {"Status": "exited", "Running": False, "FinishedAt": "2026-01-01T00:02:00Z"}
CREATED = {"Status": "created", "Running": False, "StartedAt": "0001-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("state", "phase", "expected"),
    [
        ({}, "Running", {"running": {"startedAt": "2026-01-01T00:01:00Z"}}),
        (CREATED, "Pending", {"waiting": {"reason": "ContainerCreating"}}),
        (ENDED, "Succeeded", {"exitCode": 0, "reason": "Completed"}),
        ({**ENDED, "ExitCode": 75}, "Failed", {"exitCode": 75, "reason": "Error"}),
        ({**ENDED, "ExitCode": 137, "OOMKilled": True}, "Failed", {"exitCode": 137, "reason": "OOMKilled"}),
        (
            {**CREATED, "ExitCode": 127, "Error": "exec: no such file"},
            "Failed",
            {"exitCode": 127, "reason": "StartError", "message": "exec: no such file"},
        ),
    ],
)
def test_states(state: dict[str, Any], phase: str, expected: dict[str, Any]) -> None:
    found = pod_of(inspected(pod(), **state))
    assert found["status"]["phase"] == phase
    (container,) = found["status"]["containerStatuses"]
    own = container["state"].get("terminated", container["state"])
    assert {key: own[key] for key in expected} == expected
    assert container["restartCount"] == 2
    assert found["status"]["podIP"] == "172.18.0.2"


def test_the_judges_read_it_like_any_other_pod() -> None:
    message = json.dumps({"rankzero": 1, "outcome": "stopped", "exit_code": 75, "step": 7, "total_steps": 9})
    plain = parse_pod(pod_of(inspected(pod(1), **ENDED, ExitCode=75), message))
    assert (plain.node, plain.role, plain.phase, plain.restarts) == (1, "node", "Failed", 2)
    assert plain.ended is not None and plain.ended.words is not None
    assert (plain.ended.code, plain.ended.words.step) == (75, 7)
    assert plain.ended.finished is not None and plain.created is not None


def test_the_preparation_is_a_job_too() -> None:
    asked = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(job()["spec"]["template"])}
    asked["metadata"]["name"] = "tiny-prepare"
    pods = [pod_of(inspected(asked, **ENDED, ExitCode=65)), pod_of(inspected(pod(), **CREATED))]
    config, made = objects_of("tiny", pods, tries_again=False)
    assert config["kind"] == "ConfigMap" and labels.ROLE not in config["metadata"]["labels"]
    assert (made["kind"], made["metadata"]["name"]) == ("Job", "tiny-prepare")
    assert made["status"]["conditions"][0]["type"] == "Failed" and made["status"]["failed"] == 1


def test_which_lines_are_those_of_a_rank() -> None:
    wanted = Wanted.of(LogQuery(rank=3), 2)
    assert wanted.pod("node", 1) and not wanted.pod("node", 0)
    assert not wanted.pod("prepare", 1)
    lines = ["no rank", "[rank 3] x", "[local rank 1] x", "12:00:00 [rank 2] x", "[local rank 0] x"]
    kept = [text for text in lines if wanted.line(LogLine(1, "tiny-1", "node", text))]
    assert kept == ["[rank 3] x", "[local rank 1] x"]
    first = Wanted.of(LogQuery(rank=2), 2)
    assert [text for text in lines if first.line(LogLine(1, "tiny-1", "node", text))] == [
        *("no rank", "12:00:00 [rank 2] x", "[local rank 0] x"),
    ]
    none = Wanted.of(LogQuery(rank=3, node=0), 2)
    assert not any(none.pod("node", node) for node in (0, 1))
