"""The batch script: as a text, and what its shell does with the exit codes of node commands. No Slurm is needed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from rankzero.cli.init import profile_text
from rankzero.errors import ConfigError
from rankzero.launch.backends.slurm.state import read_notes
from rankzero.launch.labels import is_job_name
from rankzero.launch.last_words import parse_last_words
from rankzero.launch.plan import make_plan
from rankzero.launch.render import render
from rankzero.launch.render.content import file_name, to_yaml
from rankzero.spec.cluster_load import load_cluster, load_cluster_spec
from rankzero.spec.load import load_run_spec
from rankzero.spec.resolve import resolve

GOLDEN = Path(__file__).parents[4] / "golden" / "slurm"
FILES = {"data/train.jsonl": b'{"prompt": "2+2", "completion": "4"}\n'}
RUN = ("name=alpaca-qwen3-8b", "model.name=Qwen/Qwen3-8B", "lora={}", "data.train=data/train.jsonl")
OUTPUTS = "storage={outputs: {mount: /shared/me, host_path: /shared/me}}"
CLUSTERS = {
    "smallest": ["gpu=false", OUTPUTS],
    "hosts": [
        "num_nodes=2",
        "nproc_per_node=8",
        "resources={cpu: 64, memory: 512Gi}",
        "grace_period_seconds=300",
        OUTPUTS,
        "storage.cache={mount: /scratch/c, host_path: /scratch/c}",
        "secrets={hf_token: {name: hf}}",
        "env={NCCL_SOCKET_IFNAME: ib0}",
        "slurm={partition: gpu, account: lab, qos: normal, constraint: h100&ib, gpu_type: h100, "
        "time_limit_seconds: 86400, python: /shared/venv/bin/python, setup: [module load cuda/12.8], "
        "options: {exclude: node7, exclusive: ''}}",
    ],
    "prepared": [
        "num_nodes=2",
        "nproc_per_node=8",
        "resources={cpu: 64, memory: 512Gi}",
        OUTPUTS,
        "storage.cache={mount: /scratch/c, host_path: /scratch/c}",
        "slurm={partition: gpu, account: lab, qos: high, constraint: h100, gpu_type: h100, prepare_partition: cpu, "
        "options: {exclude: node7}}",
    ],
    "apptainer": [
        "num_nodes=2",
        "image=ghcr.io/team/rankzero:1.0",
        "storage={outputs: {mount: /outputs, host_path: /shared/me}}",
        "slurm={runtime: apptainer}",
    ],
    "pyxis": [
        "num_nodes=2",
        "storage={outputs: {mount: /outputs, host_path: /shared/me}}",
        "slurm={runtime: pyxis, image: 'ghcr.io#team/rankzero:1.0'}",
    ],
}


def manifests(settings: list[str]) -> list[dict[str, Any]]:
    run = resolve(load_run_spec(None, RUN, env={}).spec)
    cluster = load_cluster_spec(None, ["kind=slurm", *settings], env={}).spec
    return render(make_plan(run, cluster, files=FILES))


def script(settings: list[str]) -> str:
    return str(manifests(settings)[-1]["spec"]["script"])


def first_script(settings: list[str]) -> str:
    """That of the preparation."""
    first, _ = manifests(settings)
    return str(first["spec"]["script"])


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_text_is_the_golden_one(name: str) -> None:
    objects = manifests(CLUSTERS[name])
    assert file_name(1, objects[-1]) == "01-batchscript-alpaca-qwen3-8b.sbatch"
    for index, manifest in enumerate(reversed(objects)):
        text = to_yaml([manifest])
        golden = GOLDEN / f"{name}{'-first' * index}.sbatch"
        if os.environ.get("RANKZERO_UPDATE_GOLDEN") == "1":
            golden.parent.mkdir(parents=True, exist_ok=True)
            golden.write_text(text, encoding="utf-8")
        assert text == golden.read_text(encoding="utf-8"), "make golden rewrites it"
        done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_preparation_asks_for_no_gpu_and_for_nothing_that_chooses_nodes_with_one() -> None:
    asked = {line for line in first_script(CLUSTERS["prepared"]).splitlines() if line.startswith("#SBATCH ")}
    assert not [line for line in asked if re.search("gres|constraint|qos|exclude|reservation", line)]
    for option in ("--partition=cpu", "--account=lab", "--nodes=1", "--cpus-per-task=2", "--mem=8192M"):
        assert f"#SBATCH {option}" in asked
    beside = first_script([*CLUSTERS["prepared"], "slurm.prepare_partition=null", "prepare=always"])
    assert "#SBATCH --partition=gpu\n" in beside and "#SBATCH --qos=high\n" in beside and "--gres" not in beside


def test_nothing_goes_first_where_nothing_says_where() -> None:
    for settings in (CLUSTERS["hosts"], [*CLUSTERS["prepared"], "prepare=never"]):
        assert len(manifests(settings)) == 1
    with pytest.raises(ConfigError, match="no volume to prepare into"):
        manifests([*CLUSTERS["smallest"], "prepare=always"])
    with pytest.raises(ConfigError, match="nothing would keep what is prepared there"):
        manifests([*CLUSTERS["smallest"], "slurm.prepare_partition=cpu"])


def test_the_profile_is_the_golden_script() -> None:
    run = resolve(load_run_spec(None, RUN, env={}).spec)
    (manifest,) = render(make_plan(run, load_cluster("slurm", env={}).spec, files=FILES))
    text, golden = to_yaml([manifest]), GOLDEN / "profile.sbatch"
    if os.environ.get("RANKZERO_UPDATE_GOLDEN") == "1":
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), "make golden rewrites it"
    spec = load_cluster("slurm", env={"RANKZERO_SHARED": "/scratch/me"}).spec
    assert {volume.host_path for volume in spec.storage.values()} == {"/scratch/me", "/scratch/me/cache"}


def test_what_the_profile_has_as_comments_is_right() -> None:
    """Whoever takes the hashes away has a cluster."""
    text = profile_text("slurm").split("\n", 1)[1]
    file = yaml.safe_load(re.sub(r"(?m)^( *)# (\w+:)", r"\1\2", text))
    settings = [f"{name}={json.dumps(value)}" for name, value in file.items()]
    spec = load_cluster_spec(None, settings, env={}).spec
    assert spec.slurm.partition == "gpu" and spec.slurm.setup == ("module load cuda",)
    assert spec.resources.cpu is not None


def test_the_cluster_of_the_guide_is_one() -> None:
    guide = (Path(__file__).parents[5] / "docs/slurm.md").read_text(encoding="utf-8")
    (written,) = re.findall(r"```yaml\n(.*?)```", guide, flags=re.DOTALL)
    text = script([f"{name}={json.dumps(value)}" for name, value in yaml.safe_load(written).items() if name != "kind"])
    for option in ("--gres=gpu:h100:8", "--time=1-00:00:00", "--exclude=node7", "--signal=TERM@300", "--mem=921600M"):
        assert f"#SBATCH {option}\n" in text


def test_runs_of_one_name_with_other_outputs_do_not_wait_for_each_other() -> None:
    """Slurm keeps jobs of one name and user apart in time."""
    names = [
        re.findall(
            "(?m)^#SBATCH --job-name=(.*)$",
            first_script([*CLUSTERS["prepared"], f"storage.outputs={place}"])
            + script([*CLUSTERS["prepared"], f"storage.outputs={place}"]),
        )
        for place in ("{mount: /a, host_path: /a}", "{mount: /a/, host_path: /a/}", "{mount: /b, host_path: /b}")
    ]
    assert names[0] == names[1] and len({*names[0], *names[2]}) == 4
    assert is_job_name(names[0][1], "alpaca-qwen3-8b") and is_job_name(names[0][0], "alpaca-qwen3-8b-prepare")
    assert is_job_name("rankzero-alpaca-qwen3-8b", "alpaca-qwen3-8b"), "as an earlier version called it"
    assert not is_job_name(names[0][0], "alpaca-qwen3-8b")


@pytest.mark.parametrize(
    ("image", "asked"),
    [
        ("ghcr.io/team/rankzero:1.0", "ghcr.io#team/rankzero:1.0"),
        ("localhost:5000/rankzero", "localhost:5000#rankzero"),
        ("me@ghcr.io#team/rankzero:1.0", "me@ghcr.io#team/rankzero:1.0"),
        ("team/rankzero:1.0", "team/rankzero:1.0"),
        ("/shared/my.images/rankzero.sqsh", "/shared/my.images/rankzero.sqsh"),
        ("./my.images/rankzero.sqsh", "./my.images/rankzero.sqsh"),
        ("dockerd://ghcr.io/team/rankzero", "dockerd://ghcr.io/team/rankzero"),
    ],
)
def test_pyxis_is_told_where_a_registry_ends(image: str, asked: str) -> None:
    """Else it looks for all of the name at its own registry."""
    (line,) = re.findall(r"(?m)^srun .*--container-image=(\S+)", script([*CLUSTERS["pyxis"], f"slurm.image={image}"]))
    assert line.strip("'") == asked


def test_a_secret_is_named_nowhere_in_the_script() -> None:
    (only,) = manifests(CLUSTERS["hosts"])
    assert "HF_TOKEN" not in only["spec"]["script"]
    assert only["spec"]["secrets"] == [{"name": "HF_TOKEN", "optional": False}]


class Stage:
    """The script on this machine, with stand-ins for Slurm's programs and for Python."""

    def __init__(self, root: Path, *, nodes: int = 1, max_restarts: int = 3, settings: Sequence[str] = ()) -> None:
        self.root, self.nodes, self.says = root, nodes, ""
        self.programs = root / "bin"
        self.programs.mkdir(parents=True)
        self.outputs = root / "outputs"
        self.outputs.mkdir()
        self.state = self.outputs / "slurm" / "alpaca-qwen3-8b"
        python = self.program(
            "node-python",
            '[ -z "$SAYS" ] || echo "$SAYS" > "$RANKZERO_TERMINATION_LOG"\n'
            'echo "$3 ${HF_HUB_OFFLINE:-online}" >> "$CODES/started"\n'
            'read -r code < "$CODES/$SLURM_NODEID"; sed -i 1d "$CODES/$SLURM_NODEID"\n'
            'case $code in -*) kill "$code" $$ ;; esac\nexit "$code"\n',
        )
        self.program(
            "srun",
            "for last; do :; done\nfor i in $(seq 0 $((STAGE_NODES - 1))); do\n"
            '  SLURM_NODEID=$i SLURMD_NODENAME=host$i SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 "${@: -2:1}" "$last"\ndone\n',
        )
        self.program("squeue", 'echo "$JOB_STATE"\n')
        self.program("sleep", "exec /bin/sleep 0.02\n")
        self.program("scontrol", 'echo "$@" >> "$ASKED"\n')
        directory = f"{{mount: {self.outputs}, host_path: {self.outputs}}}"
        place = [f"storage={{outputs: {directory}}}", f"num_nodes={nodes}"]
        place += [f"storage.cache={{mount: {root}/cache, host_path: {root}/cache}}"]
        given = [*place, f"slurm.python={python}", *settings, "gpu=false", f"max_restarts={max_restarts}"]
        self.text = script(given)
        self.first = first_script([*given, "prepare=always"])
        self.after_first = script([*given, "prepare=always"])

    def program(self, name: str, body: str) -> Path:
        path = self.programs / name
        path.write_text(f"#!/bin/bash\n{body}")
        path.chmod(0o755)
        return path

    def run(
        self,
        *codes: Sequence[int | str],
        job: str = "7",
        state: str = "RUNNING",
        restart: str = "",
        seconds_left: int | None = None,
        text: str | None = None,
        submitted: str = "",
        env: Mapping[str, str] = MappingProxyType({}),
        quiet: bool = True,
    ) -> int:
        """The batch script's exit code, where the commands of each node end with these codes one after the other; a
        negative one is a signal. Slurm says how many seconds are left of the allocation, or nothing."""
        plans = self.root / "codes"
        plans.mkdir(exist_ok=True)
        for node, several in enumerate(codes):
            (plans / str(node)).write_text("".join(f"{code}\n" for code in several))
        given = {
            **env,
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "SLURM_JOB_ID": job,
            "CODES": str(plans),
            "STAGE_NODES": str(self.nodes),
            "JOB_STATE": state,
            "ASKED": str(self.root / "asked"),
            "SAYS": self.says,
            "RANKZERO_SUBMITTED_AS": submitted,
            "BASH_FUNC_module%%": '() {  echo "module $*" >> "$CODES/started"; [ "$2" != none ];\n}',
            **({"SLURM_RESTART_COUNT": restart} if restart else {}),
            **({"SLURM_JOB_END_TIME": str(int(time.time()) + seconds_left)} if seconds_left is not None else {}),
        }
        done = subprocess.run(
            ["bash"], input=self.text if text is None else text, text=True, capture_output=True, check=False, env=given
        )
        self.said = done.stderr
        assert not quiet or "command not found" not in done.stderr, done.stderr
        self.left = {node: (plans / str(node)).read_text().split() for node in range(len(codes))}
        return done.returncode

    @property
    def asked(self) -> str:
        path = self.root / "asked"
        return path.read_text().strip() if path.exists() else ""


