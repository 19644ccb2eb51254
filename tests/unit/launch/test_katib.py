"""A sweep as Katib's Experiment: what its webhooks check, what a trial is told, what is read of its metrics."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from rankzero.api.sweeps import katib_objects
from rankzero.errors import ConfigError
from rankzero.launch.node.inputs import read_inputs
from rankzero.launch.node.trial import Follower
from rankzero.launch.render.katib import METRICS, as_yaml, script
from tests.support.sweeps import RUN, written

CLUSTER: dict[str, Any] = {
    "namespace": "train",
    "image": "registry.example/rankzero:1",
    "num_nodes": 1,
    "nproc_per_node": 2,
    "storage": {"outputs": {"mount": "/outputs", "claim": "outputs", "access": "ReadWriteMany"}},
}
PARAMETERS: dict[str, Any] = {
    "train.learning_rate": {"min": 1e-5, "max": 1e-3, "log": True},
    "lora.r": {"min": 4, "max": 16, "step": 4},
    "lora.target_modules": {"values": ["all-linear", ["q_proj", "v_proj"]]},
}


def rendered(
    directory: Path,
    kind: str = "job",
    cluster: dict[str, Any] | None = None,
    run: dict[str, Any] = RUN,
    **fields: Any,
) -> list[Any]:
    """The objects of a sweep over PARAMETERS."""
    file = written(directory, run, **{"parameters": PARAMETERS, "trials": 12, "parallel": 3, **fields})
    place = directory / "cluster.yaml"
    place.write_text(yaml.safe_dump({**CLUSTER, **(cluster or {})}))
    return katib_objects(file, cluster=str(place), kind=kind)


def substituted(experiment: dict[str, Any], values: dict[str, str], trial: str) -> dict[str, Any]:
    """A trial's object, as Katib makes it: values go into the template's JSON as they are, and nothing escapes them.
    Fails on what its webhook refuses."""
    template = experiment["spec"]["trialTemplate"]
    text = json.dumps(template["trialSpec"])
    names = [one["name"] for one in template["trialParameters"]]
    references = [one["reference"] for one in template["trialParameters"]]
    assert len(set(names)) == len(names) and len(set(references)) == len(references)
    assert set(references) == {"${trialSpec.Name}", *(one["name"] for one in experiment["spec"]["parameters"])}
    for one in template["trialParameters"]:
        place = f"${{trialParameters.{one['name']}}}"
        assert place in text
        value = trial if one["reference"] == "${trialSpec.Name}" else values[one["reference"]]
        text = text.replace(place, value)
    assert "${trialParameters." not in text
    found: dict[str, Any] = json.loads(text)
    assert not {"name", "namespace"} & set(found["metadata"])
    return found


def containers(value: Any) -> list[dict[str, Any]]:
    """Every container below."""
    if isinstance(value, list):
        return [one for item in value for one in containers(item)]
    if not isinstance(value, dict):
        return []
    return [*value.get("containers", []), *(one for inner in value.values() for one in containers(inner))]


@pytest.mark.parametrize("kind", ["job", "jobset", "pytorchjob", "trainjob"])
def test_a_trial_of_any_kind_has_its_own_values_and_directory(tmp_path: Path, kind: str) -> None:
    *shared, experiment = rendered(tmp_path, kind)
    assert (experiment["apiVersion"], experiment["kind"]) == ("kubeflow.org/v1beta1", "Experiment")
    modules = experiment["spec"]["parameters"][-1]["feasibleSpace"]["list"][-1]
    values = {"train.learning_rate": "0.0002", "lora.r": "8", "lora.target_modules": modules}
    trial = substituted(experiment, values, "sweep-abc")
    assert trial["kind"].lower() == kind
    env = trial["spec"]["trainer"]["env"] if kind == "trainjob" else containers(trial)[0]["env"]
    told = {one["name"]: one["value"] for one in env if "value" in one}
    config = next(one for one in shared if one["kind"] == "ConfigMap")
    for name in ("run.yaml", "node.json"):
        (tmp_path / name).write_text(config["data"][name])
    spec, _ = read_inputs(tmp_path, told)
    assert spec.lora is not None
    assert (spec.name, spec.output_dir) == ("sweep-abc", "/outputs/runs")
    assert (spec.train.learning_rate, spec.lora.r, spec.lora.target_modules) == (2e-4, 8, ("q_proj", "v_proj"))
    described = trial if kind != "trainjob" else next(one for one in shared if one["kind"] == "TrainingRuntime")
    commands = [one["command"] for one in containers(described)]
    assert commands == [["sh", "-c", script("/outputs/runs/$RANKZERO_TRIAL/metrics.jsonl")]]
    primary = experiment["spec"]["trialTemplate"]["primaryContainerName"]
    assert [one["name"] for one in containers(described)] == [primary]
    assert told["RANKZERO_TRIAL"] == "sweep-abc"


def test_several_nodes_of_a_jobset_find_each_other_by_the_trials_name(tmp_path: Path) -> None:
    cluster = {"num_nodes": 2}
    experiment = rendered(tmp_path, "jobset", cluster)[-1]
    values = {"train.learning_rate": "0.0002", "lora.r": "8", "lora.target_modules": "all-linear"}
    env = containers(substituted(experiment, values, "sweep-abc"))[0]["env"]
    assert {"name": "RANKZERO_MASTER", "value": "sweep-abc-node-0-0.sweep-abc"} in env


@pytest.mark.parametrize("kind", ["job", "jobset", "pytorchjob", "trainjob"])
def test_the_median_rule_is_katib_s_own(tmp_path: Path, kind: str) -> None:
    spec = rendered(tmp_path, kind, run={**RUN, "eval": {"every": 10}}, pruner="median")[-1]["spec"]
    settings = [{"name": "min_trials_required", "value": "5"}, {"name": "start_step", "value": "4"}]
    assert spec["earlyStopping"] == {"algorithmName": "medianstop", "algorithmSettings": settings}
    assert "earlyStopping" not in rendered(tmp_path, kind)[-1]["spec"]


@pytest.mark.parametrize(
    ("run", "space", "at"),
    [
        ({"train": {"max_steps": 100}, "eval": {"every": 10}}, {}, "4"),
        ({"train": {"max_steps": 25}, "eval": {"every": 10}}, {}, "2"),
        ({"train": {"max_steps": 25}, "eval": {"every": 10}}, {"train.max_steps": {"values": [25, 50]}}, "4"),
        (
            {"train": {"max_steps": 25}, "eval": {"every": 10}},
            {"train": {"values": [{"max_steps": 25}, {"max_steps": 50}]}},
            "4",
        ),
        ({"train": {"max_steps": 25}, "eval": {"every": 10}}, {"eval.every": {"values": [5]}}, "4"),
        ({"train": {"max_steps": 5}, "eval": {"every": 10}}, {"eval": {"values": [{"every": 2}]}}, "2"),
        ({"train": {"num_train_epochs": 2}, "eval": {"on_start": True}}, {}, "1"),
        ({"train": {"num_train_epochs": 1}, "eval": {"every": 10}}, {}, "4"),
        ({"train": {"num_train_epochs": 1}}, {}, None),
        ({"train": {"max_steps": 5}, "eval": {"every": 10}}, {}, None),
    ],
)
def test_a_trial_is_judged_before_its_last_evaluation(
    tmp_path: Path, run: dict[str, Any], space: dict[str, Any], at: str | None
) -> None:
    plain = {name: value for name, value in RUN.items() if name not in ("train", "eval")}
    fields = {"parameters": {"lora.r": {"values": [4, 8]}, **space}, "pruner": "median"}
    if at is None:
        with pytest.raises(ConfigError, match="evaluated at its end alone"):
            rendered(tmp_path, run={**plain, **run}, **fields)
        return
    settings = rendered(tmp_path, run={**plain, **run}, **fields)[-1]["spec"]["earlyStopping"]["algorithmSettings"]
    assert settings[-1] == {"name": "start_step", "value": at}


def test_the_space_is_the_same_as_here(tmp_path: Path) -> None:
    spec = rendered(tmp_path)[-1]["spec"]
    assert spec["parameters"] == [
        {
            "name": "train.learning_rate",
            "parameterType": "double",
            "feasibleSpace": {"min": "1e-05", "max": "0.001", "distribution": "logUniform"},
        },
        {"name": "lora.r", "parameterType": "discrete", "feasibleSpace": {"list": ["4", "8", "12", "16"]}},
        {
            "name": "lora.target_modules",
            "parameterType": "categorical",
            "feasibleSpace": {"list": ["all-linear", "[q_proj, v_proj]"]},
        },
    ]
    assert (spec["maxTrialCount"], spec["parallelTrialCount"], spec["objective"]["type"]) == (12, 3, "minimize")
    assert spec["algorithm"] == {
        "algorithmName": "tpe",
        "algorithmSettings": [{"name": "random_state", "value": "42"}],
    }


@pytest.mark.parametrize(
    ("checkpoint", "strategy"),
    [({}, "min"), ({"final": "last"}, "latest"), ({"best_metric": "accuracy"}, "max")],
)
def test_what_a_trial_scored_is_what_its_result_did(tmp_path: Path, checkpoint: dict[str, Any], strategy: str) -> None:
    run = {**RUN, "task": "classify", "checkpoint": checkpoint}
    objective = rendered(tmp_path, run=run)[-1]["spec"]["objective"]
    name = checkpoint.get("best_metric", "eval_loss")
    assert objective["metricStrategies"] == [{"name": name, "value": strategy}]
    assert objective["type"] == ("maximize" if name == "accuracy" else "minimize")
    command = containers(rendered(tmp_path, run=run)[-1])[0]["command"][-1]
    assert (f"{METRICS} eval_loss & node=$!" in command) is (strategy == "latest")


@pytest.mark.parametrize("sampler", ["grid", "tpe", "random"])
@pytest.mark.parametrize(
    ("name", "given", "points"),
    [
        ("lora.dropout", {"min": 0, "max": 0.3, "step": 0.1}, ["0.0", "0.1", "0.2", "0.3"]),
        ("lora.dropout", {"min": 0.05, "max": 0.25, "step": 0.1}, ["0.05", "0.15", "0.25"]),
        ("lora.r", {"min": 1, "max": 64, "step": 16}, ["1", "17", "33", "49"]),
    ],
)
def test_stepped_numbers_are_the_points_that_are_tried_here(
    tmp_path: Path, sampler: str, name: str, given: dict[str, Any], points: list[str]
) -> None:
    """Katib's grid may lose the last of a range by rounding, and what its other samplers draw is a multiple of the
    step, wherever the range begins."""
    spec = rendered(tmp_path, sampler=sampler, trials=40, parameters={name: given})[-1]["spec"]
    assert spec["parameters"] == [{"name": name, "parameterType": "discrete", "feasibleSpace": {"list": points}}]
    assert spec["maxTrialCount"] == (len(points) if sampler == "grid" else 40)


@pytest.mark.parametrize("step", [{}, {"step": 1}])
def test_whole_numbers_one_by_one_stay_a_range(tmp_path: Path, step: dict[str, Any]) -> None:
    spec = rendered(tmp_path, parameters={"lora.r": {"min": 3, "max": 64, **step}})[-1]["spec"]
    assert spec["parameters"] == [
        {"name": "lora.r", "parameterType": "int", "feasibleSpace": {"min": "3", "max": "64"}}
    ]


def test_cmaes_has_ranges_alone(tmp_path: Path) -> None:
    """Katib refuses it what is a list."""
    parameters = {"lora.dropout": {"min": 0.05, "max": 0.25, "step": 0.1}, "lora.r": {"min": 1, "max": 64, "step": 8}}
    spec = rendered(tmp_path, sampler="cmaes", parameters=parameters)[-1]["spec"]
    assert [one["feasibleSpace"] for one in spec["parameters"]] == [
        {"min": "0.05", "max": "0.25", "step": "0.1"},
        {"min": "1", "max": "57", "step": "8"},
    ]


@pytest.mark.parametrize(
    "value",
    [
        *("auto", "2024", "true", "null", " x", "a: b", "#", "", "it's", ", ]", "größer", None, True, 3, 1e-05),
        *(["a"], [["a", "null"], []], {"r": 4}, {"a: b": {"c": ["", "x, y"]}, "no": {}}),
    ],
)
def test_a_value_arrives_as_it_was_written(value: object, tmp_path: Path) -> None:
    from rankzero.spec.yaml_tree import as_tree, parse

    written = as_yaml(value)
    assert json.loads(f'"{written}"') == written, "within JSON it is what it is"
    document = parse(written, source="x", env={})

    def plain(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: plain(inner) for key, inner in tree.items()}
        return [plain(inner) for inner in tree] if isinstance(tree, list) else tree.value

    assert document is not None and plain(document.tree) == plain(as_tree(value))


def test_what_katib_reads_are_the_evaluations(tmp_path: Path) -> None:
    """By its rules for text: of every line each match of the pattern, whose groups are name and value."""
    source = rendered(tmp_path)[-1]["spec"]["metricsCollectorSpec"]["source"]
    assert source["fileSystemPath"] == {"path": METRICS, "kind": "File", "format": "TEXT"}
    (pattern,) = source["filter"]["metricsFormat"]
    lines = [
        {"step": 0, "epoch": 0.0, "eval_loss": 5.25, "time": 1.0},
        {"step": 1, "loss": 4.0, "learning_rate": 1e-05},
        {"step": 2, "loss": 3.0, "eval_loss": 1.5e-07, "perplexity": 20.1},
        {"step": 3, "loss": 3.0, "eval_loss": None},
    ]
    text = "\n".join(map(json.dumps, lines))
    assert [match[:2] for match in re.findall(pattern, text)] == [("eval_loss", "5.25"), ("eval_loss", "1.5e-07")]


@pytest.mark.parametrize(
    ("kind", "cluster", "fields", "what"),
    [
        ("statefulset", {}, {}, "a statefulset is no trial"),
        ("job", {"num_nodes": 2}, {}, "a job of several nodes is no trial"),
        ("pytorchjob", {"num_nodes": 2, "min_nodes": 1}, {}, "an elastic run is no trial"),
        ("job", {"prepare": "always"}, {}, "there is no volume to prepare into"),
        ("job", {}, {"pruner": "hyperband"}, "Katib has no hyperband"),
        ("jobset", {"num_nodes": 2}, {"pruner": "median"}, "Katib ends a trial early in one pod"),
        ("job", {}, {"trials": 0}, "must be a whole number of at least 1"),
        ("job", {}, {"parameters": {"data.train": {"values": ["./a.jsonl"]}}}, "./a.jsonl is a file here"),
    ],
)
def test_what_katib_cannot_do_is_said(
    tmp_path: Path, kind: str, cluster: dict[str, Any], fields: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        rendered(tmp_path, kind, cluster, **fields)
    assert any(problem.what.startswith(what) for problem in caught.value.problems), caught.value.problems


def test_more_numbers_than_an_object_lists_are_refused_before_they_are_made(tmp_path: Path) -> None:
    parameters = {"train.learning_rate": {"min": 1e-5, "max": 1e-3, "step": 1e-12}, "lora.r": {"min": 1, "max": 5000}}
    with pytest.raises(ConfigError) as caught:
        rendered(tmp_path, sampler="tpe", parameters=parameters)
    (problem,) = caught.value.problems
    assert problem.where == "parameters.train.learning_rate" and "990,000,001 numbers" in problem.what
    parameters["train.learning_rate"] = {"min": 1e-5, "max": 1e-3, "step": 1e-6}
    assert rendered(tmp_path, sampler="tpe", parameters=parameters)


def test_a_logarithmic_scale_that_katib_s_cmaes_does_not_read_is_refused(tmp_path: Path) -> None:
    parameters = {"train.learning_rate": {"min": 1e-5, "max": 1e-3, "log": True}, "lora.r": {"min": 1, "max": 64}}
    with pytest.raises(ConfigError) as caught:
        rendered(tmp_path, sampler="cmaes", parameters=parameters)
    (problem,) = caught.value.problems
    assert (problem.what, problem.where) == ("Katib's cmaes has no logarithmic scale", "parameters.train.learning_rate")
    assert "sampler: tpe" in problem.hint
    assert rendered(tmp_path, sampler="tpe", parameters=parameters)


@pytest.mark.parametrize(
    ("module", "mark"),
    [
        (r".*\.q_proj", r"\ "),
        ('q"', '" '),
        ("a\nb", "a line break "),
        ("a\tb", "a tab "),
        ("$(HOME)", "$( "),
        ("$$", "$$ "),
    ],
)
def test_a_value_that_would_not_arrive_is_refused(tmp_path: Path, module: str, mark: str) -> None:
    """Katib escapes nothing, and in a variable's value Kubernetes takes $(NAME) and $$ for something else."""
    parameters = {"lora.target_modules": {"values": ["auto", ["q_proj"], [module]]}}
    with pytest.raises(ConfigError) as caught:
        rendered(tmp_path, "statefulset", parameters=parameters)
    (_, problem) = caught.value.problems
    assert problem.what == f"Katib cannot hand {[module]} to a trial: there is {mark}in it"
    assert (problem.where, "without Katib" in problem.hint) == ("parameters.lora.target_modules", True)


