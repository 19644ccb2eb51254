"""Which runs use the docker volume of a claim. A volume's own labels are fixed, so each run is noted by an empty volume
beside it. Removes no other volumes."""

from __future__ import annotations

from rankzero.launch import labels
from rankzero.launch.backends.docker.command import Docker
from rankzero.launch.backends.docker.pod import user_name

MANAGED = f"{labels.MANAGED_BY}=rankzero"
_NOTE = f"{labels.USED_BY}volume"
"""Label of a volume that is nothing but a note: the volume that it is about."""


def is_ours(docker: Docker, volume: str) -> bool | None:
    """Whether we made it; None where docker says that there is none. Raises ServiceError where it does not say."""
    found = docker.look_up("volume", volume)
    return None if found is None else (found["Labels"] or {}).get(labels.MANAGED_BY) == "rankzero"


def note_user(docker: Docker, volume: str, run: str) -> None:
    """Note it, where we made the volume: no other is ever removed. A note that is there already stays as it is."""
    if is_ours(docker, volume):
        docker.call("volume", "create", "--label", f"{_NOTE}={volume}", "--label", MANAGED, user_name(volume, run))


def users(docker: Docker, volume: str) -> list[str]:
    """The runs that are noted."""
    return sorted(one.removeprefix(user_name(volume, "")) for one in _listed(docker, f"{_NOTE}={volume}"))


def volumes_of(docker: Docker, run: str) -> list[str]:
    """The volumes of which it is noted, also after its containers are gone."""
    end = user_name("", run)
    return sorted(one.removesuffix(end) for one in _listed(docker, _NOTE) if one.endswith(end))


def forget(docker: Docker, volume: str, run: str) -> None:
    """Its results are given up: they keep the volume no longer."""
    if run in users(docker, volume):
        docker.call("volume", "rm", user_name(volume, run))


def forget_all(docker: Docker, volume: str) -> None:
    """The volume is gone, and with it whatever anybody had there."""
    for run in users(docker, volume):
        forget(docker, volume, run)


def _listed(docker: Docker, label: str) -> list[str]:
    return docker.call("volume", "ls", "--quiet", "--filter", f"label={label}").split()
