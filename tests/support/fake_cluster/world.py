"""What controllers and kubelets would do: pods for objects, their lives by a script, conditions in the end. No HTTP.

The world moves one step whenever somebody who watches it has nothing left to read, so no test waits for time to pass.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rankzero.launch import kinds, labels
from tests.support.fake_cluster.store import Object, Store

Act = tuple[Any, ...]
"""("wait", reason, message) · ("run",) · ("log", text) · ("same", text): a line of the same instant ·
("exit", code, words) · ("restart", code): the container starts again in the same pod · ("evict",) ·
("cut",): its log streams break off · ("hold",): nothing more until `release`."""
NEVER_AGAIN = (2, 65, 77, 78)
_LISTED = {
    "Job": ("Complete", "Failed"),
    "JobSet": ("Completed", "Failed"),
    "TrainJob": ("Complete", "Failed"),
    "PyTorchJob": ("Succeeded", "Failed"),
}


def life(*lines: str, code: int = 0, words: dict[str, Any] | None = None) -> list[Act]:
    """A pod that runs, says some lines and ends."""
    said = {"rankzero": 1, "outcome": "done" if code == 0 else "failed", "exit_code": code, "node": 0, **(words or {})}
    return [
        ("wait", "ContainerCreating", ""),
        ("run",),
        *(("log", line) for line in lines),
        ("exit", code, json.dumps(said)),
    ]


@dataclass
class Instance:
    """One instance of a container: its log."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    over: bool = False


