"""What is said and has no effect keeps nobody from anything, and is warned of where a run is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankzero.api.specs import checked, read
from rankzero.errors import Problem
from tests.unit.cli.conftest import Place

OF_RUN = "warning: run.yaml:4 checkpoint.best_metric: nothing is evaluated"
OF_CLUSTER = "warning: cluster.yaml:8 resources.rdma_devices: no devices are asked for"


@pytest.fixture
def doubtful(place: Place) -> Place:
    for name, more in (
        ("run.yaml", "checkpoint: {best_metric: perplexity}\n"),
        ("cluster.yaml", "resources: {rdma_devices: 2}\n"),
    ):
        Path(name).write_text(Path(name).read_text() + more)
    return place


@pytest.mark.parametrize("command", ["submit run.yaml --dry-run", "render run.yaml", "submit run.yaml --detach"])
def test_a_run_on_a_cluster_is_made_with_a_warning(doubtful: Place, command: str) -> None:
    done = doubtful(command)
    assert done.code == 0, done.err
    assert done.err.count("warning: ") == 2
    assert OF_RUN in done.err and OF_CLUSTER in done.err


def test_what_is_typed_is_warned_of_as_it_is_typed(place: Place) -> None:
    done = place("render run.yaml eval.every=3 cluster.resources.rdma_devices=2")
    assert done.code == 0, done.err
    assert "warning: command line eval.every: " in done.err
    assert "warning: command line cluster.resources.rdma_devices: " in done.err


def test_what_a_plan_refuses_of_a_cluster_is_said_at_its_line(place: Place) -> None:
    more = "storage: {outputs: {mount: /outputs, claim: outputs, access: ReadWriteOnce}}\n"
    text = Path("cluster.yaml").read_text(encoding="utf-8").partition("storage")[0]
    Path("cluster.yaml").write_text(text + more, encoding="utf-8")
    done = place("render run.yaml cluster.prepare=always")
    assert done.code == 78
    assert "error: cluster.yaml:7 storage.outputs.access: ReadWriteOnce" in done.err
    assert "error: command line cluster.prepare: there is no volume" in done.err


@pytest.mark.parametrize("gpu", ["true", "false"])
def test_what_only_a_gpu_has_a_use_for_is_said_of_clusters_without(place: Place, gpu: str) -> None:
    more = "train.activation_offloading=true train.sharding=fsdp train.offload=all model.kernels=liger"
    done = place(f"render run.yaml {more} cluster.gpu={gpu}")
    assert done.code == 0, done.err
    told = [line.split(": ")[1].split()[-1] for line in done.err.splitlines() if line.startswith("warning: ")]
    assert told == (["train.activation_offloading", "train.offload", "model.kernels"] if gpu == "false" else [])


@pytest.mark.parametrize(
    "command",
    [
        "smoke --cluster cluster.yaml --dry-run",
        "dev up --dry-run",
        "sweep sweep.yaml --cluster cluster.yaml --dry-run",
        "sweep sweep.yaml --cluster cluster.yaml --render --kind jobset",
    ],
)
def test_what_else_goes_to_a_cluster_is_made_with_a_warning(doubtful: Place, command: str) -> None:
    Path("evaluated.yaml").write_text("model: {name: o/m}\ndata: {train: o/d, eval: o/e}\n")
    Path("sweep.yaml").write_text("run: evaluated.yaml\nparameters: {train.seed: {values: [1, 2]}}\n")
    done = doubtful(command)
    assert done.code == 0, done.err
    assert done.err.count("warning: ") == 1 and OF_CLUSTER in done.err, done.err


def test_runs_that_are_there_are_asked_without_a_word(doubtful: Place) -> None:
    assert doubtful("submit run.yaml --detach").code == 0
    for command in ("status r", "status r --json", "cancel r", "delete r --yes"):
        done = doubtful(command)
        assert "warning: " not in done.err and "rdma_devices" not in done.err, done.err


def test_a_run_here_is_made_with_a_warning(doubtful: Place) -> None:
    said: list[Problem] = []
    spec = checked(read("run.yaml", {"data.train": "o/d"}), ("paths",), warn=said.append)
    assert spec.checkpoint.best_metric == "perplexity"
    assert [problem.where for problem in said] == ["run.yaml:4 checkpoint.best_metric"]


TRACKED = [
    ("tracking.langfuse=true", "LANGFUSE_HOST LANGFUSE_PUBLIC_KEY LANGFUSE_SECRET_KEY"),
    ("tracking.mlflow=true", "MLFLOW_TRACKING_URI"),
    ("tracking.wandb=true", "WANDB_API_KEY"),
]


@pytest.mark.parametrize(("setting", "names"), TRACKED)
def test_a_tracker_whose_variables_pods_do_not_get_is_warned_of(
    place: Place, setting: str, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever this shell has: it is not where the run is."""
    more = ["secrets:", *(f"  {name}: {{name: keys, key: {name}}}" for name in names.split())]
    for name in names.split():
        monkeypatch.setenv(name, "of-this-shell")
    done = place(f"submit run.yaml {setting} --dry-run")
    assert done.code == 0, done.err
    for name in names.split():
        assert f"command line {setting.partition('=')[0]}: as cluster.yaml has it, {name} is not set" in done.err
    assert "a new run may be refused" in done.err
    text = Path("cluster.yaml").read_text()
    for secrets in (more, [line.replace(line.partition(":")[0], line.partition(":")[0].lower(), 1) for line in more]):
        Path("cluster.yaml").write_text(text + "\n".join(secrets))
        assert "warning" not in place(f"render run.yaml {setting}").err


