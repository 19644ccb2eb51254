"""A Slurm that remembers what it was told: jobs in a queue, whose states tests set."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from rankzero.launch.backends.slurm.command import Answer

WIDTHS = (20, 24, 10, 24, 24, 24, 200, 400, 200, 10)


@dataclass
class FakeJob:
    state: str = "PENDING"
    reason: str = "Priority"
    restarts: int = 0
    name: str = ""
    """Empty: as its script says."""
    submitted: str = ""
    """Empty: just now."""
    ended: str = "N/A"
    code: int = 0
    """What its script ended with."""


def line(number: str, job: FakeJob) -> str:
    """As squeue prints it with the columns that are asked for."""
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}"
    times = (job.submitted or now, "N/A" if job.state == "PENDING" else "2026-11-22T11:01:00", job.ended)
    cells = (
        number,
        job.state,
        str(job.restarts),
        *times,
        "" if job.state == "PENDING" else "host[0-1]",
        job.reason or "None",
        job.name,
        str(job.code << 8),
    )
    return "".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True)) + "\n"


@dataclass
class FakeSlurm:
    """Its `execute` stands for running a program."""

    jobs: dict[str, FakeJob] = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)
    envs: list[Mapping[str, str]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    refuses: str = ""
    """What sbatch says instead of taking a job."""
    silent: int = 0
    """So many more calls of squeue are not answered."""
    accounted: dict[str, FakeJob] = field(default_factory=dict)
    """What its accounting knows; empty: it has none."""
    on_scancel: Callable[[FakeJob, bool], None] | None = None

    def execute(self, arguments: Sequence[str], text: str, env: Mapping[str, str]) -> Answer:
        program, *rest = arguments
        self.calls.append(" ".join(arguments))
        return getattr(self, f"_{program}")(rest, text, env)

    def _sbatch(self, _rest: Sequence[str], text: str, env: Mapping[str, str]) -> Answer:
        self.envs.append(env)
        if self.refuses:
            return Answer(1, "", self.refuses)
        number = str(17 + len(self.scripts))
        self.scripts[number] = text
        self.jobs[number] = FakeJob()
        return Answer(0, f"{number}\n", "")

    def _scancel(self, rest: Sequence[str], _text: str, _env: Mapping[str, str]) -> Answer:
        if rest[0].startswith("--name="):
            assert rest[1:] == ["--state=PENDING"]
            for number, job in self.jobs.items():
                if job.state == "PENDING" and self._name(number) == rest[0].removeprefix("--name="):
                    job.state = "CANCELLED"
            return Answer(0, "", "")
        job = self.jobs[rest[-1]]
        if job.state == "COMPLETING":
            said = f"scancel: error: Kill job error on job id {rest[-1]}: Job/step already completing or completed\n"
            return Answer(1, "", said)
        gently = "--signal=TERM" in rest
        if self.on_scancel is not None:
            self.on_scancel(job, gently)
        elif not gently or job.state != "PENDING":
            job.state = "FAILED" if gently else "CANCELLED"
        return Answer(0, "", "")

    def _squeue(self, rest: Sequence[str], _text: str, env: Mapping[str, str]) -> Answer:
        assert env["TZ"] == "UTC"
        if self.silent:
            self.silent -= 1
            return Answer(1, "", "slurm_load_jobs error: Socket timed out on send/recv operation\n")
        asked = next(one for one in rest if one.startswith("--jobs=")).removeprefix("--jobs=").split(",")
        found = {number: self.jobs[number] for number in asked if number in self.jobs}
        if not found and len(asked) == 1:
            return Answer(1, "", "slurm_load_jobs error: Invalid job id specified\n")
        named = {number: replace(job, name=job.name or self._name(number)) for number, job in found.items()}
        return Answer(0, "".join(line(number, job) for number, job in named.items()), "")

    def _name(self, number: str) -> str:
        name = re.search(r"(?m)^#SBATCH --job-name=(.*)$", self.scripts.get(number, ""))
        return "" if name is None else name[1]

    def _sacct(self, _rest: Sequence[str], _text: str, _env: Mapping[str, str]) -> Answer:
        if not self.accounted:
            return Answer(1, "", "Slurm accounting storage is disabled\n")
        now, started = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}", "2026-11-22T11:01:00"
        lines = (
            f"{number}|{job.state}|{job.submitted or now}|{started}|{job.ended}|host[0-1]|{job.code}:0|"
            f"{job.name or self._name(number)}\n"
            for number, job in self.accounted.items()
        )
        return Answer(0, "".join(lines), "")

    def _sinfo(self, _rest: Sequence[str], _text: str, _env: Mapping[str, str]) -> Answer:
        return Answer(0, "gpu*: 4 nodes of 64 CPUs, 515000 MiB, gpu:h100:8 (idle)\n", "")
