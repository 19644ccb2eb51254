"""Looking at runs on docker, stopping and removing them; a docker command that only records."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rankzero.errors import AccessError, ConfigError, ServiceError
from rankzero.launch import kinds, labels
from rankzero.launch.backend import AlreadyRunsError, Ended, LogLine, LogQuery
from rankzero.launch.backends.docker.backend import DockerBackend
from rankzero.launch.backends.docker.command import Answer, Docker
from rankzero.launch.backends.docker.create import Creation
from rankzero.launch.backends.docker.pod import Container
from rankzero.launch.backends.preparation import PreparationError
from rankzero.launch.silence import SilentError
from rankzero.launch.status import run_status, summarise
from tests.support.nvidia_smi import four_gpus
from tests.unit.launch.backends.docker.conftest import NODES, Submit, states
from tests.unit.launch.backends.docker.docker_objects import objects, pod
from tests.unit.launch.backends.docker.fake_docker import VARIABLE, Daemon, end, find, opened, start
from tests.unit.launch.backends.docker.test_docker_absent import UNREACHED
from tests.unit.launch.backends.kubernetes.runs import objects as rendered


def test_evidence_is_in_the_api_s_shapes(daemon: Daemon, submit: Submit, backend: DockerBackend) -> None:
    daemon.behave(says={NODES[1]: [f"2026-01-01T00:00:{second:02}.5Z line {second}" for second in range(9)]})
    submit()
    message = '{"rankzero": 1, "outcome": "stopped", "exit_code": 75}'
    daemon.finish(NODES[0], 75, message)
    daemon.finish(NODES[1], 1)
    evidence = backend.collect("tiny", log_lines=2)
    first, second = evidence.pods
    assert [kinds.node_index(one) for one in evidence.pods] == [0, 1]
    assert first["status"]["phase"] == "Failed"
    ended = first["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ended == {
        **{"exitCode": 75, "reason": "Error", "message": message},
        **{"startedAt": "2026-01-01T00:01:00Z", "finishedAt": "2026-01-01T00:02:00Z"},
    }
    assert second["status"]["containerStatuses"][0]["state"]["terminated"]["message"].endswith("line 7\nline 8")
    assert evidence.logs["tiny-1"].splitlines()[-1] == "2026-01-01T00:00:08.500000Z line 8"
    assert len(evidence.logs["tiny-1"].splitlines()) == 2
    (config,) = evidence.objects
    assert config["metadata"]["labels"][labels.RUN] == "tiny" and "data" not in config
    assert evidence.nodes is None and evidence.events == ()


def test_runs_lists_every_run_once(daemon: Daemon, submit: Submit, backend: DockerBackend) -> None:
    submit()
    (evidence,) = backend.runs()
    assert evidence.run == "tiny" and len(evidence.pods) == 2
    assert not daemon.calls("logs"), "no logs for a list"


def test_a_survey_says_that_another_spec_s_run_is_up(daemon: Daemon, submit: Submit, backend: DockerBackend) -> None:
    submit()
    assert isinstance(backend.survey(objects(pod(0))).refused, AlreadyRunsError)
    assert backend.survey(objects(pod(0), pod(1))).refused is None


@pytest.mark.parametrize(
    ("shown", "count", "name", "memory"),
    [
        ("0", "1 GPU", "NVIDIA H100", 81559 << 20),
        ("2,3", "2 GPUs", "NVIDIA H100, NVIDIA T4", 15360 << 20),
        ("MIG-part-of-one", "1 GPU", "", 0),
        ("0,MIG-part-of-one", "2 GPUs", "", 0),
        ("", "0 GPUs", "", 0),
    ],
)
def test_a_survey_counts_the_gpus_that_a_run_would_get(
    daemon: Daemon, tmp_path: Path, shown: str, count: str, name: str, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of parts of GPUs the driver says nothing."""
    monkeypatch.setenv("PATH", str(four_gpus(tmp_path)), prepend=os.pathsep)
    docker = Docker(lambda arguments, env: Answer(*daemon.execute(arguments, env)))
    found = DockerBackend(docker, env={**os.environ, "CUDA_VISIBLE_DEVICES": shown}).survey(objects(pod(0)))
    assert dict(found.has)["nodes"].endswith(f"GB of memory, {count}")
    assert (found.gpu, found.gpu_bytes) == (name, memory)


