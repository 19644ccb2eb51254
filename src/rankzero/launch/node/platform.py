"""Which node of a run this pod is, from what its platform set. Pure: environment and host name in, Place out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rankzero.errors import ConfigError, Problem
from rankzero.launch.node.settings import CONTROL_PORT, MASTER_PORT, NodeSettings

INDEX_VARIABLES = ("RANKZERO_NODE", "JOB_COMPLETION_INDEX", "PET_NODE_RANK", "NODE_RANK", "GROUP_RANK")
"""Ours, an Indexed Job's or JobSet's, Kubeflow's, and torchrun's own. A PyTorchJob's RANK is the node's too, but
elsewhere RANK is a process's."""
_ORDINAL = re.compile(r"(?P<set>.+?)-(?P<ordinal>[0-9]+)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where this node is among the others, and where node 0 is."""

    node: int
    num_nodes: int
    nproc: int
    master_address: str
    """Host name or address of node 0, as this node reaches it."""
    master_port: int = MASTER_PORT
    control_port: int = CONTROL_PORT


def find_place(settings: NodeSettings, env: Mapping[str, str], hostname: str) -> Place:
    """Put together what is known. Raises ConfigError with everything that is missing or contradicts itself."""
    problems: list[Problem] = []
    node = _node(settings, env, hostname, problems)
    if node >= settings.num_nodes:
        what = f"this is node {node}, but the run has {settings.num_nodes}"
        problems.append(
            Problem(what, where="node", hint="nodes count from 0; submit the run again after changing num_nodes")
        )
    nodes = env.get("PET_NNODES", "").rpartition(":")[2]  # Kubeflow's; elastic jobs have `fewest:most`
    if nodes.isdigit() and int(nodes) != settings.num_nodes:
        what = f"the platform started {nodes} node{'' if nodes == '1' else 's'}, but the run has {settings.num_nodes}"
        problems.append(Problem(what, where="environment PET_NNODES", hint="submit the run again"))
    address = env.get("RANKZERO_MASTER") or env.get("PET_MASTER_ADDR") or env.get("MASTER_ADDR") or ""
    if not address and settings.num_nodes > 1:
        hint = "set RANKZERO_MASTER or MASTER_ADDR to the host name of node 0"
        problems.append(Problem("nothing says where node 0 is", where="environment", hint=hint))
    ports = [
        _number(env, name, default, problems)
        for name, default in (
            ("PET_MASTER_PORT" if "PET_MASTER_PORT" in env else "MASTER_PORT", MASTER_PORT),
            ("RANKZERO_CONTROL_PORT", CONTROL_PORT),
        )
    ]
    if problems:
        raise ConfigError(problems)
    if node == 0 or settings.num_nodes == 1:
        address = address if settings.num_nodes > 1 else "127.0.0.1"
    return Place(node, settings.num_nodes, settings.nproc_per_node, address, *ports)


def _node(settings: NodeSettings, env: Mapping[str, str], hostname: str, problems: list[Problem]) -> int:
    found = {name: env[name] for name in INDEX_VARIABLES if env.get(name, "") != ""}
    wrong = {name: text for name, text in found.items() if not text.isdigit()}
    for name, text in wrong.items():
        problems.append(Problem(f"{text!r} is not the number of a node", where=f"environment {name}"))
    indices = {int(text) for name, text in found.items() if name not in wrong}
    if len(indices) > 1:
        said = ", ".join(f"{name}={text}" for name, text in found.items())
        hint = "unset those that are not meant"
        problems.append(Problem(f"which node is this? {said}", where="environment", hint=hint))
    if indices:
        return min(indices)
    if wrong or settings.num_nodes == 1:
        return 0
    for name in (env.get("POD_NAME", ""), hostname):
        match = _ORDINAL.fullmatch(name)  # StatefulSet: run-3; elastic PyTorchJob: run-worker-3
        if match is not None and match["set"] in (settings.run, f"{settings.run}-worker"):
            return int(match["ordinal"])
    hint = f"set one of {', '.join(INDEX_VARIABLES)}"
    problems.append(Problem("nothing says which node this is", where="environment", hint=hint))
    return 0


def _number(env: Mapping[str, str], name: str, default: int, problems: list[Problem]) -> int:
    text = env.get(name, "") or str(default)
    if text.isdigit() and 0 < int(text) < 65536:
        return int(text)
    problems.append(Problem(f"{text!r} is not a port", where=f"environment {name}"))
    return default
