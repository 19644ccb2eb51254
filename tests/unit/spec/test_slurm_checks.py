"""What a cluster.yaml of kind slurm may not say, and what other kinds may not."""

from __future__ import annotations

import pytest

from rankzero.errors import ConfigError
from rankzero.spec.cluster_load import load_cluster_spec

OUTPUTS = "storage.outputs={mount: /shared/me, host_path: /shared/me}"


def problems(*settings: str) -> dict[str, str]:
    try:
        load_cluster_spec(None, settings, env={})
    except ConfigError as error:
        return {
            problem.where.removeprefix("command line "): f"{problem.what} {problem.hint}" for problem in error.problems
        }
    return {}


def test_the_smallest() -> None:
    assert problems("kind=slurm", OUTPUTS) == {}
    assert problems("kind=slurm", OUTPUTS, "slurm.time_limit_seconds=300") == {}
    assert problems("kind=slurm", OUTPUTS, "slurm.time_limit_seconds=150", "grace_period_seconds=30") == {}


@pytest.mark.parametrize(
    ("setting", "where", "text"),
    [
        ("queue={name: q}", "queue", "slurm.partition"),
        ("node_selector={a: b}", "node_selector", "slurm.constraint"),
        ("user=0", "user", "jobs run as who submits"),
        ("pod_patch={a: b}", "pod_patch", "slurm.setup"),
        ("slurm.prepare_partition=cpu", "slurm.prepare_partition", "nothing would keep"),
        ("resources.shm=1Gi", "resources.shm", "nothing for it"),
        ("min_nodes=1", "min_nodes", "always has all"),
        ("timeout_seconds=60", "timeout_seconds", "nothing ends a slurm"),
        ("storage.cache={mount: /c, claim: c}", "storage.cache", "no claims"),
        ("storage.cache={mount: /c}", "storage.cache", "host_path: /c"),
        ("storage.cache={mount: /c, host_path: /d}", "storage.cache.mount", "mount: /d"),
        ("storage.cache={mount: '/c,d', host_path: '/c,d'}", "storage.cache", "commas"),
        ("slurm.runtime=apptainer", "slurm.image", "needs an image"),
        ("slurm.image=x.sif", "slurm.image", "slurm.runtime"),
        ("slurm.options={nodes: '3'}", "slurm.options.nodes", "rankzero sets it"),
        ("slurm.options={clusters: big}", "slurm.options.clusters", "SLURM_CLUSTERS"),
        ("slurm.options={mem: 3G}", "slurm.options.mem", "resources.memory"),
        (
            *("slurm.time_limit_seconds=299", "slurm.time_limit_seconds"),
            "at least 300: 180 to save (grace_period_seconds), 60 that the signal may be early, 60 to start",
        ),
        ("slurm.partition=a b", "slurm.partition", "a name of letters"),
    ],
)
def test_what_slurm_has_no_place_for(setting: str, where: str, text: str) -> None:
    found = problems("kind=slurm", OUTPUTS, setting)
    assert list(found) == [where] and text in found[where], found


def test_there_must_be_a_place_for_the_results() -> None:
    assert "host_path" in problems("kind=slurm")["storage.outputs"]


def test_other_kinds_have_no_use_for_the_section_and_need_an_image() -> None:
    assert list(problems("image=i", "slurm.partition=gpu")) == ["slurm"]
    assert "not set" in problems("kind=job")["image"]
