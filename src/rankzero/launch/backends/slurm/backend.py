"""SlurmBackend: runs as jobs of the Slurm cluster that this machine belongs to. Judges and renders nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from rankzero.errors import ConfigError, RankzeroError, ServiceError, StorageError
from rankzero.launch import labels
from rankzero.launch.backend import Ended, Execute, Hear, LogLine, LogQuery, Say
from rankzero.launch.backends.slurm import submit as slurm_submit
from rankzero.launch.backends.slurm.command import Job, Slurm, this_environment
from rankzero.launch.backends.slurm.evidence import (
    NodeSeen,
    config_map,
    grace_seconds,
    is_done,
    num_nodes,
    pods_of,
    preparation_pod,
)
from rankzero.launch.backends.slurm.following import Following
from rankzero.launch.backends.slurm.logs import followed, recent
from rankzero.launch.backends.slurm.own_jobs import own_jobs
from rankzero.launch.backends.slurm.state import PREPARATION, Part, RunState, states
from rankzero.launch.backends.slurm.stop import MARGIN_SECONDS, answered, end
from rankzero.launch.evidence import Evidence
from rankzero.launch.kinds.slurm import SUBMITTING
from rankzero.launch.labels import Manifest
from rankzero.launch.log_lines import Wanted
from rankzero.launch.survey import Survey
from rankzero.launch.untyped_json import maps, text, whole

POLL_SECONDS = 2.0
"""How often who follows looks for new lines, and who ends a job asks squeue."""
_MESSAGE_LINES = 40


class SlurmBackend:
    """Jobs whose directories lie in one place, which nodes and this machine share."""

    def __init__(
        self,
        directory: Path,
        slurm: Slurm | None = None,
        *,
        env: Mapping[str, str] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        say: Say = lambda _line: None,
        explain: Callable[[Evidence], Sequence[str]] = lambda _evidence: (),
    ) -> None:
        """`say` is told what whoever follows a run waits for, in the words that `explain` has for a job that waits."""
        self._env = this_environment() if env is None else env
        self._directory, self._slurm, self._sleep = directory, slurm or Slurm(self._env), sleep
        self._say, self._explain = say, explain

    def submit(self, objects: Sequence[Manifest], say: Say, *, replace: bool = False) -> None:
        """Hand the script to sbatch. A job of this very script that waits or runs already is left alone."""
        request = slurm_submit.read(objects)
        slurm_submit.submit(
            self._slurm, request, say, env=self._env, replaces=replace, stop=lambda: self._end(request.state, say)
        )

    @contextmanager
    def reading(self, pod: Manifest, say: Say) -> Iterator[Execute]:
        """Nothing is started: what nodes write to lies on a file system that this machine has too."""
        volumes = {text(one, "name"): text(one, "hostPath", "path") for one in maps(pod, "spec", "volumes")}
        mounts = {  # a container sees a directory elsewhere than this machine does
            text(mount, "mountPath"): volumes.get(text(mount, "name"), "")
            for container in maps(pod, "spec", "containers")
            for mount in maps(container, "volumeMounts")
        }
        yield lambda command: _run_here([mounts.get(word) or word for word in command])

    def execute(self, pod: str, command: Sequence[str], hear: Hear, stdin: IO[bytes] | None = None) -> Ended:
        """Refused: hosts are no pods, and whoever has a job there has `srun` for it."""
        raise ConfigError("a Slurm job has no pods", where=f"pod {pod}", hint="srun --jobid=JOB --overlap COMMAND")

    def survey(self, objects: Sequence[Manifest]) -> Survey:
        """The partitions, and whether sbatch would take the script now."""
        asked = ("sinfo", "--noheader", "--format=%P: %D nodes of %c CPUs, %m MiB, %G (%T)")
        nodes = "; ".join(self._slurm.call(*asked).split("\n")).strip("; ")
        refused: list[RankzeroError] = []
        try:
            request = slurm_submit.read(objects)
        except ConfigError as error:
            refused.append(error)
        else:
            looks = (request.state.must_be_makeable, lambda: self._may_be_queued(request))
            refused += filter(None, map(_refusal, looks))
        taken = "a submit would be refused, as said below" if refused else "sbatch would take the job"
        first = refused[0] if refused else None
        together = None if first is None else type(first)(problem for one in refused for problem in one.problems)
        return Survey((("nodes", nodes), ("rights", taken)), refused=together)

    def _may_be_queued(self, request: slurm_submit.Request) -> None:
        """Raise why not, if sbatch would not take it now."""
        slurm_submit.require_free(self._slurm, request)
        given = slurm_submit.environments(request, self._env)
        for script, env in ((request.preparation, given.preparation), (request.script, given.run)):
            if script:
                self._slurm.call("sbatch", "--test-only", text=script, env=env)

    def runs(self) -> list[Evidence]:
        """All runs whose directories are here."""
        found = list(states(self._directory))
        jobs = self._slurm.jobs([one for state in found for one in _asked(state)])
        return [self._evidence(state, own_jobs(state, jobs)) for state in found]

    def collect(self, run: str, *, log_lines: int = 50) -> Evidence:
        """Everything about one run."""
        state = self._state(run)
        about = _about(state)
        if not about:
            return Evidence(run=run, now=datetime.now(UTC))
        evidence = self._evidence(state, self._jobs(state))
        parts = {_pod_name(run, part): part for part in (PREPARATION, *range(num_nodes(about)))}
        names = [str(pod["metadata"]["name"]) for pod in evidence.pods]
        logs = {name: "\n".join(state.last_lines(state.log(parts[name]), log_lines)) for name in names}
        return replace(evidence, logs={name: text for name, text in logs.items() if text})

    def logs(self, run: str, query: LogQuery) -> Iterator[LogLine]:
        """Lines of all nodes by time; with `follow` as they come."""
        state = self._state(run)
        about = state.about
        wanted = Wanted.of(query, whole(about, "annotations", labels.NPROC) or 1)
        nodes = [node for node in range(num_nodes(about)) if wanted.pod(labels.NODE_ROLE, node)]
        parts: list[Part] = [*nodes]
        if state.preparation and wanted.pod(labels.PREPARE_ROLE, 0):
            parts.insert(0, PREPARATION)
        names = {part: _pod_name(run, part) for part in parts}
        now = datetime.now(UTC)
        if not query.follow:
            yield from recent(state, names, query, wanted, now)
            return

        following = Following(
            state,
            lambda: self._jobs(state),
            lambda jobs: slurm_submit.heard(state, _known(jobs, state.job)) if state.about else None,
            lambda jobs: self._explain(self._evidence(state, jobs)) if state.job else (),
            self._say,
        )
        yield from followed(state, names, query, wanted, now, following.goes_on, lambda: self._sleep(POLL_SECONDS))

    def cancel(self, run: str, say: Say) -> None:
        """SIGTERM to the nodes, which save and leave; the job ends where it does not in its grace period."""
        state = self._state(run)
        if not self._end(state, say):
            say(f"nothing of {run} runs or waits here")
        state.take_back()

    def delete(self, run: str, *, claims: bool, say: Say) -> list[str]:
        """The job and its directory. The run's own directory stays in any case."""
        state = self._state(run)
        about, number = state.about, state.job
        ended = self._end(state, say)
        if claims and about:
            where = about.get("annotations", {}).get(labels.RUN_DIR)
            say(f"results stay where they are{f': {where}' if where else ''}")
        return [*([f"job {number}"] if ended and number else []), *state.remove()]

    def _end(self, state: RunState, say: Say) -> bool:
        """Whether there was anything to end. The run's job goes first: it would start after the other."""
        jobs = answered(lambda: self._jobs(state), say, lambda: self._sleep(POLL_SECONDS))
        going = [job for job in jobs.values() if not job.is_over]
        grace = grace_seconds(state.about)
        try:
            state.cancel(*(job.id for job in going))
        except StorageError as error:  # who ends a run frees what it holds, its disk's room among it
            (why,) = error.problems
            say(f"{why.where}: {why.what}, so its script cannot be told not to queue itself again")
            say("where it does so, its job is taken out of the queue for as long as this command waits for its end")
        for job in going:
            end(self._slurm, job, grace + MARGIN_SECONDS, say, lambda: self._sleep(POLL_SECONDS))
        doubtful = answered(lambda: slurm_submit.withdraw(self._slurm, state), say, lambda: self._sleep(POLL_SECONDS))
        if doubtful:
            say("what Slurm may have of it without a number is taken out of the queue")
        return bool(going) or doubtful

    def _state(self, run: str) -> RunState:
        return RunState(self._directory / run)

    def _jobs(self, state: RunState) -> dict[str, Job]:
        """The run's job, then that of its preparation, as far as Slurm knows them."""
        return own_jobs(state, self._slurm.jobs(_asked(state)))

    def _evidence(self, state: RunState, jobs: Mapping[str, Job]) -> Evidence:
        """Nodes have pods when what goes before them is done; when they have begun, that has none any more."""
        about, number, first = _about(state), state.job, state.preparation
        batch = "\n".join(state.last_lines(state.batch_log, _MESSAGE_LINES))
        nodes = [_seen(state, node, number, batch) for node in range(num_nodes(about))]
        pods, waits = [], False
        if first and not any(node.notes.began for node in nodes):
            seen = _seen(state, PREPARATION, first, batch)
            job = Job(first, "COMPLETED") if is_done(seen.notes) else jobs.get(first)
            pods, waits = [preparation_pod(about, job, first, seen)], not is_done(seen.notes)
        job, now = _known(jobs, number), datetime.now(UTC)
        if not waits:
            pods += pods_of(about, job, number, nodes, now)
        objects = (config_map(about, job),)
        return Evidence(run=state.root.name, now=now, objects=objects, pods=tuple(pods))


