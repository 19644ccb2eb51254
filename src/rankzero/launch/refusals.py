"""What an API server says when it refuses, in words: what is wrong and what to do, whoever was refused. Pure.

Messages are matched by their stable parts. Knows neither how calls are made nor what else was seen of a run.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Literal

from rankzero.launch.evidence import Refusal
from rankzero.launch.kinds import kind_of
from rankzero.launch.resource import POD_GROUP
from rankzero.spec.kinds import EVERYWHERE
from rankzero.wording import listed

_RBAC = re.compile(
    r'User "(?P<user>[^"]+)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)
_QUOTA = re.compile(
    r"exceeded quota: (?P<name>[^,]+), requested: (?P<asked>.+?), used: (?P<used>.+?), limited: (?P<limit>.+?)$"
)
_UNSAID = re.compile(r"failed quota: (?P<name>[^:]+): must specify (?P<what>.+?)\s*$", re.DOTALL)
_CONSTRAINTS = re.compile(
    r"unable to validate against any security context constraint: \[?(?P<why>.+?)\]?\s*$", re.DOTALL
)
_ENDING = re.compile(r"in namespace (?P<name>\S+) because it is being terminated")
_SECURITY = re.compile(r'violates? PodSecurity "(?P<level>[^"]+)"(?:: (?P<why>.+))?$', re.DOTALL)
_DENIED = re.compile(r'admission webhook "(?P<name>[^"]+)" denied the request:? ?(?P<why>.*)$', re.DOTALL)
_CALLING = re.compile(r'failed calling webhook "(?P<name>[^"]+)":? ?(?P<why>.*)$', re.DOTALL)
_UNSERVED = re.compile(
    r"the server could not find the requested resource"
    r'|no matches for kind "(?P<kind>\w+)" in version "(?P<version>[^"]+)"'
)
_FIELD = re.compile(r'unknown field "(?P<field>[^"]+)"')
_ACCOUNT = re.compile(
    r'serviceaccounts? "(?P<name>[^"]+)" not found|error looking up service account \S+/(?P<other>[^:]+):'
)
_PRIORITY = re.compile(r"no PriorityClass with name (?P<name>\S+) was found")
_RUNTIME_CLASS = re.compile(r'RuntimeClass "(?P<name>[^"]+)" not found|runtimeclass\S* "(?P<other>[^"]+)" not found')
_NAMESPACE = re.compile(r'namespaces "(?P<name>[^"]+)" not found')
_LIMIT_RANGE = re.compile(r"(?P<why>(?:maximum|minimum) \S+ usage per \w+ is .+?)(?:\.|\]?\s*$)")
_READING = ("get", "list", "watch")
_LATER = (429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for, as far as the words depend on it."""

    subject: str
    """What could not be done: `the cluster refused to create jobs.batch`."""
    run: str = ""
    kind: str = ""
    """Of the object, or of the run's: `JobSet`."""
    context: str = ""
    """Of the kubeconfig, where it is known."""

    @property
    def kubectl(self) -> str:
        """The command for the same cluster."""
        return f"kubectl --context {shlex.quote(self.context)}" if self.context else "kubectl"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why it was refused, and what to do."""

    code: str
    cause: str
    fix: str
    severity: Literal["broken", "waiting"] | None = "broken"
    """waiting: it may pass without a change. None: how bad it is depends on what was asked for."""


def reason_of(refusal: Refusal, asked: Asked) -> Reason:
    """What a refused call comes to."""
    found = reason_in(refusal.message, asked)
    if found is not None:
        return found
    if refusal.status == 401 or refusal.reason == "Unauthorized":
        of = f"context {asked.context}" if asked.context else "the current context"
        fix = f"log in again: the token or certificate of {of} in the kubeconfig has ended"
        return Reason("not-logged-in", f"the cluster does not accept these credentials for {refusal.verb}", fix)
    if refusal.status == 403:
        verb, _, what = refusal.verb.partition(" ")
        fix = f"ask the cluster's administrator for a Role that allows {verb} on {what or 'it'}"
        return Reason("rbac-denied", f"not permitted to {refusal.verb}: {refusal.message}", fix, None)
    if refusal.status == 413:
        return _too_large(asked)
    said = f"{asked.subject} ({refusal.status} {refusal.reason}): {refusal.message}"
    if refusal.status == 409:
        return Reason("refused", said, "something else changes it at the same time; give the command again", None)
    fix = "give the command again" if refusal.status in _LATER else "change what the message names"
    return Reason("refused", said, fix, None)


def reason_in(message: str, asked: Asked) -> Reason | None:
    """What a message of the API server stands for, whether it came with a status or in an event."""
    for rule in (_rbac, _quota, _admission, _version, _missing):
        found = rule(message, asked)
        if found is not None:
            return found
    if (
        "Too long: " in message
        or "Request entity too large" in message
        or "etcdserver: request is too large" in message
    ):
        return _too_large(asked)
    return None


def is_about_rights(message: str) -> bool:
    """Whether somebody may not do it, rather than that it cannot be done."""
    return _RBAC.search(message) is not None


def lacks_namespace(message: str) -> bool:
    """Whether the namespace itself is not there, so that nothing in it is."""
    return _NAMESPACE.search(message) is not None


def tells_unserved(message: str) -> bool:
    """Whether a 404 means that there is no such kind of object, not that there is no such object."""
    return _UNSERVED.search(message) is not None


def not_served(kind: str, version: str = "") -> Reason:
    """That a cluster has no objects of a kind."""
    if kind == POD_GROUP.kind:
        fix = "Volcano is not installed; leave scheduler out of cluster.yaml, or name one that runs"
        return Reason("kind-not-served", f"this cluster does not serve {kind}{f' ({version})' if version else ''}", fix)
    known = kind_of({"kind": kind})
    needed = known.needs if known is not None and known.needs else "its controller"
    return Reason(
        "kind-not-served",
        f"this cluster does not serve {kind}{f' ({version})' if version else ''}",
        f"{needed} is not installed, or in another version: install it, or choose another kind with --kind or in"
        f" cluster.yaml (kind: {EVERYWHERE} is served everywhere)",
    )


def _rbac(message: str, asked: Asked) -> Reason | None:
    match = _RBAC.search(message)
    if match is None:
        return None
    group, resource, verb = match["group"], match["resource"], match["verb"]
    place = f"in namespace {match['namespace']}" if match["namespace"] else "in the cluster"
    verbs = "create, patch" if verb in ("create", "patch") else ", ".join(_READING) if verb in _READING else verb
    rule = f'{{apiGroups: ["{group}"], resources: [{resource}], verbs: [{verbs}]}}'
    role = "Role" if match["namespace"] else "ClusterRole"
    return Reason(
        "rbac-denied",
        f"{match['user']} is not permitted to {verb} {resource}{f'.{group}' if group else ''} {place}",
        f"ask the cluster's administrator for a {role} {place} with the rule {rule}",
        None,
    )


def _quota(message: str, asked: Asked) -> Reason | None:
    subject = asked.subject
    match = _QUOTA.search(message)
    unsaid = _UNSAID.search(message)
    if unsaid is not None:
        return _request_missing(unsaid["name"], unsaid["what"], subject)
    if match is None:
        why = _LIMIT_RANGE.search(message)
        if why is None:
            return None
        return Reason(
            "limit-range",
            f"{subject}: the namespace's LimitRange says {why['why']}",
            "change resources in cluster.yaml to what it allows, or ask for another LimitRange",
        )
    return Reason(
        "resource-quota",
        f"{subject}: ResourceQuota {match['name']} allows {match['limit']}, {match['used']} is used"
        f" and a pod asks for {match['asked']}",
        f"lower {_fields_of(match['asked'])} in cluster.yaml, end another run of this namespace, or ask for more quota",
    )


def _request_missing(name: str, what: str, subject: str) -> Reason:
    """A quota on a resource wants every container to say how much of it it takes."""
    resources = list(dict.fromkeys(re.findall(r"(?:requests|limits)\.[\w./-]+|\b(?:cpu|memory)\b", what)))
    fields = listed(_UNSAID_FIELDS.get(one, f"pod_patch ({one})") for one in resources)
    return Reason(
        "request-missing",
        f"{subject}: ResourceQuota {name} wants every container to say {listed(resources) or what}",
        f"set {fields} in cluster.yaml; containers that others add to the pods need it from the namespace's LimitRange",
    )


_UNSAID_FIELDS = {
    "requests.cpu": "resources.cpu",
    "cpu": "resources.cpu",
    "requests.memory": "resources.memory",
    "memory": "resources.memory",
    "limits.cpu": "resources.limits.cpu",
    "limits.memory": "resources.limits.memory",
}


def _fields_of(asked: str) -> str:
    """Fields of ours that a quota's resources come from."""
    fields = []
    for part in asked.split(","):
        resource = part.split("=")[0].removeprefix("requests.").removeprefix("limits.")
        fields.append(field_of(resource))
    return listed(fields)