EARLY = (
    " || if test -f {0}/$$.pid && [ $(head -n 1 {0}/$$.pid) = early-stopped ];"
    " then echo ended early; else echo failed; exit 1; fi"
)
"""What Katib adds where trials may end early."""


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("code", [0, 65])
def test_the_shell_keeps_the_exit_code_and_marks_a_good_end_alone(tmp_path: Path, code: int, early: bool) -> None:
    whole = of_katib(tmp_path, f"sh -c 'exit {code}'", early=early)
    done = subprocess.run(["sh", "-c", whole], check=False)
    assert done.returncode == code, "else what never succeeds is tried again"
    assert [path.read_text() for path in tmp_path.glob("*.pid")] == (["completed\n"] if code == 0 else [])


@pytest.mark.parametrize("when", ["before the shell knows its number", "later"])
def test_a_stop_reaches_the_node_command_through_the_shell(tmp_path: Path, when: str) -> None:
    node = f"trap 'echo stopped > {tmp_path}/heard; exit 75' TERM; echo > {tmp_path}/ready; while :; do sleep 0.1; done"
    whole = of_katib(tmp_path, f"sh -c {json.dumps(node)}")
    if when != "later":
        started = f"until test -e {tmp_path}/ready; do sleep 0.01; done"
        assert whole.count("& node=$!; ") == 1
        whole = whole.replace("& node=$!; ", f"& {started}; kill -TERM $$; node=$!; ")
    process = subprocess.Popen(["sh", "-c", whole])
    try:
        wait_for((tmp_path / "ready").exists)
        if when == "later":
            os.kill(process.pid, signal.SIGTERM)
        assert process.wait(300) == 75
    finally:
        process.kill()
    assert (tmp_path / "heard").exists() and not list(tmp_path.glob("*.pid"))


