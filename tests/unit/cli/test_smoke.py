"""`rankzero smoke --cluster` as a user types it: the objects of a run, told to test their place instead."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from rankzero.api.planning import planned
from rankzero.api.smoke import smoke_plan
from rankzero.api.specs import read
from rankzero.launch.node.settings import NodeSettings
from rankzero.launch.render import render
from rankzero.spec.kinds import KINDS
from rankzero.spec.run_options import RunOptions, SmokeSettings
from tests.support.fake_cluster import life
from tests.unit.cli.conftest import Place

CACHE = "storage.cache={mount: /cache, claim: cache, size: 1Gi, url: 's3://bucket/models'}"


def test_the_same_objects_as_a_run(place: Place) -> None:
    smoke = list(yaml.safe_load_all(place(f"smoke --cluster cluster.yaml --dry-run --seed 7 'cluster.{CACHE}'").out))
    run = list(yaml.safe_load_all(place(f"render run.yaml --cluster cluster.yaml 'cluster.{CACHE}'").out))
    assert [one["kind"] for one in smoke] == [one["kind"] for one in run]
    pods = [one["spec"]["template"]["spec"] for found in (smoke, run) for one in found if one["kind"] == "Job"]
    without_names = [json.dumps(pod).replace("rankzero-smoke", "r") for pod in pods]
    assert without_names[0] == without_names[1]
    (config,) = [one for one in smoke if one["kind"] == "ConfigMap"]
    settings = NodeSettings.from_json(config["data"]["node.json"])
    assert settings.options == RunOptions(smoke=SmokeSettings(seed=7))
    assert (settings.mirrors, settings.max_restarts, settings.prepared_marker) == ((), 0, None)
    assert yaml.safe_load(config["data"]["run.yaml"])["output_dir"] == "/outputs/runs"


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"slurm"}))
def test_every_kind(kind: str, place: Place) -> None:
    """Pods of a smoke test are those of a run, whatever object they are part of. It has no directory of results."""
    settings = ["prepare=never", "max_restarts=0"]
    smoke = render(smoke_plan(SmokeSettings(), "cluster.yaml", settings, kind))
    run = render(planned(read("run.yaml", for_pods=True), "cluster.yaml", settings, kind))
    texts = []
    for objects in (smoke, run):
        for one in objects:
            for name in ("run.yaml", "node.json"):
                one.get("data", {}).pop(name, None)
        text = re.sub(r'"rankzero.dev/run-dir": "[^"]*", ', "", json.dumps(objects))
        texts.append(re.sub(r"[0-9a-f]{16,}", "HASH", text))
    assert texts[0].replace("rankzero-smoke", "r") == texts[1]


def test_as_a_job_of_slurm(place: Place) -> None:
    storage = "{outputs: {mount: /outputs, host_path: /outputs}}"
    Path("cluster.yaml").write_text(f"image: i.sif\nnum_nodes: 2\ngpu: false\nkind: slurm\nstorage: {storage}\n")
    done = place("smoke --cluster cluster.yaml --dry-run")
    assert done.code == 0, done.err
    assert "#SBATCH --nodes=2" in done.out and "rankzero.launch.node" in done.out


def test_nothing_is_prepared(place: Place) -> None:
    text = Path("cluster.yaml").read_text().replace("prepare: never", "prepare: always")
    Path("cluster.yaml").write_text(text)
    printed = place("smoke --cluster cluster.yaml --dry-run").out
    assert [one["kind"] for one in yaml.safe_load_all(printed)].count("Job") == 1


def test_to_the_end_and_away(place: Place) -> None:
    place.cluster.script("node", 0, life("12:00:00 [RESULT] all-reduce of 16 MiB: 1 ms, 2 GB/s"))
    done = place("smoke --cluster cluster.yaml")
    assert done.code == 0, done.err
    assert "[RESULT] all-reduce of 16 MiB" in done.err and done.out.startswith("Succeeded")
    assert "finished" in done.out and "results" not in done.out, "it leaves none"
    assert place.cluster.names("jobs", "configmaps", "services") == []
    assert place.cluster.names("persistentvolumeclaims") == ["persistentvolumeclaims/outputs"]


def test_a_failure_stays_to_be_looked_at_and_has_its_code(place: Place) -> None:
    words = {"what": "weights are not those of rank 0 after training", "where": "rank 1", "hint": "the link"}
    place.cluster.script("node", 0, life("bad", code=69, words=words))
    done = place("smoke --cluster cluster.yaml --json")
    assert done.code == 69, done.err
    assert "weights are not those of rank 0" in json.loads(done.out)["verdict"]
    assert place.cluster.names("jobs") == ["jobs/rankzero-smoke"]
    assert "rankzero delete rankzero-smoke --cluster cluster.yaml" in done.err


DELETE = "rankzero delete rankzero-smoke --cluster cluster.yaml"


def test_what_goes_on_after_an_error_is_named(place: Place) -> None:
    place.cluster.forbidden |= {("list", "pods"), ("watch", "pods"), ("get", "pods")}
    done = place("smoke --cluster cluster.yaml")
    assert done.code == 77 and "not permitted to list pods" in done.err
    assert f"rankzero-smoke goes on, and keeps its GPUs until it has ended; {DELETE} removes it" in done.err
    assert place.cluster.names("jobs") == ["jobs/rankzero-smoke"]


def test_what_was_never_applied_does_not_go_on(place: Place) -> None:
    place.cluster.forbidden |= {("patch", "jobs")}
    done = place("smoke --cluster cluster.yaml --json")
    assert done.code == 77 and "goes on" not in done.err
    outcome = json.loads(done.out)
    assert outcome["ok"] is False and outcome["exit_code"] == 77
    assert "not permitted to" in outcome["problems"][0]["what"] and outcome["problems"][0]["hint"]


def test_what_cannot_be_removed_after_a_success_is_a_warning(place: Place) -> None:
    place.cluster.forbidden |= {("delete", "jobs")}
    done = place("smoke --cluster cluster.yaml")
    assert done.code == 0, done.err
    assert "warning: Job/rankzero-smoke: me is not permitted to delete jobs" in done.err
    assert f"{DELETE} removes the rest" in done.err


def test_options_without_smoke_are_what_earlier_images_read() -> None:
    assert "smoke" not in json.loads(NodeSettings(run="r").to_json())["options"]
    assert RunOptions.from_json(RunOptions().to_json()) == RunOptions()
