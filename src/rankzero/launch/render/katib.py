"""A sweep as a Katib Experiment: our own object is its trial template, and metrics.jsonl is what Katib reads. Pure.

Katib starts a trial's command through a shell, so that it can mark the end in a file beside the metrics, and mounts an
empty volume over the directory of the metrics file. So that file is not in the run directory: it is copied from there
row by row (node/trial.py), and the shell passes SIGTERM on, so that a trial which is evicted or ended early saves, as
any run does. What a trial scored is what its result did, its best evaluation or its last, hence the strategies.
"""

from __future__ import annotations

import copy
import json
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankzero.errors import ConfigError, Problem
from rankzero.launch.kinds import kind_named
from rankzero.launch.labels import Manifest
from rankzero.launch.node.settings import CONFIG_DIR, SETTING_PREFIX
from rankzero.launch.plan import Plan
from rankzero.launch.render.shared import claims, config_map, metadata, network_policy, require_no_secret
from rankzero.launch.resource import Resource
from rankzero.spec.search_space import Choices, Numbers, Space
from rankzero.spec.yaml_tree import plain_value

EXPERIMENT = Resource("kubeflow.org", "v1beta1", "experiments", "Experiment")
COLLECTION_LABEL = "katib.kubeflow.org/metrics-collector-injection"
"""Label of the namespace, `enabled`: without it Katib puts no collector into the pods."""
METRICS = "/var/log/katib/metrics.jsonl"
_TRIAL_COMMAND = ["python", "-P", "-m", "rankzero.launch.node.trial", CONFIG_DIR]
_TRIAL = "trial"
_NAME = "${trialParameters.trial}"
_TRIAL_VARIABLE = "RANKZERO_TRIAL"
_NUMBER = r"([+-]?\d+(\.\d+)?([Ee][+-]?\d+)?)"
"""With a digit at least: the collector ends at what is no number, and an evaluation may be null."""
MEDIAN_TRIALS, MEDIAN_EVALUATIONS = 5, 4
"""From how many finished trials on others end early, as on this machine, and by which of their evaluations at the
latest: Katib looks at one alone."""
_PLAIN = re.compile(r"[A-Za-z][\w./-]*")
"""Text that needs no quotes in YAML."""
_CONDITIONS = {"job": "Complete", "jobset": "Completed", "trainjob": "Complete", "pytorchjob": "Succeeded"}
_LONGEST_LABEL = 63
_POD_OF_JOBSET = "-xxxxxxxx-node-0-{}-xxxxx"
"""What follows a sweep's name in that of a trial's pod, which JobSet's webhook looks at: Katib's letters for the trial,
the node, and letters for the pod."""
_FIRST_POD = {
    "job": {"batch.kubernetes.io/job-completion-index": "0"},
    "jobset": {"batch.kubernetes.io/job-completion-index": "0"},
    "trainjob": {"batch.kubernetes.io/job-completion-index": "0"},
    "pytorchjob": {"training.kubeflow.org/replica-type": "master"},
}
"""Labels of the pod that writes metrics.jsonl."""


@dataclass(frozen=True, slots=True)
class Search:
    """What Katib is to search, without its trials."""

    space: Space
    metric: str
    higher_is_better: bool
    final: str
    """Which of its evaluations is that of a trial's result: the best or the last."""
    algorithm: str
    seed: int
    trials: int
    parallel: int
    pruner: str = "none"
    evaluations: int | None = None
    """Of each trial; None: only its data can tell."""

    @property
    def median_at(self) -> int:
        """By which of its evaluations a trial is judged: not the last, which would save nothing."""
        return MEDIAN_EVALUATIONS if self.evaluations is None else min(MEDIAN_EVALUATIONS, self.evaluations - 1)


def experiment_objects(plan: Plan, search: Search) -> list[Manifest]:
    """What the trials share, and the Experiment. `plan` is of the run that is varied, named as the sweep is.

    Raises ConfigError where this kind of object cannot be a trial.
    """
    problems = [*_problems(plan), *_pruner_problems(plan, search), *_scale_problems(search), *_value_problems(search)]
    if problems:
        raise ConfigError(problems)
    require_no_secret(plan)
    *others, training = kind_named(plan.kind).objects(plan)
    shared = [manifest for manifest in others if manifest["kind"] != "Service"]
    first = [config_map(plan), *claims(plan), *network_policy(plan)]
    return [*first, *(_as_template(one, plan, search) for one in shared), _experiment(plan, search, training)]