NODE = """
import json, signal, sys, time
from pathlib import Path
def leave(*_):
    Path({heard!r}).write_text("asked")
    sys.exit(75)
signal.signal(signal.SIGTERM, leave)
out = Path({metrics!r}).open("a")
rows = [{{"step": 0, "eval_loss": 5.25}}, {{"step": 1, "loss": 5.0}}, {{"step": 2, "loss": 4.5, "eval_loss": None}}]
for at, row in enumerate(rows):
    print(json.dumps({{**row, "time": 1795347000.5 + at}}), file=out, flush=True)
time.sleep({seconds})
"""


def trial(directory: Path, seconds: float, copies: Path) -> str:
    """The real command of a trial, whose node command is another."""
    facts = {"heard": str(directory / "heard"), "metrics": str(directory / "metrics.jsonl"), "seconds": seconds}
    (directory / "node.py").write_text(NODE.format(**facts))
    start = [
        "import sys, rankzero.launch.node.trial as trial",
        f"trial.NODE, trial.LOOK_SECONDS = [sys.executable, {str(directory / 'node.py')!r}], 0.05",
        f"sys.exit(trial.main('x', {facts['metrics']!r}, {str(copies / 'metrics.jsonl')!r}))",
    ]
    (directory / "start.py").write_text("\n".join(start))
    return f"{sys.executable} {directory / 'start.py'}"


