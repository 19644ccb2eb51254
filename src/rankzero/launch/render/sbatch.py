"""The batch script of a run for Slurm: options, the run's files, one node command a node, and whether it goes on. Pure.

What decides whether to go on are the exit codes that each node notes beside its log, not srun's, which is only the
largest of them.
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
from rankzero.launch.plan import Plan
from rankzero.launch.render.container import variables
from rankzero.launch.render.sbatch_parts import (
    IS_CANCELLED_INSIDE,
    IS_TO_GO_ON,
    LEAVE_TO_THE_NEXT,
    START_NAME,
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
from rankzero.spec.slurm_checks import SIGNAL_SECONDS

RETRY_EXIT_OFFSET = 128
"""What the node command adds to codes that may be tried again, as it counts its restarts itself (launch/kinds)."""
FIRST_PORT, MOST_JOBS = 15000, 5000
"""Jobs that share a host talk over ports of their own, below those that outgoing connections are given."""
IDLE_ALLOCATIONS = 3
LOOK_SECONDS = 5
"""How soon the batch script hears of a node that has failed."""
_RETRIED = sorted(set(ExitCode) - NEVER_RETRIED - {ExitCode.DONE, ExitCode.STOPPED})


def batch_script(plan: Plan, metadata: dict[str, Any], state: str) -> str:
    """The text. `state` is the run's directory for what is known of it, as the hosts see it."""
    files = {**inputs(plan), "config/node.sh": _node_script(plan, state).encode()}
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in _options(plan, state)),
        "",
        "# Made by rankzero. `rankzero submit` hands it to sbatch; whoever does so by hand gets the same run.",
        "set -u",
        "begun=$(date +%s)",
        f"state={_quoted(state)}",
        f"nodes={plan.cluster.num_nodes}",
        *written(plan, files, json.dumps(metadata, sort_keys=True)),
        noted_job("job"),
        *_progress_so_far(plan),
        "",
        *_environment(plan),
        "",
        *_launch(plan, state),
        *_verdict(plan),
    ]
    return "\n".join(lines) + "\n"


def _options(plan: Plan, state: str) -> Iterator[str]:
    """Of sbatch. Those that ask for resources say per node what cluster.yaml says of a pod."""
    cluster, slurm = plan.cluster, plan.cluster.slurm
    yield from named_options(plan, plan.name, state)
    yield f"--nodes={cluster.num_nodes}"
    yield "--ntasks-per-node=1"
    if cluster.gpu:
        kind = f"{slurm.gpu_type}:" if slurm.gpu_type else ""
        yield f"--gres=gpu:{kind}{cluster.nproc_per_node}"
    if cluster.resources.cpu is not None:
        yield f"--cpus-per-task={math.ceil(cluster.resources.cpu)}"
    if cluster.resources.memory is not None:
        yield f"--mem={math.ceil(as_bytes(cluster.resources.memory) / 2**20)}M"
    for name in ("partition", "account", "qos", "constraint", "reservation"):
        value = getattr(slurm, name)
        if value is not None:
            yield f"--{name}={option_value(value)}"
    yield from stop_options(plan)
    for name, value in slurm.options.items():
        yield f"--{name}" + (f"={option_value(value)}" if value else "")


def _environment(plan: Plan) -> Iterator[str]:
    """As of pods; only what has been prepared for this very spec is read without asking the Hub."""
    values = variables(plan, labels.NODE_ROLE, {})
    offline = plan.prepare and "HF_HUB_OFFLINE" not in plan.cluster.env
    yield from environment({name: value for name, value in values.items() if name != "HF_HUB_OFFLINE" or not offline})
    if offline:
        yield f'if grep -qsx {inputs_digest(plan)} "$state/prepared"; then export HF_HUB_OFFLINE=1; fi'


