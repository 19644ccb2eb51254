"""Whether a run goes on that somebody follows, and what it waits for. Slurm's controller is everybody's: it is asked
less often the longer nothing changes. Judges nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rankzero.errors import ServiceError
from rankzero.launch.backend import Say
from rankzero.launch.backends.slurm.command import Job
from rankzero.launch.backends.slurm.evidence import num_nodes
from rankzero.launch.backends.slurm.state import PREPARATION, Part, RunState
from rankzero.launch.silence import Silence

MOST_PAUSES = 15
"""After so many pauses of who follows Slurm is asked at the latest, as a job may end without a word of its nodes."""


class Following:
    """One run. `ask` gives its jobs, as Slurm says now, by their numbers; `run_of` the run's own among them; `explain`
    what is to be said of them."""

    def __init__(
        self,
        state: RunState,
        ask: Callable[[], Mapping[str, Job]],
        run_of: Callable[[Mapping[str, Job]], Job | None],
        explain: Callable[[Mapping[str, Job]], Sequence[str]],
        say: Say,
    ) -> None:
        self._state, self._ask, self._run_of, self._explain, self._say = state, ask, run_of, explain, say
        self._silence = Silence(say)
        self._told: set[str] = set()
        self._noted: object = None
        self._heard: object = None
        self._pauses, self._left = 1, 0

    def goes_on(self) -> bool:
        """Asked after every pause. Raises as Slurm refuses, and ServiceError where it stays silent."""
        noted = self._notes()
        if self._left and noted == self._noted:
            self._left -= 1
            return True
        try:
            jobs = self._ask()
        except ServiceError as error:
            self._silence.goes_on(error)
            return True
        self._silence.is_over()
        heard = {number: (job.state, job.reason) for number, job in jobs.items()}
        if (noted, heard) == (self._noted, self._heard):
            self._pauses = min(2 * self._pauses, MOST_PAUSES)
        else:
            self._pauses = 1
        if heard != self._heard:
            self._explain_what_waits(jobs)
        self._noted, self._heard, self._left = noted, heard, self._pauses - 1
        run = self._run_of(jobs)
        return run is not None and not run.is_over

    def _notes(self) -> object:
        """What the parts of the run have noted, and which jobs it has: what changes there is seen at once."""
        job, first = self._state.job, self._state.preparation
        parts: list[tuple[Part, str]] = [(node, job) for node in range(num_nodes(self._state.about))]
        return job, first, [self._state.notes(part, number) for part, number in [*parts, (PREPARATION, first)]]

    def _explain_what_waits(self, jobs: Mapping[str, Job]) -> None:
        """Each thing once: reasons come and go."""
        if not any(job.is_waiting and job.reason for job in jobs.values()):
            return
        for line in self._explain(jobs):
            if line not in self._told:
                self._told.add(line)
                self._say(line)
