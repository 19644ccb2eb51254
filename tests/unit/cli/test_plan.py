"""`rankzero plan` as a user types it: what a run takes beside what a cluster has, which is only a protocol here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Place

H100, PRODUCT = 81559, "NVIDIA-H100-80GB-HBM3"
RUN = """name: r
model: {name: m, dtype: float32}
data: {train: /outputs/t.jsonl}
lora: {r: 4}
train: {max_steps: 7}
"""
CLUSTER = """
image: registry.example/rankzero:1
namespace: train
num_nodes: 2
nproc_per_node: 4
prepare: never
storage: {outputs: {mount: /outputs, claim: outputs, size: 1Gi, class: shared}}
secrets: {HF_TOKEN: {name: hf-token, key: token}}
"""


def put(place: Place, kind: str, name: str, *, namespace: str = "train", **rest: Any) -> None:
    metadata = {"name": name, **rest.pop("metadata", {})}
    place.cluster.store.put({"apiVersion": "v1", "kind": kind, "metadata": metadata, **rest}, namespace)


def node(
    place: Place,
    name: str,
    gpus: int,
    *,
    memory: int | None = H100,
    images: tuple[str, ...] = (),
    offers: dict[str, str] | None = None,
    **spec: Any,
) -> None:
    """`offers` is allocatable besides its GPUs."""
    labels = {"nvidia.com/gpu.product": PRODUCT, **({"nvidia.com/gpu.memory": str(memory)} if memory else {})}
    has = {"nvidia.com/gpu": str(gpus), **(offers or {})}
    status = {"allocatable": has, "images": [{"names": list(images)}]}
    put(place, "Node", name, namespace="", metadata={"labels": labels}, status=status, spec=spec)


@pytest.fixture
def gpus(place: Place, tiny: Path) -> Place:
    """A cluster with two nodes of GPUs, everything that the run needs, and a model beside the run."""
    shutil.copytree(tiny, "m")
    Path("run.yaml").write_text(RUN, encoding="utf-8")
    Path("cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    node(place, "gpu-a", 8, images=("registry.example/rankzero:1",))
    node(place, "gpu-b", 4)
    node(place, "small", 2)
    put(place, "Secret", "hf-token", data={"token": "c2VjcmV0LXZhbHVl"})
    put(place, "StorageClass", "shared", namespace="")
    hard, used = {"requests.nvidia.com/gpu": "16"}, {"requests.nvidia.com/gpu": "6"}
    put(place, "ResourceQuota", "q", spec={"hard": hard}, status={"hard": hard, "used": used})
    return place


def flat(text: str) -> str:
    return " ".join(text.split())


def test_what_the_run_takes_beside_what_there_is(gpus: Place) -> None:
    done = gpus("plan run.yaml")
    assert done.code == 0, done.err
    assert max(map(len, done.out.splitlines())) <= 80
    said = flat(done.out)
    assert "trained (LoRA r=4, computed in float32)" in said
    assert "steps 7, 16 rows a step, in passes of up to 65,536 tokens, on 8 processes (ddp)" in said
    assert f"each of 85.5 GB on {PRODUCT}: activations" in said
    assert f"nodes 2 of 3 nodes with 4 nvidia.com/gpu: gpu-a 8 × {PRODUCT} of 86 GB, gpu-b 4 × {PRODUCT}" in said
    assert "quota q: requests.nvidia.com/gpu 6 of 16 taken" in said
    assert "storage classes shared; claim outputs would be made" in said
    assert "secrets hf-token there" in said and "queue no Kueue" in said
    assert "(by a simulated pass)" in said
    assert "image registry.example/rankzero:1, on 1 of 2 nodes already" in said
    assert "rights the server would take" in said and "Job/r" in said
    assert gpus.cluster.changes() == [] and "c2VjcmV0" not in done.out + done.err


def test_without_the_training_stack_it_goes_by_sums(gpus: Place) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from rankzero.cli.main import main; sys.argv[1:] = ['plan', 'run.yaml']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert f"each of 85.5 GB on {PRODUCT}: activations" in flat(done.stdout) and "simulated" not in done.stdout


@pytest.mark.parametrize("quantization", ["none", "nf4", "fp8"])
def test_the_memory_of_a_pass_is_simulated(gpus: Place, quantization: str) -> None:
    done = gpus(f"plan run.yaml model.quantization={quantization} --json")
    assert done.code == 0, done.err
    found = json.loads(done.out)["run"]
    assert found["memory_basis"] == "a simulated pass"
    assert sum(found["memory"].values()) == pytest.approx(found["memory_needed"], rel=1e-3)


def test_everything_that_stands_in_the_way(gpus: Place) -> None:
    gpus.cluster.store.drop("secrets", "hf-token")
    gpus.cluster.store.drop("storageclasses", "shared", "")
    gpus.cluster.forbidden |= {("patch", "jobs")}
    done = gpus("plan run.yaml cluster.nproc_per_node=16")
    assert done.code == 77 or done.code == 78, done.err
    said = flat(done.out)
    assert "0 of 3 nodes with 16 nvidia.com/gpu; pods would wait: a node that may be used has 8 nvidia.com/gpu" in said
    assert "secrets hf-token not found" in said and "no storage class" in said
    assert "rights a submit would be refused" in said
    for words in ("Secret/hf-token", "there is no storage class shared", "ResourceQuota/q", "jobs"):
        assert words in done.err, done.err
    assert gpus.cluster.changes() == []


def test_what_may_not_be_read_is_said(gpus: Place) -> None:
    gpus.cluster.forbidden |= {("list", "nodes"), ("list", "resourcequotas"), ("list", "storageclasses")}
    done = gpus("plan run.yaml")
    assert done.code == 0, done.err
    said = flat(done.out)
    assert "nodes may not be read quota may not be read storage storage classes may not be read" in said
    assert "of 80 GB on a GPU (assumed: no node says what its GPUs have)" in said


def test_of_a_cluster_that_does_not_answer_the_run_is_shown_all_the_same(
    gpus: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "nowhere")
    done = gpus("plan run.yaml")
    assert done.code == 78 and "no such file: nowhere" in done.err
    said = flat(done.out)
    assert "steps 7, 16 rows a step" in said and "on 8 processes (ddp)" in said
    assert "cluster not asked what it has, nor what it would take: environment KUBECONFIG: no such file" in said
    value = json.loads(gpus("plan run.yaml --json").out)
    assert value["run"]["steps"] == 7 and "no such file: nowhere" in value["refused"][0]


def test_a_model_that_is_on_a_volume_of_the_pods(gpus: Place) -> None:
    done = gpus("plan run.yaml model.name=/outputs/model")
    assert done.code == 0, done.err
    assert "model its shapes are not known here" in flat(done.out) and "rights the server would take" in flat(done.out)
    value = json.loads(gpus("plan run.yaml model.name=/outputs/model --json").out)
    assert value["run"] is None and value["refused"] == [] and value["cluster"]["queue"].startswith("no Kueue")


def test_a_run_that_does_not_fit(gpus: Place) -> None:
    for name in ("gpu-a", "gpu-b"):
        gpus.cluster.store.drop("nodes", name, "")
        node(gpus, f"{name}-tiny", 4, memory=1)
    done = gpus("plan run.yaml train.gradient_checkpointing=true train.micro_batch_tokens=32768")
    assert done.code == 78 and "IT DOES NOT FIT" in flat(done.out)
    assert "the run is expected to need" in done.err and "train.micro_batch_tokens" in done.err


def test_shapes_that_files_do_not_tell_come_from_the_config(gpus: Place) -> None:
    """The weights are not needed for it."""
    weights = Path("m/model.safetensors")
    with_weights = json.loads(gpus("plan run.yaml --json").out)["run"]
    weights.unlink()
    assert json.loads(gpus("plan run.yaml --json").out)["run"] == with_weights


def test_pods_that_would_wait(gpus: Place) -> None:
    """A submit would be taken all the same."""
    for name in ("gpu-a", "gpu-b"):
        gpus.cluster.store.drop("nodes", name, "")
    done = gpus("plan run.yaml model.name=/outputs/model")
    assert done.code == 69 and "nodes: 0 of 1 node with 4 nvidia.com/gpu" in done.err
    assert "waits 0 of 1 node with 4 nvidia.com/gpu" in flat(done.out)
    value = json.loads(gpus("plan run.yaml model.name=/outputs/model --json").out)
    assert value["refused"] == [] and [(one["name"], one["waits"]) for one in value["doubts"]] == [("nodes", True)]


def test_what_is_doubtful_is_no_error(gpus: Place) -> None:
    put(gpus, "PersistentVolumeClaim", "outputs", spec={"accessModes": ["ReadWriteOnce"]}, status={"phase": "Bound"})
    done = gpus("plan run.yaml model.name=/outputs/model")
    assert done.code == 0 and "look at claim outputs is ReadWriteOnce" in flat(done.out)


def test_a_run_of_the_name_that_is_under_way(gpus: Place) -> None:
    words = "run.yaml model.name=/outputs/model"
    assert gpus(f"submit {words} --detach").code == 0
    assert gpus(f"plan {words}").code == 0
    done = gpus(f"plan {words} train.seed=7")
    assert done.code == 78 and "is under way with another spec" in done.err
    value = json.loads(gpus(f"plan {words} train.seed=7 --json").out)
    assert "is under way with another spec" in value["refused"][0]
