"""The batch script of a run for Slurm: options, the run's files, one node command a node, and whether it goes on. Pure.

What decides whether to go on are the exit codes that each node notes beside its log, not srun's, which is only the
largest of them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import posixpath
import shlex
from collections.abc import Iterator
from typing import Any

from rankzero.errors import NEVER_RETRIED, ExitCode
from rankzero.launch import labels
from rankzero.launch.node.settings import TOKEN_VARIABLE
from rankzero.launch.plan import Plan
from rankzero.launch.render.container import variables
from rankzero.spec.quantity import as_bytes
from rankzero.spec.resolve import to_yaml as spec_to_yaml
from rankzero.spec.slurm_checks import SIGNAL_SECONDS

RETRY_EXIT_OFFSET = 128
"""What the node command adds to codes that may be tried again, as it counts its restarts itself (launch/kinds)."""
FIRST_PORT, MOST_JOBS = 15000, 5000
"""Jobs that share a host talk over ports of their own, below those that outgoing connections are given."""
IDLE_ALLOCATIONS = 3
_RETRIED = sorted(set(ExitCode) - NEVER_RETRIED - {ExitCode.DONE, ExitCode.STOPPED})


def batch_script(plan: Plan, metadata: dict[str, Any], state: str) -> str:
    """The text. `state` is the run's directory for what is known of it, as the hosts see it."""
    files = {
        "config/run.yaml": spec_to_yaml(plan.run).encode(),
        "config/node.json": plan.settings.to_json().encode(),
        "config/node.sh": _node_script(plan, state).encode(),
        **{f"config/files/{name}": plan.files[name] for name in sorted(plan.files)},
    }
    digest = hashlib.sha256(b"".join(files.values())).hexdigest()[:12]
    directories = dict.fromkeys(["nodes", "logs", *map(posixpath.dirname, files)])
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in _options(plan, state)),
        "",
        "# Made by rankzero. `rankzero submit` hands it to sbatch; whoever does so by hand gets the same run.",
        "set -u",
        "begun=$(date +%s)",
        f"state={_quoted(state)}",
        f"nodes={plan.cluster.num_nodes}",
        'mkdir -p -m 700 "$state"',
        *(f'mkdir -p "$state"/{_quoted(name)}' for name in directories),
        'echo "$SLURM_JOB_ID" > "$state/job"',
        f'[ -e "$state/about.json" ] || cat > "$state/about.json" <<\'{_end(digest)}\'',
        json.dumps(metadata, sort_keys=True),
        _end(digest),
    ]
    for name, content in files.items():
        lines += _here(name, content, digest)
    lines += ["", *_environment(plan), "", *_launch(plan, state), *_verdict(plan)]
    return "\n".join(lines) + "\n"


def _options(plan: Plan, state: str) -> Iterator[str]:
    """Of sbatch. Those that ask for resources say per node what cluster.yaml says of a pod."""
    cluster, slurm = plan.cluster, plan.cluster.slurm
    outputs = posixpath.dirname(posixpath.dirname(state))
    yield f"--job-name=rankzero-{plan.name}"
    yield f"--comment={labels.selector(plan.name)}"
    yield f"--chdir={outputs}"
    yield f"--output={outputs}/slurm-{plan.name}.log"
    yield "--open-mode=append"
    yield f"--nodes={cluster.num_nodes}"
    yield "--ntasks-per-node=1"
    if cluster.gpu:
        kind = f"{slurm.gpu_type}:" if slurm.gpu_type else ""
        yield f"--gres=gpu:{kind}{cluster.nproc_per_node}"
    if cluster.resources.cpu is not None:
        yield f"--cpus-per-task={math.ceil(cluster.resources.cpu)}"
    if cluster.resources.memory is not None:
        yield f"--mem={math.ceil(as_bytes(cluster.resources.memory) / 2**20)}M"
    if slurm.time_limit_seconds is not None:
        yield f"--time={_clock(slurm.time_limit_seconds)}"
    for name in ("partition", "account", "qos", "constraint", "reservation"):
        value = getattr(slurm, name)
        if value is not None:
            yield f"--{name}={_option_value(value)}"
    yield f"--signal=TERM@{cluster.grace_period_seconds}"  # to the steps, as a pod gets SIGTERM
    yield "--requeue"
    yield "--dependency=singleton"  # two jobs of one run would meet in its directory
    yield "--export=ALL"
    for name, value in slurm.options.items():
        yield f"--{name}" + (f"={_option_value(value)}" if value else "")


