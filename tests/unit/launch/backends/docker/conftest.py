"""DockerBackend on a docker command without a daemon."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rankzero.launch.backends.docker.backend import DockerBackend
from rankzero.launch.backends.docker.command import Answer, Docker
from tests.unit.launch.backends.docker import fake_docker
from tests.unit.launch.backends.docker.docker_objects import objects
from tests.unit.launch.backends.docker.fake_docker import Daemon

Submit = Callable[..., list[str]]
"""Submits a run of these pods; returns what was said."""
NODES = ["rankzero-tiny-0", "rankzero-tiny-1"]


def states(daemon: Daemon) -> dict[str, str]:
    return {one["Name"].lstrip("/"): one["State"]["Status"] for one in daemon.state["containers"].values()}


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """`docker` is a script here; what it was asked to do is in a file."""
    directory = tmp_path / "bin"
    directory.mkdir()
    script = directory / "docker"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {fake_docker.__file__} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    state = tmp_path / "docker.json"
    monkeypatch.setenv(fake_docker.VARIABLE, str(state))
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Daemon(state)


@pytest.fixture
def backend(daemon: Daemon) -> DockerBackend:
    def execute(arguments: Sequence[str], env: Mapping[str, str]) -> Answer:
        return Answer(*daemon.execute(arguments, env))

    return DockerBackend(Docker(execute), gpus=lambda env: ("0", "1"))


@pytest.fixture
def submit(backend: DockerBackend) -> Submit:
    def call(*pods: Any, prepare: bool = False, replace: bool = False) -> list[str]:
        said: list[str] = []
        backend.submit(objects(*pods, prepare=prepare), said.append, replace=replace)
        return said

    return call