def _about(state: RunState) -> dict[str, Any]:
    """Of a run whose directory went where its submit was interrupted, what that was about."""
    return state.about or state.doubted


def _asked(state: RunState) -> list[str]:
    """The numbers of the jobs that something may become of: the preparation's only up to its good end. One that has
    failed may be queued again, and of one job alone Slurm need not look through all that it has."""
    first = state.preparation
    done = not first or is_done(state.notes(PREPARATION, first)[1])
    return [one for one in (state.job, "" if done else first) if one]


def _known(jobs: Mapping[str, Job], number: str) -> Job | None:
    """None where Slurm does not know the job any more; a run without a number has not got one yet."""
    return jobs.get(number) if number else Job("", "PENDING", reason=SUBMITTING)


def _seen(state: RunState, part: Part, job: str, batch: str) -> NodeSeen:
    restart, notes = state.notes(part, job)
    log = state.log(part)
    own = "\n".join(state.last_lines(log, _MESSAGE_LINES))
    return NodeSeen(
        restart,
        notes,
        state.words(part),
        own,
        state.written(log),
        batch,
        state.written(state.batch_log),
        state.is_cancelled(job),
    )


def _pod_name(run: str, part: Part) -> str:
    return labels.prepare_name(run) if part == PREPARATION else f"{run}-{part}"


def _run_here(command: Sequence[str]) -> str:
    python, *rest = command  # a host may have no program of that very name
    done = subprocess.run([sys.executable, *rest], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServiceError(f"{python} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def _refusal(look: Callable[[], None]) -> RankzeroError | None:
    """What a look says against a submit. Raises ServiceError where there is no answer."""
    try:
        look()
    except ServiceError:
        raise
    except RankzeroError as error:
        return error
    return None
