"""Where the fields of run.yaml and of cluster.yaml were written, both asked by one name: a cluster's has a prefix, as
it is typed. Pure."""

from __future__ import annotations

from collections.abc import Callable

CLUSTER_PREFIX = "cluster."
Where = Callable[[str], str]
"""`train.max_steps` → `run.yaml:14 train.max_steps`, `cluster.num_nodes` → `cluster.yaml:3 num_nodes`."""


def written(run: Where = str, cluster: Where = "cluster.yaml {}".format) -> Where:
    """Where fields of both are, by functions that take each spec's own. Left out: of no file that is known."""

    def where(field: str) -> str:
        own = field.removeprefix(CLUSTER_PREFIX)
        return run(field) if own == field else cluster(own)

    return where


BY_NAME = written()
"""Of specs that are in no file."""