@dataclass
class World:
    """Controllers, scheduler and kubelets in one."""

    store: Store
    scripts: dict[tuple[str, int], list[list[Act]]] = field(default_factory=dict)
    """What the pods of (role, node) do, a list for each pod that takes the place; the last is for all further ones."""
    logs: dict[str, list[Instance]] = field(default_factory=dict)
    """Instances of the container by the pod's uid."""
    cuts: int = 0
    """How often log streams were told to break off."""
    deploys: bool = True
    """Pods of Deployments get ready."""
    refused: str = ""
    """What controllers are told instead of being let make pods; they try twice, each time with another name."""
    immortal: bool = False
    """Pods that are deleted stay: their node is lost."""
    _todo: dict[str, list[Act]] = field(default_factory=dict)
    _started: dict[tuple[str, str, int], int] = field(default_factory=dict)
    _names: Any = field(default_factory=lambda: itertools.count(1))
    _stamp: int = 0

    def step(self) -> bool:
        """Let one thing happen; False where nothing is left to happen."""
        with self.store.news:
            controllers = (self._delete_one, self._expire_one, self._reconcile, self._deploy, self._collect_garbage)
            if any(work() for work in controllers):
                return True
            for pod in self.store.of("pods"):
                todo = self._todo.get(pod["metadata"]["uid"], [])
                if todo and todo[0][0] != "hold":
                    self._act(pod, todo.pop(0))
                    return True
            return False

    def release(self) -> None:
        """Let go of what holds."""
        with self.store.news:
            for todo in self._todo.values():
                if todo and todo[0][0] == "hold":
                    todo.pop(0)
            self.store.news.notify_all()

    def run_down(self) -> None:
        """Let everything happen."""
        while self.step():
            pass

    # objects

    def _delete_one(self) -> bool:
        for plural in ("trainjobs", "jobsets", "pytorchjobs", "jobs", "statefulsets"):
            for obj in self.store.of(plural):
                if obj["metadata"].get("deletionTimestamp"):
                    pods = self._pods_of(obj)
                    if pods and not self.immortal:
                        self._end_pod(pods[0])
                    elif not pods:
                        self.store.drop(plural, obj["metadata"]["name"])
                    else:
                        continue
                    return True
        return False

    def _expire_one(self) -> bool:
        """What has ended and is to go at once."""
        for plural in ("jobs", "jobsets", "pytorchjobs"):
            for obj in self.store.of(plural):
                spec = obj["spec"].get("runPolicy") or obj["spec"]
                if spec.get("ttlSecondsAfterFinished") == 0 and _condition(obj):
                    self.store.put({**obj, "metadata": {**obj["metadata"], "deletionTimestamp": self._time()}})
                    return True
        return False

    def _collect_garbage(self) -> bool:
        """What was made by an object that is gone: some time after it, as the collector that runs beside all else."""
        uids = {one["metadata"]["uid"] for one in self.store.objects.values()}
        for plural in ("jobsets", "services"):
            for one in self.store.of(plural):
                owners = one["metadata"].get("ownerReferences") or ()
                if owners and not uids & {owner["uid"] for owner in owners}:
                    self.store.drop(plural, one["metadata"]["name"])
                    return True
        return False

    def _deploy(self) -> bool:
        """A Deployment's pod is ready as soon as nobody hinders it."""
        for obj in self.store.of("deployments"):
            if self.deploys and "status" not in obj:
                generation = obj["metadata"].get("generation", 0)
                ready = {"updatedReplicas": 1, "availableReplicas": 1, "observedGeneration": generation}
                self.store.put({**obj, "status": ready})
                return True
        return False

    def _reconcile(self) -> bool:
        return any(
            self._reconcile_one(obj)
            for plural in ("jobs", "statefulsets", "jobsets", "trainjobs", "pytorchjobs")
            for obj in self.store.of(plural)
        )

    def _reconcile_one(self, obj: Object) -> bool:
        if obj["metadata"].get("deletionTimestamp") or _condition(obj):
            return False
        pods = self._pods_of(obj)
        places = self._places(obj)
        if not places:
            if pods:
                self._end_pod(pods[0], said="stopped and saved")
            return bool(pods)
        done, taken, failures = set(), set(), 0
        for pod in pods:
            index, phase = kinds.node_index(pod), pod["status"]["phase"]
            if phase == "Failed":
                failures += pod["status"].get("reason") != "Evicted"
                code = _exit_code(pod)
                if code in NEVER_AGAIN or failures > _backoff(obj):
                    return self._finish(obj, ok=False, message=f"Container exited with {code}")
                continue
            taken.add(index)
            if phase == "Succeeded":
                done.add(index)
        if len(done) == len(places) and obj["kind"] != "StatefulSet":
            return self._finish(obj, ok=True, message="all pods succeeded")
        for index in range(len(places)):
            if index not in taken:
                if self.refused:
                    return self._complain(obj)
                self._create_pod(obj, index, places[index])
                return True
        return False

    def _complain(self, obj: Object) -> bool:
        name, told = obj["metadata"]["name"], {key: obj["metadata"][key] for key in ("name", "uid")}
        if self.store.find("events", f"{name}.1") is not None:
            return False
        for number, pod in ((1, f"{name}-x7k2p"), (2, f"{name}-9qq4z")):
            said = f'Error creating: pods "{pod}" is forbidden: {self.refused}'
            event: Object = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": f"{name}.{number}"}}
            about = {"kind": obj["kind"], **told}
            self.store.put({**event, "reason": "FailedCreate", "message": said, "involvedObject": about})
        return True

    def _finish(self, obj: Object, *, ok: bool, message: str) -> bool:
        word = _LISTED[obj["kind"]][0 if ok else 1]
        condition = {"type": word, "status": "True", "reason": "Done", "message": message}
        self.store.put({**obj, "status": {"conditions": [condition]}})
        return True

    def _places(self, obj: Object) -> list[Object]:
        """A pod template for each node; none while the object is suspended."""
        spec = obj["spec"]
        if spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend"):
            return []
        kind = obj["kind"]
        if kind == "StatefulSet":
            return [spec["template"]] * spec["replicas"]
        if kind == "PyTorchJob":
            replicas = spec["pytorchReplicaSpecs"]
            return [
                one["template"]
                for name in ("Master", "Worker")
                for one in [replicas.get(name)]
                if one
                for _ in range(one["replicas"])
            ]
        if kind == "TrainJob":
            runtime = self.store.find("trainingruntimes", spec["runtimeRef"]["name"])
            if runtime is None:
                return []
            spec = runtime["spec"]["template"]["spec"]
        if kind in ("TrainJob", "JobSet"):
            spec = spec["replicatedJobs"][0]["template"]["spec"]
        return [spec["template"]] * spec.get("parallelism", 1)

    # pods

    def _pods_of(self, obj: Object) -> list[Object]:
        uid = obj["metadata"]["uid"]
        return [
            pod
            for pod in self.store.of("pods")
            if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences") or ())
        ]

    def _create_pod(self, obj: Object, index: int, template: Object) -> None:
        kind, name = obj["kind"], obj["metadata"]["name"]
        metadata = copy.deepcopy(template.get("metadata") or {})
        own = metadata.setdefault("labels", {})
        if kind == "StatefulSet":
            metadata["name"] = f"{name}-{index}"
            own["apps.kubernetes.io/pod-index"] = str(index)
        elif kind == "PyTorchJob":
            metadata["name"] = f"{name}-master-0" if index == 0 else f"{name}-worker-{index - 1}"
            own["training.kubeflow.org/replica-type"] = "master" if index == 0 else "worker"
            own["training.kubeflow.org/replica-index"] = "0" if index == 0 else str(index - 1)
        else:
            group = "" if kind == "Job" else "-node-0"
            metadata["name"] = f"{name}{group}-{index}-{next(self._names):05}"
            own["batch.kubernetes.io/job-completion-index"] = str(index)
        owner = {"apiVersion": obj["apiVersion"], "kind": kind, "name": name, "uid": obj["metadata"]["uid"]}
        metadata["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": True}]
        pod = self.store.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": metadata,
                "spec": template["spec"],
                "status": {"phase": "Pending"},
            }
        )
        role = own.get(labels.ROLE, labels.NODE_ROLE)
        scripts = self.scripts.get((role, index)) or [life(f"hello from {role} {index}")]
        number = self._started.get((name, role, index), 0)
        self._started[name, role, index] = number + 1
        self._todo[pod["metadata"]["uid"]] = list(scripts[min(number, len(scripts) - 1)])
        self.logs[pod["metadata"]["uid"]] = []

    def _end_pod(self, pod: Object, *, said: str = "") -> None:
        uid = pod["metadata"]["uid"]
        if said:
            self._log(uid, said)
        for instance in self.logs.get(uid, ()):
            instance.over = True
        self._todo.pop(uid, None)
        self.store.drop("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])

    def _act(self, pod: Object, act: Act) -> None:
        verb, *rest = act
        uid = pod["metadata"]["uid"]
        if verb == "wait":
            self._status(pod, "Pending", {"waiting": {"reason": rest[0], "message": rest[1]}})
        elif verb == "run":
            self.logs[uid].append(Instance())
            self._status(pod, "Running", self._running())
        elif verb in ("log", "same"):
            self._log(uid, rest[0], same=verb == "same")
        elif verb == "exit":
            self.logs[uid][-1].over = True
            phase = "Succeeded" if rest[0] == 0 else "Failed"
            began = pod["status"]["containerStatuses"][0]["state"]["running"]
            ended = {
                **began,
                "exitCode": rest[0],
                "reason": "Completed" if rest[0] == 0 else "Error",
                "message": rest[1],
            }
            self._status(pod, phase, {"terminated": ended})
        elif verb == "restart":
            self.logs[uid][-1].over = True
            self.logs[uid].append(Instance())
            last = {"terminated": {"exitCode": rest[0], "reason": "Error"}}
            self._status(pod, "Running", self._running(), last=last)
        elif verb == "evict":
            self.logs[uid][-1].over = True
            self._status(pod, "Failed", {"terminated": {"exitCode": 137, "reason": "Error"}}, reason="Evicted")
        elif verb == "cut":
            self.cuts += 1
            self.store.news.notify_all()
        else:
            raise AssertionError(f"no such act: {verb}")

    def _running(self) -> Object:
        self._stamp += 20  # log lines come a tenth of a second apart
        return {"running": {"startedAt": f"{self._time()[:19]}Z"}}

    def _time(self) -> str:
        return f"2026-11-21T07:{self._stamp // 600:02}:{self._stamp // 10 % 60:02}.{self._stamp % 10}Z"

    def _log(self, uid: str, text: str, *, same: bool = False) -> None:
        if not self.logs.get(uid):
            return
        self._stamp += 0 if same else 1
        self.logs[uid][-1].lines.append((self._time().replace(".0Z", "Z"), text))
        self.store.news.notify_all()

    def _status(self, pod: Object, phase: str, state: Object, *, last: Object | None = None, reason: str = "") -> None:
        restarts = max(0, len(self.logs[pod["metadata"]["uid"]]) - 1)
        name = pod["spec"]["containers"][0]["name"]
        container = {"name": name, "state": state, "restartCount": restarts, "lastState": last or {}}
        status = {"phase": phase, "containerStatuses": [container], **({"reason": reason} if reason else {})}
        self.store.put({**pod, "status": status}, pod["metadata"]["namespace"])


def make_pods(store: Store, run: str, states: Sequence[str]) -> None:
    """Many pods at once, without a life: `states` are phases."""
    for index, phase in enumerate(states):
        own = {labels.RUN: run, labels.ROLE: "node", "batch.kubernetes.io/job-completion-index": str(index)}
        code = 1 if phase == "Failed" else 0
        state = {"running": {}} if phase == "Running" else {"terminated": {"exitCode": code}}
        container = {"name": "node", "state": state, "restartCount": 0}
        store.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"{run}-{index}-abcde", "labels": own},
                "spec": {"containers": [{"name": "node"}]},
                "status": {"phase": phase, "containerStatuses": [container] if phase != "Pending" else []},
            }
        )


def _condition(obj: Object) -> bool:
    words = _LISTED.get(obj["kind"], ())
    return any(one["type"] in words for one in (obj.get("status") or {}).get("conditions") or ())


def _exit_code(pod: Object) -> int:
    return int(pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"])


def _backoff(obj: Object) -> int:
    return int(obj["spec"].get("backoffLimit", 3))
