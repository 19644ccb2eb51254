"""Runs whose numbers go to a real MLflow server on loopback. `make test-trackers` installs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rankzero.errors import StoppedError
from tests.support.cli import Cli
from tests.support.ports import free_port
from tests.support.runs import log, metrics, run_here, run_root, small_spec, stop_in

pytestmark = pytest.mark.trackers
pytest.importorskip("mlflow.server", reason="`make test-trackers` installs MLflow's server")
pytest.importorskip("flask", reason="`make test-trackers` installs MLflow's server")


class Server:
    """`mlflow server`, which can be taken away and come back."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._port = directory, free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        self._directory.mkdir(exist_ok=True)
        store = f"sqlite:///{self._directory / 'store.db'}"
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--workers", "1", "--backend-store-uri", store]
        command += ["--artifacts-destination", str(self._directory / "artifacts")]
        env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (self._directory / "log").open("ab") as said:
            self._process = subprocess.Popen(command, env=env, stdout=said, stderr=said, start_new_session=True)
        until = time.monotonic() + 300
        while time.monotonic() < until and self._process.poll() is None:
            try:
                if httpx2.get(f"{self.url}/health").is_success:
                    return
            except httpx2.HTTPError:
                time.sleep(0.3)
        raise AssertionError((self._directory / "log").read_text())

    def stop(self) -> None:
        """With all of its processes."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def forget(self) -> None:
        """All runs, of one that is stopped."""
        (self._directory / "store.db").unlink()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that runs; a test that takes it away brings it back."""
    found = Server(tmp_path_factory.mktemp("mlflow"))
    found.start()
    yield found
    found.stop()


@pytest.fixture
def client(server: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a person would look with."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=server.url)


def the_run(client: Any, experiment: str) -> Any:
    """The only one of an experiment."""
    [found] = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return found


def history(client: Any, run: str, name: str) -> list[tuple[int, float]]:
    """Of one number, as it came."""
    return [(point.step, point.value) for point in client.get_metric_history(run, name)]


def test_a_run_stopped_and_continued(
    tmp_path: Path, tiny: Path, server: Server, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run there, every number once, its settings, its files, and its adapter as a logged model."""
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "stopped")
    asked = {"every": 4, "prompts": ["Who?", "What?"], "max_new_tokens": 3}
    spec = small_spec(tmp_path, tiny, tracking__mlflow=True, eval=asked)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(6))
    assert the_run(client, "stopped").info.status == "KILLED", log(spec)
    run_here(spec, log_level="INFO")
    found = the_run(client, "stopped")
    run = found.info.run_id
    assert (found.info.status, found.info.run_name) == ("FINISHED", "small")
    assert history(client, run, "train/loss") == [(row["step"], row["loss"]) for row in metrics(spec)]
    evaluated = [(row["step"], row["eval_loss"]) for row in metrics(spec) if "eval_loss" in row]
    assert history(client, run, "eval/eval_loss") == evaluated
    assert found.data.params["lora.r"] == "4"
    assert found.data.tags["rankzero.saved"] == "12"
    names = {entry.path for entry in client.list_artifacts(run)}
    assert {"run.yaml", "environment.json", "report.json", "goodput.json"} <= names
    tables = [f"samples/step-{step}.json" for step in (0, 4, 8, 12)]
    assert [entry["path"] for entry in json.loads(found.data.tags["mlflow.loggedArtifacts"])] == tables
    table = json.loads(Path(client.download_artifacts(run, tables[-1])).read_text())
    samples = [json.loads(line) for line in (run_root(spec) / "samples.jsonl").read_text().splitlines()]
    assert [dict(zip(table["columns"], row, strict=True)) for row in table["data"]] == samples[-2:]
    [model] = client.search_logged_models([found.info.experiment_id])
    assert (model.source_run_id, str(model.status)) == (run, "READY")
    files = {entry.path for entry in client.list_logged_model_artifacts(model.model_id)}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= files
    assert f"{server.url}/#/experiments/{found.info.experiment_id}/runs/{run}" in log(spec)


def test_a_run_that_ends_twice_has_both_results(
    tmp_path: Path, tiny: Path, server: Server, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was given more steps for is there; giving the command once more adds nothing."""
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "longer")
    for steps in (1, 3, 3):
        spec = small_spec(tmp_path, tiny, tracking__mlflow=True, train__max_steps=steps, eval_rows=0)
        run_here(spec, allow_changes=("train.max_steps",))
    found = the_run(client, "longer")
    models = client.search_logged_models([found.info.experiment_id])
    assert {model.source_run_id for model in models} == {found.info.run_id} and len(models) == 2
    from mlflow.artifacts import download_artifacts

    here = [Path(download_artifacts(f"models:/{model.model_id}", tracking_uri=server.url)) for model in models]
    last = (run_root(spec) / "final/adapter_model.safetensors").read_bytes()
    assert [(path / "adapter_model.safetensors").read_bytes() == last for path in here].count(True) == 1


def test_a_server_that_goes_away(
    tmp_path: Path, tiny: Path, server: Server, client: Any, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """The run ends well without it, says how to go on, and everything is there once when it is back. Nobody shows the
    token in its address."""
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "away")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url.replace("//", "//token-canary@"))
    spec = small_spec(tmp_path, tiny, tracking__mlflow=True, train__max_steps=3, eval_rows=0)
    server.stop()
    try:
        run_here(spec)
        assert "rankzero track sync" in log(spec)
    finally:
        server.start()
    for _ in range(2):
        done = cli(f"track sync {run_root(spec)}")
        assert (done.code, done.err) == (0, "") and len(done.out.splitlines()) == 1
        assert "canary" not in done.out
    assert not [path for path in run_root(spec).rglob("*") if path.is_file() and b"canary" in path.read_bytes()]
    found = the_run(client, "away")
    assert found.info.status == "FINISHED"
    assert Counter(step for step, _ in history(client, found.info.run_id, "train/loss")) == {1: 1, 2: 1, 3: 1}


