"""What a cluster has for a run: nodes, quota, storage, secrets, queue, image, and whether it would take the objects.

Reads, and has the server judge every object without keeping it. What may not be read is said, and is no problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rankzero.errors import RankzeroError
from rankzero.launch.backends.kubernetes.api import Api
from rankzero.launch.backends.kubernetes.apply import Submission
from rankzero.launch.backends.kubernetes.discover import Discovery
from rankzero.launch.backends.kubernetes.errors import NO_ANSWER, ApiError
from rankzero.launch.backends.kubernetes.needs import Needs, needs_of, pod_specs
from rankzero.launch.backends.kubernetes.preflight import could_not_ask, is_default
from rankzero.launch.backends.kubernetes.resources import (
    CLAIM,
    CONFIG_MAP,
    NODE,
    RESOURCE_QUOTA,
    SECRET,
    STORAGE_CLASS,
    TRAINING,
    is_preparation,
    labels_of_pods,
    name_of,
)
from rankzero.launch.backends.kubernetes.rights import missing_rights
from rankzero.launch.backends.kubernetes.room import MEMORY, PRODUCT, room_for
from rankzero.launch.labels import Manifest
from rankzero.launch.resource import Resource
from rankzero.launch.survey import Doubt, Survey
from rankzero.launch.untyped_json import at, maps, text, whole, words
from rankzero.wording import counted, listed

_AUTOSCALER = ("kube-system", "cluster-autoscaler-status")
"""Where the cluster's autoscaler says how it is, unless a site moved it."""


