"""What a process is started for: a run, or a test of its place. Imports either only when it is that."""

from __future__ import annotations

from typing import Any

from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec


def work(spec: RunSpec, options: RunOptions, *, begun: float | None = None) -> dict[str, Any]:
    """Returns the report; raises as `worker.run` and `smoke.check.smoke` do."""
    if options.smoke is not None:
        from rankzero.engine.smoke.check import smoke

        return smoke(spec, options, begun=begun)
    from rankzero.engine.worker import run

    return run(spec, options, begun=begun)
