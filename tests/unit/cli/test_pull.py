"""`rankzero pull` as it is typed: where a run is taken from, where it goes, what is said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankzero.api.planning import plan_of
from rankzero.launch.backend import Say
from rankzero.launch.labels import Manifest
from rankzero.persist.sources import Execute
from rankzero.run_dir.atomic import commit_directory
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.setting import settled
from rankzero.spec.diff import name_beside
from rankzero.spec.load import load_run_spec
from rankzero.spec.local_paths import absolute
from rankzero.spec.resolve import resolve
from tests.support.cli import Cli
from tests.support.volume import run_python

RUN = "name: r\nmodel: {name: o/m}\ndata: {train: t.jsonl}\n"
CLUSTER = "image: i\nstorage: {outputs: {mount: /outputs, claim: outputs}}\n"


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return Cli(capfd, monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> str:
    there = RunDir(tmp_path / "store" / "runs" / "r")
    there.root.mkdir(parents=True)
    there.spec.write_text(RUN)
    (there.root / "staged").mkdir()
    (there.root / "staged" / "weights").write_text("w")
    commit_directory(there.root / "staged", there.final, {})
    return f"file://{tmp_path}/store"


@pytest.mark.parametrize("place", ["", "/runs", "/runs/r"])
def test_from_a_url_of_the_run_or_of_what_it_is_in(cli: Cli, store: str, place: str) -> None:
    done = cli(f"pull r {store}{place} --json")
    assert done.code == 0, done.err
    value = json.loads(done.out)
    assert (value["run_dir"], value["fetched"], value["result"]) == ("runs/r", 2, True)
    again = cli(f"pull r {store}{place}")
    assert "0 files fetched (0.0 MB), 2 were here" in again.out and "rankzero generate runs/r" in again.out


def test_from_where_its_spec_says(cli: Cli, store: str) -> None:
    Path("run.yaml").write_text(f"{RUN}output_url: {store}/runs\n")
    assert cli("pull run.yaml").code == 0
    assert Path("runs/r/final/weights").read_text() == "w"


NEW = f"{RUN}resume: new\n"


@pytest.fixture
def two(store: str) -> tuple[str, str]:
    """The store, where this setting's run is beside another's, and that run's name."""
    spec = resolve(load_run_spec(written(NEW), env={}).spec)
    beside = name_beside(absolute(spec, Path.cwd()))
    shutil.copytree(f"{store.removeprefix('file://')}/runs/r", f"{store.removeprefix('file://')}/runs/{beside}")
    return store, beside


def written(text: str) -> Path:
    Path("run.yaml").write_text(text)
    return Path("run.yaml")


@pytest.mark.parametrize("place", ["", "/runs"])
def test_the_run_beside_another_settings(cli: Cli, two: tuple[str, str], place: str) -> None:
    """As `resume: new` has made it, wherever it was trained: nothing of either is here."""
    store, beside = two
    done = cli(f"pull run.yaml {store}{place} --json")
    assert json.loads(done.out)["run_dir"] == f"runs/{beside}", done.err
    written(f"{NEW}train: {{max_steps: 3}}\n")
    assert json.loads(cli(f"pull run.yaml {store}{place} --json").out)["run_dir"] == "runs/r"
    assert json.loads(cli(f"pull run.yaml {store}/runs/r -o o --json").out)["run_dir"] == "o"


def test_a_name_that_another_setting_has_here_is_looked_for_there(cli: Cli, two: tuple[str, str]) -> None:
    """The run was trained where its name was free."""
    store, beside = two
    shutil.rmtree(f"{store.removeprefix('file://')}/runs/{beside}")
    spec = absolute(resolve(load_run_spec(Path("run.yaml"), env={}).spec), Path.cwd())
    other = spec.model_copy(update={"train": spec.train.model_copy(update={"learning_rate": 0.5})})
    run_dir = RunDir(Path("runs/r"))
    (run_dir.root / "staged").mkdir(parents=True)
    run_dir.checkpoints.mkdir()
    commit_directory(run_dir.root / "staged", run_dir.checkpoint(1), {"step": 1, "spec": other.model_dump(mode="json")})
    assert settled(spec).name == beside
    done = cli(f"pull run.yaml {store}/runs -o elsewhere --json")
    assert done.code == 0 and json.loads(done.out)["run_dir"] == "elsewhere", done.err


def test_a_run_beside_by_its_own_url(cli: Cli, two: tuple[str, str]) -> None:
    store, beside = two
    done = cli(f"pull run.yaml {store}/runs/{beside} --json")
    assert json.loads(done.out)["run_dir"] == f"runs/{beside}", done.err


def test_the_run_beside_another_settings_on_a_volume(cli: Cli, store: str) -> None:
    """Its name follows from the paths that pods have."""
    mount = store.removeprefix("file://")
    Path("c.yaml").write_text(f"kind: slurm\nstorage: {{outputs: {{mount: {mount}, host_path: {mount}}}}}\n")
    Path("t.jsonl").write_text('{"text": "a"}\n')
    beside = name_beside(plan_of(written(NEW), "c.yaml").run)
    shutil.copytree(f"{mount}/runs/r", f"{mount}/runs/{beside}")
    done = cli("pull run.yaml --cluster c.yaml --json")
    assert json.loads(done.out)["run_dir"] == f"runs/{beside}", done.err


def test_from_a_cluster_through_a_pod(cli: Cli, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = store.removeprefix("file://")
    pods: list[Manifest] = []

    class Backend:
        @contextmanager
        def reading(self, pod: Manifest, _say: Say) -> Iterator[Execute]:
            pods.append(pod)

            def run(command: Sequence[str]) -> str:
                return run_python([word.replace("/outputs", volume) for word in command])

            yield run

    monkeypatch.setattr("rankzero.api.clusters.open_backend", lambda *_arguments, **_more: Backend())
    Path("c.yaml").write_text(CLUSTER)
    done = cli("pull r --cluster c.yaml --output elsewhere --only final")
    assert done.code == 0, done.err
    assert "r is read from outputs by the pod rankzero-pull-" in done.err
    assert Path("elsewhere/final/weights").read_text() == "w" and len(pods) == 1
    done = cli("pull other --cluster c.yaml")
    assert done.code == 78 and "error: outputs: there is no run other\n" in done.err


def test_from_hosts_whose_file_system_is_here(cli: Cli, store: str) -> None:
    mount = store.removeprefix("file://")
    Path("c.yaml").write_text(f"kind: slurm\nstorage: {{outputs: {{mount: {mount}, host_path: {mount}}}}}\n")
    done = cli("pull r --cluster c.yaml --output elsewhere")
    assert done.code == 0, done.err
    assert Path("elsewhere/final/weights").read_text() == "w" and "pod" not in done.err


def test_what_cannot_be_pulled(cli: Cli, store: str) -> None:
    assert cli(f"pull other {store}").code == 78
    refused = cli("pull r /mnt/somewhere")
    assert refused.code == 2 and "is no URL" in refused.err
    Path("c.yaml").write_text("image: i\n")
    refused = cli("pull r --cluster c.yaml")
    assert refused.code == 78 and "no volume of this cluster keeps results" in refused.err
    assert cli("pull nope.yaml").code == 78
    assert not Path("runs").exists()
