"""What the spec knows of each kind of object that a run becomes: where its pods are, what it cannot honour. Pure.

A kind is its section here and the module of its name in launch/kinds/. Everything else asks what a kind does, never
which one it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Wish = Literal["min_nodes", "timeout_seconds", "ttl_seconds_after_finished"]
"""Fields of cluster.yaml that not every kind can honour."""
Place = Literal["kubernetes", "docker", "slurm"]
"""What runs are handed to: the backend of that name."""


@dataclass(frozen=True, slots=True)
class KindSection:
    """One kind, as far as it can be said without an object."""

    cannot: frozenset[Wish] = frozenset()
    """What it is refused with."""
    place: Place = "kubernetes"

    @property
    def on_this_machine(self) -> bool:
        """Its pods are containers of this machine's docker daemon: no cluster, and no other host, is asked for
        anything."""
        return self.place == "docker"

    @property
    def starts_again(self) -> bool:
        """What fails there is started again without anybody giving the command once more."""
        return self.place != "docker"

    @property
    def in_kubernetes(self) -> bool:
        """Whether there are namespaces, Secrets, queues and all else that only Kubernetes has."""
        return self.place == "kubernetes"

    @property
    def on_hosts(self) -> bool:
        """Its processes are those of the hosts themselves: volumes are the hosts' directories, and an image is a choice
        of the `slurm` section."""
        return self.place == "slurm"


KINDS: dict[str, KindSection] = {
    "job": KindSection(cannot=frozenset(("min_nodes",))),
    "jobset": KindSection(cannot=frozenset(("min_nodes", "timeout_seconds"))),
    "trainjob": KindSection(cannot=frozenset(("min_nodes", "timeout_seconds", "ttl_seconds_after_finished"))),
    "pytorchjob": KindSection(),
    "statefulset": KindSection(cannot=frozenset(("min_nodes", "timeout_seconds", "ttl_seconds_after_finished"))),
    "docker": KindSection(
        cannot=frozenset(("min_nodes", "timeout_seconds", "ttl_seconds_after_finished")), place="docker"
    ),
    "slurm": KindSection(
        cannot=frozenset(("min_nodes", "timeout_seconds", "ttl_seconds_after_finished")), place="slurm"
    ),
}
"""A kind stands after those that its controller makes objects of."""
EVERYWHERE = "job"
"""What every cluster has, and `auto` is."""


def kind_meant(name: str) -> str:
    """What `auto` is; any other name is its own."""
    return name if name in KINDS else EVERYWHERE


def kind_section(name: str) -> KindSection:
    """The section of a kind, or of `auto`."""
    return KINDS[kind_meant(name)]


def kinds_that_honour(field: Wish) -> list[str]:
    """The kinds that do as a field of cluster.yaml says."""
    return [name for name, section in KINDS.items() if field not in section.cannot]
