"""What the API refused: to us while submitting or looking, or to a controller that makes the pods. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankzero.launch.diagnose.finding import Finding, Severity
from rankzero.launch.evidence import Refusal
from rankzero.launch.joined import JoinedEvidence
from rankzero.launch.kinds import controlled, kind_of
from rankzero.launch.untyped_json import text
from rankzero.spec.kinds import EVERYWHERE
from rankzero.wording import listed

_WORKLOAD = "Workload"
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
_SECURITY = re.compile(r'violates PodSecurity "(?P<level>[^"]+)": (?P<why>.+)$', re.DOTALL)
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
_CHANGING = ("create", "patch", "update", "apply", "delete")
_OPTIONAL = ("nodes", "storageclasses", "workloads", "localqueues", "clusterqueues")
"""Kinds that many users may not read; the rest is judged without them."""


def find(joined: JoinedEvidence) -> Iterator[Finding]:
    """Refused calls of ours, then refused pods."""
    for refusal in joined.evidence.refused:
        yield from _from_refusal(refusal, joined)
    if joined.finished is not None or len(joined.current) >= joined.num_nodes:
        return
    controllers = {_WORKLOAD, *(kind.resource.kind for kind in controlled().values())}
    for (kind, name), events in joined.events.items():
        last = next((e for e in reversed(events) if e.reason in ("FailedCreate", "FailedCreatePod")), None)
        if kind in controllers and last is not None:
            found = classify(last.message, f"{kind} {name} cannot make its pods", joined, "broken")
            yield found or Finding(
                "pods-refused",
                "broken",
                f"{kind} {name} cannot make its pods: {last.message}",
                "change in cluster.yaml what the message names, then submit again",
                (f"{last.reason}: {last.message}",),
            )


def _from_refusal(refusal: Refusal, joined: JoinedEvidence) -> Iterator[Finding]:
    verb, _, what = refusal.verb.partition(" ")
    changing = verb in _CHANGING
    if refusal.status == 404 and not changing and _UNSERVED.search(refusal.message) is None:
        return
    if not changing and what.split(".")[0] in _OPTIONAL:
        return
    severity: Severity = "broken" if changing else "info"
    found = classify(refusal.message, f"the cluster refused to {refusal.verb}", joined, severity)
    if found is None and (refusal.status == 401 or refusal.reason == "Unauthorized"):
        found = Finding(
            "not-logged-in",
            "broken",
            f"the cluster does not know who asks: {refusal.verb} was answered with {refusal.status} {refusal.reason}",
            "log in again: the token or certificate of the kubeconfig's current context has ended",
        )
    if found is None and refusal.status == 403:
        found = Finding(
            "rbac-denied",
            severity,
            f"not permitted to {refusal.verb}: {refusal.message}",
            f"ask the cluster's administrator for a Role that allows {verb} on {what or 'it'}",
        )
    if found is None and refusal.status == 413:
        found = _too_large(refusal.message, joined)
    if found is None and changing and refusal.status != 409:
        found = Finding(
            "refused",
            severity,
            f"the cluster refused to {refusal.verb} ({refusal.status} {refusal.reason}): {refusal.message}",
            "give the command again"
            if refusal.status in (429, 500, 502, 503, 504)
            else "change what the message names",
        )
    if found is not None:
        line = f"{refusal.verb}: {refusal.status} {refusal.reason}: {refusal.message}"
        yield Finding(found.code, found.severity, found.cause, found.fix, (line,))


def classify(message: str, subject: str, joined: JoinedEvidence, severity: Severity) -> Finding | None:
    """The finding that a message of the API server stands for."""
    for rule in (_rbac, _quota, _admission, _version, _missing):
        found = rule(message, subject, joined, severity)
        if found is not None:
            return Finding(found.code, found.severity, found.cause, found.fix, (message,))
    if (
        "Too long: " in message
        or "Request entity too large" in message
        or "etcdserver: request is too large" in message
    ):
        return _too_large(message, joined)
    return None


def _rbac(message: str, subject: str, joined: JoinedEvidence, severity: Severity) -> Finding | None:
    match = _RBAC.search(message)
    if match is None:
        return None
    resource = f"{match['resource']}.{match['group']}" if match["group"] else match["resource"]
    place = f" in namespace {match['namespace']}" if match["namespace"] else ""
    rule = (
        f"{{apiGroups: [{match['group'] or chr(34) * 2}], resources: [{match['resource']}], verbs: [{match['verb']}]}}"
    )
    return Finding(
        "rbac-denied",
        severity,
        f"{match['user']} may not {match['verb']} {resource}{place}",
        f"ask the cluster's administrator for a Role{place} with the rule {rule}",
    )


def _quota(message: str, subject: str, joined: JoinedEvidence, severity: Severity) -> Finding | None:
    match = _QUOTA.search(message)
    unsaid = _UNSAID.search(message)
    if unsaid is not None:
        return _request_missing(unsaid["name"], unsaid["what"], subject)
    if match is None:
        why = _LIMIT_RANGE.search(message)
        if why is None:
            return None
        return Finding(
            "limit-range",
            "broken",
            f"{subject}: the namespace's LimitRange says {why['why']}",
            "change resources in cluster.yaml to what it allows, or ask for another LimitRange",
        )
    return Finding(
        "resource-quota",
        "broken",
        f"{subject}: ResourceQuota {match['name']} allows {match['limit']}, {match['used']} is used"
        f" and a pod asks for {match['asked']}",
        f"lower {_fields_of(match['asked'])} in cluster.yaml, end another run of this namespace, or ask for more quota",
    )


def _request_missing(name: str, what: str, subject: str) -> Finding:
    """A quota on a resource wants every container to say how much of it it takes."""
    resources = list(dict.fromkeys(re.findall(r"(?:requests|limits)\.[\w./-]+|\b(?:cpu|memory)\b", what)))
    fields = listed(_UNSAID_FIELDS.get(one, f"resources ({one})") for one in resources)
    return Finding(
        "request-missing",
        "broken",
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
    if "storage" in resource:
        return "storage.<name>.size"
    return "nproc_per_node" if "/" in resource else f"resources ({resource})"


def _admission(message: str, subject: str, joined: JoinedEvidence, severity: Severity) -> Finding | None:
    security = _SECURITY.search(message)
    if security is not None:
        ways = [words for sign, words in _SECURITY_FIELDS if sign in security["why"]]
        fix = (
            f"{'; '.join(ways)}, or use a namespace"
            if ways
            else "take what it names out of pod_patch, or use a namespace"
        )
        return Finding(
            "pod-security",
            "broken",
            f"{subject}: Pod Security {security['level']} forbids {security['why']}",
            f"{fix} whose label pod-security.kubernetes.io/enforce allows it",
        )
    constraints = _CONSTRAINTS.search(message)
    if constraints is not None:
        return _constrained(constraints["why"], subject)
    denied = _DENIED.search(message)
    if denied is not None:
        return Finding(
            "admission-denied",
            "broken",
            f"{subject}: the site's rule {denied['name']} says: {denied['why'] or message}",
            "change in cluster.yaml what the rule names (labels, annotations and pod_patch reach everything)",
        )
    calling = _CALLING.search(message)
    if calling is not None:
        service = re.search(r"https://([\w-]+)\.([\w-]+)\.svc", calling["why"])
        whose = f"{service[1]} in namespace {service[2]}" if service else "its controller"
        return Finding(
            "webhook-down",
            "waiting",
            f"{subject}: the webhook {calling['name']} does not answer",
            f"have the cluster's administrator look at {whose}, then submit again",
        )
    return None


def _constrained(why: str, subject: str) -> Finding:
    """OpenShift tells the objections of every constraint, and which of them the pod's account may not even use."""
    parts = re.split(r", (?=provider |spec\.|\.spec|\.containers|\.initContainers)", why)
    telling = [part.strip() for part in parts if "not usable by" not in part]
    ways = [words for sign, words in _CONSTRAINT_FIELDS if any(sign in part for part in telling)]
    return Finding(
        "scc-denied",
        "broken",
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
_SECURITY_FIELDS = (
    ("IPC_LOCK", "leave out resources.rdma, which needs IPC_LOCK"),
    ("hostPath", "give storage.<name>.claim in place of storage.<name>.host_path"),
    ("runAsNonRoot", "remove runAsUser: 0 or runAsNonRoot: false from pod_patch"),
    ("hostNetwork", "remove hostNetwork from pod_patch"),
    ("privileged", "remove privileged from pod_patch"),
)


def _version(message: str, subject: str, joined: JoinedEvidence, severity: Severity) -> Finding | None:
    served = _UNSERVED.search(message)
    if served is not None:
        kind = f"{served['kind']} ({served['version']})" if served["kind"] else _kind_title(joined, subject)
        needed = _needed(served["kind"], joined)
        return Finding(
            "kind-not-served",
            "broken",
            f"this cluster does not serve {kind}: its controller is not installed, or in another version",
            f"set kind: {EVERYWHERE} in cluster.yaml (every cluster has it), or install {needed}",
        )
    fields = _FIELD.findall(message)
    if fields:
        return Finding(
            "api-version",
            "broken",
            f"{subject}: this cluster serves another version of the kind, without {listed(fields)}",
            f"set another kind in cluster.yaml (kind: {EVERYWHERE} is the same everywhere), or bring its controller"
            " up to date",
        )
    return None


def _kind_title(joined: JoinedEvidence, subject: str) -> str:
    return text(joined.trainer, "kind") or subject.rsplit(" ", 1)[-1]


def _needed(title: str | None, joined: JoinedEvidence) -> str:
    """What makes a cluster serve the kind."""
    kind = kind_of({"kind": title}) if title else joined.trained_by
    return kind.needs if kind is not None and kind.needs else "the controller"


def _missing(message: str, subject: str, joined: JoinedEvidence, severity: Severity) -> Finding | None:
    account = _ACCOUNT.search(message)
    if account is not None:
        name = account["name"] or account["other"]
        return Finding(
            "service-account-missing",
            "broken",
            f"{subject}: there is no service account {name}",
            f"`kubectl create serviceaccount {name}`, or set service_account.name in cluster.yaml to one that exists",
        )
    priority = _PRIORITY.search(message)
    if priority is not None:
        return Finding(
            "priority-class-missing",
            "broken",
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
        return Finding("gpu-runtime", "broken", cause, fix)
    ending = _ENDING.search(message)
    if ending is not None:
        cause = f"namespace {ending['name']} is being deleted (being terminated), so nothing new can be made in it"
        fix = f"wait until it is gone and `kubectl create namespace {ending['name']}`, or set namespace in cluster.yaml"
        return Finding("namespace-missing", "broken", cause, fix)
    namespace = _NAMESPACE.search(message)
    if namespace is not None:
        return Finding(
            "namespace-missing",
            "broken",
            f"there is no namespace {namespace['name']}",
            f"`kubectl create namespace {namespace['name']}`, or set namespace in cluster.yaml to one that exists",
        )
    return None


def _too_large(message: str, joined: JoinedEvidence) -> Finding:
    return Finding(
        "config-too-large",
        "broken",
        f"the ConfigMap of run {joined.run} is larger than a cluster keeps (1 MiB): the local files shipped with it"
        " are too big",
        "put the files on a volume (storage in cluster.yaml) and name them by their absolute path there in run.yaml"
        " (data.train, data.eval)",
        (message,),
    )
