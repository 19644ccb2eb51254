"""Before a submit: whether what the run counts on is there. Reads only; what it may not read it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from rankzero.errors import Problem
from rankzero.launch.backend import Say
from rankzero.launch.backends.kubernetes.api import Api
from rankzero.launch.backends.kubernetes.discover import Discovery
from rankzero.launch.backends.kubernetes.errors import ApiError
from rankzero.launch.backends.kubernetes.limits import defaulted, exceeded
from rankzero.launch.backends.kubernetes.needs import Needs, add_amounts, shown
from rankzero.launch.backends.kubernetes.resources import (
    CLAIM,
    CONFIG_MAP,
    LIMIT_RANGE,
    NODE,
    PRIORITY_CLASS,
    RESOURCE_QUOTA,
    SECRET,
    SERVICE_ACCOUNT,
    STORAGE_CLASS,
    VOLUME,
)
from rankzero.launch.labels import RUN, Manifest
from rankzero.launch.pods import conditions_of
from rankzero.launch.resource import POD, Resource
from rankzero.launch.survey import Doubt
from rankzero.launch.untyped_json import at, exact_amount, text, words

_DEFAULT_CLASS = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
"""Any of these; older provisioners write the second."""


@dataclass(slots=True)
class Preflight:
    """One look. Raises ApiError where the cluster does not answer; what is forbidden is said and left out."""

    api: Api
    discovery: Discovery
    needs: Needs
    say: Say
    replaces: str = ""
    """A run whose pods make room for these."""
    doubts: list[Doubt] = field(default_factory=list)
    """What a submit is taken with all the same."""
    failed: set[Resource] = field(default_factory=set)
    """Kinds that the server fails over, however often it is asked."""
    _unread: dict[str, None] = field(default_factory=dict)
    _unknown: set[tuple[Resource, str]] = field(default_factory=set)
    """Objects of which it is not known whether they are there: rights may be for some names alone. An empty name: all
    of a kind."""

    def run(self) -> list[Problem]:
        """Everything that is missing."""
        needs = self.needs
        ranges = self._list(LIMIT_RANGE)
        problems = [*self._secrets(), *self._claims(), *self._quotas(ranges), *self._queue()]
        for what in dict.fromkeys(exceeded(ranges or (), needs.specs)):
            fix = "ask for what it allows (resources, nproc_per_node, pod_patch)"
            self.doubts.append(Doubt("quota", f"{what}: no pod can be made", fix, waits=True))
        for resource, names, hint in (
            (SERVICE_ACCOUNT, needs.accounts, "create it, or leave service_account.name out of cluster.yaml"),
            (PRIORITY_CLASS, needs.priorities, "`kubectl get priorityclasses` shows those that there are"),
        ):
            problems += [
                problem for name in sorted(names) for problem in self._named(resource, name, self._absent(hint))
            ]
        if self._unread:
            self.say(f"not checked, for want of rights: {', '.join(self._unread)}")
        return problems

    def _absent(self, hint: str, what: str = "") -> tuple[str, str]:
        return what or "there is none of this name in the cluster", hint

    def _named(self, resource: Resource, name: str, words_: tuple[str, str]) -> Iterator[Problem]:
        if self._read(resource, name) is None and not {(resource, name), (resource, "")} & self._unknown:
            yield Problem(words_[0], f"{resource.kind}/{name}", words_[1])

    def _secrets(self) -> Iterator[Problem]:
        place = f"in namespace {self.api.place.namespace}"
        for name, keys in sorted(self.needs.secrets.items()):
            there = self._read(SECRET, name)
            if (SECRET, name) in self._unknown:
                continue
            has = None if there is None else set(at(there, "data"))  # its values are not kept
            for key, variable in sorted(keys.items()):
                if has is not None and key in has:
                    continue
                what = f"there is no such secret {place}" if has is None else f"it has no key {key}"
                hint = f"{variable} comes from it: `rankzero secret set` creates it, or mark it `optional: true`"
                yield Problem(what, f"Secret/{name}", hint)
        for name, who in sorted(self.needs.patched_secrets.items()):
            if self._read(SECRET, name) is None and (SECRET, name) not in self._unknown:
                what = f"Secret/{name}: there is no such secret {place}, which {who} takes"
                fix = "create it, or correct pod_patch"
                self.doubts.append(Doubt("secrets", what, fix, waits=not self.needs.late))
        for name in sorted(self.needs.pull_secrets):
            hint = "`kubectl create secret docker-registry` makes one; or leave it out of image_pull_secrets"
            yield from self._named(SECRET, name, self._absent(hint, f"there is no such secret {place}"))

    def _claims(self) -> Iterator[Problem]:
        for name in sorted(self.needs.claims):
            hint = "give the storage entry a `size`, and it is made; or correct `claim`"
            what = f"there is no such claim in namespace {self.api.place.namespace}"
            yield from self._named(CLAIM, name, self._absent(hint, what))
        there = {name: self._read(CLAIM, name) for name in sorted({*self.needs.claims, *self.needs.storage_classes})}
        self.doubts += [doubt for one in there.values() if one and (doubt := _of_claim(one)) is not None]
        wanted = {claim: kind for claim, kind in self.needs.storage_classes.items() if there[claim] is None}
        idle = sorted(name for name, one in there.items() if one and _has_no_class(one))
        classes = self._list(STORAGE_CLASS) if wanted or idle else []
        known = {str(one["metadata"]["name"]): one for one in classes or ()}
        if classes is None:
            return
        listed = f"this cluster has: {', '.join(sorted(known))}" if known else "this cluster has none"
        for claim, kind in sorted(wanted.items()):
            if kind and kind not in known:
                yield Problem(f"there is no storage class {kind}", f"{CLAIM.kind}/{claim}", listed)
        if any(is_default(one) for one in known.values()):
            return
        fix = "give the storage entry a `class`"
        self.doubts += [self._without_class(claim, fix) for claim, kind in sorted(wanted.items()) if not kind]
        self.doubts += [self._without_class(claim, f"delete it and {fix}, or make a volume for it") for claim in idle]

    def _without_class(self, claim: str, fix: str) -> Doubt:
        """A volume that somebody has made may be for it."""
        what = f"{CLAIM.kind}/{claim}: no storage class is the default, so somebody has to make a volume"
        volumes = self._list(VOLUME)
        free = [
            one for one in volumes or () if not text(one, "spec", "storageClassName") and _phase(one) == "Available"
        ]
        return Doubt("storage", what, fix, waits=volumes is not None and not free)

    def _queue(self) -> Iterator[Problem]:
        queue = self.needs.queue
        if queue is None:
            return
        kinds = self.discovery.queues()
        if kinds is None:
            hint = "leave queue out of cluster.yaml, or have Kueue installed: without it nothing counts the run"
            yield Problem("this cluster has no Kueue", f"queue {queue}", hint)
            return
        local, priority = kinds
        known = ", ".join(sorted(str(one["metadata"]["name"]) for one in self._list(local) or ())) or "none"
        what = f"there is no such queue in namespace {self.api.place.namespace}"
        yield from self._named(local, queue, (what, f"queues there: {known}"))
        self.doubts += _of_queue(queue, self._read(local, queue) or {})
        if self.needs.queue_priority is not None:
            yield from self._named(
                priority, self.needs.queue_priority, self._absent("leave queue.priority out, or correct it")
            )

    def _quotas(self, ranges: list[Manifest] | None) -> Iterator[Problem]:
        """More than a quota grants in all can never run; more than is free at the moment waits for others to end."""
        quotas = self._list(RESOURCE_QUOTA) or []
        freed = self._freed() if quotas and self.replaces else {}
        for quota in quotas:
            if at(quota, "spec").get("scopes") or at(quota, "spec").get("scopeSelector"):
                continue  # whether it counts these pods follows from more than their requests
            hard, used = words(at(quota, "status", "hard")), words(at(quota, "status", "used"))
            where = f"ResourceQuota/{quota['metadata']['name']}"
            for name, most in sorted(hard.items()):
                counted = name if "." in name or name == "pods" else f"requests.{name}"  # `cpu` is requests.cpu
                grant, taken = exact_amount(most), exact_amount(used.get(name)) or Fraction()
                taken = max(Fraction(), taken - freed.get(counted, Fraction())) if freed is not None else Fraction()
                asked, least = self.needs.amounts.get(counted, Fraction()), self.needs.least.get(counted, Fraction())
                if counted in self.needs.unsaid and ranges is not None and not defaulted(ranges, counted):
                    hint = f"set resources.{counted.removeprefix('requests.')} in cluster.yaml"
                    yield Problem(f"it counts {name}, so every pod has to say its {counted}", where, hint)
                elif grant is None:
                    continue  # a form of quantities that we do not read
                elif least > grant:
                    hint = "ask for less in cluster.yaml (num_nodes, resources), or for more quota"
                    what = f"the run asks for {shown(name, least)} of {name}, and {most} is all there is"
                    yield Problem(what, where, hint)
                elif asked and asked + taken > grant:
                    waits = bool(least and least + taken > grant)
                    all_ = f"not all pods have room, which ask for {shown(name, asked)}"
                    then = f"pods wait until {shown(name, least)} are free" if waits else all_
                    what = f"{where}: {used.get(name, '0')} of {most} {name} are taken; {then}"
                    fix = "wait until others end, or ask for less (num_nodes, resources)"
                    self.doubts.append(Doubt("quota", what, fix, waits=waits))

    def _freed(self) -> dict[str, Fraction] | None:
        """What the pods of the run that makes room take of quotas; None where they may not be listed."""
        pods = self._list(POD, {"labelSelector": f"{RUN}={self.replaces}"})
        freed: dict[str, Fraction] = {}
        for pod in pods or ():
            if _phase(pod) not in ("Succeeded", "Failed"):  # quotas count no others
                add_amounts(freed, at(pod, "spec"), 1)
        return None if pods is None else freed

    def _read(self, resource: Resource, name: str) -> Manifest | None:
        try:
            return self.api.read(resource, name)
        except ApiError as error:
            self._note(resource, error)
            self._unknown.add((resource, name))
            return None

    def _list(self, resource: Resource, params: Mapping[str, str] | None = None) -> list[Manifest] | None:
        try:
            return self.api.list(resource, params)[0]
        except ApiError as error:
            self._note(resource, error)
            self._unknown.add((resource, ""))
            return None

    def _note(self, resource: Resource, error: ApiError) -> None:
        if error.status >= 500:
            self.failed.add(resource)
            self.doubts.append(could_not_ask(resource, error))
        elif error.status in (403, 404):
            self._unread[resource.title] = None
        else:
            raise error


_LINES = {
    **{
        RESOURCE_QUOTA.kind: "quota",
        LIMIT_RANGE.kind: "quota",
        SECRET.kind: "secrets",
        NODE.kind: "nodes",
        CONFIG_MAP.kind: "nodes",
    },
    **{CLAIM.kind: "storage", STORAGE_CLASS.kind: "storage", VOLUME.kind: "storage", "LocalQueue": "queue"},
}
"""What a survey calls what is looked at."""


def could_not_ask(resource: Resource, error: ApiError) -> Doubt:
    """Of a server that fails over one kind of objects, which a submit can do without having seen."""
    what = f"{resource.title} could not be looked at ({error.status} {error.refusal.reason}): {error.refusal.message}"
    return Doubt(
        _LINES.get(resource.kind, "rights"), what, "give the command again; the cluster's administrator knows more"
    )


def is_default(storage_class: Manifest) -> bool:
    """Whether claims that name no storage class get this one."""
    notes = words(at(storage_class, "metadata", "annotations"))
    return any(notes.get(name) == "true" for name in _DEFAULT_CLASS)


def _phase(manifest: Manifest) -> str:
    return text(manifest, "status", "phase")


def _has_no_class(claim: Manifest) -> bool:
    """Whether a claim that waits for its volume gets the default class, now or once there is one."""
    spec = at(claim, "spec")
    return _phase(claim) == "Pending" and spec.get("storageClassName") is None and not text(spec, "volumeName")


def _of_claim(claim: Manifest) -> Doubt | None:
    """What keeps pods from a claim that is there."""
    name = claim["metadata"]["name"]
    if claim["metadata"].get("deletionTimestamp"):
        what, fix = "is being deleted, and no new pod may mount it", "wait until it has gone, or name another claim"
    elif _phase(claim) == "Lost":
        what, fix = "has lost its volume", "`kubectl describe` says which; make it again, or name another claim"
    else:
        return None
    return Doubt("storage", f"{CLAIM.kind}/{name} {what}", fix, waits=True)


def _of_queue(name: str, queue: Manifest) -> list[Doubt]:
    """What keeps Kueue from admitting anything of a queue."""
    policy, active = text(queue, "spec", "stopPolicy"), conditions_of(queue).get("Active")
    if policy in ("Hold", "HoldAndDrain"):
        what = f"it is stopped ({policy})"
    elif active is not None and active.status == "False":
        what = f"it is not active: {active.message or active.reason}"
    else:
        return []
    fix = "ask whoever runs the cluster, or name another queue"
    return [Doubt("queue", f"LocalQueue/{name}: {what}; pods wait until it admits runs", fix, waits=True)]
