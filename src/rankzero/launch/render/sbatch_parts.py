"""What both batch scripts of a run are made of: options, files, environment, what srun starts. Pure."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from rankzero.errors import INTERRUPTED, ExitCode
from rankzero.launch import labels
from rankzero.launch.node.platform import INDEX_VARIABLES
from rankzero.launch.node.settings import TOKEN_VARIABLE
from rankzero.launch.plan import Plan
from rankzero.spec.resolve import to_yaml as spec_to_yaml
from rankzero.spec.slurm_checks import SIGNAL_SECONDS

START = "$SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0}"
"""Which start of which job it is, to the shell."""
START_NAME = START.replace(" ", "-")
"""The same in the name of a file, which a full volume still takes where it takes no word in it."""
SUBMITTED_VARIABLE, SUBMITTED_FILE = "RANKZERO_SUBMITTED_AS", "submitted-"
"""Says to a script that `submit` has made the run's directory, and which file there is this submission's alone."""
TOKEN_OF_CLIENTS = "SLURM_JWT"
"""sbatch hands it on. In a job Slurm's programs are known without it, and it may be over before the job is."""
LATE_SECONDS = 60
PAUSE_SECONDS = 5
"""Before Slurm is asked once more."""
_SIGTERM = 143
_ROOM = "see that storage.outputs in cluster.yaml can be written and has room, then submit again"
CANCELLED_FILE = "cancelled-"
"""Before the number of a job that is to end for good (`RunState.cancel`): by its name alone, as `START_NAME`."""
IS_CANCELLED = f'[ -e "$state/{CANCELLED_FILE}$SLURM_JOB_ID" ]'
"""To a shell that knows where the run's directory is: somebody wants this job to end for good."""


def option_value(value: str) -> str:
    """Quoted as sbatch reads its directives, where that is needed."""
    return value if not any(sign in value for sign in " \"'\\#;&|()*") else f'"{value}"'


def named_options(plan: Plan, name: str, state: str) -> Iterator[str]:
    """Of sbatch, what a job of the run is called and where it works: beside its runs, in a log that all of it share."""
    outputs = posixpath.dirname(posixpath.dirname(state))
    yield f"--job-name={labels.job_name(name, state)}"
    yield f"--comment={labels.selector(plan.name)}"
    yield f"--chdir={outputs}"
    yield f"--output={outputs}/slurm-{plan.name}.log"
    yield "--open-mode=append"


def stop_options(plan: Plan) -> Iterator[str]:
    """Of sbatch, how a job of the run ends and goes on: with a signal to the steps, as a pod gets SIGTERM, and never
    beside another of its name, which would meet it in the run's directory."""
    if plan.cluster.slurm.time_limit_seconds is not None:
        yield f"--time={clock(plan.cluster.slurm.time_limit_seconds)}"
    yield f"--signal=TERM@{plan.cluster.grace_period_seconds}"
    yield "--requeue"
    yield "--dependency=singleton"
    yield "--export=ALL"


def clock(seconds: int) -> str:
    """A time limit as sbatch takes it, up to the next minute, which is Slurm's own unit."""
    minutes = math.ceil(seconds / 60)
    days, rest = divmod(minutes, 24 * 60)
    return f"{days}-{rest // 60:02}:{rest % 60:02}:00"


def inputs(plan: Plan) -> dict[str, bytes]:
    """What the processes read, by its path in the run's directory."""
    return {
        "config/run.yaml": spec_to_yaml(plan.run).encode(),
        "config/node.json": plan.settings.to_json().encode(),
        **{f"config/files/{name}": plan.files[name] for name in sorted(plan.files)},
    }


def inputs_digest(plan: Plan) -> str:
    """Tells what was prepared from what another spec of the same name needs."""
    return hashlib.sha256(b"".join(inputs(plan).values())).hexdigest()[:12]


