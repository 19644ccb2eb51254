"""What the doctor finds on a cluster: a smoke test's objects are shown to it, and nothing is applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rankzero.errors import AccessError, ConfigError, ServiceError

if TYPE_CHECKING:
    from rankzero.doctor.finding import Finding

Say = Callable[[str], None]
NAME = "rankzero-doctor"
"""Of the objects that are shown and never applied: of no smoke test, which may be under way and then be left alone."""


def cluster_findings(cluster: str, say: Say) -> Iterator[Finding]:
    """What there is for the pods of a cluster.yaml (or a profile's name). Raises ConfigError for what is wrong in it,
    before anything is asked. `say` is told while something is tried again."""
    from rankzero.api.clusters import open_backend
    from rankzero.api.smoke import smoke_plan
    from rankzero.doctor.cluster import of_error, of_survey
    from rankzero.doctor.finding import ok
    from rankzero.launch.render import render
    from rankzero.spec.run_options import SmokeSettings
    from rankzero.wording import counted

    plan = smoke_plan(SmokeSettings(), cluster, name=NAME)
    place = plan.cluster
    each = counted(place.nproc_per_node, "GPU" if place.gpu else "process", None if place.gpu else "processes")
    pods = f"{counted(place.num_nodes, 'pod')} with {each}"
    yield ok("cluster.yaml", f"{pods}, as {plan.kind} in namespace {place.namespace}")
    try:
        survey = open_backend(place, say=say).survey(render(plan))
    except (ServiceError, AccessError, ConfigError) as error:
        yield from of_error("api", error)
        return
    yield from of_survey(survey)
