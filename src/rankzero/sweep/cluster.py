"""Trials on a cluster, or in containers: each is submitted as a run, and its pods say at their end what it scored.

The runs belong to the cluster: they go on where the sweep's process ends without having asked them to stop.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from rankzero import errors
from rankzero.errors import ConfigError, DataError, ExitCode, Problem, RankzeroError, ServiceError, StoppedError
from rankzero.launch import labels
from rankzero.launch.backend import Backend
from rankzero.launch.evidence import Evidence
from rankzero.launch.joined import JoinedEvidence
from rankzero.launch.labels import Manifest
from rankzero.launch.plan import Plan, make_plan
from rankzero.launch.render import render
from rankzero.launch.ship import local_files
from rankzero.launch.silence import Silence, SilentError
from rankzero.launch.status import run_status
from rankzero.launch.status.model import RunStatus
from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.kinds import kind_section
from rankzero.spec.local_paths import at_home
from rankzero.spec.run_spec import RunSpec
from rankzero.stop_signals import signals_also_to
from rankzero.sweep.trainer import Known, TrialStart

LOOK_SECONDS = 5.0
"""Between two looks at a trial."""
_GOES_ON = "what runs there goes on, and an answer is waited for"
SHORTEST_TTL = 60
"""Seconds that a finished trial's object has to stay: in them it is looked at, also where many trials run."""
Say = Callable[[str], None]
_ERRORS: dict[int, type[RankzeroError]] = {
    int(one.exit_code): one
    for one in (errors.UsageError, errors.DataError, errors.ServiceError, errors.AccessError, errors.ConfigError)
}
"""By exit code. A pod's full volume (74) fails its trial alone: whether others share it is not known from here."""


class OnCluster:
    """One place that runs pods."""

    def __init__(self, backend: Backend, cluster: ClusterSpec, base: Path, submitter: str, say: Say) -> None:
        self._backend, self._cluster, self._base = backend, cluster, base
        self._submitter, self._say = submitter, say
        self._silence, self._next = Silence(say, _GOES_ON), 0.0
        self._has_answered = False
        """Whether it is more than a name in a file."""

    def start(self, spec: RunSpec, slot: int, known: Known) -> TrialStart | None:
        """None also while the place does not say what it has of that name, or whether it takes the run, and where this
        process was asked to stop before the place had it."""
        if time.monotonic() < self._next:
            return None
        stop = _Stop()
        with signals_also_to(stop.hear):
            return self._start(spec, known, stop)

    def _start(self, spec: RunSpec, known: Known, stop: _Stop) -> TrialStart | None:
        try:
            rendered = self._rendered(spec)
            before = None if known.before is None else self._rendered(known.before)
        except (ConfigError, DataError) as error:
            return _Refused(error)
        try:
            run = None if before is None else self._found(*before, known.submitted)
            if run is None or not run.is_its(noted=known.is_noted):
                run = self._found(*rendered, known.submitted if before is None else ())
            self._has_answered = True
            begun = self._begun(run, known, stop)
        except SilentError as error:
            if not self._has_answered:
                raise
            self._silence.goes_on(error)
            self._next = time.monotonic() + LOOK_SECONDS
            return None
        except _StoppedMeanwhileError as error:
            self._say(str(error.problems[0]))
            return None
        self._silence.is_over()
        return begun

    def _rendered(self, spec: RunSpec) -> tuple[Plan, list[Manifest]]:
        run = at_home(spec, shared=self._cluster.has_homes)
        plan = make_plan(run, self._cluster, files=local_files(run, self._base), submitter=self._submitter)
        return plan, render(plan)

    def _found(self, plan: Plan, objects: list[Manifest], submitted: Sequence[str]) -> _Found:
        there = self._backend.collect(plan.name, log_lines=0)
        digests = ((one["metadata"].get("annotations") or {}).get(labels.SPEC_HASH) for one in objects)
        digest = next(found for found in digests if found)
        return _Found(
            plan, objects, run_status(there), JoinedEvidence(there).annotation(labels.SPEC_HASH), digest, submitted
        )

    def _begun(self, run: _Found, known: Known, stop: _Stop) -> TrialStart:
        """Go on with a run by what is there of its name. Raises ConfigError where that is finished, and another's."""
        status, name = run.status, str(run.plan.run.name)
        if status.phase == "Succeeded" and not run.is_same:
            what = "a run of this name is finished already, with another spec or cluster.yaml than this trial's"
            hint = f"give this sweep another name, or remove that run: `rankzero delete {run.plan.name}`, and its run"
            raise ConfigError(what, where=f"run {run.plan.name}", hint=f"{hint} directory")
        is_under_way = not (status.is_over or _is_deleted(status))
        if (status.phase == "Succeeded" and not _is_mute(status)) or (
            is_under_way and run.is_same and run.there != run.digest  # to change it would end it
        ):
            known.note(name, run.there)
        elif is_under_way and run.there and not run.is_same:
            # It is refused, unless the other one ends at this moment; a stop meanwhile is not for the other one.
            self._backend.submit(run.objects, self._say)
            known.note(name, run.digest)
        else:
            known.note(name, run.digest)
            self._submit(run, stop)
        return _Submitted(self._backend, run.plan, self._say)

    def _submit(self, run: _Found, stop: _Stop) -> None:
        """Where the run is prepared for first, which may take long, a stop that comes meanwhile is carried out there at
        once, and after one that came before nothing is submitted. Raises as the backend, and _StoppedMeanwhileError in
        place of what a stop brings about."""
        where = f"run {run.plan.name}"
        if stop.was_heard():
            raise _StoppedMeanwhileError("it was stopped before it was submitted", where=where)
        if kind_section(self._cluster.kind).on_hosts:  # sbatch waits for nothing
            self._backend.submit(run.objects, self._say)
            return
        ended = threading.Event()
        arguments = (run.plan.name, stop.asked, ended)
        stopping = threading.Thread(target=self._cancel_until, args=arguments, daemon=True)
        stopping.start()
        try:
            self._backend.submit(run.objects, self._say)
        except RankzeroError as error:
            ended.set()
            if not stop.was_heard():
                raise
            stopping.join()  # what it tells the place is not cut off by the end of this process
            what = f"it was stopped while it was submitted: {error.problems[0].what}"
            raise _StoppedMeanwhileError(what, where=where) from error
        finally:
            ended.set()
            stop.asked.put(False)

    def _cancel_until(self, name: str, asked: SimpleQueue[bool], ended: threading.Event) -> None:
        """Once it is asked, until the submit has ended: what that makes a moment later is to be cancelled too."""
        told: set[str] = set()

        def tell(line: str) -> None:
            if line not in told:
                told.add(line)
                self._say(line)

        is_asked = asked.get()
        while is_asked and not ended.is_set():
            try:
                self._backend.cancel(name, tell)
            except RankzeroError as error:
                tell(f"{name} cannot be asked to stop: {error.problems[0]}")
            ended.wait(LOOK_SECONDS)

    def saved(self, spec: RunSpec) -> int | None:
        return None


