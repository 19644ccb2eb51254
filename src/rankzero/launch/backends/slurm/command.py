"""Slurm's command line: runs it, reads its answers and turns its refusals into errors. Knows nothing of runs.

`squeue --json` is not used: it sends all jobs of the cluster whatever is asked for (22.05), and its fields change their
shape from version to version, while columns of a given width are the same in all of them.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rankzero.errors import AccessError, ConfigError, RankzeroError, ServiceError
from rankzero.launch.silence import SilentError
from rankzero.wording import signal_name

_UTC = {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}
"""Slurm writes times of the zone that its commands are in."""
_COLUMNS = (
    *(("JobID", 20), ("State", 24), ("RestartCnt", 10), ("SubmitTime", 24), ("StartTime", 24), ("EndTime", 24)),
    *(("NodeList", 200), ("Reason", 400), ("Name", 200), ("exit_code", 10)),
)
_ACCOUNTED = "JobIDRaw,State,Submit,Start,End,NodeList,ExitCode,JobName"
_HABIT = re.compile(r"(SQUEUE|SACCT|SINFO|SCANCEL)_")
_ABSENT = re.compile(r"invalid job id", re.IGNORECASE)
_ENDING = re.compile(rf"{_ABSENT.pattern}|already completing or completed", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str


class UnaskedError(ServiceError):
    """Slurm has heard nothing: its program cannot start here, or finds no cluster that it could ask."""


class AbsentError(UnaskedError):
    """A program of Slurm's that this machine has not got."""


Execute = Callable[[Sequence[str], str, Mapping[str, str]], Answer]
"""Runs a whole argument list with a text on its standard input and this environment."""


@dataclass(frozen=True, slots=True)
class Job:
    """What Slurm says of one job."""

    id: str
    state: str
    """PENDING, RUNNING, COMPLETED …"""
    restarts: int | None = None
    """How often it has been queued again; None where Slurm's accounting was asked, which does not say."""
    submitted: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    nodes: str = ""
    """All of them in one word: gpu[03-06]."""
    reason: str = ""
    """Why it waits, or how it ended, in Slurm's own words."""
    name: str = ""
    code: int = 0
    """What its script ended with."""

    @property
    def is_waiting(self) -> bool:
        """Whether it is in the queue."""
        return self.state in _WAITING

    @property
    def is_ending(self) -> bool:
        """Whether none of its processes is left to tell anything, and Slurm tidies up after it."""
        return self.state == "COMPLETING"

    @property
    def is_over(self) -> bool:
        """Whether nothing more will become of it by itself."""
        return self.state in _OVER


_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
_OVER = frozenset(
    {
        *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"),
        *("DEADLINE", "REVOKED"),
    }
)


class Slurm:
    """The cluster that this machine's Slurm belongs to."""

    def __init__(self, env: Mapping[str, str], execute: Execute | None = None) -> None:
        self._env, self._execute = without_habits(env), execute or _execute
        self._over: dict[str, Job] = {}
        """Jobs that are over, as its accounting said, and that nothing more becomes of."""

    def call(self, *arguments: str, text: str = "", env: Mapping[str, str] | None = None) -> str:
        """What the command printed. `env` stands in place of this machine's environment. Raises ServiceError,
        AccessError or ConfigError."""
        answer = self._execute(arguments, text, self._env if env is None else env)
        if answer.code != 0:
            raise refusal(arguments[0], answer)
        return answer.out

    def cancel(self, *arguments: str) -> None:
        """scancel; a job that is ending already, or has ended, is told nothing. Raises as `call`."""
        answer = self._execute(("scancel", *arguments), "", self._env)
        if answer.code != 0 and not _ENDING.search(answer.err):
            raise refusal("scancel", answer)

    def jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        """Those that Slurm still knows, by their id: from its queue, else from its accounting where it has one."""
        if not ids:
            return {}
        wanted = ",".join(dict.fromkeys(ids))
        columns = ",".join(f"{name}:{width}" for name, width in _COLUMNS)
        asked = ("squeue", "--noheader", "--states=all", f"--jobs={wanted}", f"--Format={columns}")
        answer = self._execute(asked, "", {**self._env, **_UTC})
        if answer.code != 0 and not _ABSENT.search(answer.err):
            raise refusal("squeue", answer)
        found = {job.id: job for job in read_queue(answer.out)}
        forgotten = [one for one in dict.fromkeys(ids) if one not in found]
        return {**self._accounted(forgotten), **found}

    def _accounted(self, ids: Sequence[str]) -> dict[str, Job]:
        """Jobs of some minutes ago and before. A cluster without accounting knows none of them."""
        known = {one: self._over[one] for one in ids if one in self._over}
        unknown = [one for one in ids if one not in known]
        if not unknown:
            return known
        asked = ("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={','.join(unknown)}")
        try:
            answer = self._execute((*asked, f"--format={_ACCOUNTED}"), "", {**self._env, **_UTC})
        except AbsentError:
            return known
        found = {job.id: job for job in read_accounting(answer.out)} if answer.code == 0 else {}
        self._over.update((number, job) for number, job in found.items() if job.is_over)
        return {**known, **found}