def test_a_trial_is_ended_early_as_katib_s_collector_does_it(tmp_path: Path) -> None:
    """It follows the copy, marks its wish by the shell's number, and ends the shell's only child."""
    copies = tmp_path / "copies"
    copies.mkdir()
    whole = of_katib(copies, trial(tmp_path, 600, copies), early=True)
    shell = subprocess.Popen(["sh", "-c", whole], stdout=subprocess.PIPE, text=True)
    copy = copies / "metrics.jsonl"
    try:
        wait_for(lambda: copy.exists() and copy.read_text().count("\n") == 2)
        (child,) = psutil.Process(shell.pid).children()
        (copies / f"{shell.pid}.pid").write_text("early-stopped")
        child.terminate()
        said, _ = shell.communicate(timeout=300)
    finally:
        shell.kill()
    assert (shell.returncode, said) == (0, "ended early\n")
    assert (tmp_path / "heard").read_text() == "asked", "it could save"
    assert (copies / f"{shell.pid}.pid").read_text() == "completed\n"


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def of_katib(directory: Path, command: str, *, early: bool = False) -> str:
    """The script around another command, at other places, with what Katib adds, as the shell of a pod gets it."""
    text = script("METRICS")
    own = f"python -P -m rankzero.launch.node.trial /etc/rankzero METRICS {METRICS}"
    assert own in text
    text = text.replace(own, command).replace(str(Path(METRICS).parent), str(directory)).replace("$$$$", "$$")
    return f"{text}{EARLY.format(directory) if early else ''} && echo completed > {directory}/$$.pid"