@pytest.mark.parametrize(
    ("codes", "exit_code", "left"),
    [
        ([0, 0], 0, ["0"]),
        ([197, 0, 0], 0, ["0"]),  # a service failed it (69): the node command asks for another start
        ([-9, 0, 0], 0, ["0"]),  # killed: it could not ask
        ([-9, -9, -11, 0], 139, ["0"]),  # twice again, which max_restarts allows
        ([69, 0], 69, ["0"]),  # the node command says that nothing is left of its restarts
        ([78, 0], 78, ["0"]),
        ([65, 0], 65, ["0"]),
        ([127, 0], 127, ["0"]),  # there is no such Python
    ],
)
def test_a_node_is_started_again_as_pods_are(tmp_path: Path, codes: list[int], exit_code: int, left: list[str]) -> None:
    stage = Stage(tmp_path, max_restarts=2)
    assert stage.run(codes) == exit_code
    assert stage.left[0] == left and stage.asked == ""


def side_by_side(stage: Stage) -> None:
    """Nodes live beside each other, node 1 from when the commands of the others run, and scancel's signal reaches those
    that live. A command whose code is `wait` waits for that, saves and leaves."""
    stage.program(
        "srun",
        "for last; do :; done\nbefore=$(seq 0 $((STAGE_NODES - 1)) | sed 2d)\nfor i in $before 1; do\n"
        '  [ $i != 1 ] || for _ in {1..3000}; do [ "$(cat "$CODES/started" | wc -l)" = $((STAGE_NODES - 1)) ] && break;'
        " sleep 1; done\n"
        '  SLURM_NODEID=$i SLURMD_NODENAME=host$i SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 "${@: -2:1}" "$last" &\n'
        '  echo $! >> "$CODES/nodes"\ndone\nwait\n',
    )
    stage.program("scancel", 'echo "$@" >> "$ASKED"\ntouch "$CODES/told"\nkill -TERM $(cat "$CODES/nodes")\n')
    python = (stage.programs / "node-python").read_text()
    waits = (  # not for ever, whatever becomes of the test
        "if [ $code = wait ]; then code=99\n"
        '  for _ in {1..3000}; do if [ -e "$CODES/told" ]; then code=203; break; fi; sleep 1; done\nfi\n'
    )
    stage.program("node-python", python.removeprefix("#!/bin/bash\n").replace("case $code", f"{waits}case $code"))


