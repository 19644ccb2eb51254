"""DockerBackend: runs as containers of this machine, one a node, from the same pods that a cluster gets.

Containers carry all that is to be known of a run as labels; on disk there is only what they mount. Judges nothing.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from typing import IO, Any

from rankzero.errors import RankzeroError, ServiceError
from rankzero.launch import kinds, labels
from rankzero.launch.backend import Ended, Execute, Hear, LogLine, LogQuery, Say
from rankzero.launch.backends.docker import claims as notes
from rankzero.launch.backends.docker import submit as docker_submit
from rankzero.launch.backends.docker.command import Docker, is_dockers_own, refusal, stream
from rankzero.launch.backends.docker.evidence import (
    TERMINATION,
    asked_for,
    has_started,
    is_active,
    is_under_way,
    is_waiting,
    label_of,
    objects_of,
    pod_of,
    run_of,
)
from rankzero.launch.backends.docker.files import RunFiles, read_message, state_dir
from rankzero.launch.backends.docker.gpus import told_shared
from rankzero.launch.backends.docker.logs import Source, followed, merged, recent
from rankzero.launch.backends.docker.pod import container_name, network_name, user_name, volume_name
from rankzero.launch.backends.docker.reader import reading
from rankzero.launch.evidence import Evidence
from rankzero.launch.labels import Manifest
from rankzero.launch.log_lines import Wanted
from rankzero.launch.silence import SilentError
from rankzero.launch.survey import Survey
from rankzero.machine import local_gpus, nvidia_gpus, shown_gpus, usable_cores, usable_memory
from rankzero.wording import counted, listed

Inspected = dict[str, Any]
POLL_SECONDS = 1.0
"""How often those who follow logs look for containers that came later."""
_DAEMON_FAILED = 125
"""What docker itself leaves with where it could not run a command; a command may leave with it too."""
_LOG_MESSAGE_LINES, _LOG_MESSAGE_CHARACTERS = 80, 2048
"""What a kubelet takes from the end of a log where a container left no message."""


class DockerBackend:
    """The docker daemon that this machine's `docker` talks to."""

    def __init__(
        self,
        docker: Docker | None = None,
        *,
        env: Mapping[str, str] | None = None,
        gpus: Callable[[Mapping[str, str]], tuple[str, ...]] = local_gpus,
    ) -> None:
        self._docker = docker or Docker()
        self._env = os.environ if env is None else env
        self._gpus = gpus
        self._told: set[str] = set()
        """Containers whose lines submit has passed on already."""

    def submit(self, objects: Sequence[Manifest], say: Say, *, replace: bool = False) -> None:
        """Check, make, prepare, start. Containers of this very rendering that run already are left alone."""
        request = docker_submit.read(objects)
        files = self._files(request.run)
        told = docker_submit.submit(self._docker, request, files, say, env=self._env, gpus=self._gpus, replaces=replace)
        self._told |= {told} if told else set()

    def survey(self, objects: Sequence[Manifest]) -> Survey:
        """This machine's GPUs and memory, and whether its daemon would take the run."""
        refused: RankzeroError | None = None
        shared = ""
        try:
            request = docker_submit.read(objects)
            found = docker_submit.judge(self._docker, request, env=self._env, gpus=self._gpus)
            shared = told_shared(found.nodes, found.had)
            docker_submit.require_free(self._docker, request)
        except ServiceError:
            raise
        except RankzeroError as error:
            refused = error
        count, gpus = len(self._gpus(self._env)), [*shown_gpus(nvidia_gpus(), self._env).values()]
        if len(gpus) < count:  # a part of one (MIG), or another maker's: nobody says of all what they are
            gpus = []
        memory = f"{usable_memory() / 1e9:.3g} GB of memory"
        has = [("nodes", f"this machine: {usable_cores()} cores, {memory}, {counted(count, 'GPU')}")]
        taken = "the daemon would take the run" if refused is None else "a submit would be refused, as said below"
        if shared and refused is None:
            taken += f"; {shared}"
        names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
        smallest = min((gpu.memory for gpu in gpus), default=0)
        return Survey((*has, ("rights", taken)), names, smallest, refused)

    def runs(self) -> list[Evidence]:
        """All runs whose containers are here."""
        by_run: dict[str, list[Inspected]] = {}
        for one in self._docker.containers(labels.RUN):
            by_run.setdefault(run_of(one), []).append(one)
        return [self._evidence(run, sorted(containers, key=_place)) for run, containers in sorted(by_run.items())]

    def collect(self, run: str, *, log_lines: int = 50) -> Evidence:
        """Everything about one run; docker has no events, and this machine is the only node."""
        containers = self._containers(run)
        evidence = self._evidence(run, containers)
        logs: dict[str, str] = {}
        pods = []
        for one, pod in zip(_begun(containers), evidence.pods, strict=True):
            if has_started(one):
                name = pod["metadata"]["name"]
                try:
                    lines = recent(self._docker, one["Id"], _source(one), tail=max(log_lines, _LOG_MESSAGE_LINES))
                except SilentError:
                    raise
                except ServiceError as error:  # all else that is known of it is told
                    logs[name], lines = error.problems[0].what, []
                else:
                    logs[name] = "\n".join(_stamped(line) for line in lines[-log_lines:])
                pod = _with_log_as_message(pod, [line.text for line in lines])
            pods.append(pod)
        return replace(evidence, pods=tuple(pods), logs=logs)

    def logs(self, run: str, query: LogQuery) -> Iterator[LogLine]:
        """Lines of all containers by time; with `follow` as they come."""
        # Which lines are the last ones of a rank is known only after the others have been left out.
        tail = query.tail if query.rank is None else None
        nproc = max((int(_annotation(one, labels.NPROC) or 1) for one in self._containers(run)), default=1)
        wanted = Wanted.of(query, nproc)

        def look() -> tuple[dict[str, Source], bool]:
            every = self._containers(run)
            found = [one for one in every if wanted.pod(_source(one).role, _source(one).node)]
            if query.follow:
                found = [one for one in found if one["Id"] not in self._told]
            pending = any(is_waiting(one) for one in found) and is_under_way(every, _now())
            return {one["Id"]: _source(one) for one in found if has_started(one)}, pending

        if query.follow:
            yield from filter(wanted.line, followed(look, POLL_SECONDS, since=query.since_seconds, tail=tail))
            return
        started, _ = look()
        parts = [recent(self._docker, key, one, since=query.since_seconds, tail=tail) for key, one in started.items()]
        lines = filter(wanted.line, merged(parts))
        yield from lines if query.rank is None or query.tail is None else deque(lines, maxlen=query.tail)

    def cancel(self, run: str, say: Say) -> None:
        """`docker stop`: SIGTERM, then the pod's grace period. Those that never started are removed."""
        containers = self._containers(run)
        waiting = [one["Id"] for one in containers if not has_started(one)]
        if waiting:
            self._docker.call("rm", "--volumes", *waiting)
        running = [one for one in containers if is_active(one)]
        if not running:
            say(f"nothing of {run} runs here")
            return
        grace = max(int(asked_for(one)["spec"].get("terminationGracePeriodSeconds", 30)) for one in running)
        say(f"{len(running)} containers are told to stop; they save and leave within {grace} s")
        self._docker.call("stop", *(one["Id"] for one in running))

    def delete(self, run: str, *, claims: bool, say: Say) -> list[str]:
        """Containers, network, scratch space and files; volumes of claims only where asked, and what is ours alone.

        Where claims stay, that the run's results may be on them is noted before nothing else says so: a version that
        noted nothing at submit may have made the run.
        """
        containers = self._containers(run)
        removed: list[str] = []
        running = [one["Id"] for one in containers if is_active(one)]
        if running:
            say(f"{len(running)} containers are told to stop; they save and leave first")
            self._docker.call("stop", *running)
        mounted = {volume_name(claim) for one in containers for claim in _claims(asked_for(one))}
        volumes = sorted(mounted | set(notes.volumes_of(self._docker, run)))
        if not claims:
            self._note_users(run, containers)
        if containers:
            self._docker.call("rm", "--volumes", *(one["Id"] for one in containers))
            removed += [f"container {one['Name'].lstrip('/')}" for one in containers]
        if self._docker.look_up("network", network_name(run)) is not None:
            self._docker.call("network", "rm", network_name(run))
            removed.append(f"network {network_name(run)}")
        label = f"label={labels.RUN}={run}"
        scratch = self._docker.call("volume", "ls", "--quiet", "--filter", label).split()
        removed += self._remove_volumes(chain(scratch, self._deletable(run, volumes, say) if claims else ()))
        for volume in volumes:
            if notes.is_ours(self._docker, volume) is None:
                notes.forget_all(self._docker, volume)
        if self._files(run).remove():
            removed.append(f"files in {self._files(run).root}")
        return removed

    def reading(self, pod: Manifest, say: Say) -> AbstractContextManager[Execute]:
        """A container for as long as the context lasts, or several, one after the other."""
        return reading(self._docker, pod, say)

    def execute(self, pod: str, command: Sequence[str], hear: Hear, stdin: IO[bytes] | None = None) -> Ended:
        """`docker exec`."""
        name = container_name(pod)
        inspected = self._docker.inspect(name)
        if not inspected or not is_active(inspected[0]):
            raise ServiceError("its container does not run", where=f"pod {pod}", hint="`rankzero dev up` starts it")
        takes = ["--interactive"] if stdin is not None else []
        answer = stream(["exec", *takes, name, *command], hear, stdin)
        if answer.code == _DAEMON_FAILED and is_dockers_own(answer.err):
            raise refusal(("exec",), answer)
        return Ended(answer.code, answer.err)

    def _note_users(self, run: str, containers: Sequence[Inspected]) -> None:
        """That it uses the volumes of its claims, as submit notes it: not of pods that tested their place."""
        pods = [asked_for(one) for one in containers]
        training = [pod for pod in pods if not self._files(run).is_told_to_test(pod["metadata"]["name"])]
        for volume in sorted({volume_name(claim) for pod in training for claim in _claims(pod)}):
            notes.note_user(self._docker, volume, run)

    def _deletable(self, run: str, volumes: Sequence[str], say: Say) -> Iterator[str]:
        """Those that we made, and that no container mounts and no other run is noted to have used. Each is judged when
        its turn to go comes. A volume that is gone is none."""
        for name in volumes:
            ours = notes.is_ours(self._docker, name)
            if ours is None:
                continue
            ids = self._docker.call("ps", "--all", "--quiet", "--no-trunc", "--filter", f"volume={name}").split()
            users = [f"container {one['Name'].lstrip('/')}" for one in self._docker.inspect(*ids)] if ids else []
            others = [one for one in notes.users(self._docker, name) if one != run]
            if not ours:
                say(f"volume {name} was not made by rankzero; kept")
            elif users:
                say(f"volume {name} is also used by {', '.join(users)}; kept")
            elif others:
                whose = f"the run{'s' if len(others) > 1 else ''} {listed(others)}, whose results may be on it"
                every = " ".join([name, *(user_name(name, one) for one in others)])
                say(f"volume {name} is also used by {whose}; kept (`docker volume rm {every}` removes it all the same)")
            else:
                yield name
                continue
            notes.forget(self._docker, name, run)

    def _remove_volumes(self, names: Iterable[str]) -> list[str]:
        """Raises one error for all that could not be removed."""
        removed, failed = [], []
        for name in names:
            try:
                self._docker.call("volume", "rm", name)
                removed.append(f"volume {name}")
            except RankzeroError as error:
                failed.append(error)
        if failed:
            raise type(failed[0])([problem for error in failed for problem in error.problems])
        return removed

    def _containers(self, run: str) -> list[Inspected]:
        return sorted(self._docker.containers(labels.selector(run)), key=_place)

    def _evidence(self, run: str, containers: Sequence[Inspected]) -> Evidence:
        seen = {one["Id"]: pod_of(one, read_message(label_of(one, TERMINATION))) for one in containers}
        pods = tuple(seen[one["Id"]] for one in _begun(containers))
        now = _now()
        objects = objects_of(run, seen.values(), tries_again=is_under_way(containers, now))
        return Evidence(run=run, now=now, objects=tuple(objects), pods=pods, nodes=None)

    def _files(self, run: str) -> RunFiles:
        return RunFiles(state_dir(self._env) / run)


