"""Submitting to Slurm: checked, its directory made anew, handed to sbatch. Renders nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

from rankzero.errors import AccessError, ConfigError, ExitCode, Problem, ServiceError
from rankzero.launch import labels
from rankzero.launch.backend import AlreadyRunsError, Say
from rankzero.launch.backends.slurm.command import Job, Slurm, UnaskedError, without_habits
from rankzero.launch.backends.slurm.evidence import as_heard, num_nodes
from rankzero.launch.backends.slurm.own_jobs import own_jobs
from rankzero.launch.backends.slurm.state import RunState
from rankzero.launch.kinds.slurm import BATCH_SCRIPT
from rankzero.launch.labels import Manifest
from rankzero.launch.node.settings import TOKEN_VARIABLE
from rankzero.launch.render.sbatch_parts import SUBMITTED_VARIABLE, TOKEN_OF_CLIENTS
from rankzero.redaction import holds_secret, looks_secret, without_secrets

_IS_A_JOBS = re.compile(r"SLURM(D|_)")
_OF_CLIENTS = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT", TOKEN_OF_CLIENTS})
"""Which cluster it is and how it is asked: the same inside a job and outside."""
_NUMBER = re.compile(r"(?m)^(\d+)(?:;\S+)?$")
"""`17`, or `17;cluster` where there are several."""
_MOST_SAID = 300
_ENTRY = re.compile(r"[A-Z][A-Z0-9_]*$")
"""A variable that an entry of `secrets` of its own name stands for."""
_GOES_WITH = {"AWS_ACCESS_KEY_ID": "AWS_SECRET_ACCESS_KEY"}
"""What has the shape of a secret and only says whose one is."""
_DIRECTIVE = re.compile(r"(?m)^#SBATCH --([a-z-]+)")
_OF_SBATCH = "SBATCH_"
_OPTIONS = {
    **{"TIMELIMIT": "time", "ARRAY_INX": "array", "MEM_PER_NODE": "mem"},
    **{"REQ_SWITCH": "switches", "WAIT4SWITCH": "switches"},
}
"""Options of sbatch that its variables call otherwise."""
_RUN_S_OWN = frozenset(
    {
        *("array", "clusters", "error", "no-kill", "no-requeue", "wait"),
        *("gres", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"),
    }
)
"""Without them in the script too, the run is another with any of these."""
_BESIDE = {"mem": ("mem-per-cpu", "mem-per-gpu"), "cpus-per-task": ("cpus-per-gpu",)}
"""Options that say the same in another way."""
_OF_STEPS = frozenset(
    {
        *("SLURM_LABELIO", "SLURM_SRUN_MULTI", "SLURM_STDINMODE", "SLURM_STDOUTMODE", "SLURM_STDERRMODE"),
        *("SLURM_TIMELIMIT", "SLURM_SIGNAL", "SLURM_EXPORT_ENV", "SRUN_EXPORT_ENV", "SLURM_GRES", "SLURM_GPUS"),
        *("SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK", "SLURM_MEM_PER_NODE"),
        *("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU"),
    }
)
"""Of srun, by which it would start the nodes otherwise than the script says, or lose their lines."""


@dataclass(frozen=True, slots=True)
class Environments:
    """What travels with each of a run's jobs."""

    preparation: Mapping[str, str]
    run: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Request:
    """One script and what is to be known of it."""

    run: str
    script: str
    state: RunState
    about: dict[str, Any]
    secrets: Mapping[str, bool]
    """Variables that the run is given, and whether it can do without."""
    preparation: str = ""
    """The script that goes first; empty where there is none."""

    @property
    def digest(self) -> str:
        """Tells one rendering of a run from another."""
        return _digest(self.about)


def read(objects: Sequence[Manifest]) -> Request:
    """The script of a rendering. Raises ConfigError where there is none."""
    scripts = [one for one in objects if one["kind"] == BATCH_SCRIPT.kind]
    first = [one for one in scripts if one["metadata"]["labels"].get(labels.ROLE) == labels.PREPARE_ROLE]
    scripts = [one for one in scripts if one not in first]
    if len(scripts) != 1 or len(first) > 1 or len(objects) != 1 + len(first):
        found = ", ".join(f"{one['kind']}/{one['metadata']['name']}" for one in objects) or "nothing"
        hint = "render the run for Slurm: `--kind slurm`, or `kind: slurm` in cluster.yaml"
        raise ConfigError(f"Slurm takes one batch script, and this is {found}", hint=hint)
    metadata, spec = scripts[0]["metadata"], scripts[0]["spec"]
    return Request(
        run=str(metadata["name"]),
        script=str(spec["script"]),
        state=RunState(Path(spec["state"])),
        about={**metadata, "spec": {"grace": spec["grace"]}},
        secrets={str(one["name"]): bool(one["optional"]) for one in spec["secrets"]},
        preparation="".join(str(one["spec"]["script"]) for one in first),
    )