@pytest.mark.parametrize(
    ("codes", "exit_code"),
    [
        ([78], 78),  # it never came to where node 0 would have heard of it
        ([77], 77),
        ([-9, -9], 137),  # killed once too often
        ([197, 69], 69),  # its restarts are used up
    ],
)
def test_a_node_that_has_failed_for_good_ends_the_others(tmp_path: Path, codes: list[int], exit_code: int) -> None:
    """They would wait for it for as long as they may, and hold their GPUs."""
    stage = Stage(tmp_path, nodes=3, max_restarts=1)
    side_by_side(stage)
    assert stage.run(["wait"], codes, ["wait"]) == exit_code
    assert stage.asked == "--signal=TERM 7", "once, and it is not queued again"
    ends = [read_notes((stage.state / f"nodes/{node}").read_text(), "7")[1].endings[-1].code for node in range(3)]
    assert ends == [75, exit_code, 75]


def test_a_node_that_comes_after_that_does_not_begin(tmp_path: Path) -> None:
    """An image may take minutes on one host, and a signal does not reach what is not there yet."""
    stage = Stage(tmp_path, nodes=2)
    stage.program("scancel", "exit 1\n")
    (stage.state / "nodes").mkdir(parents=True)
    (stage.state / "nodes/over-7-1").touch()
    assert stage.run([0], [0], restart="1") == 75 and stage.left == {0: ["0"], 1: ["0"]}
    assert stage.run([0], [0], restart="2") == 0, "the word was about another start"


