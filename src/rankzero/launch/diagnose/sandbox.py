"""Pods that were placed and get no network, or no sandbox at all. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankzero.launch.diagnose.finding import Finding, hosts_named
from rankzero.launch.diagnose.signs import RECENT_SECONDS, of_text
from rankzero.launch.joined import JoinedEvidence
from rankzero.launch.pods import Pod
from rankzero.launch.untyped_json import seconds_between
from rankzero.wording import counted

_REASONS = ("FailedCreatePodSandBox", "NetworkNotReady", "FailedPodSandBoxStatus")
_NO_ADDRESS = re.compile(
    r"(?i)failed to assign an IP address|no (?:available |free )?(?:IP |IPv[46] )?address(?:es)? (?:is |are )?available"
    r"|no available (?:IP )?address|no (?:more )?free (?:IP|address|affine)|Assigned 0 out of \d+ requested"
    r"|(?:range|pool|subnet|IPAM|addresses|IPs?)\b.{0,60}\b(?:is full|exhausted|used up)"
    r"|insufficient (?:free |available )?(?:IP )?address|InsufficientFreeAddresses|out of IP addresses"
)
_NETWORK = re.compile(r"(?i)network|\bcni\b|plugin type=|multus|cilium|calico|flannel")
_PLUGIN = re.compile(r'plugin type="(?P<name>[\w.-]+)"|CNI network "(?P<network>[^"]+)"|NetworkPluginNotReady')


def find(joined: JoinedEvidence) -> Iterator[Finding]:
    """One finding for each cause, with all hosts that it shows on."""
    found: dict[str, list[tuple[Pod, str]]] = {}
    for pod in joined.newest:
        if pod.is_running or pod.is_over or not pod.host:
            continue
        message = _newest(joined, pod)
        if message and of_text(message) is None:
            found.setdefault(_kind(message), []).append((pod, message))
    for code, several in found.items():
        yield _MAKERS[code](several)


def _newest(joined: JoinedEvidence, pod: Pod) -> str:
    """The newest word of the kubelet on the pod's sandbox, if nothing has followed it that says that there is one."""
    for event in reversed(joined.events_of(pod)):
        if event.reason in ("Pulling", "Pulled", "Created", "Started"):
            return ""
        if event.reason in _REASONS and (seconds_between(event.at, joined.now) or 0) <= RECENT_SECONDS:
            return event.message
    return ""


def _kind(message: str) -> str:
    if _NO_ADDRESS.search(message):
        return "no-pod-ip"
    return "pod-network" if _NETWORK.search(message) else "pod-sandbox"


def _where(several: list[tuple[Pod, str]]) -> tuple[str, str]:
    pod = several[0][0]
    others = f" (and {counted(len(several) - 1, 'other pod')})" if len(several) > 1 else ""
    return f"pod {pod.name}{others}", hosts_named(one.host for one, _ in several)


def _no_address(several: list[tuple[Pod, str]]) -> Finding:
    who, hosts = _where(several)
    return Finding(
        "no-pod-ip",
        "broken",
        f"no IP address is left on {hosts} for {who}: {_tail(several[0][1])}",
        "end other pods there or choose hosts of another subnet (node_selector); the administrator can give the host"
        " pool a larger range of pod addresses",
        (several[0][1],),
        several[0][0].node,
    )


def _no_network(several: list[tuple[Pod, str]]) -> Finding:
    who, hosts = _where(several)
    plugin = _PLUGIN.search(several[0][1])
    name = next((part for part in plugin.groups() if part), "") if plugin is not None else ""
    return Finding(
        "pod-network",
        "broken",
        f"the network plugin{f' {name}' if name else ''} of {hosts} does not connect {who}: {_tail(several[0][1])}",
        f"have the administrator look at the network plugin's pod on {hosts} (`kubectl get pods -A --field-selector"
        f" spec.nodeName={several[0][0].host}`); `kubectl cordon` it to start elsewhere",
        (several[0][1],),
        several[0][0].node,
    )


def _no_sandbox(several: list[tuple[Pod, str]]) -> Finding:
    who, hosts = _where(several)
    return Finding(
        "pod-sandbox",
        "broken",
        f"{hosts} cannot start a sandbox for {who}: {_tail(several[0][1])}",
        f"`kubectl describe pod {several[0][0].name}` shows all that its host says; `kubectl cordon"
        f" {several[0][0].host}` to start elsewhere",
        (several[0][1],),
        several[0][0].node,
    )


_MAKERS = {"no-pod-ip": _no_address, "pod-network": _no_network, "pod-sandbox": _no_sandbox}


def _tail(message: str) -> str:
    """What the plugin says, behind the wrappings of kubelet and runtime."""
    return message.rpartition(" desc = ")[2].strip() or message
