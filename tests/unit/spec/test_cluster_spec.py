"""cluster.yaml through the same loader."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankzero.errors import ConfigError
from rankzero.spec.cluster_load import load_cluster, load_cluster_spec, profiles

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
    assert spec.storage["cache"].storage_class == "rook-ceph-block"
    assert spec.secrets["hf_token"].name == "hf-token"


def test_the_smallest() -> None:
    assert load_cluster_spec(None, ["image=i"], env={}).spec.num_nodes == 1


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *(("0400", 0o400), ("00", 0), ("-017", -0o17)),
        *(("0", 0), ("640", 640), ("0899", 899), ("0.5", 0.5), ('"0400"', "0400"), ("0o400", "0o400")),
        *(("0x1F", "0x1F"), ("1_000", "1_000")),
    ],
)
def test_a_number_of_a_patch_that_begins_with_0_is_octal(written: str, meant: object, tmp_path: Path) -> None:
    """As kubectl reads it; a mode of 400 would let others in. What else YAML 1.1 takes for a number is text."""
    volumes = f"[{{name: keys, secret: {{secretName: k, defaultMode: {written}}}}}]"
    file = tmp_path / "cluster.yaml"
    file.write_text(f"image: i\nuser: 0100\npod_patch: {{volumes: {volumes}}}\n", encoding="utf-8")
    spec = load_cluster_spec(file, env={}).spec
    assert spec.pod_patch["volumes"][0]["secret"]["defaultMode"] == meant
    assert spec.user == 100, "our own fields are YAML 1.2"


@pytest.mark.parametrize(
    ("override", "where", "text"),
    [
        ("storage.cache.clas=x", "command line storage.cache.clas", "did you mean storage.cache.class?"),
        ("storage.cache.class=", "", ""),
        ("storage.cache.mount=cache", "command line storage.cache.mount", "must be an absolute path"),
        ("nnodes=3", "command line nnodes", "this is num_nodes here"),
        ("terminationGracePeriodSeconds=3", "command line terminationGracePeriodSeconds", "grace_period_seconds"),
        ("image=", "command line image", "required, but not set"),
        ("kind=jobs", "command line kind", "did you mean job?"),
        ("pod_patch={a: [.inf]}", "command line pod_patch.a[0]", "must be a finite number, but is inf"),
        ("storage.outputs={mount: /o}", "command line storage.outputs", "checkpoints would end with the pod"),
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
    assert problem.where == where


@pytest.mark.parametrize(
    ("overrides", "where", "text"),
    [
        (["min_nodes=3", "kind=pytorchjob"], "min_nodes", "more than num_nodes"),
        (["min_nodes=1"], "min_nodes", "always has all its pods"),
        (["storage.cache.host_path=/x"], "storage.cache.host_path", "not both"),
        (["storage.cache.mount=/outputs/"], "storage", "mounted there too"),
        (["storage.cache.mount=/etc/rankzero"], "storage.cache.mount", "not free"),
        (["storage.cache.size="], "storage.cache.size", "needs a size"),
        (["storage.outputs.read_only=true"], "storage.outputs.read_only", "written here"),
        (
            ["storage.cache={mount: /c, url: 's3://b', read_only: true}"],
            "storage.cache.read_only",
            "filled from its url",
        ),
        (
            ["storage.cache={mount: /c, claim: c, url: 's3://b/c', access: ReadOnlyMany}"],
            "storage.cache.access",
            "filled from its url",
        ),
        (["env.WANDB_API_KEY=canary"], "env.WANDB_API_KEY", "looks like a secret"),
        (["env.WORLD_SIZE=4"], "env.WORLD_SIZE", "rankzero or the platform sets it"),
        (["resources.shm=1Ti"], "resources.shm", "larger than all memory"),
        (["resources.limits={memory: 256Gi}"], "resources.limits.memory", "below what is asked for"),
        (["resources.limits={cpu: 1}"], "resources.limits.cpu", "below what is asked for"),
        (["ttl_seconds_after_finished=1", "kind=trainjob"], "ttl_seconds_after_finished", "no such time"),
        (["ttl_seconds_after_finished=1", "kind=docker"], "ttl_seconds_after_finished", "kind docker has no such time"),
        (["tolerations=[{value: x}]"], "tolerations.0", "needs a key"),
        (["resources.memory=12 GB"], "resources.memory", "a quantity such as"),
        (["gpu_resource=gpu"], "gpu_resource", "device resource"),
        (["secrets.HF_TOKEN=canary"], "secrets.HF_TOKEN", "not shown"),
        (["secrets={HF_TOKEN: {name: a}, hf_token: {name: b}}"], "secrets.hf_token", "HF_TOKEN is the same variable"),
        (["storage.outputs.url=bucket"], "storage.outputs.url", "a URL"),
    ],
)
def test_contradictions(example: Path, overrides: list[str], where: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_cluster_spec(example, overrides, env={})
    (problem,) = caught.value.problems
    assert where in problem.where
    assert text in str(problem)
    assert "canary" not in str(caught.value)


def test_every_profile_loads_and_a_wrong_name_lists_them() -> None:
    for name in profiles():
        assert load_cluster(name, env={}).spec.image == (None if name == "slurm" else "rankzero:latest")
    with pytest.raises(ConfigError, match="did you mean nebius-2x1") as caught:
        load_cluster("nebius", env={})
    assert all(name in str(caught.value) for name in profiles())


@pytest.mark.parametrize("kind", ["statefulset", "docker", "jobset", "trainjob"])
def test_a_time_limit_that_nothing_keeps_is_refused(kind: str) -> None:
    """Those of a JobSet's Jobs begin anew with each restart, which makes new ones."""
    with pytest.raises(ConfigError, match=f"nothing ends a {kind} after a time"):
        load_cluster_spec(None, ["image=i", f"kind={kind}", "timeout_seconds=60"], env={})
    for able in ("job", "pytorchjob"):
        load_cluster_spec(None, ["image=i", f"kind={able}", "timeout_seconds=60"], env={})


