"""What a run's objects count on that submitting does not make: secrets, accounts, classes, queues, quota. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from rankzero.launch.backends.kubernetes.resources import CLAIM, is_preparation, is_training, label
from rankzero.launch.diagnose.hosts import readable
from rankzero.launch.kinds import kind_of
from rankzero.launch.labels import QUEUE, QUEUE_PRIORITY, Manifest
from rankzero.launch.untyped_json import at, exact_amount, maps, text, whole, words

_SAYABLE = frozenset({"requests.cpu", "requests.memory", "limits.cpu", "limits.memory"})


@dataclass(slots=True)
class Needs:
    """Of one run."""

    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    """Names of variables by key, by the Secret's name. Optional ones are not among them."""
    patched_secrets: dict[str, str] = field(default_factory=dict)
    """Further ones that the site's patch brings, by what takes them: volumes, whole environments, init containers."""
    late: bool = False
    """Whether something that the pods mount may make Secrets, as a CSI driver does."""
    pull_secrets: set[str] = field(default_factory=set)
    accounts: set[str] = field(default_factory=set)
    """Service accounts that the objects do not bring along."""
    priorities: set[str] = field(default_factory=set)
    queue: str | None = None
    queue_priority: str | None = None
    claims: set[str] = field(default_factory=set)
    """Claims that are mounted and not among the objects."""
    storage_classes: dict[str, str] = field(default_factory=dict)
    """Storage class by the claim that is to be made with it; empty: the cluster's default."""
    pods: int = 0
    """How many train."""
    fewest: int = 0
    """With how few of them it trains."""
    amounts: dict[str, Fraction] = field(default_factory=dict)
    """What the pods that train take of a ResourceQuota, all together: requests.cpu, limits.memory, pods … Or what the
    preparation takes, which goes before them, where that is more."""
    least: dict[str, Fraction] = field(default_factory=dict)
    """The same with as few pods as it trains with."""
    specs: list[Mapping[str, Any]] = field(default_factory=list)
    """Of all pods."""
    unsaid: frozenset[str] = frozenset()
    """Of requests.cpu, requests.memory, limits.cpu and limits.memory, those that some pod does not say."""


def needs_of(objects: Sequence[Manifest]) -> Needs:
    """Everything that is to be there before the first of the objects is applied."""
    found = Needs()
    made = {(one["kind"], one["metadata"]["name"]) for one in objects}
    first: dict[str, Fraction] = {}
    fewest: int | None = None
    for one in objects:
        if one["kind"] == CLAIM.kind:
            found.storage_classes[one["metadata"]["name"]] = text(one, "spec", "storageClassName")
        if is_training(one) and not is_preparation(one):
            found.queue, found.queue_priority = label(one, QUEUE), label(one, QUEUE_PRIORITY)
            kind = kind_of(one)
            fewest = whole(one, *kind.fewest_nodes) if kind is not None and kind.fewest_nodes else None
        for pod, count in pod_specs(one):
            _add_pod(found, pod, made)
            found.specs.append(pod)
            found.pods += 0 if is_preparation(one) else count
            add_amounts(first if is_preparation(one) else found.amounts, pod, count)
    found.fewest = min(found.pods, fewest) if fewest else found.pods
    found.least = {name: asked * found.fewest / max(1, found.pods) for name, asked in found.amounts.items()}
    for amounts in (found.amounts, found.least):
        amounts |= {name: max(asked, amounts.get(name, Fraction())) for name, asked in first.items()}
    return found


