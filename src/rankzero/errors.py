"""Every error a user can meet, with its exit code. Knows nothing of the rest of the package.

    RankzeroError             70  internal error (also: a non-finite loss)
    ├── UsageError             2  the command line is wrong
    ├── DataError             65  data missing, unreadable or untrainable
    ├── ServiceError          69  a service (hub, tracker, store) is unavailable
    │   └── PeerLostError     69  another process of the run is gone
    ├── NonFiniteError        70  NaN or Inf in a loss or gradient
    ├── StorageError          74  cannot write, disk full, directory held by another run
    ├── StoppedError          75  stopped and saved; the same command continues the run
    ├── AccessError           77  no permission: gated model, missing token
    └── ConfigError           78  spec, model directory or module names are wrong

The same codes are the worker's exit status and the launcher's, and decide whether a cluster retries:
2, 65, 77 and 78 never become right by trying again, the rest may.

StopNow is outside of the tree, and no Exception: it is how a signal ends what it interrupts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit status of every rankzero process."""

    DONE = 0
    USAGE = 2
    DATA = 65
    SERVICE = 69
    INTERNAL = 70
    STORAGE = 74
    STOPPED = 75
    ACCESS = 77
    CONFIG = 78


NEVER_RETRIED = frozenset({ExitCode.USAGE, ExitCode.DATA, ExitCode.ACCESS, ExitCode.CONFIG})
"""A restart cannot change the outcome of these."""


INTERRUPTED = 130
"""Exit status where Ctrl-C ended a process that had not saved, as shells know it. Nobody restarts it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: what, where (`run.yaml:14 data.max_length`, `train.jsonl:812`), and how to mend it."""

    what: str
    where: str = ""
    hint: str = ""

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}\n  hint: {self.hint}" if self.hint else head


class RankzeroError(Exception):
    """Base of the tree. Carries all problems found, not just the first."""

    exit_code: ExitCode = ExitCode.INTERNAL

    def __init__(self, problems: str | Problem | Iterable[Problem], *, where: str = "", hint: str = "") -> None:
        if isinstance(problems, str):
            problems = (Problem(problems, where, hint),)
        elif isinstance(problems, Problem):
            problems = (problems,)
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[RankzeroError], tuple[tuple[Problem, ...]]]:
        """Errors cross process borders (data workers), so they survive pickling whole."""
        return type(self), (self.problems,)


class UsageError(RankzeroError):
    """The command line is wrong."""

    exit_code = ExitCode.USAGE


class DataError(RankzeroError):
    """Data is missing, unreadable or cannot be trained on."""

    exit_code = ExitCode.DATA


class ServiceError(RankzeroError):
    """A service that the run needs does not answer."""

    exit_code = ExitCode.SERVICE


class PeerLostError(ServiceError):
    """Another process of the run is gone, so this one cannot go on; the cause is the other's."""


class NonFiniteError(RankzeroError):
    """A loss, a gradient or a weight is NaN or Inf; names the step and the rows, or the weight."""

    exit_code = ExitCode.INTERNAL


class StorageError(RankzeroError):
    """The run directory cannot be written, is full, or is held by another run."""

    exit_code = ExitCode.STORAGE


class StoppedError(RankzeroError):
    """The run was asked to stop and has saved what it had; the same command continues it."""

    exit_code = ExitCode.STOPPED


class AccessError(RankzeroError):
    """A token or licence is missing."""

    exit_code = ExitCode.ACCESS


class ConfigError(RankzeroError):
    """The spec, the model directory or a module name is wrong."""

    exit_code = ExitCode.CONFIG


class StopNow(BaseException):
    """Raised by the handler of a signal where there is nothing to save. Becomes a StoppedError at the outermost frame.

    No Exception, as KeyboardInterrupt is none: code that catches every failure on the way, ours or a library's, must
    not take it for one.
    """