FULL = "trap '' XFSZ; ulimit -f 0"
"""As a line of setup: files are made, and nothing is written into them, as on a volume that is full."""


def test_a_node_that_fails_on_a_full_volume_ends_the_others(tmp_path: Path) -> None:
    stage = Stage(
        tmp_path, nodes=3, settings=[f"slurm.setup={json.dumps([f'[ $SLURM_NODEID != 1 ] || {{ {FULL}; }}'])}"]
    )
    side_by_side(stage)
    stage.run(["wait"], [78], ["wait"])
    assert stage.asked == "--signal=TERM 7"


@pytest.mark.parametrize("first", [False, True])
def test_a_stop_on_a_full_volume_goes_on_in_the_queue(tmp_path: Path, first: bool) -> None:
    """As one whose save failed with a note does."""
    stage = Stage(tmp_path, settings=[f"slurm.setup={json.dumps([FULL])}"])
    code = 74 if first else 202
    stage.program("node-python", f"{TOLD}\nexit {code}\n")
    assert stage.run(text=stage.first if first else stage.text) == code and stage.asked == "requeue 7"


def test_a_line_of_setup_that_fails_on_one_node_ends_the_others(tmp_path: Path) -> None:
    stage = Stage(tmp_path, nodes=2, settings=["slurm.setup=['[ $SLURM_NODEID = 0 ]']"])
    side_by_side(stage)
    assert stage.run(["wait"], [0]) == 1 and stage.asked == "--signal=TERM 7"


def test_a_run_that_has_saved_is_queued_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, nodes=2)
    assert stage.run([203], [203]) == 75
    assert stage.asked == "requeue 7"
    notes = (stage.state / "nodes/1").read_text().split()
    assert notes[:3] == ["begin", "7", "0"] and notes[4:8] == ["host1", "end", "7", "0"] and notes[9] == "75"
    assert stage.run([0], [0], restart="1") == 0, "the notes of the start before do not count"


TOLD = "kill -TERM $PPID"
"""To a stand-in for Python: the step that it is in is told to stop, the shell around it too."""


def words(step: int | None) -> str:
    return f"""{{"rankzero": 1, "outcome": "stopped", "checkpoint": {json.dumps(step)}, "step": 9}}"""