@dataclass(slots=True)
class Surveyor:
    """One look. Raises ApiError where the cluster does not answer."""

    api: Api
    discovery: Discovery
    objects: Sequence[Manifest]
    _said: list[str] = field(default_factory=list)
    _doubts: list[Doubt] = field(default_factory=list)
    _lacking: set[str] = field(default_factory=set)
    _failed: set[Resource] = field(default_factory=set)
    _forbidden: set[tuple[Resource, str]] = field(default_factory=set)

    def look(self) -> Survey:
        """All of it."""
        needs = needs_of(self.objects)
        fitting, nodes = self._nodes(needs)
        refused = self._judged()
        self._doubts += missing_rights(self.api, self.objects)
        sizes = [size for node in fitting if (size := whole(node, "metadata", "labels", MEMORY))]
        products = {text(node, "metadata", "labels", PRODUCT) for node in fitting} - {""}
        has = [
            ("api", self._server()),
            ("kinds", self._kinds()),
            ("nodes", nodes),
            ("quota", self._quota()),
            ("storage", self._storage(needs)),
            ("secrets", self._secrets(needs)),
            ("queue", self._queue(needs)),
            ("image", self._image(fitting)),
            ("rights", self._rights(refused)),
        ]
        if self._said:
            has.append(("besides", "; ".join(dict.fromkeys(self._said))))
        gpu_bytes = min(sizes) << 20 if sizes else 0
        return Survey(
            tuple(has),
            listed(sorted(products)),
            gpu_bytes,
            refused,
            tuple(dict.fromkeys(self._doubts)),
            frozenset(self._lacking),
        )

    def _server(self) -> str:
        """Which it is, and in which version where that may be read."""
        try:
            version = text(self.api.get("/version"), "gitVersion")
        except ApiError as error:
            if error.status in (NO_ANSWER, 429):
                raise
            version = ""
        return f"{self.api.place.server}{f', Kubernetes {version}' if version else ''}"

    def _kinds(self) -> str:
        """What a run can become here."""
        served = self.discovery.training()
        absent = sorted(TRAINING.keys() - served.keys())
        return f"{listed(sorted(served))} served{f'; not {listed(absent)}' if absent else ''}"

    def _judged(self) -> RankzeroError | None:
        submission = Submission(self.api, self.discovery, self.objects, self._said.append)
        try:
            submission.judge()
        except RankzeroError as error:
            return error
        finally:
            self._doubts += submission.doubts
            self._failed |= submission.failed
        return None

    def _rights(self, refused: RankzeroError | None) -> str:
        names = listed(name_of(one) for one in self.objects)
        if refused is not None:
            return f"a submit would be refused: {counted(len(refused.problems), 'reason')}, below"
        return f"the server would take {names}"

    def _nodes(self, needs: Needs) -> tuple[Sequence[Manifest], str]:
        """Those that pods of the run could be on, and all in words."""
        every = self._list(NODE)
        if every is None:
            return [], "may not be read"
        room = room_for(*_training_pod(self.objects), needs.pods, needs.fewest, every)
        if room.doubt is None:
            return room.nodes, room.says
        others = self._may_bring_others(needs) if room.doubt.waits else ""
        if others:  # then the nodes that there are now do not say what pods get
            doubt = replace(room.doubt, what=f"{room.doubt.what}; {others}", waits=False)
            self._doubts.append(doubt)
            return room.nodes, f"{room.says}; {others}"
        self._doubts.append(room.doubt)
        return room.nodes, room.says

    def _may_bring_others(self, needs: Needs) -> str:
        """Who may give pods other nodes than those that there are, or tolerations for them; empty: nobody is known."""
        if needs.queue:
            return "Kueue may give them tolerations and labels by a flavor of its queue, or another cluster's nodes"
        if self.discovery.has_karpenter():
            return "Karpenter may make nodes for them"
        return "the cluster's autoscaler may make nodes for them" if self._has_autoscaler() else ""

    def _has_autoscaler(self) -> bool:
        try:
            self.api.get(CONFIG_MAP.path(*_AUTOSCALER))
        except ApiError as error:
            self._note(CONFIG_MAP, error)
            return False
        return True

    def _quota(self) -> str:
        quotas = self._list(RESOURCE_QUOTA)
        if quotas is None:
            return "may not be read"
        found = []
        for quota in quotas:
            hard, used = words(at(quota, "status", "hard")), words(at(quota, "status", "used"))
            amounts = [f"{name} {used.get(name, '0')} of {most}" for name, most in sorted(hard.items())]
            found.append(f"{quota['metadata']['name']}: {', '.join(amounts)} taken")
        return "; ".join(found) or f"none in namespace {self.api.place.namespace}"

    def _storage(self, needs: Needs) -> str:
        classes = self._list(STORAGE_CLASS)
        if classes is None:
            known = "storage classes may not be read"
        else:
            names = [f"{one['metadata']['name']}{' (default)' if is_default(one) else ''}" for one in classes]
            known = f"classes {listed(sorted(names), 8)}" if names else "no storage class"
        return "; ".join([known, *self._claims(needs)])

    def _claims(self, needs: Needs) -> Iterator[str]:
        for name in sorted({*needs.claims, *needs.storage_classes}):
            there = self._read(CLAIM, name)
            if there is None and (CLAIM, name) in self._forbidden:
                yield f"claim {name} may not be read"
                continue
            if there is None and name in needs.storage_classes:
                yield f"claim {name} would be made"
                continue
            if there is None:
                self._lacking.add("storage")
                yield f"claim {name} is not there"
                continue
            size = text(there, "status", "capacity", "storage") or text(
                there, "spec", "resources", "requests", "storage"
            )
            modes = [str(mode) for mode in at(there, "spec").get("accessModes") or ()]
            facts = [text(there, "status", "phase") or "there", size, *modes]
            yield f"claim {name} is {', '.join(fact for fact in facts if fact)}"
            if needs.pods > 1 and modes and not {"ReadWriteMany", "ReadOnlyMany"} & set(modes):
                what = f"claim {name} is {listed(modes)}: one host at a time mounts it, and there are {needs.pods} pods"
                fix = "a claim that is ReadWriteMany, of a storage class of a shared file system"
                self._doubts.append(Doubt("storage", what, fix))

    def _secrets(self, needs: Needs) -> str:
        wanted = sorted({*needs.secrets, *needs.patched_secrets, *needs.pull_secrets})
        if not wanted:
            return "none needed"
        there = [name for name in wanted if self._read(SECRET, name) is not None]
        unknown = [name for name in wanted if (SECRET, name) in self._forbidden]
        missing = [name for name in wanted if name not in (*there, *unknown)]
        if {*missing} - {*needs.patched_secrets}:  # of those it is only doubtful
            self._lacking.add("secrets")
        parts = ((there, "there"), (missing, "not found"), (unknown, "may not be read"))
        return "; ".join(f"{listed(names)} {how}" for names, how in parts if names)

    def _queue(self, needs: Needs) -> str:
        kinds = self.discovery.queues()
        every = None if kinds is None else self._list(kinds[0])
        names = sorted(str(one["metadata"]["name"]) for one in every or ())
        if needs.queue and needs.queue not in names and (kinds is None or every is not None):
            self._lacking.add("queue")
        if kinds is None:
            return "no Kueue: nothing counts runs"
        asked = f"asked for: {needs.queue}" if needs.queue else "none asked for"
        return f"{asked}; in this namespace: {listed(names) if names else 'none'}"

    def _image(self, fitting: Sequence[Manifest]) -> str:
        pod, _ = _training_pod(self.objects)
        names = list(dict.fromkeys(text(one, "image") for one in maps(pod, "containers")))
        parts = []
        for name in names:
            having = sum(_has_image(node, name) for node in fitting)
            parts.append(f"{name}, on {having} of {counted(len(fitting), 'node')} already" if fitting else name)
        return "; ".join(parts)

    def _read(self, resource: Resource, name: str) -> Manifest | None:
        try:
            return self.api.read(resource, name)
        except ApiError as error:
            self._note(resource, error)
            if error.status != 404:
                self._forbidden.add((resource, name))
            return None

    def _list(self, resource: Resource) -> list[Manifest] | None:
        if resource in self._failed:  # every try takes its time
            return None
        try:
            return self.api.list(resource)[0]
        except ApiError as error:
            self._note(resource, error)
            return None

    def _note(self, resource: Resource, error: ApiError) -> None:
        """What may not be read is no problem, and what the server fails over is a doubt."""
        if error.status >= 500:
            self._doubts.append(could_not_ask(resource, error))
        elif error.status not in (403, 404):
            raise error


def _training_pod(objects: Sequence[Manifest]) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Spec and labels of the pod that trains. Where a kind has several specs, as a PyTorchJob for its Master and its
    Workers, they ask for the same of a node."""
    every = ((pod, labels_of_pods(one, pod)) for one in objects if not is_preparation(one) for pod, _ in pod_specs(one))
    return next(every, ({}, {}))


def _has_image(node: Manifest, name: str) -> bool:
    """Nodes name images in full: docker.io/library/x:1."""
    listed_ = (str(each) for one in maps(node, "status", "images") for each in one.get("names") or ())
    return any(each == name or each.endswith(f"/{name}") for each in listed_)