def pod_specs(manifest: Manifest) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Every pod spec inside an object, and how many pods are made of it."""
    kind = kind_of(manifest)
    if kind is not None:
        yield from kind.pod_specs(manifest)


def _add_pod(found: Needs, pod: Mapping[str, Any], made: set[tuple[str, str]]) -> None:
    for container in maps(pod, "containers"):
        for variable in maps(container, "env"):
            reference = at(variable, "valueFrom", "secretKeyRef")
            if reference and not reference.get("optional"):
                keys = found.secrets.setdefault(text(reference, "name"), {})
                keys[text(reference, "key")] = text(variable, "name")
    secrets = {name: who for name, who in _patched_secrets(pod) if ("Secret", name) not in made}
    found.patched_secrets |= {name: who for name, who in secrets.items() if name not in found.secrets}
    found.late |= any(at(volume, "csi") for volume in maps(pod, "volumes"))
    found.pull_secrets |= {text(one, "name") for one in maps(pod, "imagePullSecrets")}
    account = text(pod, "serviceAccountName")
    if account and ("ServiceAccount", account) not in made:
        found.accounts.add(account)
    if text(pod, "priorityClassName"):
        found.priorities.add(text(pod, "priorityClassName"))
    said = {
        f"{kind}.{name}"
        for kind in ("requests", "limits")
        for one in maps(pod, "containers")
        for name in _said(one, kind)
    }
    found.unsaid |= _SAYABLE - said
    for volume in maps(pod, "volumes"):
        claim = text(volume, "persistentVolumeClaim", "claimName")
        if claim and (CLAIM.kind, claim) not in made:
            found.claims.add(claim)


def _patched_secrets(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name of each Secret that is not optional, and what takes it."""
    taken: list[tuple[Mapping[str, Any], str, str]] = []
    first = list(maps(pod, "initContainers"))
    for container in (*first, *maps(pod, "containers")):
        who = f"container {text(container, 'name')}"
        taken += [(at(source, "secretRef"), "name", who) for source in maps(container, "envFrom")]
        if container in first:
            taken += [(at(one, "valueFrom", "secretKeyRef"), "name", who) for one in maps(container, "env")]
    for volume in maps(pod, "volumes"):
        who = f"volume {text(volume, 'name')}"
        taken.append((at(volume, "secret"), "secretName", who))
        taken += [(at(source, "secret"), "name", who) for source in maps(volume, "projected", "sources")]
    for reference, key, who in taken:
        if text(reference, key) and not reference.get("optional"):
            yield text(reference, key), who


def add_amounts(amounts: dict[str, Fraction], pod: Mapping[str, Any], count: int) -> None:
    """What so many pods of a spec take of a ResourceQuota."""
    amounts["pods"] = amounts.get("pods", Fraction()) + count
    for kind in ("requests", "limits"):
        for name, asked in amounts_of(pod, kind).items():
            amounts[f"{kind}.{name}"] = amounts.get(f"{kind}.{name}", Fraction()) + count * asked


def amounts_of(pod: Mapping[str, Any], kind: str) -> dict[str, Fraction]:
    """What a pod takes at most at a time of its `requests` or its `limits`: all its containers with its sidecars, or an
    init container with the sidecars that were started before it."""
    beside: dict[str, Fraction] = {}
    first: list[dict[str, Fraction]] = []
    for one in maps(pod, "initContainers"):
        own = _plus(beside, _said(one, kind))
        first.append(own)
        if text(one, "restartPolicy") == "Always":
            beside = own
    total = _plus(beside, *(_said(one, kind) for one in maps(pod, "containers")))
    for amounts in first:
        total |= {name: max(many, total.get(name, many)) for name, many in amounts.items()}
    overhead = {name: exact_amount(many) or Fraction() for name, many in words(at(pod, "overhead")).items()}
    return _plus(total, {name: many for name, many in overhead.items() if kind == "requests" or name in total})


def _said(container: Mapping[str, Any], kind: str) -> dict[str, Fraction]:
    own = words(at(container, "resources", kind))
    if kind == "requests":  # what has a limit and no request asks for its limit
        own = {**words(at(container, "resources", "limits")), **own}
    return {name: exact_amount(asked) or Fraction() for name, asked in own.items()}


def _plus(*parts: Mapping[str, Fraction]) -> dict[str, Fraction]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum((part.get(name, Fraction()) for part in parts), Fraction()) for name in names}


def shown(name: str, many: Fraction) -> str:
    """So much of a resource, for people."""
    resource = name.removeprefix("requests.").removeprefix("limits.")
    return readable(resource, str(int(many))) if many.denominator == 1 else f"{float(many):g}"
