"""What pods see of a run spec, and what cannot be."""

from __future__ import annotations

import inspect
import posixpath
import re
from pathlib import Path
from typing import Any

import pytest

from rankzero.errors import ConfigError, DataError
from rankzero.launch.node.settings import NodeSettings
from rankzero.launch.plan import MOST_SHIPPED_BYTES, Plan, make_plan
from rankzero.launch.render import render
from rankzero.launch.ship import local_files
from rankzero.spec import local_paths
from rankzero.spec.cluster_load import load_cluster_spec
from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.local_paths import path_fields
from rankzero.spec.resolve import resolve
from rankzero.spec.run_spec import RunSpec
from tests.support.unreadable import refuse

CLAIM = {"mount": "/outputs", "claim": "outputs"}


def run_spec(**changes: Any) -> RunSpec:
    value = {"name": "r", "model": {"name": "org/model"}, "data": {"train": "/outputs/t.jsonl"}, **changes}
    return resolve(RunSpec.model_validate(value))


def cluster_spec(**changes: Any) -> ClusterSpec:
    return ClusterSpec.model_validate({"image": "i", "storage": {"outputs": CLAIM}, **changes})


def plan(run: RunSpec | None = None, cluster: ClusterSpec | None = None, **files: bytes) -> Plan:
    return make_plan(run or run_spec(), cluster or cluster_spec(), files=files)


def test_relative_outputs_are_on_the_outputs_volume() -> None:
    assert plan().run.output_dir == "/outputs/runs"
    assert plan(run_spec(output_dir="/outputs/mine")).run_dir == "/outputs/mine/r"


@pytest.mark.parametrize("path", ["/elsewhere", "/outputsx", "s3://b/p", "../x", "runs/../../outputsx"])
def test_outputs_elsewhere_are_refused(path: str) -> None:
    with pytest.raises(ConfigError):
        plan(run_spec(output_dir=path))


def test_scratch_keeps_nothing() -> None:
    storage = {"outputs": CLAIM, "scratch": {"mount": "/scratch"}}
    with pytest.raises(ConfigError, match="not on a volume that keeps"):
        plan(run_spec(output_dir="/scratch/runs"), cluster_spec(storage=storage))


@pytest.mark.parametrize("how", [{"read_only": True}, {"access": "ReadOnlyMany"}])
def test_outputs_on_a_volume_that_cannot_be_written_are_refused(how: dict[str, Any]) -> None:
    storage = {"outputs": CLAIM, "data": {"mount": "/data", "claim": "data", **how}}
    with pytest.raises(ConfigError, match="not on a volume that keeps"):
        plan(run_spec(output_dir="/data/runs"), cluster_spec(storage=storage))


def test_only_the_outputs_are_copied_to_their_url() -> None:
    """What another volume's url fills is a scratch directory all the same."""
    kept = cluster_spec(storage={"outputs": {"mount": "/outputs", "url": "s3://b/o"}})
    assert plan(run_spec(output_dir="/outputs/runs"), kept).run.output_dir == "/outputs/runs"
    storage = {"outputs": CLAIM, "data": {"mount": "/data", "url": "s3://b/d"}}
    with pytest.raises(ConfigError, match="not on a volume that keeps"):
        plan(run_spec(output_dir="/data/runs"), cluster_spec(storage=storage))


@pytest.mark.parametrize("outputs_last", [False, True])
def test_a_claim_is_read_only_where_nobody_writes_to_it(outputs_last: bool) -> None:
    reading = {"claim": "shared", "access": "ReadOnlyMany", "size": "1Gi"}
    entries = {
        "data": {"mount": "/data", "sub_path": "data", **reading},
        "outputs": {"mount": "/outputs", "claim": "shared", "sub_path": "runs"},
        "models": {"mount": "/models", "claim": "models", "access": "ReadOnlyMany"},
        "more": {"mount": "/more", "claim": "models", "access": "ReadOnlyMany"},
    }
    names = list(entries) if outputs_last else list(reversed(entries))
    storage = {name: entries[name] for name in names}
    made = render(plan(cluster=cluster_spec(storage=storage)))
    (claim,) = [one for one in made if one["kind"] == "PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    (job,) = [one for one in made if one["kind"] == "Job"]
    pod = job["spec"]["template"]["spec"]
    claims = [one["persistentVolumeClaim"] for one in pod["volumes"] if "persistentVolumeClaim" in one]
    assert sorted(claims, key=str) == [{"claimName": "models", "readOnly": True}, {"claimName": "shared"}]
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in pod["containers"][0]["volumeMounts"]}
    assert [mounts[path] for path in ("/data", "/outputs", "/models", "/more")] == [True, False, True, True]


