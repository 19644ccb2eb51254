"""That a kind of cluster object is two things: its file in launch/kinds/ and its section in spec/kinds.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CREW = '''
"""A Crew: a kind of object that no cluster has."""

from rankzero.launch.kinds.kind import Flag, Kind, by_conditions, by_mark
from rankzero.launch.render.pod import pod_template
from rankzero.launch.render.shared import top_metadata
from rankzero.launch.resource import Resource
from rankzero.launch.untyped_json import at, whole

CREW = Resource("crews.example", "v3", "crews", "Crew")


def objects(plan):
    spec = {"hands": plan.cluster.num_nodes, "again": plan.cluster.max_restarts, "at": {"rest": False}}
    spec["hand"] = pod_template(plan, name="hand", master=f"{plan.name}-0")
    return [{"apiVersion": CREW.api_version, "kind": CREW.kind, "metadata": top_metadata(plan), "spec": spec}]


def pod_specs(crew):
    yield at(crew, "spec", "hand", "spec"), whole(crew, "spec", "hands")


KIND = Kind(
    resource=CREW,
    objects=objects,
    pod_specs=pod_specs,
    node_index=by_mark("crews.example/place"),
    end=by_conditions("Home"),
    switch=Flag(("spec", "at", "rest")),
    needs="the crew's captain",
    container="hand",
    retry_exit_offset=100,
    restarts_made=("status", "sunk"),
    restarts_allowed=("spec", "again"),
)
'''
USE = """
import copy, json, sys
from datetime import UTC, datetime

import rankzero.launch.kinds
from rankzero.spec.kinds import KINDS, KindSection

rankzero.launch.kinds.__path__.append(sys.argv[1])
KINDS["crew"] = KindSection(cannot=frozenset(("timeout_seconds",)))

from rankzero.errors import ConfigError
from rankzero.launch.backends.kubernetes.discover import Discovery
from rankzero.launch.backends.kubernetes.needs import needs_of
from rankzero.launch.backends.kubernetes.resources import (
    ended, is_suspended, is_training, resource_of, suspension
)
from rankzero.launch.diagnose import diagnose
from rankzero.launch.evidence import Evidence, Refusal
from rankzero.launch.plan import make_plan
from rankzero.launch.render import render
from rankzero.launch.status import run_status
from rankzero.spec.cluster_load import load_cluster_spec
from rankzero.spec.load import load_run_spec
from rankzero.spec.resolve import resolve


class Cluster:
    def get(self, path):
        if path == "/apis":
            return {"groups": [{"name": "crews.example", "versions": [{"version": "v3"}]}]}
        return {"resources": [{"name": "crews"}]}


def place(*more):
    outputs = "storage.outputs={mount: /outputs, claim: c}"
    return load_cluster_spec(None, ["image=i", "kind=crew", "num_nodes=2", outputs, *more], env={}).spec


def refused(*more):
    try:
        place(*more)
    except ConfigError as error:
        return [problem.where for problem in error.problems]


run = resolve(load_run_spec(None, ["name=r", "model.name=o/m", "data.train=/outputs/t.jsonl"], env={}).spec)
plan = make_plan(run, place())
objects = render(plan)
crew = objects[-1]
resting = copy.deepcopy(crew) | {"spec": {**crew["spec"], **suspension(crew, suspend=True)["spec"]}}
home = {**crew, "status": {"conditions": [{"type": "Home", "status": "True"}], "sunk": 7}}
failed = {**crew, "status": {"conditions": [{"type": "Failed", "status": "True", "reason": "Storm"}]}}
pods = [
    {"kind": "Pod", "metadata": {"name": name, "creationTimestamp": "2026-11-21T07:20:00Z",
      "labels": {**crew["spec"]["hand"]["metadata"]["labels"], "crews.example/place": place_}},
     "spec": {"nodeName": "n"},
     "status": {"phase": "Failed", "containerStatuses": [
        {"name": "hand", "state": {"terminated": {"exitCode": 175, "reason": "Error"}}}]}}
    for name, place_ in (("r-a", "1"), ("r-b", "0"))
]


def evidence(crew, pods=(), **more):
    return Evidence(run="r", now=datetime(2026, 11, 21, 8, tzinfo=UTC), objects=(crew,), pods=tuple(pods), **more)


def phase(*of):
    return run_status(evidence(*of)).phase


unserved = Refusal("create crews.crews.example", 404, "NotFound", "the server could not find the requested resource")
over = run_status(evidence(failed, pods))
print(json.dumps({
    "settings": [plan.kind, plan.settings.retry_exit_offset, plan.settings.park],
    "rendered": [crew["apiVersion"], crew["kind"], crew["metadata"]["labels"]["rankzero.dev/kind"]],
    "path": resource_of(crew).path("train"),
    "trains": [is_training(one) for one in objects],
    "pods": needs_of(objects).pods,
    "served": list(Discovery(Cluster()).training()),
    "unserved": [found.fix for found in diagnose(evidence(crew, refused=(unserved,)))][:1],
    "suspended": [is_suspended(crew), is_suspended(resting), suspension(crew, suspend=False)],
    "ended": [ended(crew), ended(home), ended(failed)],
    "phases": [phase(crew), phase(resting), phase(home), phase(failed)],
    "restarts": run_status(evidence(home)).restarts,
    "over": [over.kind, over.phase, over.exit_code, [(one.node, one.pod) for one in over.nodes]],
    "refused": [refused("timeout_seconds=60"), refused("min_nodes=1")],
}))
"""


def test_a_new_kind_is_planned_rendered_and_judged_from_its_file_and_one_registration(tmp_path: Path) -> None:
    (tmp_path / "crew.py").write_text(CREW, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", USE, str(tmp_path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["settings"] == ["crew", 100, False]
    assert said["rendered"] == ["crews.example/v3", "Crew", "crew"]
    assert said["path"] == "/apis/crews.example/v3/namespaces/train/crews"
    assert said["trains"] == [False, True]
    assert said["pods"] == 2
    assert said["served"] == ["crew"]
    assert "the crew's captain" in said["unserved"][0]
    assert said["suspended"] == [False, True, {"spec": {"at": {"rest": False}}}]
    assert said["ended"] == [None, "complete", "failed"]
    assert said["phases"] == ["Pending", "Stopped", "Succeeded", "Failed"]
    assert said["restarts"] == 7
    assert said["over"] == ["crew", "Failed", 75, [[0, "r-b"], [1, "r-a"]]]
    assert said["refused"] == [["command line timeout_seconds"], None]
