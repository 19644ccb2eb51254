"""What the API refuses, as our errors: which call, why, and what to ask for. Sends nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rankzero.errors import AccessError, ConfigError, Problem, RankzeroError, ServiceError
from rankzero.launch.evidence import Refusal
from rankzero.launch.kinds import kind_of
from rankzero.launch.resource import POD_GROUP, Resource

NO_ANSWER = 0
"""Status of a call that got none."""


@dataclass(frozen=True, slots=True)
class Place:
    """The cluster and namespace that calls go to."""

    server: str
    context: str
    namespace: str


class ApiError(Exception):
    """A call that was refused, or not answered, after what tries it was worth."""

    def __init__(
        self,
        refusal: Refusal,
        *,
        subject: str = "",
        resource: Resource | None = None,
        causes: tuple[tuple[str, str], ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{refusal.verb}: {refusal.status} {refusal.reason}: {refusal.message}")
        self.refusal = refusal
        self.subject = subject
        """`Job/my-run`, where the call was about one object."""
        self.resource = resource
        self.causes = causes
        """(field, message) of everything that is wrong with an object."""
        self.retry_after = retry_after

    @property
    def status(self) -> int:
        """HTTP status; NO_ANSWER where there was none."""
        return self.refusal.status


def as_error(failures: ApiError | Iterable[ApiError], place: Place) -> RankzeroError:
    """One error with every problem; its class decides the exit code."""
    together = (failures,) if isinstance(failures, ApiError) else tuple(failures)
    kinds = {_class_of(failure) for failure in together}
    problems = [problem for failure in together for problem in problems_of(failure, place)]
    for kind in (ServiceError, ConfigError, AccessError):
        if kind in kinds:
            return kind(problems)
    return RankzeroError(problems)


def problems_of(failure: ApiError, place: Place) -> list[Problem]:
    """What to tell a person about one refused call."""
    what, hint = _words(failure, place)
    if failure.status == 422 and failure.causes:
        return [
            Problem(f"{field}: {message}" if field else message, failure.subject, hint)
            for field, message in failure.causes
        ]
    return [Problem(what, failure.subject or place.server, hint)]


def _class_of(failure: ApiError) -> type[RankzeroError]:
    status = failure.status
    if status == NO_ANSWER or status == 429 or status >= 500:
        return ServiceError
    if status == 401 or (status == 403 and _RBAC.search(failure.refusal.message)):
        return AccessError
    return ConfigError


_RBAC = re.compile(r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"')
_MISSING_NAMESPACE = re.compile(r'namespaces "(?P<name>[^"]+)" not found')


def _words(failure: ApiError, place: Place) -> tuple[str, str]:
    refusal = failure.refusal
    reach = f"`kubectl --context {place.context} get pods -n {place.namespace}` asks the same server"
    if refusal.status == NO_ANSWER:
        return f"the cluster does not answer: {refusal.message}", f"is the network or VPN up? {reach}"
    if refusal.status == 401:
        hint = f"log in again; the credentials are those of context {place.context} in the kubeconfig"
        return "the cluster does not accept these credentials", hint
    if refusal.status == 403:
        return _forbidden(failure, place)
    if refusal.status == 404:
        return _not_found(failure, place)
    if refusal.status == 413 or "Too long" in refusal.message:
        return (
            "the object is too large for the cluster",
            "put large local files on a volume and name them by their path",
        )
    if refusal.status == 409:
        hint = "something else changes it at the same time; give the command again"
        return f"{refusal.verb}: {refusal.message}", hint
    if refusal.status == 429:
        return f"the cluster is overloaded: {refusal.message}", "give the command again later"
    if refusal.status >= 500 and "webhook" in refusal.message:
        hint = "the controller behind that webhook is not running; the cluster's administrator can restart it"
        return refusal.message, hint
    if refusal.status >= 500:
        return f"{refusal.verb}: the cluster failed with {refusal.status}: {refusal.message}", "give the command again"
    if "strict decoding" in refusal.message or "unknown field" in refusal.message:
        return refusal.message, "this cluster serves another version of the kind; choose another kind with --kind"
    return refusal.message or refusal.reason, ""


def _forbidden(failure: ApiError, place: Place) -> tuple[str, str]:
    message = failure.refusal.message
    match = _RBAC.search(message)
    if match is None:
        hint = ""
        if "exceeded quota" in message:
            hint = "ask for less in cluster.yaml (num_nodes, resources), or for more quota in this namespace"
        elif "PodSecurity" in message:
            hint = "leave out of cluster.yaml what the namespace's Pod Security level refuses, or use another namespace"
        elif "is being terminated" in message:
            hint = "wait until the namespace is gone and make it again, or use another one"
        return message, hint
    namespaced = failure.resource is None or failure.resource.namespaced
    scope = f"in namespace {place.namespace}" if namespaced else "in the cluster"
    group, resource, verb = match["group"], match["resource"], match["verb"]
    verbs = "create, patch" if verb in {"patch", "create"} else "get, list, watch" if verb in _READING else verb
    rule = f'{{apiGroups: ["{group}"], resources: [{resource}], verbs: [{verbs}]}}'
    what = f"not permitted to {verb} {resource}{f'.{group}' if group else ''} {scope}"
    role = "Role" if namespaced else "ClusterRole"
    return what, f"ask the cluster's administrator for a {role} {scope} with the rule {rule}"


_READING = {"get", "list", "watch"}


def _not_found(failure: ApiError, place: Place) -> tuple[str, str]:
    match = _MISSING_NAMESPACE.search(failure.refusal.message)
    if match is not None:
        hint = f"`kubectl --context {place.context} create namespace {match['name']}`, or set namespace in cluster.yaml"
        return f"there is no namespace {match['name']}", hint
    if failure.resource is not None and not failure.refusal.message.startswith(failure.resource.title):
        resource = failure.resource
        what = f"this cluster does not serve {resource.kind} ({resource.api_version})"
        if resource == POD_GROUP:
            return what, "Volcano is not installed; leave scheduler out of cluster.yaml, or name one that runs"
        kind = kind_of({"kind": resource.kind})
        needed = kind.needs if kind is not None and kind.needs else "its controller"
        return what, f"{needed} is not installed; choose another kind with --kind or in cluster.yaml"
    return failure.refusal.message, ""
