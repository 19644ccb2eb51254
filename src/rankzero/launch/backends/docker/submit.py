"""Submitting to docker: all checks first, then volumes, network, containers, preparation, start. Renders nothing."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

from rankzero.errors import ConfigError, Problem, RankzeroError
from rankzero.launch import labels
from rankzero.launch.backend import AlreadyRunsError, Say
from rankzero.launch.backends.docker.command import Docker, Host
from rankzero.launch.backends.docker.create import Creation
from rankzero.launch.backends.docker.evidence import (
    FINAL,
    HASH,
    RESTARTS,
    TERMINATION,
    asked_for,
    is_active,
    label_of,
    pod_of,
)
from rankzero.launch.backends.docker.files import RunFiles, read_message
from rankzero.launch.backends.docker.gpus import Had, had, share_gpus, told_shared
from rankzero.launch.backends.docker.logs import Source, followed
from rankzero.launch.backends.docker.pod import Container, container_of, gpus_of
from rankzero.launch.backends.preparation import PreparationError, preparation_failed
from rankzero.launch.labels import Manifest
from rankzero.launch.node.settings import TOKEN_VARIABLE
from rankzero.launch.untyped_json import at

_IGNORED = ("Service", "ServiceAccount", "Role", "RoleBinding")
"""Names and rights that docker's network and daemon give by themselves."""

_POLL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Request:
    """The objects of a run, sorted by what docker makes of them."""

    run: str
    digest: str
    pods: tuple[Manifest, ...]
    prepare: Manifest | None = None
    """The preparation Job's pod."""
    attempts: int = 1
    config_maps: Mapping[str, Manifest] = field(default_factory=dict)
    claims: frozenset[str] = frozenset()
    """Claims that may be made."""


def read(objects: Sequence[Manifest]) -> Request:
    """Sort the objects. Raises ConfigError where one is of a kind that docker does not play."""
    by_kind: dict[str, list[Manifest]] = {}
    for one in objects:
        by_kind.setdefault(one["kind"], []).append(one)
    known = {"Pod", "Job", "ConfigMap", "PersistentVolumeClaim", *_IGNORED}
    jobs, pods = by_kind.get("Job", []), by_kind.get("Pod", [])
    strange = [one for kind, ones in by_kind.items() if kind not in known for one in ones]
    strange += [job for job in jobs if job["metadata"]["labels"].get(labels.ROLE) != labels.PREPARE_ROLE]
    if strange or not pods:
        hint = "render the run for docker: `--kind docker`, or `kind: docker` in cluster.yaml"
        found = ", ".join(f"{one['kind']}/{one['metadata']['name']}" for one in strange) or "no pods"
        raise ConfigError(f"docker plays bare pods, and this is {found}", hint=hint)
    return Request(
        run=str(pods[0]["metadata"]["labels"][labels.RUN]),
        digest=hashlib.sha256(json.dumps([_unsigned(one) for one in objects], sort_keys=True).encode()).hexdigest()[
            :16
        ],
        pods=tuple(pods),
        prepare=_pod_of_job(jobs[0]) if jobs else None,
        attempts=int(jobs[0]["spec"].get("backoffLimit", 0)) + 1 if jobs else 1,
        config_maps={one["metadata"]["name"]: one for one in by_kind.get("ConfigMap", [])},
        claims=frozenset(one["metadata"]["name"] for one in by_kind.get("PersistentVolumeClaim", [])),
    )


def _unsigned(manifest: Manifest) -> Manifest:
    """The object without who submits it: the same run by somebody else is the same."""
    signed = manifest["metadata"].get("annotations") or {}
    kept = {name: value for name, value in signed.items() if name != labels.SUBMITTED_BY}
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": kept}}