class _Stop:
    """Whether this process has been asked to stop since a trial's start began."""

    def __init__(self) -> None:
        self._heard = False
        self.asked = SimpleQueue[bool]()
        """True for each time; what waits for it is ended with False."""

    def was_heard(self) -> bool:
        return self._heard

    def hear(self, _number: int) -> None:
        self._heard = True
        self.asked.put(True)


class _StoppedMeanwhileError(StoppedError):
    """A stop of this process has ended what the place was doing for it."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A trial as a run of one name, and what is there of that name."""

    plan: Plan
    objects: list[Manifest]
    status: RunStatus
    there: str
    """What tells the rendering that is there from others; empty where nothing trains there."""
    digest: str
    """What tells this one."""
    submitted: Sequence[str]
    """What tells those that were submitted as this trial."""

    @property
    def is_same(self) -> bool:
        """Whether what is there is this trial's, also from before cluster.yaml was changed."""
        return self.there in (self.digest, *self.submitted)

    def is_its(self, *, noted: bool) -> bool:
        """Whether the trial's run has this name: it is noted, and nobody else has taken it; or there is such a run,
        which an earlier version may have submitted."""
        if noted:
            return not self.there or self.is_same
        return self.status.phase != "Unknown" and (self.is_same or self.status.phase != "Succeeded")


class _Refused:
    """A run that this cluster cannot have, by its values: nothing is sent."""

    def __init__(self, error: RankzeroError) -> None:
        self._error = error

    def running(self) -> bool:
        return False

    def evaluations(self) -> list[float]:
        return []

    def stop(self) -> None: ...

    def failure(self) -> RankzeroError | None:
        return self._error

    def result(self) -> float | None:
        return None

    def close(self) -> None: ...


