"""The batch script of a run's preparation for Slurm: one task without GPUs, in a job before the run's own. Pure.

When it is done it notes for which files of the run, so that the nodes ask the Hub for nothing. It queues itself again
as the run does, and the run waits for it by `afterok`, through all its starts.
"""

from __future__ import annotations

import json
import math
import posixpath
import shlex
from collections.abc import Iterator
from typing import Any

from rankzero.errors import NEVER_RETRIED, ExitCode
from rankzero.launch import labels
from rankzero.launch.labels import prepare_name
from rankzero.launch.node.settings import PREPARE_RESTARTS
from rankzero.launch.plan import Plan
from rankzero.launch.render.container import PREPARE_CPU, PREPARE_MEMORY, variables
from rankzero.launch.render.sbatch_parts import (
    IS_CANCELLED_INSIDE,
    IS_TO_GO_ON,
    LEAVE_TO_THE_NEXT,
    command,
    environment,
    heard_as_stop,
    inputs,
    inputs_digest,
    is_left_to_the_next,
    last_note,
    launch,
    leaving,
    named_options,
    noted_job,
    option_value,
    part_opening,
    queue_again,
    setup,
    stop_options,
    unstarted,
    written,
)
from rankzero.spec.quantity import as_bytes

MOST_ALLOCATIONS = 10
"""Each goes on where the one before it stopped; what is not done after so many never will be."""
_FINAL = "|".join(str(int(code)) for code in sorted({ExitCode.DONE, ExitCode.STOPPED, *NEVER_RETRIED}))


def preparation_script(plan: Plan, metadata: dict[str, Any], state: str) -> str:
    """The text. `metadata` is of the run, and `state` its directory, which both scripts share."""
    files = {**inputs(plan), "config/prepare.sh": _script(plan, state).encode()}
    options = (
        "--nodes=1",
        "--ntasks=1",
        "--cpu-bind=none",
        "--open-mode=append",
        '--output="$state/logs/prepare.log"',
    )
    stopped = int(ExitCode.STOPPED)
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in _options(plan, state)),
        "",
        "# Made by rankzero: what goes before the run's own job. By hand:",
        "#   sbatch --dependency=afterok:$(sbatch --parsable THIS),singleton --kill-on-invalid-dep=yes THE_RUN",
        "set -u",
        f"state={shlex.quote(state)}",
        *written(plan, files, json.dumps(metadata, sort_keys=True)),
        noted_job("prepare_job"),
        "",
        *environment(variables(plan, labels.PREPARE_ROLE, {})),
        "",
        *launch(plan, state, "config/prepare.sh", options),
        *last_note("prepare"),
        f'[ "$code" != 0 ] || echo {inputs_digest(plan)} > "$state/prepared"',
        f'if {{ [ "$code" = {stopped} ] || {is_left_to_the_next("prepare")}; }} &&',
        f'  [ "${{SLURM_RESTART_COUNT:-0}}" -lt {MOST_ALLOCATIONS - 1} ]; then',
        *(f"  {line}" for line in IS_TO_GO_ON),
        *(f"    {line}" for line in queue_again(plan, "prepare")),
        "  fi",
        "fi",
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def _options(plan: Plan, state: str) -> Iterator[str]:
    """Of sbatch: never more than the run's nodes ask for. What chooses nodes with GPUs is not for it."""
    slurm, asked = plan.cluster.slurm, plan.cluster.resources
    yield from named_options(plan, prepare_name(plan.name), state)
    yield "--nodes=1"
    yield "--ntasks=1"
    if asked.cpu is not None:
        yield f"--cpus-per-task={math.ceil(min(asked.cpu, PREPARE_CPU))}"
    if asked.memory is not None:
        yield f"--mem={math.ceil(min(as_bytes(asked.memory), as_bytes(PREPARE_MEMORY)) / 2**20)}M"
    if slurm.prepare_partition is not None:
        chosen = {"partition": slurm.prepare_partition, "account": slurm.account}
    else:
        chosen = {"partition": slurm.partition, "account": slurm.account, "qos": slurm.qos}
        chosen["reservation"] = slurm.reservation
    for name, value in chosen.items():
        if value is not None:
            yield f"--{name}={option_value(value)}"
    yield from stop_options(plan)


def _script(plan: Plan, state: str) -> str:
    """What srun starts: the preparation, again where that may help, its codes noted as those of nodes are."""
    inside, stopped = posixpath.dirname(plan.config_dir), int(ExitCode.STOPPED)
    return f"""\
# The preparation of a run, in one place and before any GPU is asked for.
{part_opening(plan, state, "prepare")}\
_rankzero_starts=0
export RANKZERO_TERMINATION_LOG={shlex.quote(f"{inside}/nodes/prepare.words")}
_rankzero_leave() {{
  _rankzero_note end "$1"
{leaving(plan)}
}}
{setup(plan)}\
while :; do
  true > "$_rankzero_part.words"
  _rankzero_note begin "$_rankzero_host"
  if [ -n "$_rankzero_asked" ] || {IS_CANCELLED_INSIDE}; then _rankzero_code={stopped}; break; fi
  {command(plan, "rankzero.launch.node.prepare")}
  _rankzero_code=$?
  {unstarted(plan)}
  {heard_as_stop()}
  _rankzero_starts=$((_rankzero_starts + 1))
  case $_rankzero_code in {_FINAL}) break ;; esac
  if [ $_rankzero_starts -gt {PREPARE_RESTARTS} ]; then break; fi
  {LEAVE_TO_THE_NEXT}
  _rankzero_note end "$_rankzero_code"
done
_rankzero_leave "$_rankzero_code"
"""