def written(plan: Plan, files: Mapping[str, bytes], about: str) -> Iterator[str]:
    """The run's directory and the files in it, written by the script: as they read where they are text, else as base64.
    Of a script that was submitted, `about`, which says what the run is, stays as it is there already."""
    end = f"END_{hashlib.sha256(b''.join(files.values())).hexdigest()[:12]}"
    yield f"unset {TOKEN_OF_CLIENTS} {' '.join(INDEX_VARIABLES)} ${{!PET_@}}  # of the shell that submits"
    yield from _made_where_it_was_submitted()
    yield from _open_as_above(plan)
    yield "unwritten() {  # nodes that read half of it would train something else, or say that it is wrong"
    yield f'  echo "$(hostname): $1 cannot be written; {_ROOM}" >&2'
    yield f"  exit {int(ExitCode.STORAGE)}"
    yield "}"
    yield 'mkdir -p -m 700 "$state" || unwritten "$state"'
    for name in dict.fromkeys(["nodes", "logs", *map(posixpath.dirname, files)]):
        yield _or_unwritten('mkdir -p "$state"/{}', name)
    about_new = f'{{ cat > "$state/about.json.new" && {_put("about.json")}; }}'
    is_kept = '{ [ -n "$submitted" ] && [ -e "$state/about.json" ]; }'
    yield f"{is_kept} || {about_new} <<'{end}' || unwritten \"$state/about.json\""
    yield about
    yield end
    for name, content in files.items():
        if name.startswith("config/files/"):
            yield _or_unwritten(f"base64 -d > \"$state\"/{{}} <<'{end}'", name)
            yield base64.encodebytes(content).decode().rstrip("\n")
        else:
            yield _or_unwritten(f"cat > \"$state\"/{{}} <<'{end}'", name)
            yield content.decode().rstrip("\n")
        yield end


def _or_unwritten(line: str, name: str) -> str:
    """A line that makes something in the run's directory, whose name stands at its braces."""
    place = shlex.quote(name)
    return f'{line.format(place)} || unwritten "$state"/{place}'


def _made_where_it_was_submitted() -> Iterator[str]:
    """A node that has another directory of that name would train for nobody, also one that was used before. Who hands
    the script to sbatch by hand has made none, be it in a job of ours. A network file system may show late what is new.
    """
    words = "is not here: storage.outputs in cluster.yaml has to be a directory that this node shares with the machine"
    yield f'submitted="${{{SUBMITTED_VARIABLE}:-}}"'
    yield 'if [ -n "$submitted" ]; then'
    yield f'  made="$state/{SUBMITTED_FILE}$submitted"'
    yield f"  for _ in {{1..{LATE_SECONDS // PAUSE_SECONDS}}}; do"
    yield f'    [ ! -e "$made" ] || break; sleep {PAUSE_SECONDS}'
    yield "  done"
    yield '  if [ ! -e "$made" ]; then'
    yield f'    echo "$(hostname): $made {words} that submitted" >&2'
    yield f"    exit {int(ExitCode.CONFIG)}"
    yield "  fi"
    yield f"  unset {SUBMITTED_VARIABLE} made"
    yield "fi"


def _open_as_above(plan: Plan) -> Iterator[str]:
    """What runs share is for whom what it lies in is for: others' runs lie there too, whatever this umask is."""
    outputs = plan.cluster.storage["outputs"]
    runs = posixpath.relpath(plan.run.output_dir, outputs.mount)
    yield "open_as_above() {"
    yield '  if [ -d "$1" ]; then return; fi'
    yield '  open_as_above "$(dirname "$1")"'
    yield '  mkdir "$1" && chmod --reference="$(dirname "$1")" "$1"'
    yield "}"
    yield 'open_as_above "$(dirname "$state")"'
    if runs.partition("/")[0] not in (".", ".."):
        yield f"open_as_above {shlex.quote(posixpath.join(outputs.host_path or outputs.mount, runs))}"


