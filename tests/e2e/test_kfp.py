"""The data-preparation pipeline: compiled, current, and really run through kfp's local runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import rankzero
from rankzero.launch.plan import make_plan
from rankzero.launch.render.pod import pod_template
from rankzero.spec.cluster_load import load_cluster
from rankzero.spec.resolve import resolve
from rankzero.spec.run_spec import RunSpec
from tests.support.tiny import chat_rows, write_jsonl

pytest.importorskip("kfp", reason="the extra `kfp` is not installed")
pytest.importorskip("kfp.kubernetes", reason="kfp-kubernetes is not installed")
pytestmark = pytest.mark.e2e

RECIPES = Path(rankzero.__file__).parent / "recipes"
COMPILED = Path(__file__).parents[2] / "examples/kfp/data_prep_pipeline.yaml"


def documents(path: Path) -> list[dict[str, Any]]:
    found = list(yaml.safe_load_all(path.read_text()))
    found[0].pop("sdkVersion")
    return found


def test_the_compiled_pipeline_is_current(tmp_path: Path) -> None:
    from rankzero.pipelines.data_prep import compile_to

    compile_to(str(tmp_path / "pipeline.yaml"))
    assert documents(tmp_path / "pipeline.yaml") == documents(COMPILED), (
        "python -m rankzero.pipelines.data_prep examples/kfp/data_prep_pipeline.yaml"
    )


def test_its_arguments_and_its_claim() -> None:
    pipeline, platforms = documents(COMPILED)
    arguments = pipeline["root"]["inputDefinitions"]["parameters"]
    assert {"hf_dataset", "split", "max_len", "pvc_name", "model"} <= set(arguments)
    needed = {name for name, one in arguments.items() if not one.get("isOptional")}
    assert needed <= {"hf_dataset", "split", "max_len"}, "what the documented call gives"
    assert "mountPath" in str(platforms)
    assert "pip install" not in COMPILED.read_text()


def test_what_it_makes_is_where_the_recipes_pods_look() -> None:
    from rankzero.pipelines import data_prep

    pipeline, platforms = documents(COMPILED)
    cluster = load_cluster("infiniband-2x8", env={}).spec
    recipe = yaml.safe_load((RECIPES / "qwen3-30b-qlora-2x8/run.yaml").read_text())
    arguments = pipeline["root"]["inputDefinitions"]["parameters"]
    assert arguments["model"]["defaultValue"] == recipe["model"]["name"]
    assert arguments["max_len"]["defaultValue"] == recipe["data"]["max_length"], "else the run tokenises again"
    full = yaml.safe_load((RECIPES / "qwen3-30b-full-2x8/run.yaml").read_text())
    assert all(full[part][name] == recipe[part][name] for part, name in (("model", "name"), ("data", "max_length")))
    for argument, volume in (("pvc_name", "datasets"), ("cache_pvc_name", "cache")):
        assert arguments[argument]["defaultValue"] == cluster.storage[volume].claim
    assert tuple(cluster.storage[one].mount for one in ("datasets", "cache")) == (data_prep.DATASETS, data_prep.CACHE)
    executors = platforms["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    mounts = [{one["mountPath"] for one in executor["pvcMount"]} for executor in executors.values()]
    assert mounts == [{"/mnt/datasets", "/mnt/cache"}] * 2
    run = RunSpec.model_validate({"name": "r", "model": {"name": "o/m"}, "data": {"train": "/mnt/datasets/t.jsonl"}})
    pod = pod_template(make_plan(resolve(run), cluster))["spec"]["containers"][0]
    values = {one["name"]: one.get("value") for one in pod["env"]}
    for container in pipeline["deploymentSpec"]["executors"].values():
        given = {one["name"]: one["value"] for one in container["container"]["env"]}
        assert given == {name: values[name] for name in ("RANKZERO_CACHE", "HF_HOME")}


@pytest.fixture
def local_runner(tmp_path: Path) -> None:
    from kfp import local

    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "outputs"))


def test_it_really_runs(tmp_path: Path, tiny: Path, local_runner: None, cli: Any, monkeypatch: Any) -> None:
    from rankzero.pipelines.data_prep import data_prep_pipeline

    path = write_jsonl(tmp_path / "train.jsonl", chat_rows(40))
    cache = tmp_path / "claim"
    run = data_prep_pipeline(hf_dataset=str(path), model=str(tiny), max_len=256, cache=str(cache))
    assert run is not None
    (page,) = (tmp_path / "outputs").rglob("report")
    assert "<title>Data check: " in page.read_text(encoding="utf-8")
    (directory,) = [entry for entry in (cache / "tokenized").iterdir() if entry.is_dir()]
    monkeypatch.setenv("RANKZERO_CACHE", str(cache))
    (tmp_path / "run.yaml").write_text(
        f"model: {{name: '{tiny}', dtype: float32}}\ndata: {{train: '{path}', max_length: 256}}\nlora: {{}}\n"
        f"train: {{max_steps: 1}}\noutput_dir: '{tmp_path}/runs'\n"
    )
    assert cli(f"train {tmp_path}/run.yaml --nproc-per-node 1").code == 0
    assert [entry for entry in (cache / "tokenized").iterdir() if entry.is_dir()] == [directory]


def test_bad_data_fails_the_step_after_the_one_that_has_its_report(
    tmp_path: Path, tiny: Path, local_runner: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """Kubeflow keeps what a step has written where it succeeded."""
    from rankzero.pipelines.data_prep import data_prep_pipeline

    path = tmp_path / "train.jsonl"
    path.write_text('{"messages": []}\n')
    with pytest.raises(RuntimeError, match="prepare-data"):
        data_prep_pipeline(hf_dataset=str(path), model=str(tiny), cache=str(tmp_path / "claim"))
    assert not (tmp_path / "claim").exists()
    (page,) = (tmp_path / "outputs").rglob("report")
    assert "`messages` is empty" in page.read_text(encoding="utf-8")
    logged = "".join(capfd.readouterr())
    assert f"{path}:1: `messages` is empty" in logged and "check-data has them in its report" in logged


def test_messages_of_trees_are_counted_alike_by_both_steps(tmp_path: Path, tiny: Path) -> None:
    from rankzero.pipelines import steps

    rows = [
        {"message_id": "a", "parent_id": None, "role": "prompter", "text": "q"},
        {"message_id": "b", "parent_id": "a", "role": "assistant", "text": "a"},
    ]
    path = str(write_jsonl(tmp_path / "trees.jsonl", rows))
    checked = steps.check(path, "train", str(tmp_path / "page.html"))
    made = steps.prepare(path, "train", str(tiny), 256, str(tmp_path / "claim"))
    assert checked["rows"] == 2 and checked["rows_in"] == made["rows_in"] == 1
