"""`rankzero pull` as it is typed: where a run is taken from, where it goes, what is said."""

from __future__ import annotations

import json
import re
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
from rankzero.spec.resolve import resolve, to_yaml
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


ALICE = RUN.replace("name: r", "name: exp") + "output_dir: alice\n"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A volume that several people's runs are on, and this machine's cluster.yaml that names it."""
    volume = tmp_path / "shared"
    volume.mkdir()
    Path("c.yaml").write_text(f"kind: slurm\nstorage: {{outputs: {{mount: {volume}, host_path: {volume}}}}}\n")
    Path("t.jsonl").write_text('{"text": "a"}\n')
    return volume


def quoted(told: str) -> str:
    """What an error's hint says to type instead."""
    (command,) = re.findall(r"`rankzero (pull .*?)`", told)
    return str(command)


def has_run(volume: Path, owner: str, change: dict[str, object] | None = None) -> Path:
    """The run of ALICE's spec, or of a changed one, as its first node leaves it in somebody's directory."""
    path = volume / owner / "exp"
    path.mkdir(parents=True)
    written(ALICE)
    (path / "run.yaml").write_text(to_yaml(plan_of("run.yaml", "c.yaml", change).run))
    (path / "owner").write_text(owner)
    return path


def test_a_run_yaml_brings_no_other_persons_run_of_its_name(cli: Cli, shared: Path) -> None:
    bobs = has_run(shared, "bob", {"train.learning_rate": 0.5})
    refused = cli("pull run.yaml --cluster c.yaml")
    assert refused.code == 78 and f"with other settings or data in {bobs}\n" in refused.err, refused.err
    assert not Path("runs").exists()
    by_name = cli(quoted(refused.err))
    assert by_name.code == 0 and f"found in {shared}: {bobs}\n" in by_name.err, by_name.err
    assert Path("runs/exp/owner").read_text() == "bob"


def test_of_two_runs_of_a_name_a_run_yaml_brings_its_own(cli: Cli, shared: Path) -> None:
    for owner in ("alice", "bob"):
        has_run(shared, owner)
    refused = cli("pull exp --cluster c.yaml")
    assert refused.code == 78 and "give its run.yaml" in refused.err
    assert cli("pull run.yaml --cluster c.yaml").code == 0
    assert Path("runs/exp/owner").read_text() == "alice"


@pytest.mark.parametrize("length", [{}, {"train.max_steps": 7}])
def test_a_run_that_was_submitted_to_another_output_dir(cli: Cli, shared: Path, length: dict[str, object]) -> None:
    """The override stands in no file: settings and data tell whose it is."""
    has_run(shared, "bob", {"train.learning_rate": 0.5})
    has_run(shared, "deep/er", {"output_dir": "deep/er", **length})
    done = cli("pull run.yaml --cluster c.yaml")
    assert done.code == 0 and Path("runs/exp/owner").read_text() == "deep/er", done.err


def test_a_run_of_data_of_another_name_is_another(cli: Cli, shared: Path) -> None:
    Path("u.jsonl").write_text('{"text": "a"}\n')
    has_run(shared, "bob", {"data.train": "u.jsonl"})
    assert cli("pull run.yaml --cluster c.yaml").code == 78


def test_a_run_yaml_that_cannot_be_submitted_any_more(cli: Cli, shared: Path) -> None:
    """Its data have gone from here; the run is where it was."""
    for owner in ("alice", "bob"):
        has_run(shared, owner)
    Path("t.jsonl").unlink()
    assert cli("pull run.yaml --cluster c.yaml").code == 0
    assert Path("runs/exp/owner").read_text() == "alice"


def test_a_clusters_store_has_runs_where_the_volume_would(cli: Cli, shared: Path) -> None:
    """storage.outputs.url holds <output_dir>/<name>, as the volume of the pods does."""
    bobs = has_run(shared, "bob", {"train.learning_rate": 0.5})
    Path("c.yaml").write_text(f"image: i\nstorage: {{outputs: {{mount: /outputs, url: '{shared.as_uri()}'}}}}\n")
    refused = cli("pull run.yaml --cluster c.yaml")
    assert refused.code == 78 and quoted(refused.err) == f"pull exp {shared.as_uri()}/bob", refused.err
    assert cli(f"{quoted(refused.err)} -o by-name").code == 0
    bobs.rename(bobs.parent / "other")
    has_run(shared, "alice")
    done = cli("pull run.yaml --cluster c.yaml")
    assert done.code == 0 and f"found in {shared.as_uri()}/alice/exp\n" in done.err, done.err