@pytest.mark.parametrize(
    ("seconds_left", "steps", "queued"),
    [
        (100, [None, None, None, None], [True, True, False]),
        (100, [5, 5, 5, 5], [True, True, True, False]),  # of what is not seen from here it is not known that it is old
        (100, [None, None, 3, 3, 3, 6, 6], [True] * 7),
        (5000, [None] * 5, [True] * 5),  # preempted: its time was not over
        (None, [None] * 5, [True] * 5),  # neither Slurm nor cluster.yaml says how long an allocation is
    ],
)
def test_a_run_that_its_allocations_are_too_short_for_is_not_queued_for_ever(
    seconds_left: int | None, steps: list[int | None], queued: list[bool], tmp_path: Path
) -> None:
    stage, found = Stage(tmp_path), []
    for step in steps:
        stage.says = words(step)
        before = stage.asked
        code = stage.run([203], seconds_left=seconds_left)
        found.append(stage.asked != before)
        assert code == (75 if found[-1] else 70)
        if not found[-1]:
            break
    assert found == queued
    if not queued[-1]:
        told = parse_last_words((stage.state / "nodes/0.words").read_text())
        assert told is not None and told.exit_code == 70 and "3 allocations in a row" in told.what
        assert told.where == "slurm.time_limit_seconds"
        assert read_notes((stage.state / "nodes/0").read_text(), "7")[1].endings[-1].code == 70


def test_the_time_limit_of_cluster_yaml_serves_where_slurm_says_none(tmp_path: Path) -> None:
    stage = Stage(tmp_path, settings=("grace_period_seconds=200", "slurm.time_limit_seconds=320"))
    assert "begun + 320" in stage.text and "over - 260" in stage.text
    stage.says = words(None)
    assert [stage.run([203]) for _ in range(4)] == [75] * 4, "it was stopped early"
    late = Stage(tmp_path / "late", settings=("grace_period_seconds=15", "slurm.time_limit_seconds=135"))
    late.text = late.text.replace("begun=$(date +%s)", "begun=$(($(date +%s) - 100))")
    late.says = words(None)
    assert [late.run([203]) for _ in range(3)] == [75, 75, 70]


def test_what_fails_for_good_is_not_queued_again_though_others_have_saved(tmp_path: Path) -> None:
    stage = Stage(tmp_path, nodes=2)
    assert stage.run([203], [78]) == 78 and stage.asked == ""


@pytest.mark.parametrize(
    ("first", "command", "code"),
    [
        *[(False, "exit 203", 75), (False, "exit 197", 75), (False, "exit 202", 202), (False, "exit 198", 198)],
        *[(True, "exit 75", 75), (True, "exit 74", 74), (True, "exit 70", 70)],
        *[(first, "kill $$", 75) for first in (False, True)],
        *[(first, "kill -9 $$", 137) for first in (False, True)],
    ],
)
def test_a_stop_whose_save_failed_is_a_failure_that_goes_on(
    tmp_path: Path, first: bool, command: str, code: int
) -> None:
    """The next allocation may cure it. Peers that left first, or a signal before Python listened, are none."""
    stage = Stage(tmp_path)
    text, part = (stage.first, "prepare") if first else (stage.text, "0")
    stage.program("node-python", f"{TOLD}\n{command}\n")
    assert stage.run(text=text) == code and stage.asked == "requeue 7"
    assert read_notes((stage.state / f"nodes/{part}").read_text(), "7")[1].endings[-1].code == code
    stage.program("node-python", f"touch {stage.state}/cancelled-7\n{TOLD}\n{command}\n")
    assert stage.run(text=text, restart="1") == code and stage.asked == "requeue 7", "cancelled while it ran"


def test_a_save_that_fails_at_every_end_of_an_allocation_is_not_tried_for_ever(tmp_path: Path) -> None:
    """And its own words stay: they say what fails."""
    stage = Stage(tmp_path)
    stage.program("node-python", f"""echo '{words(None)}' > "$RANKZERO_TERMINATION_LOG"\n{TOLD}\nexit 202\n""")
    assert [stage.run(seconds_left=100, restart=str(start)) for start in range(3)] == [202] * 3
    assert stage.asked.split("\n") == ["requeue 7"] * 2
    assert (stage.state / "nodes/0.words").read_text().strip() == words(None)


def test_a_stop_that_was_killed_once_too_often_is_the_end(tmp_path: Path) -> None:
    stage = Stage(tmp_path, max_restarts=0)
    stage.program("node-python", f"{TOLD}\nkill -9 $$\n")
    assert stage.run() == 137 and stage.asked == ""


REFUSED = 'echo "$@" >> "$ASKED"; [ "$(wc -l < "$ASKED")" -gt %d ]\n'
"""To a stand-in of Slurm's: so many calls are refused."""


