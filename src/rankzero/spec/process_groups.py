"""Whether as many processes as a run has can be divided as its spec says. Pure."""

from __future__ import annotations

from rankzero.errors import ConfigError, Problem
from rankzero.spec.run_spec import RunSpec
from rankzero.wording import counted


def process_problems(spec: RunSpec, processes: int) -> list[Problem]:
    """What keeps this many processes from being a run's."""
    groups = {
        "train.context_parallel": spec.train.context_parallel,
        "train.expert_parallel": spec.train.expert_parallel,
    }
    problems = []
    for field, each in groups.items():
        if processes % each:
            hint = f"start a multiple of {each}, or set it to a divisor of their number; 1 is without"
            what = f"{counted(processes, 'process', 'processes')} cannot be divided into groups of {each}"
            problems.append(Problem(what, field, hint))
    return problems


def require_whole_groups(spec: RunSpec, processes: int) -> None:
    """Raise ConfigError where the processes of a run cannot be divided as it asks for."""
    if problems := process_problems(spec, processes):
        raise ConfigError(problems)