def _now() -> datetime:
    return datetime.now(UTC)


def _begun(containers: Sequence[Inspected]) -> list[Inspected]:
    """Those that there is something to say of: nodes are made first, but wait until they are prepared for."""
    first = [one for one in containers if _source(one).role == labels.PREPARE_ROLE]
    if all(pod_of(one)["status"]["phase"] == "Succeeded" for one in first):
        return list(containers)
    return [one for one in containers if one in first or has_started(one) or one["State"].get("Error")]


def _source(inspected: Inspected) -> Source:
    pod = asked_for(inspected)
    return Source(pod["metadata"]["name"], kinds.node_index(pod), labels.role_of(pod))


def _annotation(inspected: Inspected, name: str) -> str | None:
    value = (asked_for(inspected)["metadata"].get("annotations") or {}).get(name)
    return None if value is None else str(value)


def _stamped(line: LogLine) -> str:
    """As `kubectl logs --timestamps` has it."""
    return line.text if line.time is None else f"{line.time.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ} {line.text}"


def _place(inspected: Inspected) -> tuple[bool, int, str]:
    """The preparation, then the nodes; of a preparation that is tried again the newest last."""
    source = _source(inspected)
    return source.role == labels.NODE_ROLE, source.node, str(inspected["Created"])


def _claims(pod: Manifest) -> list[str]:
    volumes = pod["spec"].get("volumes") or ()
    return [one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one]


def _with_log_as_message(pod: Manifest, lines: Sequence[str]) -> Manifest:
    """Where a container failed without a word, the end of its log is its message, as FallbackToLogsOnError has it."""
    (container,) = pod["status"]["containerStatuses"]
    ended = container["state"].get("terminated")
    if ended is None or ended["exitCode"] == 0 or ended.get("message") or not lines:
        return pod
    text = "\n".join(lines[-_LOG_MESSAGE_LINES:])[-_LOG_MESSAGE_CHARACTERS:]
    state = {"terminated": {**ended, "message": text}}
    return {**pod, "status": {**pod["status"], "containerStatuses": [{**container, "state": state}]}}