@pytest.mark.parametrize("first", [False, True])
def test_a_slurm_that_does_not_take_it_back_at_once_is_asked_again(tmp_path: Path, first: bool) -> None:
    stage = Stage(tmp_path)
    text, part, code = (stage.first, "prepare", 75) if first else (stage.text, "0", 203)
    stage.program("scontrol", REFUSED % 2)
    assert stage.run([code], text=text) == 75 and stage.asked.split("\n") == ["requeue 7"] * 3
    stage.program("scontrol", REFUSED % 1000)
    assert stage.run([code], text=text, restart="1") == 69
    told = parse_last_words((stage.state / f"nodes/{part}.words").read_text())
    assert told is not None and told.exit_code == 69 and "has not queued" in told.what
    assert read_notes((stage.state / f"nodes/{part}").read_text(), "7")[1].endings[-1].code == 69
    before = len(stage.asked.split("\n"))
    stage.program("scontrol", f"{REFUSED % 1000}touch {stage.state}/cancelled-7; exit 1\n")
    assert stage.run([code], text=text, restart="2") == 75, "it is cancelled meanwhile"
    assert len(stage.asked.split("\n")) == before + 1


def test_peers_are_told_again_where_slurm_does_not_answer(tmp_path: Path) -> None:
    stage = Stage(tmp_path, nodes=2, max_restarts=1)
    side_by_side(stage)
    tells = (stage.programs / "scancel").read_text().partition("\n")[2]
    stage.program(
        "scancel", f'[ "$(cat "$ASKED" 2> /dev/null | wc -l)" -ge 2 ] || {{ echo no >> "$ASKED"; exit 1; }}\n{tells}'
    )
    assert stage.run(["wait"], [78]) == 78
    assert stage.asked.split("\n") == ["no", "no", "--signal=TERM 7"]


def test_a_cancelled_run_is_not_queued_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.state.mkdir(parents=True)
    (stage.state / "cancelled-7").touch()
    assert stage.run([203]) == 75 and stage.asked == ""
    assert stage.run([203], job="8") == 75 and stage.asked == "requeue 8", "the word was about another job"


@pytest.mark.parametrize("first", [False, True])
def test_what_was_cancelled_before_it_was_there_does_not_begin(tmp_path: Path, first: bool) -> None:
    """The signal goes to what runs, and srun may still be starting it."""
    stage = Stage(tmp_path)
    (stage.state / "nodes").mkdir(parents=True)
    (stage.state / "cancelled-7").touch()
    text = stage.first if first else stage.text
    assert stage.run([0], text=text) == 75 and stage.left == {0: ["0"]}
    assert stage.run([0], text=text, job="9") == 0, "the word was about other jobs"


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(("job", "status", "code"), [("", 143, 75), ("6", 137, 75), ("7", 143, 75), ("7", 137, 137)])
def test_what_was_cancelled_and_said_no_more(tmp_path: Path, first: bool, job: str, status: int, code: int) -> None:
    """A shell that has just begun dies of the signal. What was killed after it had begun may have saved nothing."""
    stage = Stage(tmp_path)
    text, file = stage.first if first else stage.text, stage.state / "nodes" / ("prepare" if first else "0")
    stage.program("srun", f"{job and f'echo begin {job} 0 1 host >> {file}'}\nexit {status}\n")
    assert stage.run([0], text=text) == status
    (stage.state / "cancelled-7").touch()
    assert stage.run([0], text=text) == code and stage.asked == ""
    assert [one.code for one in read_notes(file.read_text(), "7")[1].endings] == [75] * (code == 75)


@pytest.mark.parametrize("first", [False, True])
def test_a_script_that_is_handed_over_by_hand_says_what_the_run_is_then(tmp_path: Path, first: bool) -> None:
    """One of another spec was submitted before, of other nodes. Of one that is submitted, submit has said more."""
    stage = Stage(tmp_path, nodes=2)
    stage.state.mkdir(parents=True)
    about, text = stage.state / "about.json", stage.first if first else stage.text
    before = {"name": "r", "annotations": {"rankzero.dev/num-nodes": "1", "rankzero.dev/spec-hash": "of the other"}}
    about.write_text(json.dumps(before))
    (stage.state / "submitted-5a").touch()
    stage.run([0], [0], text=text, submitted="5a")
    assert json.loads(about.read_text()) == before
    stage.run([0], [0], text=text)
    now = json.loads(about.read_text())["annotations"]
    assert now["rankzero.dev/num-nodes"] == "2" and "rankzero.dev/spec-hash" not in now


@pytest.mark.parametrize(("state", "asked"), [("COMPLETING", ""), ("", ""), ("RUNNING", "requeue 7")])
def test_what_slurm_ends_itself_is_left_to_it(tmp_path: Path, state: str, asked: str) -> None:
    stage = Stage(tmp_path)
    stage.run([203], state=state)
    assert stage.asked == asked


@pytest.mark.parametrize("first", [False, True])
def test_a_node_without_the_directory_that_submit_has_made_trains_for_nobody(tmp_path: Path, first: bool) -> None:
    """Also one with such a directory of its own, from another time. No path is compared: it has many spellings."""
    stage = Stage(tmp_path)
    text = stage.first if first else stage.text
    assert stage.run([0], text=text, submitted="5a") == 78 and stage.left == {0: ["0"]}
    assert f"{stage.state}/submitted-5a is not here: storage.outputs" in stage.said
    assert not stage.state.exists()
    assert stage.run([0], text=text) == 0, "by hand"
    assert stage.run([0], text=text, submitted="5a") == 78
    stage.program("sleep", f"touch {stage.state}/submitted-5a\n")
    assert stage.run([0], text=text, submitted="5a") == 0, "a file system may show it late"