def read_queue(text: str) -> list[Job]:
    """What squeue printed: a line a job, columns of fixed width."""
    found = []
    for line in text.splitlines():
        cells, at = [], 0
        for _, width in _COLUMNS:
            cells.append(line[at : at + width].strip())
            at += width
        if cells[0]:
            number, state, restarts, submitted, started, ended, nodes, reason, name, code = cells
            count = int(restarts) if restarts.isdigit() else 0
            times = (_moment(submitted), _moment(started), _moment(ended))
            found.append(
                Job(number, state, count, *times, nodes, "" if reason == "None" else reason, name, _code(code))
            )
    return found


def read_accounting(text: str) -> list[Job]:
    """What sacct printed: a line a job, columns between bars."""
    found = []
    for line in text.splitlines():
        columns = _ACCOUNTED.count(",")
        cells = line.split("|", columns)  # the last, a name, may have bars of its own
        if len(cells) <= columns:
            continue
        number, state, submitted, started, ended, nodes, code, name = cells
        word = state.partition(" ")[0]  # CANCELLED by 1000
        times = (_moment(submitted), _moment(started), _moment(ended))
        why = state if state != word else ""
        found.append(Job(number, word.rstrip("+"), None, *times, nodes, why, name, _code(code)))
    return found


def _code(text: str) -> int:
    """Of `78:0`, a code and a signal, as sacct says it, or of what wait(2) gives, as squeue does."""
    code, parted, _ = text.partition(":")
    if not code.isdigit():
        return 0
    return int(code) if parted else int(code) >> 8


