"""Images that cannot be pulled, or take long. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankzero.launch.diagnose.finding import Finding, span
from rankzero.launch.joined import JoinedEvidence
from rankzero.launch.pods import Pod
from rankzero.launch.untyped_json import seconds_between
from rankzero.wording import counted

REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
)
SLOW_SECONDS = 300
_AUTH = re.compile(
    r"(?i)\b401\b|\b403\b|unauthorized|authentication required|pull access denied|insufficient_scope|no basic auth"
    r"|denied:|access denied|authorization failed|failed to authorize"
)
_RATE = re.compile(r"(?i)\b429\b|toomanyrequests|rate limit")
_NOT_FOUND = re.compile(r"(?i)manifest unknown|NotFound|: not found|\b404\b|name unknown")
_PLATFORM = re.compile(
    r"no match for platform in manifest|(?i:exec format error)|no matching manifest for"
    r"|no image found in .*for architecture"
)
_NAME = re.compile(r"(?i)invalid reference format|couldn't parse image|InvalidImageName")
_DNS = re.compile(r"lookup (?P<host>[\w.-]+)(?: on \S+)?: (?P<why>no such host|\w[^:\"]*)")
_TLS = re.compile(r"x509: [^\"]+|server gave HTTP response to HTTPS client")
_DISK = re.compile(r"no space left on device")
_UNREACHABLE = re.compile(
    r"(?i)i/o timeout|connection refused|connection reset|handshake timeout|deadline ?exceeded|network is unreachable"
)
_OPERATORS_INIT = "init-pytorch"
"""What the training operator puts before every worker of a PyTorchJob; it waits for the master's name."""
_OPERATORS_FIX = (
    "have the training operator started with --pytorch-init-container-image set to an image that the hosts can pull, or"
    " set kind: job (or jobset) in cluster.yaml, which needs no init container"
)
_PULL_SECRET = re.compile(r"Unable to retrieve some image pull secrets \((?P<names>[^)]*)\)")


def find(joined: JoinedEvidence) -> Iterator[Finding]:
    """One finding per image and reason, with its pods counted; then pulls that take long."""
    failing: dict[str, list[Pod]] = {}
    slow: list[tuple[Pod, float]] = []
    for pod in joined.newest:
        if pod.is_running or pod.is_over:
            continue
        if pod.waiting in REASONS or _failed_pull(joined, pod):
            failing.setdefault(pod.image, []).append(pod)
        else:
            seconds = _pulling(joined, pod)
            if seconds is not None and seconds >= SLOW_SECONDS:
                slow.append((pod, seconds))
    for image, pods in failing.items():
        yield _failed(joined, image, pods)
    if slow:
        pod, seconds = max(slow, key=lambda one: one[1])
        yield Finding(
            "image-slow",
            "waiting",
            f"host {pod.host or '?'} has been pulling image {pod.image} for {span(seconds)}"
            f" ({counted(len(slow), 'pod waits', 'pods wait')} for it)",
            "wait; for the next time choose a smaller image or a registry near the cluster (image in cluster.yaml)",
            (f"Pulling image {pod.image}",),
            pod.node,
        )


def _failed_pull(joined: JoinedEvidence, pod: Pod) -> bool:
    if pod.waiting not in ("", "ContainerCreating", "PodInitializing") or not pod.host:
        return False
    newest = next((e for e in reversed(joined.events_of(pod)) if e.reason in ("Failed", "Pulled", "Started")), None)
    return newest is not None and newest.reason == "Failed" and newest.message.startswith("Failed to pull image")


def _pulling(joined: JoinedEvidence, pod: Pod) -> float | None:
    """How long an image has been on its way."""
    for event in reversed(joined.events_of(pod)):
        if event.reason in ("Pulled", "Created", "Started", "Failed"):
            return None
        if event.reason == "Pulling":
            return seconds_between(event.at, joined.now)
    return None