def test_a_pod_that_katib_does_not_read_ends_as_its_node_command_does(tmp_path: Path) -> None:
    """The volume of the copy is mounted in the first pod alone."""
    whole = of_katib(tmp_path, trial(tmp_path, 0, tmp_path / "not" / "mounted"))
    assert subprocess.run(["sh", "-c", whole], check=False).returncode == 0


@pytest.mark.parametrize(
    ("scores", "metric", "code", "read"),
    [
        ([4.0, None], "eval_loss", 0, []),
        ([4.0, None], "eval_loss", 75, [4.0]),
        ([4.0, None], "", 0, [4.0]),
        ([None, 4.0], "eval_loss", 0, [4.0]),
        ([4.0, None], "perplexity", 0, [4.0]),
    ],
)
def test_a_last_evaluation_that_is_no_number_leaves_a_trial_without_a_score(
    tmp_path: Path, scores: list[float | None], metric: str, code: int, read: list[float]
) -> None:
    """As here, where it is a failed one: an earlier evaluation is none of its result, and Katib would take it for that.
    One that is to go on has no result yet."""
    rows = [{"step": at, "time": 1.5, "eval_loss": score} for at, score in enumerate(scores, start=1)]
    (tmp_path / "rows").write_text("".join(f"{json.dumps(row)}\n" for row in [*rows, {"step": 9, "time": 2.5}]))
    (tmp_path / "copies").mkdir()
    copy, metrics = tmp_path / "copies/metrics.jsonl", tmp_path / "metrics.jsonl"
    node = ["sh", "-c", f"cp {tmp_path}/rows {metrics}; exit {code}"]
    start = "import sys, rankzero.launch.node.trial as trial; trial.NODE = sys.argv[1:4]; "
    command = [sys.executable, "-c", f"{start}sys.exit(trial.main(*sys.argv[4:]))", *node, "x", metrics, copy]
    done = subprocess.run([*command, metric] if metric else command, check=False)
    assert done.returncode == code
    found = [json.loads(line.partition(" ")[2]) for line in copy.read_text().splitlines()]
    assert [row["eval_loss"] for row in found if row.get("eval_loss") is not None] == read