def test_a_url_brings_no_other_persons_run_of_its_name(cli: Cli, shared: Path) -> None:
    bobs = has_run(shared, "bob", {"train.learning_rate": 0.5})
    for url in (shared, bobs.parent, bobs):
        refused = cli(f"pull run.yaml {url.as_uri()}")
        assert refused.code == 78 and f"with other settings or data in {bobs.as_uri()}\n" in refused.err, refused.err
        assert quoted(refused.err) == f"pull exp {bobs.parent.as_uri()}" and not Path("runs").exists()
    assert cli(quoted(refused.err)).code == 0
    assert Path("runs/exp/owner").read_text() == "bob"


def test_an_output_url_that_several_people_share(cli: Cli, shared: Path) -> None:
    bobs = has_run(shared, "bob", {"train.learning_rate": 0.5})
    written(f"{ALICE}output_url: {bobs.parent.as_uri()}\n")
    assert cli("pull run.yaml").code == 78 and not Path("runs").exists()


def test_at_a_url_a_run_yaml_brings_its_own_of_several(cli: Cli, shared: Path) -> None:
    """Where its output_dir is, or else by its settings; what lies higher up may be another's."""
    bobs = has_run(shared, "bob")
    has_run(shared, "alice")
    shutil.copytree(has_run(shared, "carol", {"train.learning_rate": 0.5}), shared / "exp")
    done = cli(f"pull run.yaml {shared.as_uri()}")
    assert done.code == 0 and Path("runs/exp/owner").read_text() == "alice", done.err
    shutil.rmtree(shared / "alice")
    assert cli(f"pull run.yaml {shared.as_uri()} -o by-settings").code == 0
    assert Path("by-settings/owner").read_text() == "bob"
    shutil.rmtree(bobs)
    refused = cli(f"pull run.yaml {shared.as_uri()} -o none")
    assert refused.code == 78 and f"`rankzero pull exp {shared.as_uri()}/carol`" in refused.err, refused.err


def test_a_new_setting_whose_run_is_not_there_brings_no_other(cli: Cli, shared: Path) -> None:
    """Its plain name is another setting's in its own directory, too."""
    plain = has_run(shared, "alice", {"train.learning_rate": 0.5})
    has_run(shared, "bob", {"train.learning_rate": 0.5})
    written(f"{ALICE}resume: new\n")
    for place in ("--cluster c.yaml", shared.as_uri()):
        refused = cli(f"pull run.yaml {place}")
        assert refused.code == 78 and "with other settings or data in" in refused.err, refused.err
        assert not Path("runs").exists()
    plain.rename(plain.parent / name_beside(plan_of("run.yaml", "c.yaml").run))
    assert cli("pull run.yaml --cluster c.yaml -o new").code == 78  # the other's settings under this name
    shutil.rmtree(plain.parent)
    has_run(shared, "alice")
    written(f"{ALICE}resume: new\n")
    assert cli("pull run.yaml --cluster c.yaml").code == 0  # it was first there, and has the plain name


def test_a_cluster_yaml_that_an_older_version_submitted_with_names_the_run_as_it_did(cli: Cli, shared: Path) -> None:
    """It holds a secret, from which nothing is made here; `resume: new` is named after the paths in the pods."""
    plain = has_run(shared, "alice")
    written(f"{ALICE}resume: new\n")
    own = plain.rename(plain.parent / name_beside(plan_of("run.yaml", "c.yaml").run))
    with Path("c.yaml").open("a") as file:
        file.write("slurm: {setup: ['export WANDB_API_KEY=canary0123456789']}\n")
    assert cli("render run.yaml --cluster c.yaml").code == 78
    done = cli("pull run.yaml --cluster c.yaml")
    assert done.code == 0 and f"found in {shared}: {own}\n" in done.err, done.err


def test_a_run_yaml_of_another_version_is_told_as_such(cli: Cli, shared: Path) -> None:
    bobs = has_run(shared, "bob")
    with (bobs / "run.yaml").open("a") as file:
        file.write("of_another_version: 1\n")
    for place in ("--cluster c.yaml", shared.as_uri()):
        refused = cli(f"pull run.yaml {place}")
        assert refused.code == 78 and "this version does not read" in refused.err, refused.err
        assert "other settings" not in refused.err
        shutil.rmtree("runs", ignore_errors=True)
        assert cli(quoted(refused.err)).code == 0


def test_what_cannot_be_pulled(cli: Cli, store: str) -> None:
    assert cli(f"pull other {store}").code == 78
    refused = cli("pull r /mnt/somewhere")
    assert refused.code == 2 and "is no URL" in refused.err
    Path("c.yaml").write_text("image: i\n")
    refused = cli("pull r --cluster c.yaml")
    assert refused.code == 78 and "no volume of this cluster keeps results" in refused.err
    assert cli("pull nope.yaml").code == 78
    assert not Path("runs").exists()
