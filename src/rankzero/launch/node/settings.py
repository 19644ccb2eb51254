"""NodeSettings: what a pod is told besides the run spec, as node.json in its ConfigMap. Plain data."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rankzero.launch.labels import Manifest
from rankzero.launch.untyped_json import text
from rankzero.spec.run_options import RunOptions

CONFIG_DIR = "/etc/rankzero"
"""Where pods find run.yaml, node.json and files/."""
CONTROL_PORT = 29400
"""Node 0's command listens here for the other nodes' commands."""
MASTER_PORT = 29500
"""Rank 0's process listens here for the other ranks, unless the platform says another."""
TOKEN_VARIABLE = "RANKZERO_SUBMISSION_TOKEN"
"""Has the secret that submit makes for the pods of one submission."""
ALLOCATION_VARIABLE = "SLURM_RESTART_COUNT"
"""Says how often Slurm has queued the job again; not there in its first allocation."""
SETTING_PREFIX = "RANKZERO_SET_"
"""Variables with this prefix and a number set fields of run.yaml, `key=value`: trials share the file alone."""
PREPARE_RESTARTS = 3
"""How often the preparation Job starts its pod again."""
TERMINATION_LOG = "/dev/termination-log"
WARM_DIR = "/tmp/rankzero-dev"
"""Where a warm pod has the files that were sent to it, and notes which."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """A directory of the pods that is filled from, or copied to, an object store."""

    url: str
    """fsspec URL: s3://bucket/prefix, gs://…, file:///…"""
    path: str
    """Directory in the pods."""
    direction: Literal["download", "upload"]
    """download: before training starts. upload: checkpoints as they are committed, and back when a run continues."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """One object for all nodes of a run; which of them a pod is, its environment says."""

    run: str
    """Object name of the run; nodes of another run are turned away by it."""
    num_nodes: int = 1
    min_nodes: int | None = None
    """Elastic: train with as few as this many. None: all of them, always."""
    nproc_per_node: int = 1
    grace_seconds: float = 170.0
    """From SIGTERM until processes that have not saved are killed; below the pod's own grace period."""
    rendezvous_seconds: float = 1800.0
    """Longest wait for the other nodes, at the start and after one was lost."""
    max_restarts: int = 3
    """How many failed attempts the run may have besides the last; who does not lead waits through all of them. 0: a
    node that fails is started again by nobody, or by somebody who gives the command again."""
    retry_exit_offset: int = 0
    """Added to exit codes that may be retried, where the platform takes codes below 128 as final (PyTorchJob)."""
    rdma: bool = False
    """Processes talk over RDMA, so they must be able to lock memory."""
    park: bool = False
    """Stay when finished instead of leaving (StatefulSet: a container that leaves is started again)."""
    prepared_marker: str | None = None
    """File that the preparation Job writes, to which the submission's name is added; None: there is no such Job."""
    mirrors: tuple[Mirror, ...] = ()
    in_image: bool = True
    """What is installed is an image's; else it is the hosts' own."""
    options: RunOptions = field(default_factory=RunOptions)

    def to_json(self) -> str:
        """The text of node.json; keys in a fixed order. Without `in_image` where it is true, so that images of earlier
        versions read it."""
        value = {**asdict(self), "options": self.options.to_json()}
        if self.in_image:
            del value["in_image"]
        return json.dumps(value, indent=1)

    @classmethod
    def from_json(cls, written: str) -> NodeSettings:
        """Read node.json. Raises KeyError, TypeError or ValueError where it is not one."""
        value: dict[str, Any] = json.loads(written)
        options = RunOptions.from_json(value.pop("options"))
        mirrors = tuple(Mirror(**mirror) for mirror in value.pop("mirrors"))
        return cls(**value, mirrors=mirrors, options=options)


def is_smoke_test(objects: Iterable[Manifest]) -> bool:
    """Whether a ConfigMap among them tells pods to test their place: such a run leaves no results."""
    told = filter(None, (text(one, "data", "node.json") for one in objects if one["kind"] == "ConfigMap"))
    return any(map(says_to_test, told))


def says_to_test(node_json: str) -> bool:
    """Whether it tells a pod to test its place. Raises as NodeSettings.from_json."""
    return NodeSettings.from_json(node_json).options.smoke is not None
