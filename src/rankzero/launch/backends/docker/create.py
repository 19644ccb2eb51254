"""What docker makes for a run: volumes, the network, containers. Keeps account of it. Decides nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rankzero.errors import ConfigError, Problem
from rankzero.launch import labels
from rankzero.launch.backends.docker.claims import MANAGED, forget_all, note_user
from rankzero.launch.backends.docker.command import Docker
from rankzero.launch.backends.docker.evidence import HASH, POD, RESTARTS, TERMINATION
from rankzero.launch.backends.docker.files import RunFiles
from rankzero.launch.backends.docker.pod import (
    Container,
    Mount,
    mount_option,
    network_name,
    scratch_name,
    volume_name,
)
from rankzero.launch.labels import Manifest
from rankzero.launch.node.settings import TERMINATION_LOG, is_smoke_test

_GIVE_AWAY = """
import os, pathlib, sys
for volume, owner in enumerate(sys.argv[1:]):
    path, (user, group) = pathlib.Path(f"/volumes/{volume}"), map(int, owner.split(":"))
    if path.stat().st_gid != group or not path.stat().st_mode & 0o020:
        os.chown(path, user, group)
        path.chmod(0o2775)
"""
"""As a kubelet does for fsGroup: docker makes volumes for root, and the run's user is not root."""


class Creation:
    """One submit's makings."""

    def __init__(
        self,
        docker: Docker,
        run: str,
        digest: str,
        files: RunFiles,
        config_maps: Mapping[str, Manifest],
        claims: frozenset[str],
        secrets: Mapping[str, str],
    ) -> None:
        self._docker = docker
        self._run = run
        self._digest = digest
        self._files = files
        self._config_maps = config_maps
        self._claims = claims
        self._secrets = secrets
        self.made: list[str] = []
        """In words, for whoever has to know what is there after an error."""

    def volumes(self, containers: Sequence[Container]) -> None:
        """Those of claims, where they are not there yet, and new scratch space. All are given to the pods' users, and
        that the run may leave results on those of claims is noted, before there are any.

        Raises ConfigError for a claim that is not there and that nobody makes.
        """
        claims = dict.fromkeys(mount.source for one in containers for mount in one.mounts if mount.kind == "claim")
        missing = [claim for claim in claims if self._docker.look_up("volume", volume_name(claim)) is None]
        unknown = [claim for claim in missing if claim not in self._claims]
        if unknown:
            raise ConfigError(
                Problem(
                    f"there is no docker volume {volume_name(claim)} for the claim {claim}",
                    "cluster.yaml storage",
                    f"give the claim a size, then it is made; or `docker volume create {volume_name(claim)}`",
                )
                for claim in unknown
            )
        for claim in missing:
            forget_all(self._docker, volume_name(claim))  # what they were about is gone
            self._volume(volume_name(claim), [])
        for claim in claims if not is_smoke_test(self._config_maps.values()) else ():
            note_user(self._docker, volume_name(claim), self._run)
        for one in containers:
            for name in (_docker_volume(one, mount) for mount in one.mounts if mount.kind == "scratch"):
                self._docker.try_call("volume", "rm", name)  # of the container before
                self._volume(name, ["--label", self._label()])
        self._give_away(containers)

    def network(self) -> None:
        """The run's own, where containers find each other by name."""
        name = network_name(self._run)
        if self._docker.look_up("network", name) is None:
            self._docker.call("network", "create", "--label", MANAGED, "--label", self._label(), name)
            self.made.append(f"network {name}")

    def container(self, wanted: Container, *, restarts: int) -> str:
        """One container, not started. Returns its id."""
        pod = wanted.pod["metadata"]["name"]
        termination = self._files.fresh_termination(pod)
        own = {
            **{str(key): str(value) for key, value in (wanted.pod["metadata"].get("labels") or {}).items()},
            POD: json.dumps(wanted.pod, separators=(",", ":")),
            HASH: self._digest,
            RESTARTS: str(restarts),
            TERMINATION: str(termination),
        }
        mounts = [self._mount(wanted, mount) for mount in wanted.mounts]
        mounts.append(mount_option("bind", str(termination), TERMINATION_LOG))
        values = {**wanted.env, **{name: self._secrets[name] for name in wanted.secrets if name in self._secrets}}
        lines = {name: value for name, value in values.items() if "\n" not in value}
        environment = self._files.write_environment(pod, lines)
        try:
            identity = self._docker.call(
                *("create", "--name", wanted.name, "--network", network_name(self._run)),
                *wanted.options,
                *(part for mount in mounts for part in ("--mount", mount)),
                *(part for key, value in own.items() for part in ("--label", f"{key}={value}")),
                *("--env-file", str(environment)),
                # A file of variables has no lines within values: docker takes those from its own environment.
                *(part for name in values if name not in lines for part in ("--env", name)),
                wanted.image,
                *wanted.command,
                env={name: value for name, value in values.items() if name not in lines},
            )
        finally:
            environment.unlink()
        self.made.append(f"container {wanted.name}")
        return identity.strip()

    def _mount(self, wanted: Container, mount: Mount) -> str:
        pod = wanted.pod["metadata"]["name"]
        if mount.kind == "config":
            volume = next(one for one in wanted.pod["spec"]["volumes"] if one["name"] == mount.source)
            directory = self._files.write_config(pod, volume, self._config_map(volume["configMap"]["name"]))
            return mount_option("bind", str(directory), mount.target, read_only=True)
        if mount.kind == "directory":
            return mount_option("bind", mount.source, mount.target, read_only=mount.read_only)
        return mount_option("volume", _docker_volume(wanted, mount), mount.target, read_only=mount.read_only)

    def _config_map(self, name: str) -> Manifest:
        if name not in self._config_maps:
            raise ConfigError(f"there is no ConfigMap {name} among the objects", where="volumes")
        return self._config_maps[name]

    def _give_away(self, containers: Sequence[Container]) -> None:
        """Let the pods' users write to their volumes."""
        owners = {
            _docker_volume(one, mount): one.owner
            for one in containers
            for mount in one.mounts
            if mount.kind in ("claim", "scratch") and not mount.read_only and any(one.owner)
        }
        if owners:
            mounts = [mount_option("volume", name, f"/volumes/{index}") for index, name in enumerate(owners)]
            self._docker.call(
                *("run", "--rm", "--network", "none", "--user", "0:0", "--entrypoint", "python"),
                *(part for mount in mounts for part in ("--mount", mount)),
                *(containers[0].image, "-P", "-c", _GIVE_AWAY, *(f"{user}:{group}" for user, group in owners.values())),
            )

    def _volume(self, name: str, options: Sequence[str]) -> None:
        self._docker.call("volume", "create", "--label", MANAGED, *options, name)
        self.made.append(f"volume {name}")

    def _label(self) -> str:
        return f"{labels.RUN}={self._run}"


def _docker_volume(container: Container, mount: Mount) -> str:
    """The docker volume behind a claim or scratch space."""
    if mount.kind == "claim":
        return volume_name(mount.source)
    return scratch_name(container.pod["metadata"]["name"], mount.source)