def submit(
    slurm: Slurm, request: Request, say: Say, *, env: Mapping[str, str], replaces: bool, stop: Callable[[], object]
) -> None:
    """Bring the job into the queue. Raises AlreadyRunsError where one of another rendering is in the way, unless it
    `replaces`; then `stop` ends it."""
    given = environments(request, env)
    state = request.state
    number = _under_way(slurm, state)
    if number:
        if _digest(state.about) == request.digest and not state.is_cancelled(number):
            say(f"{request.run} is job {number} already, with this very spec; left as it is")
            return
        if not replaces:
            _require_same(request, number)
        stop()
    if left := withheld(request, env):
        say(_told_withheld(left))
    withdraw(slurm, state)
    about = {**request.about, "creationTimestamp": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}
    with state.anew(about, given.run[SUBMITTED_VARIABLE]):
        state.doubt(about)
        try:
            job = _queued(slurm, request, given, say)
        except (ConfigError, AccessError, UnaskedError):  # it is known that there is none
            state.settle_doubt()
            raise
        except BaseException:
            ways = f"submit again, or `rankzero cancel {request.run}`"
            say(f"whether Slurm has a job of {request.run} is not known: {ways}, which take it out of the queue")
            raise
    state.settle(job)
    state.settle_doubt()
    say(f"job {job} is in the queue")


def require_free(slurm: Slurm, request: Request) -> None:
    """Raise AlreadyRunsError where a job of another rendering of the run is in the way."""
    number = _under_way(slurm, request.state)
    if number:
        _require_same(request, number)


def _under_way(slurm: Slurm, state: RunState) -> str:
    """The run's job, where it waits, runs or would be queued again; empty where none does."""
    number = state.job
    there = heard(state, own_jobs(state, slurm.jobs([number])).get(number)) if number else None
    return number if there is not None and not there.is_over and not _ends_for_good(state, there) else ""


def _require_same(request: Request, number: str) -> None:
    before = request.state.about
    if _digest(before) != request.digest and not request.state.is_cancelled(number):
        raise _already(request, before, number)


def heard(state: RunState, job: Job | None) -> Job | None:
    """The run's job, which is about to end while what its nodes noted may yet be seen here."""
    nodes = () if job is None else range(num_nodes(state.about))
    begun = any(state.notes(node, job.id)[1].began for node in nodes if job is not None)
    return as_heard(job, datetime.now(UTC), begun=begun)


def withdraw(slurm: Slurm, state: RunState) -> bool:
    """Take jobs out of the queue that nobody was told the number of, and that Slurm may have all the same: each would
    take its turn, to find that its submission is not there. Returns whether there may have been any. Raises as
    `Slurm.cancel`, and StorageError."""
    if not state.is_in_doubt and (state.job or not state.about):
        return False
    run, where = state.root.name, str(state.root)
    for name in (run, labels.prepare_name(run)):
        slurm.cancel(f"--name={labels.job_name(name, where)}", "--state=PENDING")
    state.settle_doubt()
    return True


def _ends_for_good(state: RunState, job: Job) -> bool:
    """Whether Slurm only tidies up after it, and its own script does not queue it again. The next one waits for its end
    (singleton)."""
    if not job.is_ending:
        return False
    seen = [(node, *state.notes(node, job.id)) for node in range(num_nodes(state.about))]
    failed = [
        (node, restart)
        for node, restart, notes in seen
        if restart == (job.restarts or restart) and notes.endings and not notes.runs
        if notes.endings[-1].code not in (ExitCode.DONE, ExitCode.STOPPED)
    ]
    return any(not state.is_left_to_the_next(node, job.id, restart) for node, restart in failed)


def _queued(slurm: Slurm, request: Request, given: Environments, say: Say) -> str:
    """The id of the run's job. It waits for the preparation, and leaves the queue where that fails."""
    if not request.preparation:
        return _sbatch(slurm, request.script, given.run)
    first = _sbatch(slurm, request.preparation, given.preparation)
    try:
        request.state.settle_preparation(first)
        then = ("--kill-on-invalid-dep=yes", f"--dependency=afterok:{first},singleton")
        job = _sbatch(slurm, request.script, given.run, *then)
    except BaseException:
        slurm.cancel(first)
        raise
    say(f"job {first} prepares the model and the data; job {job} waits for it")
    return job