def test_local_files_travel_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "train.jsonl").write_bytes(b"\x00\xff")
    run = run_spec(
        model={"name": "model"}, data={"train": [{"path": "train.jsonl"}, {"path": "/outputs/b.jsonl"}], "eval": None}
    )
    files = local_files(run)
    assert files == {"model/config.json": b"{}", "train.jsonl": b"\x00\xff"}
    made = make_plan(run, cluster_spec(), files=files)
    assert made.run.model.name == "/etc/rankzero/files/model"
    sources = made.run.data.train
    assert [source.path for source in sources] == ["/etc/rankzero/files/train.jsonl", "/outputs/b.jsonl"]  # type: ignore[union-attr]
    config = next(manifest for manifest in render(made) if manifest["kind"] == "ConfigMap")
    assert len(config["binaryData"]) == 2


def test_every_field_that_names_a_file_is_one_of_the_pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a file of its own here, which travels, and is named where the pods have it."""
    monkeypatch.chdir(tmp_path)
    images = {"path": "rows.jsonl", "image_root": "pictures"}
    full = {
        "model": {"name": "m", "local_dir": "weights", "tokenizer_dir": "tok"},
        "data": {"train": [images], "eval": [{**images, "path": "held.jsonl"}], "chat_template": "c.jinja"},
        "train": {"deepspeed": "ds.json"},
        "eval": {"prompts": "asked.jsonl"},
    }
    specs = [full, {**full, "model": {"name": "./model"}, "data": {"train": "one.jsonl", "eval": "other.jsonl"}}]
    seen: set[str] = set()
    for spec in specs:
        run = RunSpec.model_validate({"name": "r", **spec})
        named = [field for field in path_fields(run) if field.kind != "output" and field.text != "m"]
        for field in named:
            inside = Path(field.text, "x") if field.kind in ("directory", "model") else Path(field.text)
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.write_text("{}")
        made = make_plan(run, cluster_spec(), files=local_files(run))
        there = {field.field: field.text for field in path_fields(made.run)}
        for field in named:
            assert there[field.field] == f"/etc/rankzero/files/{posixpath.normpath(field.text)}", field.field
        with pytest.raises(ConfigError) as caught:
            make_plan(run, cluster_spec(), files={})
        missing = {problem.where for problem in caught.value.problems}
        assert {field.field for field in named} - missing <= {"model.name"}, "else it may be a Hub id"
        seen |= {field.field for field in named}
    known = set(re.findall(r'put\("([\w.]+)"', inspect.getsource(local_paths)))
    assert known - {"output_dir"} <= seen, "a new one is missing from this test"


def test_of_a_directory_all_travels_that_is_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind a link; what cannot be read is an error, and not left out."""
    monkeypatch.chdir(tmp_path)
    for name in ("data/a.jsonl", "data/in/b.jsonl", "disk/c.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "data" / "more").symlink_to(tmp_path / "disk")
    (tmp_path / "data" / ".#a.jsonl").symlink_to("somebody@somewhere")
    run = run_spec(data={"train": "data"})
    assert local_files(run).keys() == {"data/a.jsonl", "data/in/b.jsonl", "data/more/c.jsonl"}
    (tmp_path / "data" / "d.jsonl").symlink_to(tmp_path / "gone.jsonl")
    with pytest.raises(DataError, match="cannot read it"):
        local_files(run)
    (tmp_path / "data" / "d.jsonl").unlink()
    refuse(monkeypatch, "in")
    with pytest.raises(DataError, match="Permission denied"):
        local_files(run)


def test_the_plain_chat_template_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain").write_text("another")
    run = run_spec(data={"train": "/outputs/t.jsonl", "chat_template": "plain"})
    assert local_files(run) == {}
    assert plan(run).run.data.chat_template == "plain"


def test_the_name_does_not_depend_on_the_place() -> None:
    unnamed = resolve(RunSpec.model_validate({"model": {"name": "org/model"}, "data": {"train": "t.jsonl"}}))
    assert plan(unnamed, **{"t.jsonl": b"{}"}).run.name == unnamed.name


def test_every_problem_at_once() -> None:
    run = run_spec(
        model={"name": "m", "local_dir": "/models/m", "tokenizer_dir": "tok"},
        data={"train": "nope.jsonl", "eval": "/data/eval.jsonl", "chat_template": "c.jinja"},
        output_dir="/o",
    )
    storage = {"cache": {"mount": "/cache", "claim": "c", "access": "ReadWriteOnce"}}
    with pytest.raises(ConfigError) as caught:
        plan(run, cluster_spec(storage=storage, num_nodes=2))
    text = str(caught.value)
    for word in ("/models/m", "tok", "nope.jsonl", "/data/eval.jsonl", "c.jinja", "output_dir", "ReadWriteOnce"):
        assert word in text
    assert len(caught.value.problems) == 7


def test_too_much_to_ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "big.jsonl").write_bytes(b"x" * (3 * MOST_SHIPPED_BYTES))
    run = run_spec(data={"train": "big.jsonl"})
    with pytest.raises(ConfigError, match="big.jsonl, on a volume"):
        make_plan(run, cluster_spec(), files=local_files(run))