def _launch(plan: Plan, state: str) -> Iterator[str]:
    """One task a node, whose ends wait for nobody: the nodes agree among themselves on how a run ends."""
    options = (
        "--nodes=$nodes",
        "--ntasks=$nodes",
        "--ntasks-per-node=1",
        "--cpu-bind=none",
        "--wait=0",
        "--kill-on-bad-exit=0",
        "--open-mode=append",
        '--output="$state/logs/node-%n.log"',
    )
    yield from launch(plan, state, "config/node.sh", options, list(_beside(plan)))


def _beside(plan: Plan) -> Iterator[str]:
    """A node that fails before it has met the others, or for good while they wait for it, can tell them nothing: they
    are asked to save and leave."""
    if plan.cluster.num_nodes > 1:
        yield f'until [ -e "$state/nodes/over-{START_NAME}" ]; do sleep {LOOK_SECONDS}; done'
        yield f'until scancel --signal=TERM "$SLURM_JOB_ID"; do sleep {LOOK_SECONDS}; done'


def _verdict(plan: Plan) -> Iterator[str]:
    """What becomes of the job, by the codes of its nodes."""
    yield "failed= stopped= final="
    yield "for ((node = 0; node < nodes; node++)); do"
    yield from (f"  {line}" for line in last_note("$node"))
    yield '  case "$code" in'
    yield "    0) ;;"
    yield f"    {int(ExitCode.STOPPED)}) stopped=1 ;;"
    yield "    *)"
    yield '      failed="${failed:-$code}"'
    yield f'      {is_left_to_the_next("$node")} || final="${{final:-$code}}" ;;'
    yield "  esac"
    yield "done"
    yield '[ -z "$final" ] || exit "$final"'
    yield '[ -n "$stopped$failed" ] || exit 0'
    yield f'code="${{failed:-{int(ExitCode.STOPPED)}}}"'
    yield from IS_TO_GO_ON
    yield from (f"  {line}" for line in _gets_on(plan))
    yield from (f"  {line}" for line in queue_again(plan, "0"))
    yield "fi"
    yield 'exit "$code"'


def _gets_on(plan: Plan) -> Iterator[str]:
    """A run whose allocations are over before it has saved anything new would take turns in the queue for ever."""
    limit, margin = plan.cluster.slurm.time_limit_seconds, plan.cluster.grace_period_seconds + SIGNAL_SECONDS
    end = f"$((begun + {limit}))" if limit is not None else ""  # Slurm says it itself from 23.02 on
    code = int(ExitCode.INTERNAL)
    words = {
        **{"rankzero": 1, "outcome": "failed", "exit_code": code, "where": "slurm.time_limit_seconds"},
        "what": f"{IDLE_ALLOCATIONS} allocations in a row were over before the run had saved anything new",
        "hint": "a longer slurm.time_limit_seconds: the log says what a start takes; then submit again",
    }
    yield f'over="${{SLURM_JOB_END_TIME:-{end}}}"'
    yield f'if [ -n "$over" ] && [ "$(date +%s)" -ge $((over - {margin})) ]; then'
    yield r"""  step=$(sed -n 's/.*"checkpoint": *\([0-9][0-9]*\).*/\1/p' "$state/nodes/0.words" 2> /dev/null)"""
    yield '  step="${step:-$(newest)}"'
    yield '  if [ "${step:-none}" = "$before" ]; then idle=$((idle + 1)); else idle=0; fi'
    yield '  echo "$SLURM_JOB_ID ${step:-none} $idle" > "$state/progress"'
    yield f'  if [ "$idle" -ge {IDLE_ALLOCATIONS} ]; then'
    yield '    [ -z "$failed" ] || exit "$failed"  # which says why nothing is saved'
    yield f'    echo {_quoted(json.dumps(words))} > "$state/nodes/0.words"'
    yield f'    echo "end $SLURM_JOB_ID ${{SLURM_RESTART_COUNT:-0}} $(date +%s) {code}" >> "$state/nodes/0"'
    yield f"    exit {code}"
    yield "  fi"
    yield "fi"


