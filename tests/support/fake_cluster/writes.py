"""What the API does with a write: strictness, admission, dry runs, server-side apply, deletion. No HTTP."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.fake_cluster.store import KINDS, Key, Object, Store, merged

TOP_LEVEL = {"apiVersion", "kind", "metadata", "spec", "data", "binaryData", "rules", "roleRef", "subjects", "type"}
_JOB_SET_PARTS = ("failurePolicy", "network", "startupPolicy", "successPolicy")
FIXED = {
    "jobsets": [("spec", part) for part in _JOB_SET_PARTS],
    "trainingruntimes": [("spec", "template", "spec", part) for part in _JOB_SET_PARTS],
}
"""What the schemas of the CRDs keep as it was made (`self == oldSelf`)."""
Admission = Callable[[Object], tuple[int, str, str] | None]


class RefusedError(Exception):
    """A Status that is not a success."""

    def __init__(self, code: int, reason: str, message: str, causes: list[dict[str, str]] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": code,
            "reason": reason,
            "message": message,
            "details": {"causes": causes or []},
        }


@dataclass
class Writes:
    """Of one server."""

    store: Store
    namespaces: set[str] = field(default_factory=lambda: {"train"})
    admission: list[Admission] = field(default_factory=list)
    """Each may refuse an object with (code, reason, message)."""
    warnings: dict[str, str] = field(default_factory=dict)
    """What answers to writes warn of, by the object's kind."""

    def patch(self, key: Key, kind: str, body: Any, query: dict[str, str]) -> tuple[int, Object]:
        """`kind` is the content type."""
        before = self.store.objects.get(key)
        if kind == "application/apply-patch+yaml":
            assert query.get("fieldManager"), "apply needs a fieldManager"
            if before is None:
                return self.create(key, body, query)
            after = merged(before, body)
        else:
            if before is None:
                raise not_found(key)
            after = patched(before, body) if kind == "application/json-patch+json" else merged(before, body)
        self._admit(key, after, query)
        if before is not None and key.plural == "jobs" and after["spec"]["template"] != before["spec"]["template"]:
            cause = {"field": "spec.template", "message": "Invalid value: field is immutable"}
            raise RefusedError(422, "Invalid", f'Job.batch "{key.name}" is invalid: field is immutable', [cause])
        if before is not None and key.plural in FIXED:
            _must_stay(key, FIXED[key.plural], before, after)
        if query.get("dryRun") == "All":
            return 200, after
        return 200, after if after == before else self.store.put(after, key.namespace)

    def create(self, key: Key, body: Object, query: dict[str, str]) -> tuple[int, Object]:
        """POST, and server-side apply of what is not there."""
        self._admit(key, body, query)
        if key in self.store.objects:
            raise RefusedError(409, "AlreadyExists", f'{key.plural} "{key.name}" already exists')
        if query.get("dryRun") == "All":
            return 201, copy.deepcopy(body)
        return 201, self.store.put(body, key.namespace)

    def delete(self, key: Key, options: Object) -> tuple[int, Object]:
        """Foreground: marked, and gone once what it made is gone."""
        obj = self.store.objects.get(key)
        if obj is None:
            raise not_found(key)
        for field_, wanted in (options.get("preconditions") or {}).items():
            if wanted != obj["metadata"][field_]:
                raise RefusedError(409, "Conflict", f"Precondition failed: {field_} in precondition differs")
        if options.get("propagationPolicy") == "Foreground" and key.plural in (
            "jobs",
            "jobsets",
            "trainjobs",
            "pytorchjobs",
            "statefulsets",
        ):
            marked = copy.deepcopy(obj)
            marked["metadata"] |= {"deletionTimestamp": "2026-11-21T07:00:00Z", "finalizers": ["foregroundDeletion"]}
            return 200, self.store.put(marked, key.namespace)
        if key.plural == "trainingruntimes" and self._is_in_use(key):
            marked = copy.deepcopy(obj)
            finalizers = ["trainer.kubeflow.org/resource-in-use"]
            marked["metadata"] |= {"deletionTimestamp": "2026-11-21T07:00:00Z", "finalizers": finalizers}
            return 200, self.store.put(marked, key.namespace)
        self.store.drop(key.plural, key.name, key.namespace)
        return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def _is_in_use(self, runtime: Key) -> bool:
        jobs = (one for key, one in self.store.objects.items() if key.plural == "trainjobs")
        return any(one["spec"]["runtimeRef"]["name"] == runtime.name for one in jobs)

    def _admit(self, key: Key, body: Object, query: dict[str, str]) -> None:
        if key.namespace and key.namespace not in self.namespaces:
            raise RefusedError(404, "NotFound", f'namespaces "{key.namespace}" not found')
        unknown = sorted(set(body) - TOP_LEVEL - {"status"})
        if unknown and query.get("fieldValidation") == "Strict":
            raise RefusedError(400, "BadRequest", f'strict decoding error: unknown field "{unknown[0]}"')
        assert (body.get("kind") or KINDS[key.plural][1]) == KINDS[key.plural][1]
        for judge in self.admission:
            verdict = judge(body)
            if verdict is not None:
                raise RefusedError(*verdict)


def needs_runtime(store: Store) -> Admission:
    """What Kubeflow Trainer's webhook does."""

    def judge(body: Object) -> tuple[int, str, str] | None:
        if body.get("kind") != "TrainJob":
            return None
        name = body["spec"]["runtimeRef"]["name"]
        if store.find("trainingruntimes", name) is not None:
            return None
        words = f'spec.runtimeRef: Invalid value: TrainingRuntime.trainer.kubeflow.org "{name}" not found'
        return (
            403,
            "Forbidden",
            f'admission webhook "validator.trainjob.trainer.kubeflow.org" denied the request: {words}',
        )

    return judge


def _must_stay(key: Key, paths: list[tuple[str, ...]], before: Object, after: Object) -> None:
    for path in paths:
        old, new = before, after
        for part in path:
            old, new = old.get(part) or {}, new.get(part) or {}
        if old and new and old != new:
            words = 'Invalid value: "object": Value is immutable'
            cause = {"field": ".".join(path), "message": words}
            title = f"{after['kind']}.{KINDS[key.plural][0].partition('/')[0]}"
            message = f'{title} "{key.name}" is invalid: {cause["field"]}: {words}'
            raise RefusedError(422, "Invalid", message, [cause])


def patched(before: Object, operations: list[Object]) -> Object:
    """A JSON Patch of tests and additions. Of one that does not apply the API says no more than this. What is not there
    passes a test for null, and nothing can be added below it."""
    after = copy.deepcopy(before)
    for one in operations:
        *above, last = [part.replace("~1", "/").replace("~0", "~") for part in one["path"].split("/")[1:]]
        place: Any = after
        for part in above:
            place = place.get(part) if isinstance(place, dict) else None
        if place is None or (one["op"] == "test" and place.get(last) != one["value"]):
            words = "the server rejected our request due to an error in our request"
            raise RefusedError(422, "Invalid", words)
        place[last] = one["value"]
    return after


def not_found(key: Key) -> RefusedError:
    """As the API says it."""
    group = KINDS[key.plural][0].rpartition("/")[0].partition("/")[0]
    title = f"{key.plural}.{group}" if group else key.plural
    return RefusedError(404, "NotFound", f'{title} "{key.name}" not found')


def values_of(query: dict[str, list[str]]) -> dict[str, Any]:
    """The last of each."""
    return {name: values[-1] for name, values in query.items()}