def submit(
    docker: Docker,
    request: Request,
    files: RunFiles,
    say: Say,
    *,
    env: Mapping[str, str],
    gpus: Callable[[Mapping[str, str]], tuple[str, ...]],
    replaces: bool,
) -> str | None:
    """Bring the run up. What runs already, of this very rendering, is left alone.

    Raises AlreadyRunsError, unless it `replaces`, where containers of another rendering of the run are up.
    Returns the id of the container whose lines were said: the preparation's, where there was one.
    """
    found = judge(docker, request, env=env, gpus=gpus)
    prepare, nodes, secrets = found.prepare, found.nodes, found.secrets
    if not replaces:
        require_free(docker, request)
    every = docker.containers(f"{labels.RUN}={request.run}")
    there = {asked_for(one)["metadata"]["name"]: one for one in every}
    kept = _kept(request, there)
    missing = [one for one in nodes if one.pod["metadata"]["name"] not in kept]
    if not missing:
        say(f"{request.run} runs here already, with this very spec; left as it is")
        return None
    if shared := told_shared(missing, found.had):
        say(shared)
    goes_on = bool(kept)  # some nodes are up and wait for the others: what was prepared is there
    secrets[TOKEN_VARIABLE] = _token(there[name] for name in kept if name in there) or token_hex(32)
    creation = Creation(docker, request.run, request.digest, files, request.config_maps, request.claims, secrets)
    told: str | None = None
    try:
        _clear(docker, [one for one in every if asked_for(one)["metadata"]["name"] not in kept], say)
        creation.volumes([*missing, *([prepare] if prepare and not goes_on else [])])
        creation.network()
        for one in missing:  # before the preparation: what docker refuses, it refuses now
            creation.container(one, restarts=_restarts(there.get(one.pod["metadata"]["name"])) if goes_on else 0)
        if prepare is not None and not goes_on:
            told = _prepare(docker, creation, prepare, request.attempts, say)
        _start(docker, missing, say)
        return told
    except PreparationError:
        _clear(docker, docker.containers(f"{labels.RUN}={request.run}"), None, roles=(labels.NODE_ROLE,))
        raise
    except RankzeroError as error:
        raise _half_done(error, creation.made, request.run) from error


@dataclass(frozen=True, slots=True)
class Judged:
    """What a run gets here."""

    prepare: Container | None
    nodes: list[Container]
    secrets: dict[str, str]
    """Values by name."""
    had: Had
    """The GPUs that are others' already."""


def judge(
    docker: Docker, request: Request, *, env: Mapping[str, str], gpus: Callable[[Mapping[str, str]], tuple[str, ...]]
) -> Judged:
    """Makes nothing. Raises ConfigError with what cannot be had here."""
    host = docker.host()
    every = docker.containers(labels.RUN) if any(map(gpus_of, request.pods)) else []
    there = had(every, request.run, request.digest, datetime.now(UTC))
    prepare, nodes = _containers(request, host, lambda pods: share_gpus(pods, gpus(env), there))
    wanted = [*([prepare] if prepare else []), *nodes]
    _check_images(docker, wanted)
    _check_directories(wanted, host)
    return Judged(prepare, nodes, _secrets(wanted, env), there)


def _pod_of_job(job: Manifest) -> Manifest:
    template = job["spec"]["template"]
    metadata = {**template["metadata"], "name": job["metadata"]["name"]}
    metadata.setdefault("namespace", job["metadata"].get("namespace", "default"))
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def _containers(
    request: Request, host: Host, share: Callable[[Sequence[Manifest]], list[tuple[str, ...]]]
) -> tuple[Container | None, list[Container]]:
    """Raises ConfigError with the problems of all pods."""
    pods = list(request.pods)
    devices: list[tuple[str, ...]] = [()] * len(pods)
    problems: list[Problem] = []
    try:
        if any(gpus_of(pod) for pod in pods):
            devices = share(pods)
    except ConfigError as error:
        problems += error.problems
    made: list[Container] = []
    for pod, own in zip(
        [*([request.prepare] if request.prepare else []), *pods],
        [*([()] if request.prepare else []), *devices],
        strict=True,
    ):
        try:
            made.append(container_of(pod, host, own))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return (made[0], made[1:]) if request.prepare else (None, made)


def _check_images(docker: Docker, wanted: Sequence[Container]) -> None:
    missing = [image for image in dict.fromkeys(one.image for one in wanted) if not docker.has_image(image)]
    if missing:
        raise ConfigError(
            Problem(
                f"there is no image {image} on this machine",
                "cluster.yaml image",
                f"`docker pull {image}`, or build it: `docker build -f docker/Dockerfile -t {image} .` in the sources",
            )
            for image in missing
        )


_IN_A_CONTAINER = ("/.dockerenv", "/run/.containerenv")
"""What Docker and Podman leave in those that they make."""


def _check_directories(wanted: Sequence[Container], host: Host) -> None:
    """Docker mounts no directory that is not there. Where the daemon is another machine's, it alone knows, and so it
    does beside a container with the host's name; what this user may not see may be there."""
    if host.name != socket.gethostname() or any(Path(mark).exists() for mark in _IN_A_CONTAINER):
        return
    paths = dict.fromkeys(mount.source for one in wanted for mount in one.mounts if mount.kind == "directory")
    if missing := [path for path in paths if _is_absent(path)]:
        hint = "make it, or correct host_path in cluster.yaml"
        raise ConfigError(Problem("there is no such directory on this machine", path, hint) for path in missing)


def _is_absent(path: str) -> bool:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _secrets(wanted: Sequence[Container], env: Mapping[str, str]) -> dict[str, str]:
    """Values from this machine's environment; a cluster has them in Secrets."""
    names = {name: optional for one in wanted for name, optional in one.secrets.items()}
    missing = [name for name, optional in names.items() if not env.get(name) and not optional]
    if missing:
        raise ConfigError(
            Problem(
                f"{name} is not set in this environment",
                "cluster.yaml secrets",
                f"set it (it is passed on, and stored nowhere else): `export {name}=…`, or make it `optional: true`",
            )
            for name in missing
        )
    return {name: env[name] for name in names if env.get(name)}


