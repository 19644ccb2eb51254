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
    IS_CANCELLED,
    IS_TO_GO_ON,
    command,
    environment,
    heard_as_stop,
    inputs,
    inputs_digest,
    is_left_to_the_next,
    last_note,
    launch,
    leave_to_the_next,
    named_options,
    noted_job,
    option_value,
    queue_again,
    seen_inside,
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
    inside, own = posixpath.dirname(plan.config_dir), seen_inside(plan, state)
    return f"""\
# The preparation of a run, in one place and before any GPU is asked for.
asked= starts=0
trap 'asked=1' TERM INT
state={shlex.quote(own)} nodes={shlex.quote(f"{own}/nodes")}
export RANKZERO_TERMINATION_LOG={shlex.quote(f"{inside}/nodes/prepare.words")}
note() {{
  echo "$1 $SLURM_JOB_ID ${{SLURM_RESTART_COUNT:-0}} $(date +%s) $2" >> "$nodes/prepare"
}}
leave() {{
  note end "$1"
  exit "$1"
}}
{setup(plan, '"$nodes/prepare.words"')}\
while :; do
  : > "$nodes/prepare.words"
  note begin "$SLURMD_NODENAME"
  if [ -n "$asked" ] || {IS_CANCELLED}; then code={int(ExitCode.STOPPED)}; break; fi
  {command(plan, "rankzero.launch.node.prepare")}
  code=$?
  {unstarted(plan, '"$nodes/prepare.words"')}
  {heard_as_stop()}
  starts=$((starts + 1))
  case $code in {_FINAL}) break ;; esac
  if [ $starts -gt {PREPARE_RESTARTS} ]; then break; fi
  {leave_to_the_next("prepare")}
  note end $code
done
leave $code
"""