def _sbatch(slurm: Slurm, script: str, env: Mapping[str, str], *options: str) -> str:
    said = slurm.call("sbatch", "--parsable", "--export=ALL", *options, text=script, env=env)
    numbers = _NUMBER.findall(said)  # a site may have sbatch say more than it
    if not numbers:
        what = f"sbatch says no job's number: {without_secrets(said.strip()[-_MOST_SAID:]) or 'nothing'}"
        hint = "`squeue --me` shows whether there is a job; a wrapper of sbatch has to keep what --parsable prints"
        raise ServiceError(what, where="sbatch", hint=hint)
    return str(numbers[-1])


def environments(request: Request, env: Mapping[str, str]) -> Environments:
    """What travels with the jobs: this environment, of what looks like a secret only what the run is given, nothing of
    a job that submits it (srun would take that job's memory and tasks for what it is asked for), and of the variables
    that sbatch and srun heed before a script none that would settle what the script does.

    What the run's script settles is not the shell's to say for its preparation either, which leaves it out on purpose.

    Raises ConfigError where a secret is not set.
    """
    missing = [name for name, optional in request.secrets.items() if not env.get(name) and not optional]
    if missing:
        raise ConfigError(
            Problem(
                f"{name} is not set in this environment",
                "cluster.yaml secrets",
                f"set it (it is passed on, and written into no script): `export {name}=…`, or make it `optional: true`",
            )
            for name in missing
        )
    own = without_habits(env)  # what the batch script asks is to get its answer there too
    kept = {name: value for name, value in own.items() if _is_given(request, name) or not _is_secret(name, value)}
    if "SLURM_JOB_ID" in env:
        kept = {name: value for name, value in kept.items() if not _IS_A_JOBS.match(name) or name in _OF_CLIENTS}
    made = {TOKEN_VARIABLE: token_hex(32), SUBMITTED_VARIABLE: token_hex(8)}
    shared = {**{name: value for name, value in kept.items() if name not in _OF_STEPS}, **made}
    return Environments(_left_open(shared, request.preparation, request.script), _left_open(shared, request.script))


def withheld(request: Request, env: Mapping[str, str]) -> list[str]:
    """Variables that do not travel for the shape of their values alone, which nobody expects by their names."""
    return sorted(
        name
        for name, value in env.items()
        if _is_secret(name, value) and not looks_secret(name) and not _is_given(request, name)
    )


def _told_withheld(names: Sequence[str]) -> str:
    told = f"not passed on, as their values look like secrets: {', '.join(names)}"
    entries = [f"{name}: {{name: {name.strip('_').lower().replace('_', '-')}}}" for name in names if _ENTRY.match(name)]
    return f"{told}; for what the run needs, cluster.yaml `secrets: {{{', '.join(entries)}}}`" if entries else told


def _is_given(request: Request, name: str) -> bool:
    return name in request.secrets or _GOES_WITH.get(name) in request.secrets


def _is_secret(name: str, value: str) -> bool:
    """By its name or its shape. Without a proxy nodes reach nothing, and without a token sbatch itself may not: the
    script takes that out of the job's environment."""
    if name == TOKEN_OF_CLIENTS or name.lower().endswith("_proxy"):
        return False
    return looks_secret(name) or holds_secret(value)


def _left_open(env: Mapping[str, str], *scripts: str) -> dict[str, str]:
    """Without the variables of sbatch that stand for what one of the scripts says."""
    settled = _settled(scripts)
    return {name: value for name, value in env.items() if _option(name) not in settled}


def _settled(scripts: Sequence[str]) -> set[str]:
    """The options of sbatch that are not the shell's to say."""
    said = {option for script in scripts for option in _DIRECTIVE.findall(script)}
    return said | _RUN_S_OWN | {other for option, others in _BESIDE.items() if option in said for other in others}


def _option(variable: str) -> str:
    """The option of sbatch that a variable stands for; nothing for any other variable."""
    name = variable.removeprefix(_OF_SBATCH)
    return "" if name == variable else _OPTIONS.get(name, name.lower().replace("_", "-"))


def _digest(about: Mapping[str, Any]) -> str:
    annotations = about.get("annotations") or {}
    return str(annotations.get(labels.SPEC_HASH, ""))


def _already(request: Request, before: Mapping[str, Any], number: str) -> AlreadyRunsError:
    by = (before.get("annotations") or {}).get(labels.SUBMITTED_BY)
    what = f"is under way with another spec, as job {number}{f' (submitted by {by})' if by else ''}"
    hint = "give this run another name; or end that one: `rankzero cancel`, or submit with --replace"
    return AlreadyRunsError(what, where=f"run {request.run}", hint=hint)
