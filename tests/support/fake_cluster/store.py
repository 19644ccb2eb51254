"""Objects as an API server keeps them: versions, uids, history for watches, selectors, server-side apply. No HTTP."""

from __future__ import annotations

import copy
import itertools
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

Object = dict[str, Any]
START = datetime(2026, 11, 21, 7, 0, 0, tzinfo=UTC)

KINDS = {
    "pods": ("v1", "Pod"),
    "configmaps": ("v1", "ConfigMap"),
    "persistentvolumeclaims": ("v1", "PersistentVolumeClaim"),
    "persistentvolumes": ("v1", "PersistentVolume"),
    "services": ("v1", "Service"),
    "secrets": ("v1", "Secret"),
    "events": ("v1", "Event"),
    "nodes": ("v1", "Node"),
    "serviceaccounts": ("v1", "ServiceAccount"),
    "roles": ("rbac.authorization.k8s.io/v1", "Role"),
    "rolebindings": ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    "networkpolicies": ("networking.k8s.io/v1", "NetworkPolicy"),
    "priorityclasses": ("scheduling.k8s.io/v1", "PriorityClass"),
    "resourcequotas": ("v1", "ResourceQuota"),
    "limitranges": ("v1", "LimitRange"),
    "localqueues": ("kueue.x-k8s.io/v1beta2", "LocalQueue"),
    "workloadpriorityclasses": ("kueue.x-k8s.io/v1beta2", "WorkloadPriorityClass"),
    "podgroups": ("scheduling.volcano.sh/v1beta1", "PodGroup"),
    "storageclasses": ("storage.k8s.io/v1", "StorageClass"),
    "jobs": ("batch/v1", "Job"),
    "statefulsets": ("apps/v1", "StatefulSet"),
    "deployments": ("apps/v1", "Deployment"),
    "jobsets": ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    "trainjobs": ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
    "trainingruntimes": ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"),
    "pytorchjobs": ("kubeflow.org/v1", "PyTorchJob"),
    "workloads": ("kueue.x-k8s.io/v1beta2", "Workload"),
}
PLURALS = {kind: plural for plural, (_, kind) in KINDS.items()}


@dataclass(frozen=True)
class Key:
    """One object."""

    plural: str
    namespace: str
    name: str


@dataclass(frozen=True)
class Change:
    """What a watch sends."""

    version: int
    type: str
    key: Key
    object: Object


@dataclass
class Store:
    """All objects. Whoever changes or reads holds `news`, which is notified of every change."""

    objects: dict[Key, Object] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)
    version: int = 100
    oldest: int = 0
    """Watches from before this version are 410 Gone."""
    news: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))
    _uids: Any = field(default_factory=lambda: itertools.count(1))
    _seconds: float = 0.0

    def now(self) -> datetime:
        """A clock that moves only when it is looked at."""
        self._seconds += 0.25
        return START + timedelta(seconds=self._seconds)

    def of(self, plural: str) -> list[Object]:
        """All objects of a kind, by name."""
        with self.news:
            keys = sorted((key for key in self.objects if key.plural == plural), key=lambda key: key.name)
            return [self.objects[key] for key in keys]

    def find(self, plural: str, name: str, namespace: str = "train") -> Object | None:
        """One object."""
        with self.news:
            return self.objects.get(Key(plural, namespace, name))

    def put(self, obj: Object, namespace: str = "train") -> Object:
        """Create or replace; gives it what a server gives."""
        with self.news:
            plural = PLURALS[obj["kind"]]
            key = Key(plural, namespace, obj["metadata"]["name"])
            before = self.objects.get(key)
            obj = copy.deepcopy(obj)
            metadata = obj["metadata"]
            self.version += 1
            metadata["resourceVersion"] = str(self.version)
            if before is None:
                metadata["uid"] = f"uid-{next(self._uids)}"
                metadata["creationTimestamp"] = self.now().strftime("%Y-%m-%dT%H:%M:%SZ")
                metadata.setdefault("namespace", namespace)
            else:
                metadata["uid"] = before["metadata"]["uid"]
                metadata["creationTimestamp"] = before["metadata"]["creationTimestamp"]
            self.objects[key] = obj
            self._note("ADDED" if before is None else "MODIFIED", key, obj)
            return obj

    def drop(self, plural: str, name: str, namespace: str = "train") -> None:
        """Remove."""
        with self.news:
            key = Key(plural, namespace, name)
            obj = self.objects.pop(key, None)
            if obj is not None:
                self.version += 1
                obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
                self._note("DELETED", key, obj)

    def compact(self) -> None:
        """Forget all history: watches that go on from before now are 410 Gone."""
        with self.news:
            self.history.clear()
            self.oldest = self.version

    def since(self, version: int, plural: str, query: dict[str, str]) -> list[Change]:
        """Changes that a watch has not seen."""
        with self.news:
            return [
                change
                for change in self.history
                if change.version > version and change.key.plural == plural and selected(change.object, query)
            ]

    def _note(self, kind: str, key: Key, obj: Object) -> None:
        self.history.append(Change(self.version, kind, key, copy.deepcopy(obj)))
        self.news.notify_all()


def selected(obj: Object, query: dict[str, str]) -> bool:
    """Whether labelSelector and fieldSelector want it."""
    labels = obj["metadata"].get("labels") or {}
    for part in filter(None, query.get("labelSelector", "").split(",")):
        name, equals, value = part.partition("=")
        if name not in labels or (equals and labels[name] != value):
            return False
    path, _, value = query.get("fieldSelector", "").partition("=")
    found: Any = obj
    for part in filter(None, path.split(".")):
        found = found.get(part, {})
    return not path or found == value


def merged(old: Any, new: Any, *, nulls: bool = True) -> Any:
    """A merge patch; also what server-side apply does with maps (lists are replaced, which is enough here)."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return copy.deepcopy(new)
    result = copy.deepcopy(old)
    for key, value in new.items():
        if value is None and nulls:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value, nulls=nulls)
    return result