def _progress_so_far(plan: Plan) -> Iterator[str]:
    """The newest checkpoint as this allocation begins, for `_gets_on`, and how many allocations of this job have
    brought none after it. What an earlier job of the run noted is not of this one."""
    yield "newest() {"
    if plan.known_run_dir is None:
        yield "  :  # which directory the run has, its processes decide"
    else:
        checkpoints = _quoted(_on_hosts(plan, posixpath.join(plan.known_run_dir, "checkpoints")))
        yield rf"  ls {checkpoints} 2> /dev/null |"
        yield r"    sed -n 's/^step-\([0-9][0-9]*\)$/\1/p' | sort -n | tail -n 1"
    yield "}"
    yield 'read -r number step idle < <(cat "$state/progress" 2> /dev/null) || number='
    yield '[ "$number" = "$SLURM_JOB_ID" ] || { step=none; idle=0; }'
    yield "before=$(newest)"
    yield 'before="${before:-$step}"  # not all directories are seen here'
    yield '[ "$before" = "$step" ] || idle=0'


def _on_hosts(plan: Plan, path: str) -> str:
    """Where a path of the processes is to the host, which has no container around it."""
    for volume in sorted(plan.cluster.storage.values(), key=lambda one: len(one.mount), reverse=True):
        inside = posixpath.relpath(path, volume.mount)
        if inside.partition("/")[0] != "..":
            return posixpath.normpath(posixpath.join(volume.host_path or volume.mount, inside))
    return path


def _node_script(plan: Plan, state: str) -> str:
    """What srun starts on each node: the node command, again where it asks for that, its codes noted.

    The node command counts its restarts; those that end by a signal are counted here, as they cannot speak.
    """
    inside = posixpath.dirname(plan.config_dir)
    again = "|".join(str(code + RETRY_EXIT_OFFSET) for code in _RETRIED)
    done, stopped = int(ExitCode.DONE), int(ExitCode.STOPPED)
    peer_lost = ExitCode.SERVICE + RETRY_EXIT_OFFSET
    return f"""\
# The node command of one node. Ranks and addresses are those that Slurm gives.
{part_opening(plan, state, "$SLURM_NODEID")}\
_rankzero_killed=0
export RANKZERO_NODE="$SLURM_NODEID"
export RANKZERO_MASTER="$SLURM_LAUNCH_NODE_IPADDR"
export RANKZERO_CONTROL_PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {MOST_JOBS} * 2))
export MASTER_PORT=$((RANKZERO_CONTROL_PORT + 1))
export RANKZERO_TERMINATION_LOG={_quoted(f"{inside}/nodes")}/"$SLURM_NODEID.words"
_rankzero_leave() {{  # for good; where that is a failure, no other node is to wait for this one
  _rankzero_note end "$1"
  case $1 in {done}|{stopped}) ;; *) true > "$_rankzero_nodes/over-$_rankzero_start_name" ;; esac
{leaving(plan)}
}}
{setup(plan)}\
while :; do
  true > "$_rankzero_part.words"
  _rankzero_note begin "$_rankzero_host"
  # a signal does not reach what is not there yet
  if [ -n "$_rankzero_asked" ] || {IS_CANCELLED_INSIDE} ||
    [ -e "$_rankzero_nodes/over-$_rankzero_start_name" ]; then _rankzero_code={stopped}; break; fi
  {command(plan, "rankzero.launch.node")}
  _rankzero_code=$?
  {unstarted(plan)}
  {heard_as_stop(peer_lost)}
  case $_rankzero_code in
    {stopped}|{stopped + RETRY_EXIT_OFFSET}) _rankzero_code={stopped}; break ;;
    {again}) ;;
    129|1[3-8]?|190|191)
      _rankzero_killed=$((_rankzero_killed + 1))
      if [ $_rankzero_killed -gt {plan.cluster.max_restarts} ]; then break; fi ;;
    *) break ;;
  esac
  {LEAVE_TO_THE_NEXT}
  _rankzero_note end "$_rankzero_code"
done
_rankzero_leave "$_rankzero_code"
"""


def _quoted(text: str) -> str:
    return shlex.quote(text)