def noted_job(name: str) -> str:
    """This job's number in a file of the run's directory, for `RunState`. Behind `written`."""
    return f'{{ echo "$SLURM_JOB_ID" > "$state/{name}.new" && {_put(name)}; }} || unwritten "$state/{name}"'


def _put(name: str) -> str:
    """In place of what is there at once: who looks meanwhile reads one or the other, and never half of it."""
    return f'mv "$state/{name}.new" "$state/{name}"'


def environment(values: Mapping[str, str]) -> Iterator[str]:
    """Values that are known; those of secrets come with the job from the environment of who submits it."""
    for name, value in {"RANKZERO_LOG_STAMPS": "1", **values}.items():
        yield f"export {name}={shlex.quote(value)}"
    yield f'export {TOKEN_VARIABLE}="${{{TOKEN_VARIABLE}:-$SLURM_JOB_ID}}"'


def seen_inside(plan: Plan, state: str) -> str:
    """The run's directory as what srun starts sees it: Pyxis starts everything in the container."""
    return posixpath.dirname(plan.config_dir) if plan.cluster.slurm.runtime == "pyxis" else state


def launch(plan: Plan, state: str, script: str, options: Sequence[str], beside: Sequence[str] = ()) -> Iterator[str]:
    """Start the script by srun and wait for it, whatever signals come; `status` is then srun's exit code. What runs
    `beside` it ends with it."""
    slurm, more = plan.cluster.slurm, list(options)
    shell = "sh" if slurm.runtime == "pyxis" else "bash"  # hosts have bash, whose functions, `module`, sh may not know
    if slurm.runtime == "pyxis":
        more.append(f"--container-image={_at_home(_as_enroot_has_it(slurm.image or str(plan.cluster.image)))}")
        more.append(f"--container-mounts={shlex.quote(_mounts(plan))}")
        more.append("--no-container-mount-home")
    yield "trap : TERM  # who ends the job tells this shell too, which waits for what the nodes note"
    yield " ".join(("srun", *more, shell, shlex.quote(f"{seen_inside(plan, state)}/{script}"), "&"))
    yield "srun=$!"
    if beside:
        yield from ("{", *(f"  {line}" for line in beside), "} &", "beside=$!")
    yield "while :; do"
    yield '  wait "$srun"; status=$?'
    yield '  kill -0 "$srun" 2> /dev/null || break'
    yield "done"
    if beside:
        yield 'kill "$beside" 2> /dev/null'


def part_opening(plan: Plan, state: str, part: str) -> str:
    """How the shell begins that srun starts for a part of the run. The site's lines of setup run in that same shell, so
    all it has of its own is called `_rankzero_…`; and what they may take out of the environment is kept."""
    own = seen_inside(plan, state)
    return f"""\
_rankzero_asked=
trap '_rankzero_asked=1' TERM INT
_rankzero_job="$SLURM_JOB_ID" _rankzero_host="$SLURMD_NODENAME"
_rankzero_start="{START}" _rankzero_start_name="{START_NAME}"
_rankzero_state={shlex.quote(own)} _rankzero_nodes={shlex.quote(f"{own}/nodes")}
_rankzero_part="$_rankzero_nodes/{part}"
_rankzero_note() {{
  echo "$1 $_rankzero_start $(date +%s) $2" >> "$_rankzero_part"
}}
"""


def leaving(plan: Plan) -> str:
    """The last lines of that shell, by the code that it is given. What the site's lines of setup have bash do at its
    end is done, and does not decide how it ends."""
    if not plan.cluster.slurm.setup:
        return '  exit "$1"'
    return """\
  if [ -n "${BASH_VERSION:-}" ]; then _rankzero_clean_up=$(trap -p EXIT); ( eval "$_rankzero_clean_up" ); fi
  trap - EXIT
  exit "$1"\
"""