def field_of(resource: str) -> str:
    """The field of cluster.yaml that a resource of a pod comes from."""
    known = {"cpu": "resources.cpu", "memory": "resources.memory", "pods": "num_nodes"}
    if resource in known:
        return known[resource]
    if resource.startswith("rdma/") or "rdma" in resource or resource.endswith("/efa"):
        return "resources.rdma_devices"
    if resource.endswith("ephemeral-storage"):
        return "pod_patch (ephemeral-storage)"
    if "storage" in resource:
        return "storage.<name>.size"
    return "nproc_per_node" if "/" in resource else f"pod_patch ({resource})"


def _admission(message: str, asked: Asked) -> Reason | None:
    subject = asked.subject
    security = _SECURITY.search(message)
    if security is not None:
        why = security["why"] or "it"
        ways = [words for sign, words in _SECURITY_FIELDS if sign in why]
        if _OF_THE_OPERATOR[0] in why:
            ways = [_OF_THE_OPERATOR[1]]
        fix = (
            f"{'; '.join(ways)}, or use a namespace"
            if ways
            else "take what it names out of pod_patch, or use a namespace"
        )
        return Reason(
            "pod-security",
            f"{subject}: Pod Security {security['level']} forbids {why}",
            f"{fix} whose label pod-security.kubernetes.io/enforce allows it",
        )
    constraints = _CONSTRAINTS.search(message)
    if constraints is not None:
        return _constrained(constraints["why"], subject)
    denied = _DENIED.search(message)
    if denied is not None:
        return Reason(
            "admission-denied",
            f"{subject}: the site's rule {denied['name']} says: {denied['why'] or message}",
            "change in cluster.yaml what the rule names (labels, annotations and pod_patch reach everything)",
        )
    calling = _CALLING.search(message)
    if calling is not None:
        service = re.search(r"https://([\w-]+)\.([\w-]+)\.svc", calling["why"])
        whose = f"{service[1]} in namespace {service[2]}" if service else "its controller"
        return Reason(
            "webhook-down",
            f"{subject}: the webhook {calling['name']} does not answer",
            f"have the cluster's administrator look at {whose}, then submit again",
            "waiting",
        )
    return None