def _option_value(value: str) -> str:
    """Quoted as sbatch reads its directives, where that is needed."""
    return value if not any(sign in value for sign in " \"'\\#;&|()*") else f'"{value}"'


def _clock(seconds: int) -> str:
    minutes = math.ceil(seconds / 60)  # Slurm's own unit
    days, rest = divmod(minutes, 24 * 60)
    return f"{days}-{rest // 60:02}:{rest % 60:02}:00"


def _here(name: str, content: bytes, digest: str) -> Iterator[str]:
    """A file, written by the script: as it reads where it is text, else as base64."""
    end, target = _end(digest), f'"$state"/{_quoted(name)}'
    if name.startswith("config/files/"):
        yield f"base64 -d > {target} <<'{end}'"
        yield base64.encodebytes(content).decode().rstrip("\n")
    else:
        yield f"cat > {target} <<'{end}'"
        yield content.decode().rstrip("\n")
    yield end


def _end(digest: str) -> str:
    return f"END_{digest}"


def _environment(plan: Plan) -> Iterator[str]:
    """Values that are known; those of secrets come with the job from the environment of who submits it."""
    values = {"RANKZERO_LOG_STAMPS": "1", **variables(plan, labels.NODE_ROLE, {})}
    for name, value in values.items():
        yield f"export {name}={_quoted(value)}"
    yield f'export {TOKEN_VARIABLE}="${{{TOKEN_VARIABLE}:-$SLURM_JOB_ID}}"'


def _launch(plan: Plan, state: str) -> Iterator[str]:
    """One task a node, whose ends wait for nobody: the nodes agree among themselves on how a run ends."""
    slurm, inside = plan.cluster.slurm, posixpath.dirname(plan.config_dir)
    options = [
        "--nodes=$nodes",
        "--ntasks=$nodes",
        "--ntasks-per-node=1",
        "--cpu-bind=none",
        "--wait=0",
        "--kill-on-bad-exit=0",
        "--open-mode=append",
        '--output="$state/logs/node-%n.log"',
    ]
    script = f"{state if slurm.runtime != 'pyxis' else inside}/config/node.sh"
    if slurm.runtime == "pyxis":
        options.append(f"--container-image={_quoted(slurm.image or str(plan.cluster.image))}")
        options.append(f"--container-mounts={_quoted(_mounts(plan))}")
        options.append("--no-container-mount-home")
    yield "trap : TERM  # who ends the job tells this shell too, which waits for what the nodes note"
    yield " ".join(("srun", *options, "sh", _quoted(script), "&"))
    yield "while :; do"
    yield '  wait "$!"; status=$?'
    yield '  kill -0 "$!" 2> /dev/null || break'
    yield "done"


