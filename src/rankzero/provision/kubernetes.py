"""What is the same at every provider once there is a control plane: access, releases of charts, ready hosts."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankzero.errors import ConfigError, ServiceError
from rankzero.provision.programs import Command, Programs
from rankzero.provision.steps import Commands, Facts, Found, Step
from rankzero.spec.infra_spec import ChartSpec
from rankzero.wording import counted

Endpoints = Callable[[Programs, Facts], Collection[str]]
"""Names and addresses of a control plane, of which a URL may be made; empty: nobody says."""


def access(name: str, make: Commands, context: str | None = None, endpoints: Endpoints | None = None) -> Step:
    """This machine's access to the cluster of a name: the context that `make` adds to the kubeconfig, `context` where
    it always has that name. The one that is current may be another terminal's choice by then, and one that is new of
    another cluster: where `endpoints` are told, it leads to one of them."""

    def find(_programs: Programs, _facts: Facts) -> Found | None:
        return None if context is None else Found(context)

    def remove(facts: Facts) -> list[Command]:
        return [Command(("kubectl", "config", "delete-context", facts["kubeconfig"]))]

    def among(programs: Programs, facts: Facts) -> list[str]:
        told = endpoints(programs, facts) if endpoints is not None and "cluster" in facts else ()
        hosts = {_host(one) for one in told}
        return [name for name, leads_to in _contexts(programs) if not hosts or hosts & leads_to]

    return Step("kubeconfig", name, find, make, remove, needs=("cluster",), among=among, inside="cluster")


_HOST = re.compile(r"(?:\w+://)?(\[[^]]*\]|[^/:]*)")


def _host(url: str) -> str:
    found = _HOST.match(url)
    return found[1].lower() if found else ""


def _contexts(programs: Programs) -> list[tuple[str, set[str]]]:
    """Those of this machine, with the hosts that they lead to: through a tunnel the one that answers has the second."""
    config = programs.ask_for_object("kubectl", "config", "view", "--output", "json") or {}
    clusters = {one["name"]: one.get("cluster") or {} for one in config.get("clusters") or ()}
    contexts = []
    for one in config.get("contexts") or ():
        cluster = clusters.get((one.get("context") or {}).get("cluster")) or {}
        hosts = {_host(str(cluster[key])) for key in ("server", "tls-server-name") if cluster.get(key)}
        contexts.append((str(one["name"]), hosts))
    return contexts


def helm_release(chart: ChartSpec, values: Mapping[str, str]) -> Step:
    """A chart's release: fetched into infra.yaml's directory, then installed from the file, so that what is there is
    what was looked at."""

    def find(programs: Programs, facts: Facts) -> Found | None:
        # a list has those in all states by a flag that helm 4 has not, and a history has by none
        words = ("helm", "history", chart.name, "--max", "1", "--kube-context", facts["kubeconfig"], "--output", "json")
        revisions = programs.ask_for_list(*words)
        found = _release(chart.name, revisions[-1], facts["kubeconfig"]) if revisions else None
        installed = revisions[-1].get("chart") if revisions else None
        title, wanted = f"the release {chart.name}", f"{chart.ref.rstrip('/').rpartition('/')[2]}-{chart.version}"
        return found and compared(found, title, {"chart": (installed, wanted)})

    def make(facts: Facts) -> list[Command]:
        file = Path(facts["directory"], f"{chart.ref.rstrip('/').rpartition('/')[2]}-{chart.version}.tgz")
        path = str(file) if file.is_absolute() else f"./{file}"  # without a directory it would be looked for elsewhere
        settings = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
        there = ("--kube-context", facts["kubeconfig"])
        return [
            Command(("helm", "pull", chart.ref, "--version", chart.version, "--destination", str(file.parent))),
            Command(("helm", "upgrade", chart.name, path, "--install", *settings, *there)),
        ]

    def remove(facts: Facts) -> list[Command]:
        return [Command(("helm", "uninstall", chart.name, "--kube-context", facts["kubeconfig"]))]

    needs = ("kubeconfig",)
    return Step("chart", chart.name, find, make, remove, needs=needs, inside="cluster", programs=("helm",))


def _release(name: str, newest: Mapping[str, Any], context: str) -> Found | None:
    """By its newest revision. helm installs nothing over a release whose installation was cut off or failed."""
    status, first = str(newest.get("status")), str(newest.get("revision")) == "1"
    if status == "uninstalled":
        return None
    if status == "failed" and not first:
        mend = None
    elif status in ("pending-install", "uninstalling", "failed"):
        mend = "uninstall"
    elif status in ("pending-upgrade", "pending-rollback"):
        mend = "rollback"
    else:
        return Found(name)
    redo = () if mend is None else (Command(("helm", mend, name, "--kube-context", context)),)
    hint = f"`helm {mend or 'rollback'} {name} --kube-context {context}`, then give the same command again"
    trouble = ServiceError(f"the release {name} is {status}", where="chart", hint=hint)
    return Found(name, trouble=trouble, redo=redo)


def compared(found: Found, title: str, fields: Mapping[str, tuple[object, object]]) -> Found:
    """What is there, with a note of each field that is another than the file says now, as (has, wanted): nobody changes
    it. None on either side: nobody says."""
    others = [
        f"{title} has {field} {has}, and is to have {wanted}: it stays as it is"
        for field, (has, wanted) in fields.items()
        if has is not None and wanted is not None and str(has).lower() != str(wanted).lower()
    ]
    return replace(found, notes=(*found.notes, *others))


def sized(found: Found, title: str, has: int, wanted: int, more: str) -> Found:
    """What holds hosts, with what there is to say where it holds another number: nobody makes those that are missing,
    and `more` says how to get them."""
    if has == wanted:
        return found
    what = f"{title} has {counted(has, 'host')}, and is to have {wanted}"
    if has > wanted:
        return replace(found, notes=(*found.notes, f"{what}: it stays as it is"))
    hint = f"{more}; or set nodes.count back to {has}"
    return replace(found, trouble=ConfigError(what, where="nodes.count", hint=hint))


Labels = Mapping[str, str]
Choose = Callable[[Sequence[Labels], Facts], Sequence[bool]]
"""Which hosts of a cluster are those that were asked for, each by its labels."""


def nodes_ready(
    count: int, choose: Choose, needs: tuple[str, ...] = ("kubeconfig",), made_with: str | None = None
) -> Step:
    """Waits until so many hosts are, of those that `choose` says."""

    def find(programs: Programs, facts: Facts) -> Found | None:
        words = ("kubectl", "get", "nodes", "--context", facts["kubeconfig"], "--output", "json")
        answer = programs.ask_for_object(*words) or {}
        nodes = answer.get("items") or ()
        chosen = choose([(node.get("metadata") or {}).get("labels") or {} for node in nodes], facts)
        ready = sum(_is_ready(node) for node, one in zip(nodes, chosen, strict=True) if one)
        return Found(str(ready), ready=ready >= count)

    return Step("hosts", f"({count} of them)", find, needs=needs, made_with=made_with)


def _is_ready(node: Mapping[str, object]) -> bool:
    status = node.get("status")
    conditions = status.get("conditions") or () if isinstance(status, dict) else ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