@pytest.mark.parametrize("first", [False, True])
def test_a_script_that_a_job_submits_by_hand_asks_for_nothing_of_that_job(tmp_path: Path, first: bool) -> None:
    stage = Stage(tmp_path)
    stage.state.mkdir(parents=True)
    (stage.state / "submitted-5a").touch()
    stage.program("srun", 'env > "$CODES/env"\n')
    stage.run([0], text=stage.first if first else stage.text, submitted="5a")
    assert "RANKZERO_SUBMI" in (inside := (tmp_path / "codes/env").read_text()) and "SUBMITTED" not in inside


def test_a_node_that_noted_nothing_has_failed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, nodes=2)
    stage.program("srun", "exit 1\n")
    assert stage.run([0], [0]) == 1 and stage.asked == ""


@pytest.mark.parametrize("first", [False, True])
def test_what_runs_share_is_open_to_whom_the_outputs_are(tmp_path: Path, first: bool) -> None:
    """Else the first of a team to submit closes it to the others, by their umask."""
    stage = Stage(tmp_path)
    stage.outputs.chmod(0o3770)
    assert stage.run([0], text=stage.first if first else stage.text) == 0
    modes = [(stage.outputs / name).stat().st_mode & 0o7777 for name in ("slurm", "runs")]
    assert modes == [0o3770, 0o3770] and stage.state.stat().st_mode & 0o777 == 0o700
    (stage.outputs / "runs").chmod(0o755)
    stage.run([0], text=stage.first if first else stage.text)
    assert (stage.outputs / "runs").stat().st_mode & 0o7777 == 0o755, "what is there stays as somebody wants it"


def test_who_looks_while_a_script_notes_what_it_is_reads_no_half_of_it(tmp_path: Path) -> None:
    """`status`, `logs` and `submit` read these at any moment: one that is emptied first is a job that nobody knows."""
    stage = Stage(tmp_path)
    stage.state.mkdir(parents=True)
    for name, text in (("job", stage.after_first), ("prepare_job", stage.first)):
        path, seen = stage.state / name, stage.state / f"{name}.seen"
        path.write_text("7\n", encoding="utf-8")
        seen.hardlink_to(path)  # its own is not taken by another file
        stage.run([0], text=text)
        assert path.read_text() == "7\n" and not path.samefile(seen), "written in place"
    assert json.loads((stage.state / "about.json").read_text())["name"] == "alpaca-qwen3-8b"
    assert not list(stage.state.glob("*.new"))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    "name", ["about.json", "config/run.yaml", "config/files/data/train.jsonl", "{script}", "{job}"]
)
def test_a_file_that_cannot_be_written_is_the_end_and_says_so(tmp_path: Path, first: bool, name: str) -> None:
    """Half of a run's data is read as if it were all."""
    stage = Stage(tmp_path)
    script, job = ("config/prepare.sh", "prepare_job") if first else ("config/node.sh", "job")
    name = name.format(script=script, job=job)
    (stage.state / (f"{name}.new" if name in ("about.json", job) else name)).mkdir(parents=True)
    assert stage.run([0], text=stage.first if first else stage.text) == 74 and stage.left == {0: ["0"]}
    assert f"{stage.state}/{name} cannot be written; see that storage.outputs" in stage.said


@pytest.mark.parametrize("first", [False, True])
def test_a_full_volume_is_the_end_before_anything_starts(tmp_path: Path, first: bool) -> None:
    stage = Stage(tmp_path)
    text = (stage.first if first else stage.text).replace("set -u\n", f"set -u\n{FULL}\n", 1)
    assert stage.run([0], text=text) == 74 and stage.left == {0: ["0"]}
    assert f"{stage.state}/about.json cannot be written" in stage.said