@pytest.mark.parametrize("path", ["../../etc/passwd.jsonl", "a/../../x.jsonl"])
def test_files_outside_of_the_directory_are_not_shipped(path: str) -> None:
    with pytest.raises(ConfigError, match="outside of this directory"):
        plan(run_spec(data={"train": path}), **{posixpath.normpath(path): b"{}"})


def test_settings_survive_their_file() -> None:
    storage = {"outputs": {**CLAIM, "url": "s3://b/p"}, "cache": {"mount": "/cache", "claim": "c"}}
    made = plan(cluster=cluster_spec(storage=storage, kind="pytorchjob", num_nodes=3, min_nodes=2))
    assert NodeSettings.from_json(made.settings.to_json()) == made.settings
    assert made.settings.retry_exit_offset == 128
    assert made.settings.min_nodes == 2
    assert made.settings.mirrors[0].direction == "upload"
    assert made.prepare
    assert made.settings.prepared_marker == "/cache/rankzero/prepared/default.r.json"


@pytest.mark.parametrize(("runtime", "in_image"), [("none", False), ("apptainer", True), ("pyxis", True)])
def test_what_is_installed_is_an_images_where_one_runs(runtime: str, in_image: bool) -> None:
    """Slurm runs images as well; pods and containers run nothing else. Where one runs nothing is written, as earlier
    versions, which wrote nothing, know no other way."""
    storage = {"outputs": {"mount": "/o", "host_path": "/o"}}
    slurm = {"runtime": runtime, "image": None if runtime == "none" else "/o/x.sif"}
    cluster = ClusterSpec.model_validate({"kind": "slurm", "storage": storage, "slurm": slurm})
    made = plan(run_spec(output_dir="/o/runs", data={"train": "/o/t.jsonl"}), cluster).settings
    assert NodeSettings.from_json(made.to_json()) == made
    assert made.in_image == in_image == ("in_image" not in made.to_json())
    assert plan().settings.in_image


def test_runs_of_one_name_in_two_namespaces_share_no_marker_on_a_cache_of_both() -> None:
    storage = {"outputs": CLAIM, "cache": {"mount": "/cache", "host_path": "/nfs/cache"}}
    made = [plan(cluster=cluster_spec(storage=storage, namespace=name)).settings for name in ("one", "two")]
    assert made[0].prepared_marker != made[1].prepared_marker and made[0].prepared_marker is not None


def test_auto_is_what_every_cluster_has() -> None:
    assert plan().kind == "job"


def test_on_docker_nobody_starts_again_what_failed() -> None:
    assert plan().settings.max_restarts == 3
    assert plan(cluster=cluster_spec(kind="docker", max_restarts=7)).settings.max_restarts == 0


def test_preparing_needs_a_place() -> None:
    with pytest.raises(ConfigError, match="no volume to prepare into"):
        plan(cluster=cluster_spec(prepare="always"))
    assert not plan(cluster=cluster_spec(storage={"outputs": CLAIM, "cache": {"mount": "/cache"}})).prepare


def test_a_cache_that_each_pod_has_for_itself_is_not_prepared() -> None:
    """The training pods would wait for a marker that only the preparation's own directory has."""
    storage = {"outputs": CLAIM, "cache": {"mount": "/cache", "url": "s3://b/cache"}}
    made = plan(cluster=cluster_spec(storage=storage))
    assert not made.prepare and made.settings.prepared_marker is None
    with pytest.raises(ConfigError, match="no volume to prepare into"):
        plan(cluster=cluster_spec(storage=storage, prepare="always"))


READ_ONLY = [{"read_only": True}, {"access": "ReadOnlyMany"}]