def _problems(plan: Plan) -> list[Problem]:
    found = []
    if plan.kind not in _CONDITIONS:
        hint = f"one of {', '.join(_CONDITIONS)}"
        found.append(Problem(f"a {plan.kind} is no trial of Katib's", plan.where("cluster.kind"), hint))
    elif plan.kind in ("job", "trainjob") and plan.cluster.num_nodes > 1:
        hint = "kind: jobset or pytorchjob, whose pods find each other by the trial's own name"
        found.append(
            Problem(f"a {plan.kind} of several nodes is no trial of Katib's", plan.where("cluster.kind"), hint)
        )
    if plan.cluster.min_nodes is not None:
        hint = "leave min_nodes out: Katib reads one pod's metrics, and it must be always the same"
        found.append(Problem("an elastic run is no trial of Katib's", plan.where("cluster.min_nodes"), hint))
    if plan.prepare:
        hint = (
            "give cluster.prepare=never on the command line; each trial then fetches and tokenises what the cache"
            " lacks, which submitting the run itself once has filled"
        )
        found.append(Problem("Katib starts trials without a preparation", plan.where("cluster.prepare"), hint))
    return found + _name_problems(plan) + _command_problems(plan)


def _name_problems(plan: Plan) -> list[Problem]:
    pod = plan.name + _POD_OF_JOBSET.format(plan.cluster.num_nodes - 1)
    over = len(pod) - _LONGEST_LABEL
    if plan.kind not in ("jobset", "trainjob") or over <= 0:
        return []
    what = f"a trial's pod would have a name of {len(pod)} characters, of {_LONGEST_LABEL} at most: {pod}"
    most = len(plan.name) - over
    hint = f"give the sweep a name of at most {most} characters, of a-z, 0-9 and -; or use kind: pytorchjob"
    return [Problem(what, "name", hint)]


def _command_problems(plan: Plan) -> list[Problem]:
    hint = "leave it out; or let the trials run by `rankzero sweep --cluster`"
    return [
        Problem("Katib's shell starts a trial, in place of a command of the site's", plan.where(field), hint)
        for at, one in enumerate(plan.cluster.pod_patch.get("containers") or ())
        if isinstance(one, Mapping) and one.get("name") == kind_named(plan.kind).container
        for key in ("command", "args")
        if key in one
        for field in [f"cluster.pod_patch.containers[{at}].{key}"]
    ]


def _pruner_problems(plan: Plan, search: Search) -> list[Problem]:
    if search.pruner == "none":
        return []
    if search.pruner != "median":
        hint = "pruner: median, or none; or let trials run without Katib on one machine"
        return [Problem(f"Katib has no {search.pruner} to end trials early", "pruner", hint)]
    if plan.cluster.num_nodes > 1:
        what = f"Katib ends a trial early in one pod, and a trial of {plan.cluster.num_nodes} nodes would start again"
        return [Problem(what, "pruner", "pruner: none, or num_nodes: 1 in cluster.yaml")]
    if search.median_at < 1:
        hint = "pruner: none, or in run.yaml a smaller eval.every, such as a number of steps"
        return [Problem("a trial is evaluated at its end alone, when there is nothing left to end", "pruner", hint)]
    return []


_MOST_POINTS = 1_000
"""Of one parameter in steps: some 15 kB."""


def _scale_problems(search: Search) -> list[Problem]:
    """Katib hands cmaes to goptuna, without the distribution; and has the points of steps one by one otherwise, in an
    object that kubectl and the API take up to some size."""
    if search.algorithm != "cmaes":
        return [
            Problem(
                f"{steps + 1:,} numbers are more than an Experiment lists, {_MOST_POINTS:,} at most",
                f"parameters.{name}",
                "a larger step, or leave it out",
            )
            for name, dimension in search.space.items()
            if isinstance(dimension, Numbers) and _is_listed(dimension)
            for steps in [dimension.steps or 0]
            if steps >= _MOST_POINTS
        ]
    hint = "sampler: tpe; or let the trials run without Katib, on one machine or by `rankzero sweep --cluster`"
    return [
        Problem("Katib's cmaes has no logarithmic scale", f"parameters.{name}", hint)
        for name, dimension in search.space.items()
        if isinstance(dimension, Numbers) and dimension.log
    ]