def _constrained(why: str, subject: str) -> Reason:
    """OpenShift tells the objections of every constraint, and which of them the pod's account may not even use."""
    parts = re.split(r", (?=provider |spec\.|\.spec|\.containers|\.initContainers)", why)
    telling = [part.strip() for part in parts if "not usable by" not in part]
    ways = [words for sign, words in _CONSTRAINT_FIELDS if any(sign in part for part in telling)]
    return Reason(
        "scc-denied",
        f"{subject}: OpenShift's security context constraints forbid it: {listed(telling, 4) or why}",
        f"{'; '.join(ways) or 'take what it names out of pod_patch'}; or ask for another constraint (`oc adm policy"
        " add-scc-to-user nonroot-v2 -z ACCOUNT`, with service_account.name: ACCOUNT in cluster.yaml)",
    )


_CONSTRAINT_FIELDS = (
    ("must be in the ranges", "set user in cluster.yaml to a number of the range"),
    ("is not an allowed group", "set user in cluster.yaml to a number of the namespace's range"),
    ("IPC_LOCK", "leave out resources.rdma, which needs IPC_LOCK"),
    ("hostPath", "give storage.<name>.claim in place of storage.<name>.host_path"),
    ("rivileged", "remove privileged from pod_patch"),
    ("hostNetwork", "remove hostNetwork from pod_patch"),
)
_OF_THE_OPERATOR = (
    '"init-pytorch"',
    "set another kind, such as job: the Training Operator adds this container to workers beside a master, and gives it"
    " no securityContext; or have its administrators give it one (--pytorch-init-container-template-file)",
)
"""A container that no run renders, so no field of ours mends it."""
_SECURITY_FIELDS = (
    ("IPC_LOCK", "leave out resources.rdma, which needs IPC_LOCK"),
    ("hostPath", "give storage.<name>.claim in place of storage.<name>.host_path"),
    (
        "runAsNonRoot",
        "set user in cluster.yaml to one above 0, and remove runAsUser: 0 or runAsNonRoot: false from pod_patch",
    ),
    ("hostNetwork", "remove hostNetwork from pod_patch"),
    ("privileged", "remove privileged from pod_patch"),
    ("allowPrivilegeEscalation", "remove allowPrivilegeEscalation from pod_patch"),
)