def on_slurm(*settings: str, how: dict[str, Any]) -> ClusterSpec:
    """As cluster.yaml is read by every command, with a cache that cannot be written."""
    cache = ", ".join(f"{name}: {str(value).lower() if value is True else value}" for name, value in how.items())
    storage = ["storage.outputs={mount: /o, host_path: /o}", f"storage.cache={{mount: /c, host_path: /c, {cache}}}"]
    place = ["kind=slurm", "gpu=false", *storage, *settings]
    return load_cluster_spec(None, place, env={}).spec


@pytest.mark.parametrize("how", READ_ONLY)
@pytest.mark.parametrize("prepare", ["auto", "always"])
def test_nothing_is_prepared_into_a_cache_that_cannot_be_written(how: dict[str, Any], prepare: str) -> None:
    """It is refused where that would be, and only with a run: commands about those under way know the place all the
    same."""
    place = ["storage.outputs={mount: /outputs, claim: o}", f"prepare={prepare}", "image=i"]
    (field, value), *_ = how.items()
    cache = f"storage.cache={{mount: /cache, claim: cache, {field}: {str(value).lower() if value is True else value}}}"
    cluster = load_cluster_spec(None, [*place, cache], env={}).spec
    with pytest.raises(ConfigError, match="what is fetched and prepared is written here") as raised:
        plan(cluster=cluster)
    assert raised.value.problems[0].where == f"cluster.yaml storage.cache.{field}"
    assert not plan(cluster=cluster.model_copy(update={"prepare": "never"})).prepare
    image = ("slurm.runtime=apptainer", "slurm.image=/o/x.sif")
    for settings in (["prepare=always"], ["slurm.prepare_partition=cpu"]):
        with pytest.raises(ConfigError, match="what is fetched and prepared is written here"):
            plan(run_spec(data={"train": "o/d"}), on_slurm(*image, *settings, how=how))
    assert not plan(run_spec(data={"train": "o/d"}), on_slurm(*image, how=how)).prepare


@pytest.mark.parametrize("how", READ_ONLY)
@pytest.mark.parametrize(("runtime", "refused"), [("none", True), ("apptainer", False), ("pyxis", False)])
def test_without_a_container_nothing_is_read_only(how: dict[str, Any], runtime: str, refused: bool) -> None:
    image = () if refused else ("slurm.image=/o/x.sif",)
    cluster = on_slurm(f"slurm.runtime={runtime}", *image, how=how)
    run = run_spec(data={"train": "o/d"})
    if not refused:
        (script,) = render(plan(run, cluster))
        assert "/c:/c:ro" in script["spec"]["script"]
        return
    with pytest.raises(ConfigError, match="without a container nothing keeps it from being written") as raised:
        plan(run, cluster)
    assert raised.value.problems[0].where == f"cluster.yaml storage.cache.{next(iter(how))}"


@pytest.mark.parametrize(
    ("resume", "said"), [("refuse", "/outputs/runs/r"), ("continue", "/outputs/runs/r"), ("new", None)]
)
def test_objects_name_the_results_where_no_pod_chooses(resume: str, said: str | None) -> None:
    for made in render(plan(run_spec(resume=resume))):
        assert made["metadata"]["annotations"].get("rankzero.dev/run-dir") == said