def _failed(joined: JoinedEvidence, image: str, pods: list[Pod]) -> Finding:
    pod = pods[0]
    lines = [
        pod.waiting_message,
        *(event.message for event in reversed(joined.events_of(pod)) if event.reason == "Failed"),
    ]
    told = max((line for line in lines if line), key=_says, default="")
    code, cause, fix = _classify(told, image, pod)
    if pod.init:
        cause = f"{pod.title}, which is not rankzero's, cannot start: {cause}"
        fix = f"correct the image of {pod.init} in pod_patch of cluster.yaml, or where the cluster adds it to pods"
    if pod.init == _OPERATORS_INIT:
        code, fix = "operator-init", _OPERATORS_FIX
    secret = next((m for e in joined.events_of(pod) if (m := _PULL_SECRET.search(e.message))), None)
    if secret is not None and code in ("image-auth", "image-not-found"):
        cause += f"; pull secret {secret['names']} does not exist in the namespace"
        fix = f"make it with `kubectl create secret docker-registry {secret['names']} …`, or correct image_pull_secrets"
    who = f" ({counted(len(pods), 'pod')}, first {pod.name})"
    return Finding(code, "waiting" if code == "image-rate-limit" else "broken", cause + who, fix, (told,), pod.node)


def _says(line: str) -> int:
    """How much a message says: the back-off alone says nothing, and the longest has the registry's own words."""
    return 0 if line.startswith("Back-off") and "rror" not in line else len(line)


def _classify(told: str, image: str, pod: Pod) -> tuple[str, str, str]:
    """Code, cause and fix. A registry hides what one may not see, so some words mean either."""
    first, _, rest = image.partition("/")
    host = first if rest and "." in first else "docker.io"
    if pod.waiting == "ErrImageNeverPull" or "not present with pull policy of Never" in told:
        fix = "load the image on the hosts, or set image_pull_policy: IfNotPresent in cluster.yaml"
        return "image-never-pulled", f"image {image} is not on host {pod.host} and image_pull_policy is Never", fix
    if pod.waiting == "InvalidImageName" or _NAME.search(told):
        fix = "correct image in cluster.yaml: registry/name:tag, in lower case"
        return "image-name", f"{image} is not the name of an image", fix
    if _RATE.search(told):
        fix = (
            "add image_pull_secrets of an account in cluster.yaml, or set image to a mirror; it is tried again by"
            " itself"
        )
        return "image-rate-limit", f"registry {host} limits how often image {image} is pulled", fix
    if _PLATFORM.search(told):
        fix = "build the image for the hosts' processors, or choose hosts with node_selector: {kubernetes.io/arch: …}"
        return "image-platform", f"image {image} is not made for the processors of host {pod.host}", fix
    if _DISK.search(told):
        fix = "have the host's disk cleaned, keep pods off it with node_selector, or use a smaller image"
        return "image-no-space", f"host {pod.host} has no room for image {image}", fix
    dns = _DNS.search(told)
    if dns is not None:
        fix = f"correct the registry in image of cluster.yaml, or the DNS of host {pod.host}"
        return "image-registry-dns", f"host {pod.host} cannot find registry {dns['host']} of image {image}", fix
    tls = _TLS.search(told)
    if tls is not None:
        fix = f"have the registry's certificate trusted on the hosts, or set image to another registry than {host}"
        return "image-registry-tls", f"hosts do not trust registry {host} of image {image}: {tls[0]}", fix
    if _AUTH.search(told):
        fix = (
            "set image_pull_secrets in cluster.yaml to a Secret with the registry's login, and check image for"
            " typing errors"
        )
        return "image-auth", f"registry {host} does not give out image {image} without a login", fix
    if _NOT_FOUND.search(told):
        fix = "correct image in cluster.yaml (name and tag), or push it"
        return "image-not-found", f"image {image} does not exist in registry {host}", fix
    if _UNREACHABLE.search(told):
        fix = f"see that host {pod.host} reaches {host} (proxy, firewall), or set image to a registry that it reaches"
        return "image-registry-unreachable", f"host {pod.host} does not reach registry {host} of image {image}", fix
    return "image-pull", f"image {image} cannot be pulled: {told or pod.waiting}", "correct image in cluster.yaml"