IS_CANCELLED_INSIDE = f'[ -e "$_rankzero_state/{CANCELLED_FILE}$_rankzero_job" ]'
"""As `IS_CANCELLED`, to the shell that srun starts."""


def setup(plan: Plan) -> str:
    """The site's lines, each with a check: where one fails, or ends the shell, a part of the run leaves with the line's
    own exit code, unless that would say that the run is well, or stopped and saved. What the lines set for this shell
    is not for what comes after them. The script has opened as `part_opening` says, and has `_rankzero_leave`."""
    lines = []
    for line in plan.cluster.slurm.setup:
        said = {"rankzero": 1, "outcome": "failed", "where": "slurm.setup", "what": f"this line failed: {line}"}
        said["hint"] = "the log says why; a line that may fail ends with `|| true`"
        lines.append(f'_rankzero_line={shlex.quote(json.dumps(said))}\n{line}\n_rankzero_set_up "$?"\n')
    if not lines:
        return ""
    stopped = int(ExitCode.STOPPED)
    before = f"""\
_rankzero_set_up() {{
  [ "$1" = 0 ] || _rankzero_failed "$1"
}}
_rankzero_failed() {{
  [ -n "$_rankzero_line" ] || return 0  # the lines are over
  set +euC
  printf '%s\\n' "$_rankzero_line" > "$_rankzero_part.words"
  _rankzero_line=
  _rankzero_note begin "$_rankzero_host"
  _rankzero_code=$1
  case $_rankzero_code in {int(ExitCode.DONE)}|{stopped}) _rankzero_code={int(ExitCode.INTERNAL)} ;; esac
  if [ -n "$_rankzero_asked" ]; then _rankzero_code={stopped}; fi
  _rankzero_leave "$_rankzero_code"
}}
trap '_rankzero_failed "$?"' EXIT  # with `set -e` a line ends the shell
"""
    after = """\
_rankzero_line=
set +euC
unset IFS
if [ -n "${BASH_VERSION:-}" ]; then trap - ERR; fi
trap '_rankzero_asked=1' TERM INT
"""
    return f"{before}{''.join(lines)}{after}"


def heard_as_stop(*codes: int) -> str:
    """To a shell that started one of our commands: which exit codes say no more than that it was asked to stop. A
    signal ends Python before it listens, and `codes` are those of who only followed others."""
    known = "|".join(str(code) for code in (INTERRUPTED, _SIGTERM, *codes))
    stopped = f"case $_rankzero_code in {known}) _rankzero_code={int(ExitCode.STOPPED)} ;; esac"
    return f'if [ -n "$_rankzero_asked" ]; then {stopped}; fi'


LEAVE_TO_THE_NEXT = 'if [ -n "$_rankzero_asked" ]; then true > "$_rankzero_part.again-$_rankzero_start_name"; break; fi'
"""Where a command that was asked to stop failed, and may be tried again: not here. The failure is seen, and the batch
script finds that another allocation may cure it. `:` would end a POSIX shell where the file cannot be written."""


def is_left_to_the_next(name: str) -> str:
    """To the batch script."""
    return f'[ -e "$state/nodes/{name}.again-{START_NAME}" ]'


def last_note(name: str) -> Iterator[str]:
    """`code` becomes what that part of the run noted at its end, else srun's own, or 70; of one that was cancelled
    before it began or heard a signal 75, which is noted in its place. What was killed later has not said that it saved.
    """
    yield f'read -r word job restart _ code < <(tail -n 1 "$state/nodes/{name}" 2> /dev/null) || word='
    yield f'if [ "$word $job $restart" != "end {START}" ]; then'
    yield "  code=$((status ? status : 70))  # it was ended before it could say how"
    yield f'  if {IS_CANCELLED} && {{ [ "$word $job $restart" != "begin {START}" ] || [ $status = 143 ]; }}; then'
    yield f"    code={int(ExitCode.STOPPED)}"
    yield f'    echo "end {START} $(date +%s) $code" >> "$state/nodes/{name}"'
    yield "  fi"
    yield "fi"