def _version(message: str, asked: Asked) -> Reason | None:
    subject = asked.subject
    served = _UNSERVED.search(message)
    if served is not None and served["kind"]:
        return not_served(served["kind"], served["version"])
    if served is not None:
        return not_served(asked.kind or subject.rsplit(" ", 1)[-1])
    fields = _FIELD.findall(message)
    if fields:
        return Reason(
            "api-version",
            f"{subject}: this cluster serves another version of the kind, without {listed(fields)}",
            f"set another kind in cluster.yaml (kind: {EVERYWHERE} is the same everywhere), or bring its controller"
            " up to date",
        )
    return None


def _missing(message: str, asked: Asked) -> Reason | None:
    subject = asked.subject
    account = _ACCOUNT.search(message)
    if account is not None:
        name = account["name"] or account["other"]
        return Reason(
            "service-account-missing",
            f"{subject}: there is no service account {name}",
            f"`{asked.kubectl} create serviceaccount {name}`, or set service_account.name in cluster.yaml to one that"
            " exists",
        )
    priority = _PRIORITY.search(message)
    if priority is not None:
        return Reason(
            "priority-class-missing",
            f"{subject}: there is no PriorityClass {priority['name']}",
            "set priority_class in cluster.yaml to one that `kubectl get priorityclass` lists, or leave it out",
        )
    runtime = _RUNTIME_CLASS.search(message)
    if runtime is not None:
        name = runtime["name"] or runtime["other"]
        cause = f"{subject}: there is no RuntimeClass {name}"
        fix = (
            f"take runtimeClassName out of pod_patch in cluster.yaml, or have the GPU operator make RuntimeClass {name}"
        )
        return Reason("gpu-runtime", cause, fix)
    ending = _ENDING.search(message)
    if ending is not None:
        cause = f"namespace {ending['name']} is being deleted (being terminated), so nothing new can be made in it"
        again = f"`{asked.kubectl} create namespace {ending['name']}`"
        fix = f"wait until it is gone and {again}, or set namespace in cluster.yaml"
        return Reason("namespace-missing", cause, fix)
    namespace = _NAMESPACE.search(message)
    if namespace is not None:
        return Reason(
            "namespace-missing",
            f"there is no namespace {namespace['name']}",
            f"`{asked.kubectl} create namespace {namespace['name']}`, or set namespace in cluster.yaml to one that"
            " exists",
        )
    return None


def _too_large(asked: Asked) -> Reason:
    return Reason(
        "config-too-large",
        f"the ConfigMap of run {asked.run} is larger than a cluster keeps (1 MiB): the local files shipped with it"
        " are too big",
        "put the files on a volume (storage in cluster.yaml) and name them by their absolute path there in run.yaml"
        " (data.train, data.eval)",
    )