def _verdict(plan: Plan) -> Iterator[str]:
    """What becomes of the job, by the codes of its nodes."""
    yield "failed= stopped="
    yield "for ((node = 0; node < nodes; node++)); do"
    yield '  read -r word job restart _ code < <(tail -n 1 "$state/nodes/$node" 2> /dev/null) || word='
    yield '  if [ "$word $job $restart" != "end $SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0}" ]; then'
    yield "    code=$((status ? status : 70))  # it was ended before it could say how"
    yield "  fi"
    yield '  case "$code" in'
    yield "    0) ;;"
    yield f"    {int(ExitCode.STOPPED)}) stopped=1 ;;"
    yield '    *) failed="${failed:-$code}" ;;'
    yield "  esac"
    yield "done"
    yield '[ -z "$failed" ] || exit "$failed"'
    yield '[ -n "$stopped" ] || exit 0'
    yield 'if [ "$(cat "$state/cancelled" 2> /dev/null)" != "$SLURM_JOB_ID" ] &&'
    yield '   [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T || echo RUNNING)" = RUNNING ]; then'
    yield from (f"  {line}" for line in _gets_on(plan))
    yield '  scontrol requeue "$SLURM_JOB_ID"  # saved: it continues where it stopped'
    yield "fi"
    yield f"exit {int(ExitCode.STOPPED)}"


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
    yield '  read -r before idle < <(cat "$state/progress" 2> /dev/null) || { before=none; idle=0; }'
    yield '  if [ "${step:-none}" = "$before" ]; then idle=$((idle + 1)); else idle=0; fi'
    yield '  echo "${step:-none} $idle" > "$state/progress"'
    yield f'  if [ "$idle" -ge {IDLE_ALLOCATIONS} ]; then'
    yield f'    echo {_quoted(json.dumps(words))} > "$state/nodes/0.words"'
    yield f'    echo "end $SLURM_JOB_ID ${{SLURM_RESTART_COUNT:-0}} $(date +%s) {code}" >> "$state/nodes/0"'
    yield f"    exit {code}"
    yield "  fi"
    yield "fi"


def _node_script(plan: Plan, state: str) -> str:
    """What srun starts on each node: the node command, again where it asks for that, its codes noted.

    The node command counts its restarts; those that end by a signal are counted here, as they cannot speak.
    """
    slurm, inside = plan.cluster.slurm, posixpath.dirname(plan.config_dir)
    own = inside if slurm.runtime == "pyxis" else state
    again = "|".join(str(code + RETRY_EXIT_OFFSET) for code in _RETRIED)
    stopped = int(ExitCode.STOPPED)
    return f"""\
# The node command of one node. Ranks and addresses are those that Slurm gives.
nodes={_quoted(f"{own}/nodes")}
export RANKZERO_NODE="$SLURM_NODEID"
export RANKZERO_MASTER="$SLURM_LAUNCH_NODE_IPADDR"
export RANKZERO_CONTROL_PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {MOST_JOBS} * 2))
export MASTER_PORT=$((RANKZERO_CONTROL_PORT + 1))
export RANKZERO_TERMINATION_LOG={_quoted(f"{inside}/nodes")}/"$SLURM_NODEID.words"
asked= killed=0
trap 'asked=1' TERM INT
note() {{
  echo "$1 $SLURM_JOB_ID ${{SLURM_RESTART_COUNT:-0}} $(date +%s) $2" >> "$nodes/$SLURM_NODEID"
}}
{"".join(f"{line}{chr(10)}" for line in slurm.setup)}\
while :; do
  : > "$nodes/$SLURM_NODEID.words"
  note begin "$SLURMD_NODENAME"
  {_command(plan)}
  code=$?
  case $code in
    {stopped + RETRY_EXIT_OFFSET}) code={stopped}; break ;;
    {again}) ;;
    129|1[3-8]?|190|191)
      killed=$((killed + 1))
      if [ $killed -gt {plan.cluster.max_restarts} ] && [ -z "$asked" ]; then break; fi ;;
    *) break ;;
  esac
  if [ -n "$asked" ]; then code={stopped}; break; fi
  note end $code
done
note end $code
exit $code
"""


def _command(plan: Plan) -> str:
    slurm = plan.cluster.slurm
    words = [slurm.python, "-m", "rankzero.launch.node", plan.config_dir]
    if slurm.runtime == "apptainer":
        image = slurm.image or f"docker://{plan.cluster.image}"
        gpus = ["--nv"] if plan.cluster.gpu else []
        words = ["apptainer", "exec", *gpus, "--bind", _mounts(plan), image, *words]
    return shlex.join(words)


def _mounts(plan: Plan) -> str:
    """`host:inside`, as both runtimes take them."""
    found = []
    for volume in plan.cluster.storage.values():
        read_only = ":ro" if volume.read_only or volume.access == "ReadOnlyMany" else ""
        found.append(f"{volume.host_path}:{volume.mount}{read_only}")
    return ",".join(found)


def _quoted(text: str) -> str:
    return shlex.quote(text)
