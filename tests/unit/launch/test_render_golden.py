"""Whole YAML texts for every kind and every shipped profile. `make golden` rewrites them; read the diff."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankzero.launch.plan import make_plan
from rankzero.launch.render import render
from rankzero.launch.render.content import to_yaml
from rankzero.spec.cluster_load import load_cluster, profiles
from rankzero.spec.load import load_run_spec
from rankzero.spec.resolve import resolve
from tests.support.manifests import CORE_VERSIONS, check_core, check_custom, have_crds, is_custom

GOLDEN = Path(__file__).parents[2] / "golden" / "render"
KINDS = ("job", "jobset", "trainjob", "pytorchjob", "statefulset", "docker")
RUN = ("name=alpaca-qwen3-8b", "model.name=Qwen/Qwen3-8B", "lora={}", "data.train=data/train.jsonl")
FILES = {"data/train.jsonl": b'{"prompt": "2+2", "completion": "4"}\n'}
PROFILES = [name for name in profiles() if name != "slurm"]
"""Of Slurm it is a script: launch/backends/slurm."""
COMBINATIONS = [(profile, kind) for profile in PROFILES for kind in KINDS]


def rendered(profile: str, kind: str) -> list[dict[str, object]]:
    run = resolve(load_run_spec(None, RUN, env={}).spec)
    cluster = load_cluster(profile, [f"kind={kind}"], env={}).spec
    return render(make_plan(run, cluster, files=FILES))


@pytest.mark.parametrize(("profile", "kind"), COMBINATIONS)
def test_the_text_is_the_golden_one(profile: str, kind: str) -> None:
    text = to_yaml(rendered(profile, kind))
    golden = GOLDEN / profile / f"{kind}.yaml"
    if os.environ.get("RANKZERO_UPDATE_GOLDEN") == "1":
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), "make golden rewrites it"


def test_no_golden_file_is_left_over() -> None:
    there = {(path.parent.name, path.stem) for path in GOLDEN.glob("*/*.yaml")}
    assert there == set(COMBINATIONS)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_goes_where_every_cluster_has_a_namespace(profile: str) -> None:
    """Nothing makes one: the first command of a recipe on a new cluster must not end at it."""
    assert load_cluster(profile, env={}).spec.namespace == "default"


@pytest.mark.parametrize("version", CORE_VERSIONS)
@pytest.mark.parametrize(("profile", "kind"), COMBINATIONS)
def test_core_objects_are_valid(profile: str, kind: str, version: str) -> None:
    core = [manifest for manifest in rendered(profile, kind) if not is_custom(manifest)]
    assert core
    for manifest in core:
        check_core(manifest, version)


@pytest.mark.skipif(not have_crds(), reason="no CRD schemas beside this checkout (RANKZERO_CRDS names a folder)")
@pytest.mark.parametrize("kind", ["jobset", "trainjob", "pytorchjob"])
@pytest.mark.parametrize("profile", PROFILES)
def test_custom_objects_are_valid(profile: str, kind: str) -> None:
    custom = [manifest for manifest in rendered(profile, kind) if is_custom(manifest)]
    assert custom
    for manifest in custom:
        check_custom(manifest)


@pytest.mark.skipif(not have_crds(), reason="no CRD schemas beside this checkout (RANKZERO_CRDS names a folder)")
def test_the_validation_refuses_what_is_wrong() -> None:
    (jobset,) = [manifest for manifest in rendered("docker", "jobset") if manifest["kind"] == "JobSet"]
    jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"  # type: ignore[index]
    with pytest.raises(AssertionError, match="imagee"):
        check_custom(jobset)