def _moment(text: str) -> datetime | None:
    """`2026-11-22T11:30:45`, or a word where there is none."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class _Refusal:
    pattern: re.Pattern[str]
    where: str
    hint: str


def _refusals(*rows: tuple[str, str, str]) -> tuple[_Refusal, ...]:
    return tuple(_Refusal(re.compile(pattern, re.IGNORECASE), where, hint) for pattern, where, hint in rows)


_ACCOUNTS = "`sacctmgr show assoc user=$USER format=account,partition` lists yours, and where they count"
_OF_A_FIELD = _refusals(
    ("invalid account|account/partition", "slurm.account", _ACCOUNTS),
    ("partition", "slurm.partition", "`sinfo --summarize` lists the partitions that there are"),
    ("reservation", "slurm.reservation", "`scontrol show reservation` lists them"),
    (r"qos|job violates", "slurm.qos", "`sacctmgr show assoc user=$USER` shows what you may use and how much of it"),
    ("account", "slurm.account", _ACCOUNTS),
    ("feature", "slurm.constraint", "`sinfo --format='%N %f'` lists the features of nodes"),
    (r"gres|generic resource", "nproc_per_node", "`sinfo --format='%N %G'` shows GPUs and their types; gpu: false"),
    ("memory", "resources.memory", "`sinfo --format='%N %m'` shows what nodes have, in MiB"),
    (r"cpu|processor", "resources.cpu", "`sinfo --format='%N %c'` shows what nodes have"),
    ("time", "slurm.time_limit_seconds", "`sinfo --format='%P %l'` shows the limits of partitions"),
    (r"node (?:count|configuration)|too many nodes", "num_nodes", "`sinfo` shows what there is; ask for less of it"),
    (r"unrecognized option|unknown option|invalid (?:option|argument)", "slurm.options", "`man sbatch` lists them"),
)
_SILENT = re.compile(
    r"unable to contact slurm controller|connection refused|connection timed out|socket timed out|zero bytes were"
    r"|communication (?:connection|shutdown) failure|message (?:send|receive) failure|unexpected message received"
    r"|connection reset by peer|no route to host|backup controller in standby|configuration source"
    r"|protocol authentication|temporarily unable to accept job",
    re.IGNORECASE,
)
_UNCONFIGURED = re.compile(r"process configuration file|ClusterName needs|cannot stat file", re.IGNORECASE)
"""Of a machine that is not set up for Slurm: it is not answered however often it asks."""
_FORBIDDEN = re.compile(r"access/permission denied|not permitted to use|invalid user|operation not permitted", re.I)


def refusal(program: str, answer: Answer) -> RankzeroError:
    """The error for what a failed command said. One that a signal ended has refused nothing: Slurm may have heard."""
    lines = [re.sub(r"^\w+: (?:error: |fatal: )?", "", line) for line in answer.err.strip().splitlines()]
    said = "; ".join(dict.fromkeys(line for line in lines if line)) or "it gave no reason"
    if ended := signal_name(answer.code):
        told = f": {said}" if answer.err.strip() else ""
        return ServiceError(f"{program} was ended by {ended}{told}", where="Slurm", hint="give the same command again")
    is_silent = _SILENT.search(said) is not None
    if is_silent or _UNCONFIGURED.search(said):
        hint = "see `scontrol ping` and `sinfo`; SLURM_CONF names the file that says where the controller is"
        kind = SilentError if is_silent else UnaskedError
        return kind(f"Slurm does not answer: {said}", where=program, hint=hint)
    if _FORBIDDEN.search(said):
        return AccessError(said, where=program, hint="ask the administrators of the cluster for the right to it")
    if program == "sbatch":
        for one in _OF_A_FIELD:
            if one.pattern.search(said):
                return ConfigError(f"Slurm refuses the job: {said}", where=f"cluster.yaml {one.where}", hint=one.hint)
        return ConfigError(f"Slurm refuses the job: {said}", where="sbatch", hint="`rankzero render` shows its script")
    return ServiceError(f"{program}: {said}", hint="the same command by hand may say more")


def _execute(arguments: Sequence[str], text: str, env: Mapping[str, str]) -> Answer:
    try:
        done = subprocess.run(
            arguments,
            input=text.encode(),
            capture_output=True,
            check=False,
            env=dict(env),
            start_new_session=True,  # Ctrl-C is for whoever asked; and a wrapper has no terminal to wait for
        )
    except FileNotFoundError as error:
        hint = "submit from a login node of the cluster, or choose another cluster"
        what = f"there is no {arguments[0]} command on this machine"
        raise AbsentError(what, where="Slurm", hint=hint) from error
    except OSError as error:  # an environment or a list of arguments that is too long
        raise UnaskedError(f"{arguments[0]}: {error.strerror or error}", where="Slurm") from error
    return Answer(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def without_habits(env: Mapping[str, str]) -> dict[str, str]:
    """Without what somebody has set for lists of their own, such as SQUEUE_PARTITION: it hides jobs that are asked
    for."""
    return {name: value for name, value in env.items() if not _HABIT.match(name)}


def this_environment() -> Mapping[str, str]:
    """Of this process."""
    return os.environ