@pytest.mark.parametrize(
    ("kind", "node", "code"),
    [
        ("job", "exit 0", 74),
        ("job", "exit 75", 75),
        ("pytorchjob", "exit 0", 74 + 128),
        ("pytorchjob", "exit 203", 203),
    ],
)
def test_metrics_that_cannot_be_read_at_the_end_leave_a_trial_without_a_score(
    tmp_path: Path, kind: str, node: str, code: int
) -> None:
    """What was copied before would be taken for its result. Started again, a run that is finished copies the rest: so
    the code is one that the kind starts a pod again after."""
    [config] = [one for one in rendered(tmp_path / "sweep", kind) if one["kind"] == "ConfigMap"]
    (tmp_path / "node.json").write_text(config["data"]["node.json"])
    (tmp_path / "copies").mkdir()
    metrics = tmp_path / "metrics.jsonl"
    metrics.mkdir()
    done = followed_by(tmp_path, "pass", node)
    assert done.returncode == code and b"metrics.jsonl" in done.stderr


def test_metrics_that_cannot_be_read_for_a_while_end_no_trial(tmp_path: Path) -> None:
    """It left its node command behind, and was a failed one."""
    (tmp_path / "copies").mkdir()
    row = json.dumps({"step": 1, "time": 1.5, "eval_loss": 4.0})
    away = f"""
def more(self, real=trial.Follower.more):
    if not trial.Path('{tmp_path}/looked').exists():
        trial.Path('{tmp_path}/looked').touch()
        raise OSError(116, 'Stale file handle', 'metrics.jsonl')
    real(self)
trial.Follower.more = more"""
    node = f"until [ -e {tmp_path}/looked ]; do :; done; echo '{row}' > {tmp_path}/metrics.jsonl"
    assert followed_by(tmp_path, away, node).returncode == 0
    assert (tmp_path / "copies/metrics.jsonl").read_text().endswith(f" {row}\n")