def test_changes_change_the_hash_and_claims_do_not() -> None:
    def digest(cluster: ClusterSpec) -> str:
        return str(render(plan(cluster=cluster))[-1]["metadata"]["annotations"]["rankzero.dev/spec-hash"])

    same = digest(cluster_spec())
    assert same == digest(cluster_spec())
    assert same == digest(cluster_spec(storage={"outputs": {**CLAIM, "size": "1Gi"}}))
    assert same != digest(cluster_spec(image="j"))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("org/data:sub[train]#500", "org/data:sub[train]#500"),
        ("hf://datasets/org/data/x.jsonl", "hf://datasets/org/data/x.jsonl"),
        ("/outputs/t/*.jsonl#5", "/outputs/t/*.jsonl#5"),
        ("d/*.jsonl", "/etc/rankzero/files/d/*.jsonl"),
        ("d", "/etc/rankzero/files/d"),
        ("./d/../d", "/etc/rankzero/files/d"),
        ("d/a.jsonl#1", "/etc/rankzero/files/d/a.jsonl#1"),
    ],
)
def test_data_paths(path: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    for name in "ab":
        (tmp_path / "d" / f"{name}.jsonl").write_text("{}")
    run = run_spec(data={"train": path})
    made = make_plan(run, cluster_spec(), files=local_files(run))
    assert made.run.data.train == expected
    assert set(made.files) <= {"d/a.jsonl", "d/b.jsonl"}
    assert bool(made.files) == expected.startswith("/etc")


def test_root_where_it_is_asked_for() -> None:
    (job,) = [one for one in render(plan(cluster=cluster_spec(user=0))) if one["kind"] == "Job"]
    security = job["spec"]["template"]["spec"]["securityContext"]
    assert (security["runAsUser"], security["runAsNonRoot"]) == (0, False)


@pytest.mark.parametrize(
    ("resources", "asked", "limit"),
    [({"cpu": 8, "limits": {"cpu": 16}}, "2", "16"), ({"limits": {"cpu": 1}}, "1", "1"), ({"cpu": 8}, "2", None)],
)
def test_a_limit_of_cores_is_the_preparations_too(resources: dict[str, Any], asked: str, limit: str | None) -> None:
    """Under a quota that counts limits.cpu no pod is made that says none."""
    storage = {"outputs": CLAIM, "cache": {"mount": "/cache", "claim": "cache"}}
    made = render(plan(cluster=cluster_spec(storage=storage, resources=resources)))
    (job,) = [one for one in made if one["metadata"]["name"] == "r-prepare"]
    own = job["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert (own["requests"]["cpu"], own["limits"].get("cpu")) == (asked, limit)


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, "8Gi"),
        ({"limits": {"memory": "4Gi"}}, "4Gi"),
        ({"limits": {"memory": "64Gi"}}, "8Gi"),
        ({"memory": "6Gi", "limits": {"memory": "64Gi"}}, "6Gi"),
    ],
)
def test_the_preparation_asks_for_no_more_memory_than_training_may_use(
    resources: dict[str, Any], expected: str
) -> None:
    """A namespace whose pods are limited to so much refuses it, and a host of that size has no room."""
    storage = {"outputs": CLAIM, "cache": {"mount": "/cache", "claim": "cache"}}
    made = render(plan(cluster=cluster_spec(storage=storage, resources=resources)))
    (job,) = [one for one in made if one["metadata"]["name"] == "r-prepare"]
    own = job["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert (own["requests"]["memory"], own["limits"]["memory"]) == (expected, expected)


def test_the_preparation_goes_by_what_the_site_says_of_its_nodes() -> None:
    patch = {
        "hostNetwork": True,
        "containers": [
            {
                "name": "node",
                "securityContext": {"readOnlyRootFilesystem": True},
                "resources": {"limits": {"x": 1}},
            },
            {"name": "sidecar", "image": "s"},
        ],
    }
    cluster = cluster_spec(
        storage={"outputs": CLAIM, "cache": {"mount": "/cache", "claim": "c"}},
        queue={"name": "gpus"},
        node_selector={"kubernetes.io/arch": "arm64"},
        tolerations=[{"key": "reserved"}],
        pod_patch=patch,
    )
    (job,) = [one for one in render(plan(cluster=cluster)) if one["metadata"]["name"] == "r-prepare"]
    pod = job["spec"]["template"]["spec"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert pod["nodeSelector"] == {"kubernetes.io/arch": "arm64"}
    assert {"key": "reserved", "operator": "Exists"} in pod["tolerations"]
    assert pod["hostNetwork"] is True
    prepare, sidecar = pod["containers"]
    assert (prepare["name"], sidecar["name"]) == ("prepare", "sidecar")
    assert prepare["securityContext"]["readOnlyRootFilesystem"] is True
    assert set(prepare["resources"]["limits"]) == {"memory"}


@pytest.mark.parametrize(("nodes", "least", "fits"), [(2, None, True), (3, None, False), (4, 2, False), (4, 4, True)])
def test_processes_make_whole_groups_whatever_nodes_are_left(nodes: int, least: int | None, fits: bool) -> None:
    """Rows over four processes, of which a node has two: three nodes would have half a group."""
    run = run_spec(train={"context_parallel": 4})
    cluster = cluster_spec(kind="pytorchjob", num_nodes=nodes, min_nodes=least, nproc_per_node=2)
    if fits:
        assert plan(run, cluster).run.train.context_parallel == 4
        return
    with pytest.raises(ConfigError, match="6 processes cannot be divided into groups of 4") as caught:
        plan(run, cluster)
    assert [problem.where for problem in caught.value.problems] == ["train.context_parallel"]
    with pytest.raises(ConfigError, match="6 processes cannot be divided into groups of 4") as caught:
        plan(run_spec(train={"expert_parallel": 4}), cluster)
    assert [problem.where for problem in caught.value.problems] == ["train.expert_parallel"]