def test_the_files_are_where_the_node_command_looks(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.run([0])
    config = stage.state / "config"
    assert (config / "files/data/train.jsonl").read_bytes() == FILES["data/train.jsonl"]
    assert f"train: {config}/files/data/train.jsonl" in (config / "run.yaml").read_text()
    assert (stage.state / "job").read_text() == "7\n"
    assert (stage.state.stat().st_mode & 0o777) == 0o700, "a run's spec is nobody else's business"


@pytest.mark.parametrize(
    ("codes", "exit_code", "left"),
    [
        ([0, 0], 0, ["0"]),
        ([69, 0, 0], 0, ["0"]),
        ([-9, 74, 0, 0], 0, ["0"]),
        ([69, 69, 69, 69, 0], 69, ["0"]),
        ([65, 0], 65, ["0"]),
        ([78, 0], 78, ["0"]),
    ],
)
def test_a_preparation_is_tried_again_where_that_may_help(
    tmp_path: Path, codes: list[int], exit_code: int, left: list[str]
) -> None:
    stage = Stage(tmp_path)
    assert stage.run(codes, text=stage.first) == exit_code
    assert stage.left[0] == left and stage.asked == ""
    assert (stage.state / "prepare_job").read_text() == "7\n" and not (stage.state / "job").exists()
    assert (stage.state / "prepared").exists() == (exit_code == 0)
    assert read_notes((stage.state / "nodes/prepare").read_text(), "7")[1].endings[-1].code == exit_code


def test_a_preparation_that_was_stopped_goes_on_in_the_queue_but_not_for_ever(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    assert stage.run([75], text=stage.first) == 75 and stage.asked == "requeue 7"
    (stage.state / "cancelled-7").touch()
    assert stage.run([75], text=stage.first, restart="1") == 75 and stage.asked == "requeue 7"
    (stage.state / "cancelled-7").unlink()
    assert stage.run([75], text=stage.first, restart="9") == 75 and stage.asked == "requeue 7"


@pytest.mark.parametrize("first", [False, True])
def test_what_the_site_sets_up_may_be_a_function_of_bash(tmp_path: Path, first: bool) -> None:
    """`module` is one on most sites, and travels in the environment, where only bash finds it."""
    stage = Stage(tmp_path, settings=["slurm.setup=[module load cuda, '# then', export A=$(false), 'false || true']"])
    assert stage.run([0], text=stage.first if first else stage.text) == 0
    assert (tmp_path / "codes/started").read_text().splitlines()[0] == "module load cuda"


@pytest.mark.parametrize(("line", "noted"), [("module load none", 1), ("(exit 75)", 70), ("no-such", 127)])
@pytest.mark.parametrize("first", [False, True])
def test_a_line_of_setup_that_fails_is_the_end_and_says_so(tmp_path: Path, line: str, noted: int, first: bool) -> None:
    """With its own exit code, but for the one that says that all is saved."""
    stage = Stage(tmp_path, settings=[f"slurm.setup=[module load cuda, {json.dumps(line)}, module load late]"])
    assert stage.run([0], text=stage.first if first else stage.text, quiet=False) == noted
    assert (tmp_path / "codes/started").read_text().splitlines()[1:] in ([], ["module load none"])
    part = "prepare" if first else "0"
    told = parse_last_words((stage.state / f"nodes/{part}.words").read_text())
    assert told is not None and (told.outcome, told.where) == ("failed", "slurm.setup") and line in told.what
    ending = read_notes((stage.state / f"nodes/{part}").read_text(), "7")[1]
    assert ([one.code for one in ending.endings], ending.runs, stage.asked) == ([noted], False, "")


@pytest.mark.parametrize("first", [False, True])
def test_what_another_launcher_said_of_the_shell_that_submits_is_not_heard(tmp_path: Path, first: bool) -> None:
    """A shell within a pod, or under torchrun, is some node of another run."""
    stage = Stage(tmp_path)
    stage.program("node-python", f"env > {tmp_path}/env\n")
    others = {"NODE_RANK": "3", "PET_NNODES": "4", "PET_MASTER_PORT": "5", "JOB_COMPLETION_INDEX": "2"}
    assert stage.run([0], text=stage.first if first else stage.text, env=others) == 0
    heard = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert "RANKZERO_NODE" in heard or first
    assert not heard & set(others)


@pytest.mark.parametrize("first", [False, True])
def test_a_python_in_who_submits_home_is_found_there(tmp_path: Path, first: bool) -> None:
    stage = Stage(tmp_path)
    stage.program("env python", (stage.programs / "node-python").read_text())
    home = Stage(tmp_path / "other", settings=["slurm.python='~/bin/env python'"])
    text = home.first if first else home.text
    assert home.run([0], text=text.replace('"$HOME"', f'"{tmp_path}"'), quiet=False) == 0


@pytest.mark.parametrize("first", [False, True])
def test_a_python_that_is_not_there_is_named(tmp_path: Path, first: bool) -> None:
    stage = Stage(tmp_path, settings=["slurm.python=/no/such/python"])
    assert stage.run([0], text=stage.first if first else stage.text) == 127
    told = parse_last_words((stage.state / f"nodes/{'prepare' if first else '0'}.words").read_text())
    assert told is not None and told.where == "slurm.python" and "/no/such/python" in told.what


def test_nodes_leave_the_hub_alone_only_when_this_very_run_was_prepared(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    assert stage.run([0], text=stage.after_first) == 0, "by hand, without what goes first"
    assert stage.run([0], text=stage.first) == 0
    assert stage.run([0], text=stage.after_first, job="8") == 0
    assert stage.run([0], text=stage.text, job="9") == 0, "a run that nothing was asked to go before"
    (stage.state / "prepared").write_text("another\n")
    assert stage.run([0], text=stage.after_first, job="10") == 0
    node, first = "rankzero.launch.node", "rankzero.launch.node.prepare"
    expected = [f"{node} online", f"{first} online", f"{node} 1", f"{node} online", f"{node} online"]
    assert (tmp_path / "codes/started").read_text().splitlines() == expected
