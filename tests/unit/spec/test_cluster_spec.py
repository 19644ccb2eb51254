"""cluster.yaml through the same loader."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankzero.errors import ConfigError
from rankzero.spec.cluster_spec import load_cluster_spec

EXAMPLE = """\
namespace: train
image: registry.example/rankzero:1.0
kind: auto
num_nodes: 2
nproc_per_node: 8
resources: {cpu: 32, memory: 512Gi, shm: 32Gi, rdma: null}
storage:
  cache:   {mount: /cache,   claim: rz-cache,   size: 500Gi, class: rook-ceph-block, access: ReadWriteOnce}
  outputs: {mount: /outputs, claim: rz-outputs, size: 500Gi, class: rook-cephfs,     access: ReadWriteMany}
secrets: {hf_token: {name: hf-token, key: token}}
grace_period_seconds: 180
max_restarts: 3
"""


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("cluster.yaml").write_text(EXAMPLE, encoding="utf-8")
    return Path("cluster.yaml")


def test_the_example_of_the_design(example: Path) -> None:
    spec = load_cluster_spec(example, env={}).spec
    assert (spec.num_nodes, spec.nproc_per_node, spec.resources.cpu) == (2, 8, 32)
    assert spec.storage.cache is not None
    assert spec.storage.cache.storage_class == "rook-ceph-block"
    assert spec.secrets.hf_token is not None
    assert spec.secrets.hf_token.name == "hf-token"


def test_the_smallest() -> None:
    assert load_cluster_spec(None, ["image=i"], env={}).spec.num_nodes == 1


@pytest.mark.parametrize(
    ("override", "where", "text"),
    [
        ("storage.cache.clas=x", "command line storage.cache.clas", "did you mean storage.cache.class?"),
        ("storage.cache.class=", "", ""),
        ("storage.cache.mount=cache", "command line storage.cache.mount", "must be an absolute path"),
        ("nnodes=3", "command line nnodes", "this is num_nodes here"),
        ("terminationGracePeriodSeconds=3", "command line terminationGracePeriodSeconds", "grace_period_seconds"),
        ("image=", "command line image", "must be text"),
        ("kind=jobs", "command line kind", "did you mean job?"),
        ("storage.outputs={mount: /o}", "cluster.yaml:7 storage.outputs.claim", "required"),
    ],
)
def test_problems(example: Path, override: str, where: str, text: str) -> None:
    if not where:
        load_cluster_spec(example, [override], env={})
        return
    with pytest.raises(ConfigError) as caught:
        load_cluster_spec(example, [override], env={})
    (problem,) = caught.value.problems
    assert text in str(problem)
    assert problem.where == where or override.startswith("storage.outputs")