@pytest.mark.parametrize(
    "setting",
    [
        "labels={'a b': x}",
        "labels={team: 'x y'}",
        f"labels={{team: {'x' * 64}}}",
        "node_selector={'/x': y}",
        "annotations={'a b': x}",
        "image=Registry/UPPER:1",
        "image='rankzero :1'",
        "resources={cpu: 0.0004}",
        "storage={outputs: {mount: /o, claim: c, sub_path: ../x}}",
        "storage={outputs: {mount: /o, claim: c, sub_path: /x}}",
        "storage={outputs: {mount: '/o:p', claim: c}}",
        "storage={outputs: {mount: /a/../o, claim: c}}",
        "storage={outputs: {mount: /etc/rankzero/files, claim: c}}",
        "storage={outputs: {mount: /dev/shm/x, claim: c}}",
    ],
)
def test_what_the_api_would_refuse_is_refused_here(setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_cluster_spec(None, ["image=i", setting], env={})
    assert all(problem.where and problem.hint or problem.what for problem in caught.value.problems)


@pytest.mark.parametrize("image", ["i", "a/b:1", "localhost:5000/x_y/z.w@sha256:" + "0" * 64, "ghcr.io/a-b/c:v1.2_3"])
def test_images(image: str) -> None:
    load_cluster_spec(None, [f"image={image}", "labels={example.com/team: a_b.c, e: ''}"], env={})


@pytest.mark.parametrize("name", profiles())
def test_a_profile_prepares_before_it_asks_for_gpus_and_guesses_no_interface(name: str) -> None:
    spec = load_cluster(name, env={}).spec
    assert spec.storage["cache"].claim or spec.storage["cache"].host_path
    assert not [variable for variable in spec.env if variable.endswith("_SOCKET_IFNAME")], "sites differ in its name"