def test_trackers_address_in_a_secret_may_hold_its_token(place: Place) -> None:
    text = Path("cluster.yaml").read_text()
    Path("cluster.yaml").write_text(text + "env: {TRACKIO_SERVER_URL: 'http://t:7860'}\n")
    assert "TRACKIO_WRITE_TOKEN is not set" in place("render run.yaml tracking.trackio=true").err
    Path("cluster.yaml").write_text(text + "secrets: {TRACKIO_SERVER_URL: {name: trackio}}\n")
    assert "warning" not in place("render run.yaml tracking.trackio=true").err


CACHE = "storage: {cache: {mount: /cache%s}, outputs: "


def test_trackios_files_that_are_gone_with_the_pod_are_warned_of(place: Place) -> None:
    """Without a server it writes into the cache of the Hub."""
    text, gone = Path("cluster.yaml").read_text(), "Trackio's files are the container's own"
    assert "storage: {outputs: " in text
    scratch, kept = (text.replace("storage: {outputs: ", CACHE % more) for more in ("", ", claim: c"))
    for cluster, is_warned in [
        (text, True),
        (scratch, True),
        (kept, False),
        (text + "env: {TRACKIO_DIR: /outputs/trackio}\n", False),
        (text + "env: {HF_HOME: /outputs/hf}\n", False),
        (text + "secrets: {TRACKIO_SERVER_URL: {name: trackio}}\n", False),
    ]:
        Path("cluster.yaml").write_text(cluster)
        done = place("render run.yaml tracking.trackio=true")
        assert done.code == 0 and (gone in done.err) is is_warned, (cluster, done.err)
        assert gone not in place("render run.yaml").err


def test_slurms_jobs_get_this_shells_variables(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path("cluster.yaml").read_text().partition("storage")[0].replace("image: i", "kind: slurm")
    outputs = f"{{mount: {place.directory}, host_path: {place.directory}}}"
    Path("cluster.yaml").write_text(f"{text.replace('namespace: train', '')}storage: {{outputs: {outputs}}}\n")
    train = f"data.train={place.directory}/t.jsonl tracking.mlflow=true"
    assert "MLFLOW_TRACKING_URI is not set" in place(f"render run.yaml {train}").err
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    done = place(f"render run.yaml {train}")
    assert done.code == 0 and "warning" not in done.err
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    assert "WANDB_API_KEY is not set" in place(f"render run.yaml {train} tracking.wandb=true").err
    (place.directory / "netrc").write_text("machine api.wandb.ai login user password key\n")
    monkeypatch.setenv("NETRC", str(place.directory / "netrc"))
    assert "warning" not in place(f"render run.yaml {train} tracking.wandb=true").err
    with Path("cluster.yaml").open("a") as file:
        file.write("slurm: {runtime: pyxis, image: /i.sqsh}\n")
    assert "WANDB_API_KEY is not set" in place(f"render run.yaml {train} tracking.wandb=true").err