def followed_by(directory: Path, changes: str, node: str) -> subprocess.CompletedProcess[bytes]:
    """A trial whose node command is a line of a shell."""
    start = "import sys, rankzero.launch.node.trial as trial; trial.NODE = sys.argv[1:4]; trial.LOOK_SECONDS = 0.01"
    code = f"{start}\n{changes}\nsys.exit(trial.main(*sys.argv[4:]))"
    files = [directory, directory / "metrics.jsonl", directory / "copies/metrics.jsonl", "eval_loss"]
    return subprocess.run([sys.executable, "-c", code, "sh", "-c", node, *files], check=False, capture_output=True)


def test_rows_are_copied_once_behind_their_times(tmp_path: Path) -> None:
    """Not that of step 0: what a model scored before it was trained is no trial's score."""
    metrics, copy = tmp_path / "metrics.jsonl", tmp_path / "copies" / "metrics.jsonl"
    copy.parent.mkdir()
    follower = Follower(metrics, copy)
    assert copy.read_text() == "", "it is there at once"
    follower.more()

    def rows(*steps: int) -> str:
        return "".join(json.dumps({"step": step, "eval_loss": 4.0, "time": 1.5 + step}) + "\n" for step in steps)

    metrics.write_text(rows(0, 1, 2, 3) + '{"step": 4, "ev')
    follower.more()
    metrics.write_text(rows(0, 1, 2))  # it goes on from a checkpoint
    follower.more()
    metrics.unlink()
    follower.more()
    metrics.write_text(rows(0, 1, 2, 3, 4) + '{"step": 5}\nnot json\n' + rows(5, 5))
    follower.more()
    lines = copy.read_text().splitlines()
    assert [json.loads(line.partition(" ")[2])["step"] for line in lines] == [1, 2, 3, 4, 5, 5]
    assert lines[0].partition(" ")[0] == "1970-01-01T00:00:02.500000Z", "RFC 3339"