IS_TO_GO_ON = (
    f"if ! {IS_CANCELLED} &&",
    '   [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T || echo RUNNING)" = RUNNING ]; then',
)
"""Nobody has cancelled it, and Slurm does not end it itself."""


def queue_again(plan: Plan, name: str) -> Iterator[str]:
    """What the batch script ends with where it is to go on: for as long as the allocation may last, as a busy Slurm
    lets calls time out. `code` says how that part of the run has ended."""
    tries = math.ceil((plan.cluster.grace_period_seconds + SIGNAL_SECONDS) / PAUSE_SECONDS)
    code = int(ExitCode.SERVICE)
    words = {
        **{"rankzero": 1, "outcome": "failed", "exit_code": code, "where": "scontrol requeue"},
        "what": "it has saved, and Slurm has not queued the job again, however often it was asked",
        "hint": "`rankzero logs` or the job's own log may say why; submit again to continue",
    }
    yield f"for ((tries = 0; tries < {tries}; tries++)); do"
    yield '  scontrol requeue "$SLURM_JOB_ID" && exit "$code"  # it continues from what it has saved'
    yield f'  if {IS_CANCELLED}; then exit "$code"; fi'
    yield f"  sleep {PAUSE_SECONDS}"
    yield "done"
    yield f'[ "$code" = {int(ExitCode.STOPPED)} ] || exit "$code"'
    yield f'echo {shlex.quote(json.dumps(words))} > "$state/nodes/{name}.words"'
    yield f'echo "end {START} $(date +%s) {code}" >> "$state/nodes/{name}"'
    yield f"exit {code}"


def unstarted(plan: Plan) -> str:
    """To a shell that started one of our commands: says what it was where the shell found nothing of that name, or may
    not run it."""
    python, words = plan.cluster.slurm.python, '"$_rankzero_part.words"'
    said = {"rankzero": 1, "outcome": "failed", "where": "slurm.python", "what": f"{python} cannot be started there"}
    said["hint"] = (
        "a Python that has rankzero, on all nodes: in an environment on a shared directory; the log says more"
    )
    told = f"[ -s {words} ] || echo {shlex.quote(json.dumps(said))} > {words}"
    return f"case $_rankzero_code in 126|127) {told} ;; esac"


def _as_enroot_has_it(image: str) -> str:
    """An image's name with a sign between its registry and the rest, where it has a registry as other runtimes write
    it."""
    host, _, rest = image.partition("/")
    has_host = rest and (host == "localhost" or re.search("[.:]", host.strip(".")) is not None)
    return f"{host}#{rest}" if has_host and "#" not in image and "://" not in image else image


def _at_home(path: str) -> str:
    """A word of the script, which finds the home of who submits for itself."""
    rest = path.removeprefix("~/")
    return shlex.quote(path) if rest == path else f'"$HOME"/{shlex.quote(rest)}'


def command(plan: Plan, module: str) -> str:
    """One of our modules, in the image where there is one."""
    slurm = plan.cluster.slurm
    words = [_at_home(slurm.python), *map(shlex.quote, ("-P", "-m", module, plan.config_dir))]
    if slurm.runtime == "apptainer":
        image = slurm.image or f"docker://{plan.cluster.image}"
        gpus = ["--nv"] if plan.cluster.gpu else []
        words = ["apptainer", "exec", *gpus, "--bind", shlex.quote(_mounts(plan)), _at_home(image), *words]
    return " ".join(words)


def _mounts(plan: Plan) -> str:
    """`host:inside`, as both runtimes take them."""
    found = []
    for volume in plan.cluster.storage.values():
        read_only = ":ro" if volume.is_read_only else ""
        found.append(f"{volume.host_path}:{volume.mount}{read_only}")
    return ",".join(found)