def test_a_server_that_is_set_up_anew(
    tmp_path: Path, tiny: Path, server: Server, client: Any, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """At its old address, and without its runs: it gets all of this one."""
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "anew")
    spec = small_spec(tmp_path, tiny, tracking__mlflow=True, train__max_steps=3, eval_rows=0)
    run_here(spec)
    before = the_run(client, "anew").info.run_id
    server.stop()
    server.forget()
    server.start()
    done = cli(f"track sync {run_root(spec)}")
    assert done.code == 0 and f"{before} any more: all of it is sent anew" in done.err
    found = the_run(client, "anew")
    assert found.info.status == "FINISHED" and found.info.run_id != before
    assert [step for step, _ in history(client, found.info.run_id, "train/loss")] == [1, 2, 3]
    assert "report.json" in {entry.path for entry in client.list_artifacts(found.info.run_id)}


@pytest.mark.parametrize(("uri", "files"), [("sqlite:///{}/runs.db", "mlflow-files"), ("{}/mlruns", "mlruns")])
def test_files_without_a_server(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, uri: str, files: str
) -> None:
    """A SQLite file, and a directory, which MLflow takes only when it is told to."""
    from mlflow import MlflowClient

    uri = uri.format(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    spec = small_spec(tmp_path, tiny, tracking__mlflow=True, train__max_steps=2, eval_rows=0)
    run_here(spec, log_level="INFO")
    assert "mlflow has the whole run" in log(spec)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    found = the_run(MlflowClient(tracking_uri=uri), "rankzero")
    assert found.info.status == "FINISHED"
    assert [step for step, _ in history(MlflowClient(tracking_uri=uri), found.info.run_id, "train/loss")] == [1, 2]
    assert list((tmp_path / files).rglob("adapter_model.safetensors"))
