"""Kind: what everything else asks of a kind of object that a run can be on a cluster. Pure; knows no kind by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rankzero.launch.labels import Manifest
from rankzero.launch.node.settings import CONFIG_DIR
from rankzero.launch.resource import Resource
from rankzero.launch.untyped_json import at, maps, text

if TYPE_CHECKING:
    from rankzero.launch.plan import Plan
    from rankzero.spec.cluster_spec import ClusterSpec

End = Literal["complete", "failed"]
Path = tuple[str, ...]
"""Keys from the top of an object to a value; empty: it has none."""
PodSpecs = Iterator[tuple[Mapping[str, Any], int]]
"""Pod specs, and how many pods are made of each."""


class Switch(Protocol):
    """How an object is told to have no pods for a while."""

    def is_off(self, manifest: Mapping[str, Any]) -> bool:
        """Whether it is."""

    def patch(self, manifest: Mapping[str, Any], *, suspend: bool) -> Manifest:
        """The merge patch that tells it, or takes it back; `manifest` is as it was rendered for the latter."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A switch that is one truth value of the object."""

    path: Path = ("spec", "suspend")

    def is_off(self, manifest: Mapping[str, Any]) -> bool:
        """Whether it is told to have no pods."""
        return value_at(manifest, self.path) is True

    def patch(self, manifest: Mapping[str, Any], *, suspend: bool) -> Manifest:
        """The merge patch for that."""
        found: Any = suspend
        for key in reversed(self.path):
            found = {key: found}
        return dict(found)


@dataclass(frozen=True, slots=True)
class Template:
    """An object that describes the pods of one that trains, under the same name, and is applied before it."""

    resource: Resource
    missing: str
    """What the API's refusal of an object has in it where its template is missing."""


@dataclass(frozen=True, slots=True)
class Newer:
    """What only newer versions of a kind's controller know."""

    resource: Resource
    """Whose schema has it."""
    field: str
    """Name of a field that no older version has."""
    without: Callable[[Mapping[str, Any]], Manifest]
    """The same object for an older one."""
    loses: str
    """What that costs, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind. Functions that read an object ask nothing of it: it may lack anything."""

    resource: Resource
    """Of the object that trains."""
    objects: Callable[[Plan], list[Manifest]]
    """Its own objects of a plan; those that train come last."""
    pod_specs: Callable[[Mapping[str, Any]], PodSpecs]
    """Of an object of its resource or its template."""
    node_index: Callable[[Mapping[str, Any]], int | None]
    """Which node of the run a pod is, from what the platform writes on it; None where nothing says so."""
    end: Callable[[Mapping[str, Any]], End | None]
    """How the object has ended; None while pods of it may still run."""
    switch: Switch = Flag()
    needs: str = ""
    """What an administrator must have installed; empty: every cluster has it."""
    controlled: bool = True
    """A controller makes the pods. Else its objects are the pods, and they alone tell how the run ended."""
    template: Template | None = None
    queued_without_pods: bool = True
    """Kueue keeps it without pods by its switch until there is room. Else Kueue holds the pods themselves back, and
    somebody else has told one that has none."""
    parks: bool = False
    """Whatever leaves is started again, so a finished run stays in its pods and notes its outcome on the object."""
    container: str = "node"
    """Name of the container that trains."""
    retry_exit_offset: int = 0
    """What pods add to exit codes that may be retried."""
    restarts_made: Path = ()
    """Where its controller counts restarts of all pods; else pods that replaced others are counted."""
    restarts_allowed: Path = ()
    time_limit: Path = ()
    newer: Newer | None = None
    fewest_nodes: Path = ()
    """With how few pods it goes on; else it has all of them."""
    whole: bool = False
    """Its own objects are all that the run is: no ConfigMap, claims or preparation Job go with them; what prepares is
    one of them."""
    config_dir: Callable[[ClusterSpec, str], str] = lambda _cluster, _name: CONFIG_DIR
    """Where the processes of a run, by its object name, find run.yaml, node.json and files/."""


def value_at(manifest: Mapping[str, Any], path: Path) -> object:
    """What an object has at a path; None where there is nothing."""
    return at(manifest, *path[:-1]).get(path[-1]) if path else None


def by_conditions(complete: str) -> Callable[[Mapping[str, Any]], End | None]:
    """Ended when one of two conditions is true: `complete`, or Failed."""
    words: dict[str, End] = {complete: "complete", "Failed": "failed"}

    def end(manifest: Mapping[str, Any]) -> End | None:
        found = (one for one in maps(manifest, "status", "conditions") if text(one, "status") == "True")
        return next((words[text(one, "type")] for one in found if text(one, "type") in words), None)

    return end


def by_mark(name: str) -> Callable[[Mapping[str, Any]], int | None]:
    """The index is the value of a label or an annotation."""

    def index(pod: Mapping[str, Any]) -> int | None:
        marks = (text(pod, "metadata", part, name) for part in ("labels", "annotations"))
        return next((int(mark) for mark in marks if is_number(mark)), None)

    return index


def is_number(mark: str) -> bool:
    """Whether a label is a whole number."""
    return mark.isascii() and mark.isdecimal()