def require_free(docker: Docker, request: Request) -> None:
    """Raise AlreadyRunsError where containers would be ended that nobody has said may be."""
    there = docker.containers(f"{labels.RUN}={request.run}")
    others = [one for one in there if is_active(one) and label_of(one, HASH) != request.digest]
    if not others:
        return
    names = [at(asked_for(one), "metadata", "annotations").get(labels.SUBMITTED_BY) for one in there]
    by = next((f"by {name} " for name in names if name), "")
    hint = "give this run another name; or end that one: `rankzero cancel`, or submit with --replace"
    what = f"is under way with another spec (submitted {by}at {others[0]['Created'][:19]}Z)"
    raise AlreadyRunsError(what, where=f"run {request.run}", hint=hint)


def _token(kept: Iterable[Mapping[str, Any]]) -> str:
    """What the containers that stay know each other by; nothing where none does."""
    start = f"{TOKEN_VARIABLE}="
    found = (text for one in kept for text in one["Config"].get("Env") or () if text.startswith(start))
    return next(found, "").removeprefix(start)


def _kept(request: Request, there: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Pods that stay: those that run, and where any does, those that have finished well."""
    ours = {pod["metadata"]["name"] for pod in request.pods}
    same = {name: one for name, one in there.items() if name in ours and label_of(one, HASH) == request.digest}
    if not any(is_active(one) for one in same.values()):
        return set()
    kept = {name for name, one in same.items() if is_active(one) or pod_of(one)["status"]["phase"] == "Succeeded"}
    return kept | ({request.prepare["metadata"]["name"]} if request.prepare else set())


def _restarts(before: Mapping[str, Any] | None) -> int:
    """A container that takes the place of one that was lost, while the others went on, counts as its restart."""
    return 0 if before is None else int(label_of(before, RESTARTS) or 0) + 1


def _clear(
    docker: Docker, containers: Sequence[Mapping[str, Any]], say: Say | None, roles: Sequence[str] | None = None
) -> None:
    """Remove containers; those that run get their grace period first."""
    gone = [one for one in containers if roles is None or label_of(one, labels.ROLE) in roles]
    running = [one["Id"] for one in gone if is_active(one)]
    if running:
        if say is not None:
            say(f"stopping {len(running)} containers of the run as it was; they save and leave first")
        docker.call("stop", *running)
    if gone:
        docker.call("rm", "--volumes", *(one["Id"] for one in gone))


def _prepare(docker: Docker, creation: Creation, prepare: Container, attempts: int, say: Say) -> str:
    """Run the preparation to its end, saying what it says. Returns its id."""
    name = prepare.pod["metadata"]["name"]
    source = Source(name, 0, labels.PREPARE_ROLE)
    for attempt in range(attempts):
        before = f"{prepare.name}.before"
        if attempt:  # one of them is there at any time: who looks sees a run that is prepared for
            docker.call("rename", prepare.name, before)
        identity = creation.container(prepare, restarts=attempt)
        if attempt:
            docker.call("rm", "--volumes", before)
        say(f"{name}: the model and the data first" + (f"; attempt {attempt + 1} of {attempts}" if attempt else ""))
        code = _to_its_end(docker, prepare.name, {identity: source}, say)
        if code == 0:
            return identity
        if code in FINAL:
            break
    pods = [pod_of(one, read_message(label_of(one, TERMINATION))) for one in docker.inspect(prepare.name)]
    raise preparation_failed(name, pods)


def _to_its_end(docker: Docker, container: str, known: Mapping[str, Source], say: Say) -> int:
    """Start a container, say what it says, and return its exit code."""
    docker.call("start", container)
    for line in followed(lambda: (known, False), _POLL_SECONDS):
        say(f"{line.pod}: {line.text}")
    return int(docker.call("wait", container).strip())


def _start(docker: Docker, nodes: Sequence[Container], say: Say) -> None:
    """Start all; where one cannot, none is left to wait for it."""
    names = [one.name for one in nodes]
    try:
        docker.call("start", *names)
    except RankzeroError:
        docker.try_call("stop", *names)
        raise
    say(f"{len(names)} containers started: {', '.join(names[:4])}{', …' if len(names) > 4 else ''}")


def _half_done(error: RankzeroError, made: Sequence[str], run: str) -> RankzeroError:
    """The same error, saying what is there now."""
    if not made:
        return error
    hint = f"submit again after mending it, or `rankzero delete {run}`"
    return type(error)([*error.problems, Problem(f"made before that: {', '.join(made)}", f"run {run}", hint)])
