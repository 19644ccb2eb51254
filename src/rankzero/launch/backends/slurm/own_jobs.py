"""Which of Slurm's jobs are a run's own: numbers begin again where a cluster is made anew on the same file system."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from rankzero.launch import labels
from rankzero.launch.backends.slurm.command import Job
from rankzero.launch.backends.slurm.state import RunState
from rankzero.launch.untyped_json import moment

_CLOCKS = timedelta(hours=1)
"""By so much Slurm's clock may be behind that of the machine that submitted. A job that is queued again is submitted
anew, so it may be later by any time."""


def own_jobs(state: RunState, jobs: Mapping[str, Job]) -> dict[str, Job]:
    """Of the jobs that have a run's numbers those that have its names too, and are not from before it was submitted."""
    about = state.about
    run, submitted = str(about.get("name") or state.root.name), moment(about.get("creationTimestamp"))
    names = {state.job: run, state.preparation: labels.prepare_name(run)}
    return {
        number: jobs[number]
        for number, name in names.items()
        if number in jobs and labels.is_job_name(jobs[number].name, name)
        if submitted is None or (at := jobs[number].submitted) is None or at >= submitted - _CLOCKS
    }