def test_a_directory_that_is_not_there_is_told_before_anything_is_made(
    daemon: Daemon, backend: DockerBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mounting = pod(0)
    mounting["spec"]["volumes"].append({"name": "data", "hostPath": {"path": f"{tmp_path}/data"}})
    mounting["spec"]["containers"][0]["volumeMounts"].append({"name": "data", "mountPath": "/data"})
    assert backend.survey(objects(mounting)).refused is None, "the daemon is another machine's"
    monkeypatch.setattr("socket.gethostname", lambda: "box")
    marks = "rankzero.launch.backends.docker.submit._IN_A_CONTAINER"
    monkeypatch.setattr(marks, (str(tmp_path),))
    assert backend.survey(objects(mounting)).refused is None, "a container has directories of its own"
    monkeypatch.setattr(marks, ())
    with pytest.raises(ConfigError, match="there is no such directory on this machine"):
        backend.submit(objects(mounting), lambda line: None)
    assert isinstance(backend.survey(objects(mounting)).refused, ConfigError) and not daemon.state["volumes"]
    (tmp_path / "data").mkdir()
    assert backend.survey(objects(mounting)).refused is None


def test_what_does_not_exist_has_no_evidence(daemon: Daemon, backend: DockerBackend) -> None:
    evidence = backend.collect("nothing")
    assert evidence.objects == () and evidence.pods == ()
    assert backend.delete("nothing", claims=True, say=lambda line: None) == []


def test_logs_are_merged_by_time(daemon: Daemon, submit: Submit, backend: DockerBackend) -> None:
    says = {name: [f"2026-01-01T00:00:0{2 * k + n}Z {n}:{k}" for k in range(3)] for n, name in enumerate(NODES)}
    daemon.behave(says=says)
    submit()
    texts = [line.text for line in backend.logs("tiny", LogQuery())]
    assert texts == ["0:0", "1:0", "0:1", "1:1", "0:2", "1:2"]
    assert [line.text for line in backend.logs("tiny", LogQuery(node=1))] == ["1:0", "1:1", "1:2"]
    assert [line.text for line in backend.logs("tiny", LogQuery(tail=1))] == ["0:2", "1:2"]
    assert [line.text for line in backend.logs("tiny", LogQuery(rank=2, tail=2))] == ["1:1", "1:2"]
    assert [line.text for line in backend.logs("tiny", LogQuery(rank=3))] == []
    first = next(iter(backend.logs("tiny", LogQuery())))
    assert (first.node, first.pod, first.role) == (0, "tiny-0", "node") and first.time is not None


@pytest.mark.parametrize("there", [True, False])
def test_logs_that_docker_does_not_read_are_not_silence(
    there: bool, daemon: Daemon, submit: Submit, backend: DockerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A logging driver that keeps nothing here; what was removed meanwhile says nothing more, and that is all."""
    daemon.behave(unread="configured logging driver does not support reading")
    submit()
    daemon.finish(NODES[0], 0)
    if not there:
        monkeypatch.setattr(backend._docker, "inspect", lambda *names: [])
        assert list(backend.logs("tiny", LogQuery())) == []
        return
    with pytest.raises(ServiceError, match="docker logs: .*does not support reading"):
        list(backend.logs("tiny", LogQuery()))
    evidence = backend.collect("tiny")
    assert "does not support reading" in evidence.logs["tiny-0"] and len(evidence.pods) == 2
    daemon.finish(NODES[1], 0)
    told = [line.text for line in backend.logs("tiny", LogQuery(follow=True))]
    assert len(told) == 2 and all("docker logs: " in text and "does not support reading" in text for text in told)


def test_following_waits_for_containers_that_are_about_to_start(
    daemon: Daemon, submit: Submit, backend: DockerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.behave(refuses={"start": "not now"}, says={NODES[0]: ["2026-01-01T00:00:00Z at last"]})
    with pytest.raises(ServiceError):
        submit(pod(0))
    monkeypatch.setattr("rankzero.launch.backends.docker.backend.POLL_SECONDS", 0.01)
    monkeypatch.setattr("rankzero.launch.backends.docker.backend._now", lambda: LATER.replace(hour=0))
    lines: list[LogLine] = []
    waited = threading.Event()
    look = backend._containers

    def watched(run: str) -> list[dict[str, Any]]:
        found = look(run)
        waited.set()
        return found

    monkeypatch.setattr(backend, "_containers", watched)
    thread = threading.Thread(target=lambda: lines.extend(backend.logs("tiny", LogQuery(follow=True))), daemon=True)
    thread.start()
    assert waited.wait(300)
    state = daemon.state["behaviour"]
    daemon.behave(ends={NODES[0]: [[0]]}, says=state["says"])
    os.spawnvp(os.P_WAIT, "docker", ["docker", "start", NODES[0]])
    thread.join(300)
    assert [line.text for line in lines] == ["at last"]


PREPARE = "rankzero-tiny-prepare"
LATER = datetime(2026, 1, 1, 5, tzinfo=UTC)
"""Hours after all that the daemon tells of."""


@pytest.fixture
def preparing(submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose preparation runs, and whose submit was ended by Ctrl-C: nobody will start its nodes."""

    def begun(docker: Docker, creation: Creation, prepare: Container, _attempts: int, _say: object) -> str:
        creation.container(prepare, restarts=0)
        docker.call("start", prepare.name)
        raise KeyboardInterrupt

    monkeypatch.setattr("rankzero.launch.backends.docker.submit._prepare", begun)
    monkeypatch.setattr("rankzero.launch.backends.docker.backend._now", lambda: LATER)
    monkeypatch.setattr("rankzero.launch.backends.docker.backend.POLL_SECONDS", 0.01)
    with pytest.raises(KeyboardInterrupt):
        submit(prepare=True)


def test_nodes_are_not_waited_for_while_the_preparation_runs(
    preparing: None, daemon: Daemon, backend: DockerBackend
) -> None:
    assert states(daemon) == {**dict.fromkeys(NODES, "created"), PREPARE: "running"}
    seen = run_status(backend.collect("tiny"))
    assert (seen.phase, seen.findings, seen.nodes) == ("Preparing", (), ())
    assert [one.phase for one in summarise(backend.runs())] == ["Preparing"]
    daemon.finish(PREPARE, 75, '{"rankzero": 1, "outcome": "stopped", "exit_code": 75}')
    seen = run_status(backend.collect("tiny"))
    assert (seen.phase, seen.exit_code) == ("Stopped", 75)


def test_nodes_that_nobody_starts_after_it_are_said(preparing: None, daemon: Daemon, backend: DockerBackend) -> None:
    daemon.finish(PREPARE, 0)
    seen = run_status(backend.collect("tiny"))
    (finding,) = seen.findings
    assert (finding.code, finding.severity) == ("pod-pending", "broken")
    assert "has not been started" in seen.verdict and "`rankzero submit`" in finding.fix
    assert "kubectl" not in finding.fix and "host" not in finding.cause


def follow(backend: DockerBackend) -> tuple[threading.Thread, list[str]]:
    lines: list[str] = []
    told = threading.Thread(
        target=lambda: lines.extend(line.text for line in backend.logs("tiny", LogQuery(follow=True))), daemon=True
    )
    told.start()
    return told, lines


def test_following_ends_where_nobody_starts_the_nodes(preparing: None, daemon: Daemon, backend: DockerBackend) -> None:
    daemon.behave(says={PREPARE: ["2026-01-01T00:00:00.1Z fetched"]})
    daemon.finish(PREPARE, 75)
    told, lines = follow(backend)
    told.join(300)
    assert not told.is_alive() and lines == ["fetched"]


@pytest.mark.parametrize("moment", ["it runs", "it has ended just now"])
def test_following_goes_on_where_the_nodes_are_about_to_start(
    preparing: None, daemon: Daemon, backend: DockerBackend, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.behave(says={NODES[0]: ["2026-01-01T00:00:00.1Z at last"]})
    if moment != "it runs":
        daemon.finish(PREPARE, 0)
        monkeypatch.setattr("rankzero.launch.backends.docker.backend._now", lambda: LATER.replace(hour=0, minute=2))
    looks: list[int] = []
    look = backend._containers

    def watched(run: str) -> list[dict[str, Any]]:
        looks.append(1)
        if len(looks) == 5:
            with opened(Path(os.environ[VARIABLE])) as state:
                for name in NODES:
                    start(state, [name])
                    end(find(state, name), 0)
                if moment == "it runs":
                    end(find(state, PREPARE), 0)
        return look(run)

    monkeypatch.setattr(backend, "_containers", watched)
    told, lines = follow(backend)
    told.join(300)
    assert not told.is_alive() and lines == ["at last"]


def test_status_and_logs_agree_at_each_step_of_a_submit(
    daemon: Daemon, backend: DockerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its preparation takes half an hour and fails once; at each moment somebody looks, and five hours later too."""
    daemon.behave(ends={PREPARE: [[69], [0]]})
    pending: list[bool] = []
    seen: list[tuple[str, str]] = []

    def look(ask: Callable[[], tuple[dict[str, object], bool]], _seconds: float, **_options: object) -> Iterator[str]:
        pending.append(ask()[1])
        return iter(())

    monkeypatch.setattr("rankzero.launch.backends.docker.backend.followed", look)
    looker = DockerBackend(Docker(lambda arguments, env: Answer(*daemon.execute(arguments, env))))

    def to_come(now: datetime) -> bool:
        monkeypatch.setattr("rankzero.launch.backends.docker.backend._now", lambda: now)
        list(looker.logs("tiny", LogQuery(follow=True)))
        told = run_status(looker.collect("tiny", log_lines=0))
        going_on = not told.is_over and not any(one.severity == "broken" for one in told.findings)
        assert going_on == pending[-1], (now, seen[-1:], told.phase, told.findings)
        return going_on

    def execute(arguments: Sequence[str], env: Mapping[str, str]) -> Answer:
        answer = Answer(*daemon.execute(arguments, env))
        seen.append((arguments[1], arguments[-1]))
        began = ("start", PREPARE) in seen
        with opened(Path(os.environ[VARIABLE])) as state:
            for one in state["containers"].values() if began else ():
                long_ago = one["State"]["Status"] == "exited" or one["Name"][1:] in NODES
                one["Created"] = "2025-12-31T23:30:00Z" if long_ago else "2026-01-01T00:02:05Z"
        if len(daemon.names()) >= 2 and arguments[1:] != ["start", *NODES]:
            assert to_come(datetime(2026, 1, 1, 0, 2 if began else 0, 10, tzinfo=UTC)), seen
            assert not to_come(LATER), seen
        return answer

    wanted = objects(prepare=True)
    DockerBackend(Docker(execute), gpus=lambda env: ("0", "1")).submit(wanted, print)
    assert len(pending) > 12 and states(daemon)[NODES[0]] == "running"


def test_a_preparation_that_nobody_tries_again_has_failed_at_once(daemon: Daemon, backend: DockerBackend) -> None:
    daemon.behave(ends={PREPARE: [[69], [69]]})
    with pytest.raises(PreparationError):
        backend.submit(objects(prepare=True), print)
    told = run_status(backend.collect("tiny"))
    assert (told.phase, told.exit_code, told.is_over) == ("Failed", 69, True)


def test_cancel_stops_and_keeps_everything(daemon: Daemon, submit: Submit, backend: DockerBackend) -> None:
    submit()
    said: list[str] = []
    backend.cancel("tiny", said.append)
    assert said == ["2 containers are told to stop; they save and leave within 42 s"]
    assert states(daemon) == dict.fromkeys(NODES, "exited")
    assert daemon.state["volumes"] and daemon.state["networks"]
    submit()
    assert states(daemon) == dict.fromkeys(NODES, "running")


def test_delete_removes_all_but_claims(daemon: Daemon, submit: Submit, backend: DockerBackend, tmp_path: Path) -> None:
    submit()
    removed = backend.delete("tiny", claims=False, say=lambda line: None)
    assert daemon.calls("stop"), "with the grace period"
    assert not daemon.names() and not daemon.state["networks"]
    assert list(daemon.state["volumes"]) == ["rankzero-results", "rankzero-results.used-by.tiny"]
    assert not list((tmp_path / "state" / "rankzero" / "docker").iterdir())
    assert {"container rankzero-tiny-0", "network rankzero-tiny", "volume rankzero-tiny-0.tmp"} <= set(removed)


def test_delete_removes_claims_where_asked_and_names_those_in_use(
    daemon: Daemon, submit: Submit, backend: DockerBackend
) -> None:
    submit()
    daemon.behave(refuses={"volume rm rankzero-results": "volume is in use - [abc]"})
    with pytest.raises(ServiceError, match="in use"):
        backend.delete("tiny", claims=True, say=lambda line: None)
    assert not daemon.names(), "the rest is gone"
    daemon.behave()
    submit()
    assert "volume rankzero-results" in backend.delete("tiny", claims=True, say=lambda line: None)


def test_volumes_of_others_stay(daemon: Daemon, submit: Submit, backend: DockerBackend) -> None:
    """Whoever made a volume by hand, for a claim without a size, keeps it."""
    daemon.change(volumes={"rankzero-results": {}})
    submit()
    said: list[str] = []
    removed = backend.delete("tiny", claims=True, say=said.append)
    assert list(daemon.state["volumes"]) == ["rankzero-results"] and "volume rankzero-results" not in removed
    assert "volume rankzero-results was not made by rankzero; kept" in said


def test_volumes_that_another_run_uses_stay(daemon: Daemon, submit: Submit, backend: DockerBackend) -> None:
    submit()
    mount = "type=volume,source=rankzero-results,target=/outputs"
    other = {"Id": "id9", "Name": "/rankzero-other-0", "State": {"Running": False, "Status": "exited"}}
    other |= {"Config": {"Labels": {}}, "fake": {"options": {"--mount": [mount]}}}
    daemon.change(containers={**daemon.state["containers"], "id9": other})
    said: list[str] = []
    backend.delete("tiny", claims=True, say=said.append)
    assert list(daemon.state["volumes"]) == ["rankzero-results"]
    assert "volume rankzero-results is also used by container rankzero-other-0; kept" in said


def test_volumes_with_results_of_a_run_that_was_deleted_stay(
    daemon: Daemon, submit: Submit, backend: DockerBackend
) -> None:
    submit()
    backend.delete("tiny", claims=False, say=print)
    other = pod(0)
    other["metadata"]["labels"]["rankzero.dev/run"] = "other"
    submit(other)
    said: list[str] = []
    backend.delete("other", claims=True, say=said.append)
    users = "volume rankzero-results is also used by the run tiny, whose results may be on it; kept"
    every = "rankzero-results rankzero-results.used-by.tiny"
    assert f"{users} (`docker volume rm {every}` removes it all the same)" in said
    submit()
    assert "volume rankzero-results" in backend.delete("tiny", claims=True, say=said.append)
    assert not daemon.state["volumes"]


def test_a_file_that_was_cut_keeps_no_run_from_being_deleted(
    daemon: Daemon, backend: DockerBackend, tmp_path: Path
) -> None:
    """A machine that went down, or a full disk, leaves empty files."""
    state = tmp_path / "state" / "rankzero" / "docker"
    wanted = rendered(name="tiny", kind="docker", image="rankzero:test")
    backend.submit(wanted, print)
    files = sorted(str(path.relative_to(state)) for path in state.rglob("*") if path.is_file())
    assert any(name.endswith("node.json") for name in files)
    for name in files:
        backend.submit(wanted, print)
        (state / name).write_bytes(b"")
        backend.delete("tiny", claims=False, say=print)
        assert not daemon.names() and not list(state.iterdir()), name


def test_a_volume_of_somebody_else_is_not_noted(daemon: Daemon, submit: Submit, backend: DockerBackend) -> None:
    daemon.change(volumes={"rankzero-results": {}})
    submit()
    backend.delete("tiny", claims=False, say=print)
    assert list(daemon.state["volumes"]) == ["rankzero-results"]


@pytest.mark.parametrize(
    ("message", "kind", "hint"),
    [
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", SilentError, "systemctl start docker"),
        (UNREACHED, SilentError, r"does not answer: [\s\S]*255[\s\S]*DOCKER_HOST"),
        ("permission denied while trying to connect to the Docker daemon socket", AccessError, "usermod"),
    ],
)
def test_a_daemon_that_does_not_answer(daemon: Daemon, message: str, kind: type[Exception], hint: str) -> None:
    backend = DockerBackend()
    daemon.behave(refuses={"": message})
    for call in (backend.runs, lambda: backend.submit(objects(), print)):
        with pytest.raises(kind, match=hint):
            call()


def test_a_code_that_docker_has_too_is_the_commands_unless_docker_says_otherwise(
    submit: Submit, backend: DockerBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit()
    command = ["python", "-c", "import sys; print('skip this one', file=sys.stderr); sys.exit(125)"]
    assert backend.execute("tiny-0", command, lambda _data: None) == Ended(125, "skip this one\n")
    daemon_s = "Error response from daemon: container abc is paused, unpause the container before exec"
    script = tmp_path / "own" / "docker"
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\necho '{daemon_s}' >&2\nexit 125\n", encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    with pytest.raises(ServiceError, match="docker exec: .* is paused"):
        backend.execute("tiny-0", command, lambda _data: None)


def test_no_docker_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    backend = DockerBackend()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServiceError, match=r"no docker command[\s\S]*install"):
        backend.runs()
    with pytest.raises(ServiceError, match="no docker command"):
        list(backend.logs("tiny", LogQuery(follow=True)))
