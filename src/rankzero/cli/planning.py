"""`RUN.yaml key=value … cluster.key=value` → Plan: which words are the cluster's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rankzero.errors import UsageError

if TYPE_CHECKING:
    from rankzero.launch.plan import Plan


def plan_from(
    arguments: Sequence[str],
    cluster: str | None,
    kind: str | None,
    *,
    allow_changes: Sequence[str] = (),
    submitter: str = "",
) -> Plan:
    """The plan of a command line. Raises ConfigError with all problems, or UsageError."""
    from rankzero.api.planning import CLUSTER_PREFIX, planned
    from rankzero.cli.argv import spec_arguments
    from rankzero.spec.load import read_run_spec

    given = spec_arguments(arguments)
    if given.file is None:
        hint = "rankzero render RUN.yaml --cluster CLUSTER.yaml; `rankzero init` writes a run spec to start from"
        raise UsageError("one run spec is needed", hint=hint)
    for_cluster = [text.removeprefix(CLUSTER_PREFIX) for text in given.overrides if text.startswith(CLUSTER_PREFIX)]
    for_run = [text for text in given.overrides if not text.startswith(CLUSTER_PREFIX)]
    reading = read_run_spec(given.file, for_run, env=os.environ, for_pods=True)
    return planned(reading, cluster, for_cluster, kind, allow_changes=allow_changes, submitter=submitter)
