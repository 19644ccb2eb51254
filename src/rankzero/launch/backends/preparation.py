"""Why a preparation failed, from its pods' last words. Pure; the same for every backend."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from rankzero.errors import ExitCode, Problem, RankzeroError
from rankzero.launch.labels import Manifest


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
    for pod in sorted(pods, key=_created, reverse=True):
        for container in (pod.get("status") or {}).get("containerStatuses") or ():
            ended = (container.get("state") or {}).get("terminated") or {}
            if ended.get("exitCode"):
                return _from_container(job, ended, hint)
    return PreparationError(Problem("the preparation failed", f"Job/{job}", hint))


def _from_container(job: str, ended: Mapping[str, Any], hint: str) -> PreparationError:
    text, code = str(ended.get("message") or ""), int(ended["exitCode"])
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if isinstance(said, dict) and "rankzero" in said:
        what, where = str(said.get("what") or ""), str(said.get("where") or "")
        problem = Problem(f"the preparation failed: {what}", where or f"Job/{job}", str(said.get("hint") or "") or hint)
        return PreparationError(problem, _exit_code(int(said.get("exit_code") or code)))
    last = text.strip()[-500:]
    what = (
        f"the preparation failed with exit code {code} ({ended.get('reason') or 'Error'}){f': {last}' if last else ''}"
    )
    return PreparationError(Problem(what, f"Job/{job}", hint), _exit_code(code))


def _exit_code(code: int) -> ExitCode:
    return ExitCode(code) if code and code in set(ExitCode) else ExitCode.INTERNAL


def _created(pod: Manifest) -> str:
    return str(pod["metadata"].get("creationTimestamp", ""))
