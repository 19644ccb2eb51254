"""Why a preparation failed, from its pods' last words. Pure; the same for every backend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rankzero.errors import ExitCode, Problem, RankzeroError
from rankzero.launch.labels import Manifest
from rankzero.launch.pods import EARLIEST, parse_pod


class PreparationError(RankzeroError):
    """The run was not started, because what goes before it failed. Its exit code is the preparation's."""

    def __init__(self, problems: Problem | Iterable[Problem], exit_code: ExitCode = ExitCode.INTERNAL) -> None:
        super().__init__(problems)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[type[PreparationError], tuple[Any, ...]]:
        return type(self), (self.problems, self.exit_code)


def preparation_failed(job: str, pods: Iterable[Manifest]) -> PreparationError:
    """What the newest failed pod of `job` said when it ended."""
    hint = "the same command tries again; nothing that was fetched already is fetched twice"
    ends = [(pod.created or EARLIEST, pod.ended) for pod in map(parse_pod, pods) if pod.ended and pod.ended.code]
    if not ends:
        return PreparationError(Problem("the preparation failed", f"Job/{job}", hint))
    newest = max(ends, key=lambda one: one[0])[1]
    said, code = newest.words, newest.code or 0
    if said is not None:
        what = f"the preparation failed: {said.what}"
        return PreparationError(Problem(what, said.where or f"Job/{job}", said.hint or hint), _exit_code(code))
    last = newest.message.strip()[-500:]
    what = f"the preparation failed with exit code {code} ({newest.reason or 'Error'}){f': {last}' if last else ''}"
    return PreparationError(Problem(what, f"Job/{job}", hint), _exit_code(code))


def _exit_code(code: int) -> ExitCode:
    return ExitCode(code) if code and code in set(ExitCode) else ExitCode.INTERNAL