_LOST = {'"': '"', "\\": "\\", "\n": "a line break", "\r": "a line break", "\t": "a tab", "$(": "$(", "$$": "$$"}
"""What does not arrive: Katib puts values into the template's JSON without escaping them, and in a variable's value
Kubernetes takes $(NAME) for another variable and $$ for $."""


def _value_problems(search: Search) -> list[Problem]:
    hint = "leave it out; or let the trials run without Katib: `rankzero sweep --cluster`"
    return [
        Problem(f"Katib cannot hand {value!r} to a trial: there is {mark} in it", f"parameters.{name}", hint)
        for name, dimension in search.space.items()
        if isinstance(dimension, Choices)
        for value in dimension.values
        for mark in list(dict.fromkeys(words for lost, words in _LOST.items() if lost in as_yaml(value)))[:1]
    ]


def _early_stopping(search: Search) -> dict[str, Any]:
    if search.pruner == "none":
        return {}
    values = {"min_trials_required": MEDIAN_TRIALS, "start_step": search.median_at}
    settings = [{"name": name, "value": str(value)} for name, value in values.items()]
    return {"earlyStopping": {"algorithmName": "medianstop", "algorithmSettings": settings}}


def _experiment(plan: Plan, search: Search, training: Manifest) -> Manifest:
    template = _as_template(training, plan, search)
    if plan.kind == "trainjob":  # its pods are described by the runtime, which is no part of the template
        template["spec"].setdefault("trainer", {})["env"] = _settings(search)
    template["metadata"] = {key: template["metadata"][key] for key in ("labels", "annotations")}
    complete = _CONDITIONS[plan.kind]
    condition = 'status.conditions.#(type=="{}")#|#(status=="True")#'
    spec: dict[str, Any] = {
        "objective": {
            "type": "maximize" if search.higher_is_better else "minimize",
            "objectiveMetricName": search.metric,
            "metricStrategies": [{"name": search.metric, "value": _strategy(search)}],
        },
        "algorithm": _algorithm(search),
        **_early_stopping(search),
        "maxTrialCount": search.trials,
        "parallelTrialCount": min(search.parallel, search.trials),
        "maxFailedTrialCount": search.trials,
        "resumePolicy": "LongRunning",
        "parameters": [_parameter(name, one, search.algorithm) for name, one in search.space.items()],
        "metricsCollectorSpec": {
            "collector": {"kind": "File"},
            "source": {
                "fileSystemPath": {"path": METRICS, "kind": "File", "format": "TEXT"},
                "filter": {"metricsFormat": [f'"({search.metric})": {_NUMBER}']},
            },
        },
        "trialTemplate": {
            "retain": True,
            "primaryContainerName": kind_named(plan.kind).container,
            "primaryPodLabels": _FIRST_POD[plan.kind],
            "successCondition": condition.format(complete),
            "failureCondition": condition.format("Failed"),
            "trialParameters": [
                {"name": _TRIAL, "description": "The trial's name", "reference": "${trialSpec.Name}"},
                *({"name": _key(name), "description": name, "reference": name} for name in search.space),
            ],
            "trialSpec": template,
        },
    }
    return {
        "apiVersion": EXPERIMENT.api_version,
        "kind": EXPERIMENT.kind,
        "metadata": metadata(plan),
        "spec": spec,
    }


def _strategy(search: Search) -> str:
    if search.final == "last":
        return "latest"
    return "max" if search.higher_is_better else "min"


def _algorithm(search: Search) -> dict[str, Any]:
    if search.algorithm == "grid":
        return {"algorithmName": "grid"}
    settings = [{"name": "random_state", "value": str(search.seed)}]
    return {"algorithmName": search.algorithm, "algorithmSettings": settings}


def _is_listed(dimension: Numbers) -> bool:
    """Whether it has steps that Katib does not make by itself."""
    return dimension.step is not None and not (dimension.whole and dimension.step == 1)


