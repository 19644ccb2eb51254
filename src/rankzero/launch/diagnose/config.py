"""What a container is made from: Secrets, ConfigMaps, its command. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankzero.launch.diagnose.finding import Finding
from rankzero.launch.diagnose.remedies import remedies
from rankzero.launch.diagnose.signs import RECENT_SECONDS, START_ENDINGS, START_REASONS, of_text
from rankzero.launch.joined import JoinedEvidence
from rankzero.launch.pods import Pod
from rankzero.launch.untyped_json import seconds_between
from rankzero.wording import counted

_SECRET = re.compile(r'secrets? "(?P<name>[^"]+)" not found')
_SECRET_KEY = re.compile(r"couldn't find key (?P<key>\S+) in Secret (?:\S+/)?(?P<name>\S+)")
_CONFIG = re.compile(r'configmaps? "(?P<name>[^"]+)" not found')
_CONFIG_KEY = re.compile(
    r"(?:couldn't find key (?P<key>\S+) in ConfigMap (?:\S+/)?(?P<name>\S+)"
    r"|references non-existent config key: (?P<other>\S+))"
)
_SECRET_VOLUME = re.compile(r"references non-existent secret key: (?P<key>\S+)")
_NO_COMMAND = re.compile(
    r'(?:exec: "|executable file `)(?P<command>[^"`]+)["`]:? (?:not found in \$PATH'
    r"|executable file not found in \$PATH|stat .*: no such file)|(?<!fork/)\bexec:? [^\n]*no such file or directory"
)
_NO_PACKAGE = re.compile(r"No module named '?rankzero(?:\.[\w.]+)?'?")
_AS_ROOT = re.compile(r"container has runAsNonRoot and image (?:will run as root|has non-numeric user)")


def find(joined: JoinedEvidence) -> Iterator[Finding]:
    """One finding for each thing that is missing, with the pods that miss it counted."""
    missing: dict[str, list[tuple[Pod, str, Finding]]] = {}
    for pod in joined.newest:
        if pod.is_running or pod.phase == "Succeeded":
            continue
        for line in _lines(joined, pod):
            if of_text(line) is not None:
                break
            found = _classify(line, pod, joined)
            if found is not None:
                missing.setdefault(found.cause, []).append((pod, line, found))
                break
    for several in missing.values():
        pod, line, found = several[0]
        pods = f" ({counted(len(several), 'pod')}, first {pod.name})" if len(several) > 1 else f" (pod {pod.name})"
        yield Finding(found.code, "broken", found.cause + pods, found.fix, (line,), pod.node)


def explains(message: str) -> bool:
    """Whether what a container left behind says that it could not even start."""
    return bool(_NO_PACKAGE.search(message) or _NO_COMMAND.search(message))


def _lines(joined: JoinedEvidence, pod: Pod) -> Iterator[str]:
    """What the kubelet says of a pod that does not start, the surest first."""
    if pod.waiting in START_REASONS:
        yield pod.waiting_message
    for end in pod.endings:
        if end.reason in (*START_ENDINGS, "Error") and end.message:
            yield end.message
    for event in reversed(joined.events_of(pod)):
        old = (seconds_between(event.at, joined.now) or 0) > RECENT_SECONDS
        if event.reason in ("Failed", "FailedMount") and not old:
            yield event.message
    if not pod.is_running and (pod.ended is not None or pod.before is not None):
        yield joined.log_of(pod)
    if pod.waiting in START_REASONS:
        yield f"{pod.waiting}: {pod.waiting_message}"
    for end in pod.endings:
        if end.reason in START_ENDINGS:
            yield f"{end.reason}: {end.message}"


def _classify(line: str, pod: Pod, joined: JoinedEvidence) -> Finding | None:
    match = _SECRET_KEY.search(line)
    if match is not None:
        name, key = match["name"], match["key"].strip("'\"")
        variable = pod.secrets.get(f"{name}/{key}", "<ENV>")
        return _finding(
            "secret-key-missing",
            f"Secret {name} has no key {key}, which {variable} is to come from",
            f"add the key with `rankzero secret set --from-env-file .env`, or set secrets.{variable}.key in"
            " cluster.yaml to one that"
            f" `kubectl describe secret {name}` lists",
        )
    match = _SECRET.search(line)
    if match is not None:
        return _missing_secret(match["name"], pod)
    match = _SECRET_VOLUME.search(line)
    if match is not None:
        cause = f"a volume wants key {match['key']} of a Secret that has none of that name"
        return _finding("secret-key-missing", cause, "correct the secret volume in pod_patch of cluster.yaml")
    match = _CONFIG.search(line) or _CONFIG_KEY.search(line)
    if match is not None:
        return _missing_config(match, joined)
    if _AS_ROOT.search(line):
        return _finding(
            "runs-as-root",
            f"image {pod.image} wants to run as root, which the pod forbids",
            "set user in cluster.yaml to a number other than 0, or build the image from docker/Dockerfile",
        )
    match = _NO_COMMAND.search(line) or _NO_PACKAGE.search(line)
    if match is not None:
        command = match.groupdict().get("command")
        lacks = f"no {command} in its PATH" if command else "no package rankzero"
        return _finding(
            "image-without-rankzero",
            f"image {pod.image} has {lacks}, so the node command cannot start",
            "set image in cluster.yaml to one built from docker/Dockerfile: it holds rankzero[train]",
        )
    if line.startswith((*START_REASONS, *START_ENDINGS)):
        return _finding(
            "container-config",
            f"the container cannot be started: {line}",
            f"correct what the message names in cluster.yaml ({remedies(joined).fields})",
        )
    return None


def _missing_secret(name: str, pod: Pod) -> Finding:
    variable = pod.secrets.get(name)
    if variable is None:
        return _finding(
            "secret-missing",
            f"there is no Secret {name}, which a volume of the pod needs",
            f"`kubectl create secret generic {name}`, or correct the volume in pod_patch of cluster.yaml",
        )
    key = next((full.partition("/")[2] for full in pod.secrets if full.startswith(f"{name}/")), "token")
    return _finding(
        "secret-missing",
        f"there is no Secret {name}, which {variable} is to come from (key {key})",
        f"make Secret {name} with `rankzero secret set --from-env-file .env`, or set secrets.{variable}.name in"
        " cluster.yaml"
        " to one that exists",
    )


def _missing_config(match: re.Match[str], joined: JoinedEvidence) -> Finding:
    groups = match.groupdict()
    name, key = groups.get("name") or joined.run, groups.get("key") or groups.get("other")
    lacks = f"ConfigMap {name} has no key {key}" if key else f"there is no ConfigMap {name}"
    own = name == joined.run
    fix = (
        "submit the run again: it makes the ConfigMap anew"
        if own
        else "correct the reference in pod_patch of cluster.yaml"
    )
    return _finding("config-missing", f"{lacks}, which the pod reads its run from" if own else lacks, fix)


def _finding(code: str, cause: str, fix: str) -> Finding:
    return Finding(code, "broken", cause, fix)