@pytest.mark.parametrize("room", [0, 40])
def test_rows_that_found_no_room_are_copied_when_there_is_some(tmp_path: Path, room: int) -> None:
    """All of them once, and none by half: a trial scored what the best of its rows says."""
    metrics, copy = tmp_path / "metrics.jsonl", tmp_path / "copies" / "metrics.jsonl"
    copy.parent.mkdir()
    follower = Follower(metrics, copy)
    rows = [json.dumps({"step": step, "time": 1.5 + step, "eval_loss": 4.0 / step}) for step in (1, 2, 3)]
    metrics.write_text(f"{rows[0]}\n")
    follower.more()
    before = copy.read_bytes()
    metrics.write_text(f"{rows[0]}\n{rows[1]}\n")
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, old[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            follower.more()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert copy.read_bytes() == before
    metrics.write_text("".join(f"{row}\n" for row in rows))
    follower.more()
    assert [line.partition(" ")[2] for line in copy.read_text().splitlines()] == rows


def test_no_secret_is_written_into_an_experiment(tmp_path: Path) -> None:
    patch = {"containers": [{"name": "node", "env": [{"name": "WANDB_API_KEY", "value": "canary"}]}]}
    with pytest.raises(ConfigError, match="holds a secret"):
        rendered(tmp_path, cluster={"pod_patch": patch})


@pytest.mark.parametrize("field", ["command", "args"])
def test_a_patched_command_is_none_of_a_trial(tmp_path: Path, field: str) -> None:
    """Katib's shell takes its place, so that what the site wraps training in would be lost."""
    patch = {"containers": [{"name": "side", "image": "s", field: ["x"]}, {"name": "node", field: ["numactl"]}]}
    with pytest.raises(ConfigError, match=f"pod_patch.containers.1..{field}.*Katib"):
        rendered(tmp_path, cluster={"pod_patch": patch})
    del patch["containers"][1][field]
    rendered(tmp_path, cluster={"pod_patch": patch})


@pytest.mark.parametrize(
    ("kind", "nodes", "most"), [("jobset", 1, 39), ("jobset", 10, 39), ("jobset", 11, 38), ("trainjob", 1, 39)]
)
def test_a_trial_s_pods_must_have_names_that_a_jobset_is_admitted_with(
    tmp_path: Path, kind: str, nodes: int, most: int
) -> None:
    """The webhook of JobSet refuses every trial of another, whoever makes the JobSet."""
    cluster = {"num_nodes": nodes}
    [experiment] = rendered(tmp_path, kind, cluster, name="n" * most)[-1:]
    pod = f"{experiment['metadata']['name']}-12345678-node-0-{nodes - 1}-abcde"
    assert len(pod) == 63
    with pytest.raises(ConfigError, match=f"(?s)64 characters, of 63 at most.*a name of at most {most} characters"):
        rendered(tmp_path, kind, cluster, name="n" * (most + 1))
    with pytest.raises(ConfigError, match=f"a name of at most {most} characters"):
        rendered(tmp_path, kind, cluster, name="n" * 60)
    assert rendered(tmp_path, "job", name="n" * 60)
    assert rendered(tmp_path, "pytorchjob", cluster, name="n" * 60)