def _parameter(name: str, dimension: Choices | Numbers, algorithm: str) -> dict[str, Any]:
    """All values are text, and stand in run.yaml as they are.

    Numbers in steps are their points, one by one: Katib's grid loses the last of some ranges by rounding, and hyperopt
    draws multiples of the step, wherever a range begins. Under cmaes Katib takes ranges alone.
    """
    if isinstance(dimension, Choices):
        space: dict[str, Any] = {"list": [as_yaml(value) for value in dimension.values]}
        return {"name": name, "parameterType": "categorical", "feasibleSpace": space}
    stepped = _is_listed(dimension)
    if stepped and algorithm != "cmaes":
        points = {"list": [as_yaml(point) for point in dimension.points or ()]}
        return {"name": name, "parameterType": "discrete", "feasibleSpace": points}
    space = {"min": as_yaml(dimension.low), "max": as_yaml(dimension.high)}
    if stepped:
        space["step"] = as_yaml(dimension.step)
    if dimension.log:
        space["distribution"] = "logUniform"
    return {"name": name, "parameterType": "int" if dimension.whole else "double", "feasibleSpace": space}


def as_yaml(value: object) -> str:
    """A value on one line of YAML, its texts in single quotes where they need any: Katib puts it between the double
    quotes of JSON, as it is."""
    if isinstance(value, str):
        is_plain = plain_value(value) == value and _PLAIN.fullmatch(value)
        return value if is_plain else "'{}'".format(value.replace("'", "''"))
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{as_yaml(str(key))}: {as_yaml(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_yaml, value))}]"
    return json.dumps(value)


def _key(name: str) -> str:
    """Of a trial parameter: what stands in the template."""
    return name.replace(".", "_")


def _settings(search: Search) -> list[dict[str, str]]:
    """The trial's name, and what the node command sets in run.yaml (launch/node/inputs.py)."""
    pairs = [("name", _NAME), *((name, f"${{trialParameters.{_key(name)}}}") for name in search.space)]
    set_there = [
        {"name": f"{SETTING_PREFIX}{at}", "value": f"{name}={value}"} for at, (name, value) in enumerate(pairs)
    ]
    return [{"name": _TRIAL_VARIABLE, "value": _NAME}, *set_there]


def _as_template(manifest: Manifest, plan: Plan, search: Search) -> Manifest:
    """The object as any trial has it: its containers take the trial's values, and hand over its metrics."""
    found = copy.deepcopy(manifest)
    own = kind_named(plan.kind)
    runs = posixpath.join(shlex.quote(plan.run.output_dir), f"${_TRIAL_VARIABLE}")
    last = search.metric if search.final == "last" else ""
    for container in _containers(found, own.container):
        if plan.kind != "trainjob":
            container["env"] = [*(_of_trial(one, plan) for one in container["env"]), *_settings(search)]
        container["command"] = ["sh", "-c", script(posixpath.join(runs, "metrics.jsonl"), last)]
    return found


def _of_trial(variable: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """Where node 0 is: the pods of a trial are called as the trial is."""
    if variable["name"] != "RANKZERO_MASTER":
        return variable
    return {**variable, "value": variable["value"].replace(plan.name, _NAME)}


def script(metrics: str, last: str = "") -> str:
    """The node command with its exit code and its signals, and its metrics where Katib looks. Katib adds
    ` && echo completed > …` to it, and that must depend on all of it; where trials may end early also, before that,
    what makes 1 of every exit code, unless a file says that this one was ended. So any other end leaves the shell.
    `last`: the metric whose last evaluation is the trial's score."""
    mark = posixpath.join(posixpath.dirname(METRICS), "$$$$.pid")  # in a pod's command $$ stands for one $
    trial = " ".join([shlex.join(_TRIAL_COMMAND), metrics, METRICS, *([last] if last else [])])
    return (
        "trap 'asked=1; kill -TERM $node' TERM INT; "  # before the node command: its first instants count too
        f"{trial} & node=$!; test -z $asked || kill -TERM $node; "
        "while wait $node; code=$?; kill -0 $node 2>/dev/null; do :; done; "
        f"test $code = 0 || test -e {mark} || exit $code; (exit $code)"
    )


def _containers(value: Any, name: str) -> Sequence[dict[str, Any]]:
    """Every container of this name, however deep."""
    if isinstance(value, list):
        return [one for item in value for one in _containers(item, name)]
    if not isinstance(value, Mapping):
        return []
    found = [one for key, inner in value.items() if key != "containers" for one in _containers(inner, name)]
    return found + [one for one in value.get("containers", ()) if one.get("name") == name]