class _Submitted:
    """A run there."""

    def __init__(self, backend: Backend, plan: Plan, say: Say) -> None:
        self._backend, self._plan, self._say = backend, plan, say
        self._silence = Silence(say, _GOES_ON)
        self._metric = plan.run.checkpoint.best_metric
        self._next = 0.0
        self._stopping: threading.Thread | None = None
        self._deaf = False
        """Whether it cannot be asked to stop, or does not show that it has."""
        self._status: RunStatus | None = None
        self._hidden = ""
        """What was not permitted of the last look, where that leaves open whether the run is there."""

    def running(self) -> bool:
        if time.monotonic() >= self._next:
            self._look()
            self._next = time.monotonic() + LOOK_SECONDS
        return not self._deaf and (self._status is None or not (self._status.is_over or _is_deleted(self._status)))

    def _look(self) -> None:
        """Raises ServiceError where the place has not answered for long, unless it is asked to stop the run: where that
        is done, nobody waits for an end that cannot be seen."""
        try:
            evidence = self._backend.collect(self._plan.name)
            self._status, self._hidden = run_status(evidence), _hidden(evidence, self._plan.kind)
        except ServiceError as error:
            try:
                self._silence.goes_on(error)
            except ServiceError:
                if self._stopping is None:
                    raise
                if not self._stopping.is_alive() and not self._deaf:
                    self._say(f"{self._plan.name} was asked to stop; its end cannot be seen: {error.problems[0]}")
                    self._deaf = True
        else:
            self._silence.is_over()

    def evaluations(self) -> list[float]:
        return []

    def stop(self) -> None:
        """Beside what else is done: places wait until it has ended, and the other trials are to save meanwhile."""
        if self._stopping is None:
            self._stopping = threading.Thread(target=self._cancel, daemon=True)
            self._stopping.start()

    def _cancel(self) -> None:
        try:
            self._backend.cancel(self._plan.name, self._say)
        except RankzeroError as error:
            self._say(f"{self._plan.name} cannot be asked to stop, and goes on: {error.problems[0]}")
            self._deaf = True

    def failure(self) -> RankzeroError | None:
        status = self._status
        if self._deaf:
            return StoppedError("it cannot be asked to stop", where=f"run {self._plan.name}")
        if status is None:
            return None
        if self._hidden and self._stopping is None and (_is_deleted(status) or _is_mute(status)):
            what = f"what is there of it may not be looked at: not permitted to {self._hidden}"
            return ServiceError(what, where=f"run {status.run}", hint="ask the cluster's administrator for that right")
        if _is_deleted(status) and self._stopping is None:
            return ServiceError("somebody has deleted it", where=f"run {status.run}")
        if _is_mute(status):
            gone = "its pods are gone, which alone say what it scored"
            unread = f"its nodes could not read what it scored ({status.scores_unread})"
            what = f"it is finished, and {unread if status.scores_unread else gone}"
            return ServiceError(what, where=f"run {status.run}")
        if status.phase == "Succeeded":
            return None
        if status.exit_code == ExitCode.STOPPED or status.phase == "Stopped" or _is_deleted(status):
            return StoppedError(status.verdict, where=status.run)
        causes = [Problem(one.cause, status.run, one.fix) for one in status.findings if one.severity != "info"][:2]
        return _ERRORS.get(status.exit_code or 0, RankzeroError)(causes or Problem(status.verdict, status.run))

    def result(self) -> float | None:
        score = None if self._status is None else self._status.scores.get(self._metric)
        return score if score is not None and math.isfinite(score) else None

    def close(self) -> None: ...


def _is_deleted(status: RunStatus) -> bool:
    """Whether nothing is there of a run that was submitted, or nothing that trains it."""
    return status.phase in ("Unknown", "Gone")


def _hidden(evidence: Evidence, kind: str) -> str:
    """The looks at its pods and at what makes them that were not permitted."""
    looks = [one.verb for one in evidence.refused if one.status == 403]
    return ", ".join(one for one in looks if one == "list pods" or one.startswith(f"list {kind}"))


def _is_mute(status: RunStatus) -> bool:
    """Whether it is finished, and nothing is left there that says what it scored, or what is could not read it.
    Submitted again, it says so anew."""
    return status.phase == "Succeeded" and not status.scores and bool(status.scores_unread or not status.nodes)


def require_time_to_look(cluster: ClusterSpec) -> None:
    """Raise ConfigError where trials are removed before they have said what they scored: they would never end."""
    seconds = cluster.ttl_seconds_after_finished
    if seconds is not None and seconds < SHORTEST_TTL:
        what = f"after {seconds} s a finished trial is removed before it is asked what it scored"
        hint = f"{SHORTEST_TTL} or more for a sweep, or leave it out"
        raise ConfigError(what, where="ttl_seconds_after_finished", hint=hint)
