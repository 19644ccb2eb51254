"""Backend: what a place that runs pods can do for us. Kubernetes, the local docker daemon and Slurm are such.

Backends move objects and bytes; they render nothing and judge nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Protocol

from rankzero.errors import ConfigError
from rankzero.launch.evidence import Evidence
from rankzero.launch.labels import Manifest
from rankzero.launch.survey import Survey

Say = Callable[[str], None]
"""One line for the person who waits."""

LONGEST_SILENCE = 600.0
"""Seconds for which whoever follows a run waits for a place that does not answer: the run goes on without it."""

Execute = Callable[[Sequence[str]], str]
"""Runs a command in a pod and returns what it printed. Raises ServiceError where it failed."""


Hear = Callable[[bytes], None]
"""Is given what a command prints, as it comes."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command in a pod ended."""

    code: int
    words: str = ""
    """The end of its standard error."""


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which lines are wanted."""

    follow: bool = False
    since_seconds: int | None = None
    node: int | None = None
    rank: int | None = None
    """Global rank; only lines of that process (its node's lines that carry no rank belong to local rank 0)."""
    tail: int | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of one node."""

    node: int
    pod: str
    role: str
    """node or prepare."""
    text: str
    time: datetime | None = None


class AlreadyRunsError(ConfigError):
    """A run of this name runs, with another spec: ending it is for its owner to say."""


class Backend(Protocol):
    """One place. Every method raises ServiceError where it does not answer, AccessError where it refuses us."""

    def submit(self, objects: Sequence[Manifest], say: Say, *, replace: bool = False) -> None:
        """Check all objects, then apply them in order; existing ones are brought up to date or replaced.

        Another spec's run of the same name is ended only with `replace`; else AlreadyRunsError says whose it is.
        Raises before anything is applied where one would be refused; an error after that names what was applied.
        """

    def survey(self, objects: Sequence[Manifest]) -> Survey:
        """What the place has for these objects, and why `submit` without `replace` would refuse them, if it
        would. Applies nothing."""

    def runs(self) -> list[Evidence]:
        """All runs, cheaply: their objects and pods, no events, nodes or logs."""

    def collect(self, run: str, *, log_lines: int = 50) -> Evidence:
        """Everything about one run in one pass. A run that does not exist has no objects and no pods."""

    def logs(self, run: str, query: LogQuery) -> Iterator[LogLine]:
        """Lines of all pods as they come; with `follow` until the run has ended."""

    def cancel(self, run: str, say: Say) -> None:
        """Stop the pods with their grace period; volumes stay, so that submitting again resumes.

        Objects stay too, but for one that we may not put aside: it is removed, and submitting makes it again.
        """

    def delete(self, run: str, *, claims: bool, say: Say) -> list[str]:
        """Remove what submit created, and claims only where asked. Returns what was removed."""

    def reading(self, pod: Manifest, say: Say) -> AbstractContextManager[Execute]:
        """A pod for as long as the context lasts, in which commands read what it mounts. Removed at the end."""

    def execute(self, pod: str, command: Sequence[str], hear: Hear, stdin: IO[bytes] | None = None) -> Ended:
        """Run a command in a pod that runs, to its end. `stdin` is sent to it whole; the command has to know where it
        ends. Raises ConfigError where the place cannot do that, ServiceError where the connection breaks."""
