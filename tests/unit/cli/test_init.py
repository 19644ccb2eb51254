"""`rankzero init`: recipes are written whole or not at all, load, and become objects of their kind of cluster."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankzero.cli.init import RECIPES, listing, recipe_files, summary, write_all
from rankzero.errors import StorageError
from rankzero.launch.plan import Plan, make_plan
from rankzero.launch.render import render
from rankzero.launch.ship import local_files
from rankzero.spec import schema
from rankzero.spec.cluster_load import load_cluster, profiles
from rankzero.spec.load import load_run_spec
from rankzero.spec.resolve import resolve
from rankzero.spec.run_spec import RunSpec
from tests.support.cli import Cli
from tests.support.manifests import CORE_VERSIONS, check_core, check_custom, have_crds, is_custom
from tests.support.recipes import ON_THE_CLUSTER

SEED_3 = {
    "MODEL_ID": "o/m",
    "DATASET_ID": "o/d#7",
    "MAX_LEN": "1024",
    "BATCH": "2",
    "GRAD_ACC": "3",
    "EPOCHS": "4",
    "LR": "5e-5",
    "LORA_RANK": "6",
    "LORA_ALPHA": "12",
    "NPROC": "8",
    "DTYPE": "bfloat16",
}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.chdir(tmp_path)
    for name in (*SEED_3, "RANKZERO_CLUSTER", "RANKZERO_IMAGE", "RANKZERO_NAMESPACE", "DATA_ROOT", "CKPT_ROOT"):
        monkeypatch.delenv(name, raising=False)
    return Cli(capfd, monkeypatch)


def plan(name: str, env: dict[str, str]) -> Plan:
    """The plan of a recipe that was written here."""
    run = resolve(load_run_spec(Path(name) / "run.yaml", env=env).spec)
    return make_plan(run, load_cluster(f"{name}/cluster.yaml", env=env).spec, files=local_files(run))


@pytest.mark.parametrize("name", RECIPES)
class TestEveryRecipe:
    def test_it_is_written_and_loads(self, cli: Cli, name: str) -> None:
        done = cli(f"init --recipe {name} -o {name}")
        assert done.code == 0, done.err
        assert done.out.startswith(f"wrote {name}/run.yaml\nwrote {name}/cluster.yaml\n")
        assert f"cd {name}; " in done.out
        assert resolve(load_run_spec(Path(name) / "run.yaml", env={}).spec).name is not None
        assert load_cluster(f"{name}/cluster.yaml", env={}).spec == load_cluster(RECIPES[name], env={}).spec

    def test_files_are_short_and_commented(self, cli: Cli, name: str) -> None:
        for file in ("run.yaml", "cluster.yaml"):
            lines = recipe_files(name)[file].splitlines()
            assert len(lines) < 60
            assert max(map(len, lines)) <= 120
            assert lines[0].startswith("# ") and sum("#" in line for line in lines) >= len(lines) / 3

    def test_it_renders_for_its_kind_without_a_cluster(
        self, cli: Cli, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert cli(f"init --recipe {name}").code == 0
        for variable, value in ON_THE_CLUSTER.get(name, {}).items():
            monkeypatch.setenv(variable, value)
        done = cli("render run.yaml --cluster cluster.yaml")
        assert done.code == 0, done.err
        kinds = [manifest["kind"] for manifest in yaml.safe_load_all(done.out)]
        wanted = load_cluster(RECIPES[name], env={}).spec.kind
        assert wanted in [kind.lower() for kind in kinds] or wanted == "docker"
        assert "ConfigMap" in kinds

    def test_its_objects_are_valid(self, cli: Cli, name: str) -> None:
        cli(f"init --recipe {name} -o {name}")
        os.chdir(name)
        for manifest in render(plan(".", ON_THE_CLUSTER.get(name, {}))):
            if not is_custom(manifest):
                for version in CORE_VERSIONS:
                    check_core(manifest, version)
            elif have_crds():
                check_custom(manifest)

    def test_further_files_are_valid(self, cli: Cli, name: str) -> None:
        for file, text in recipe_files(name).items():
            if file.endswith("-job.yaml"):
                job = yaml.safe_load(text)
                check_core(job, CORE_VERSIONS[-1])
                volumes = job["spec"]["template"]["spec"]["volumes"]
                claims = {volume["persistentVolumeClaim"]["claimName"] for volume in volumes}
                ours = load_cluster(RECIPES[name], env={}).spec.storage.values()
                assert claims <= {volume.claim for volume in ours}


@pytest.mark.parametrize("name", ["qwen3-vl-32b-fire-4gpu", "qwen3-vl-32b-volcano-4gpu"])
def test_the_data_job_does_what_it_says(name: str, tmp_path: Path) -> None:
    """Its script, with the volumes and COCO's server in a directory, and a rankzero that only notes its arguments."""
    job = yaml.safe_load(recipe_files(name)["data-job.yaml"])
    container = job["spec"]["template"]["spec"]["containers"][0]
    script = container["args"][0].replace("/cache/", f"{tmp_path}/cache/").replace("/outputs/", f"{tmp_path}/outputs/")
    for part in ("train2017", "val2017"):
        (tmp_path / "coco").mkdir(exist_ok=True)
        (tmp_path / "coco" / f"{part}.zip").write_bytes(part.encode())
    noting = tmp_path / "bin" / "rankzero"
    noting.parent.mkdir()
    noting.write_text('#!/bin/sh\necho "$*" >> "$NOTED"\n')
    noting.chmod(0o755)
    env = {**os.environ, "PATH": f"{noting.parent}:{os.environ['PATH']}", "NOTED": str(tmp_path / "noted")}
    env["COCO"] = (tmp_path / "coco").as_uri()
    for _ in range(2):  # the second time, nothing is fetched
        subprocess.run([*container["command"], script], env=env, check=True, timeout=300)
        shutil.rmtree(tmp_path / "coco", ignore_errors=True)
    assert (tmp_path / "cache/coco/val2017.zip").read_bytes() == b"val2017"
    first, second = (tmp_path / "noted").read_text().splitlines()
    assert first == second
    run = load_run_spec_of(name)
    assert not isinstance(run.data.train, str)
    path, root = run.data.train[0].path, str(run.data.train[0].image_root)
    assert f"--output_dir {tmp_path}{Path(path).parent} " in first and f"--image_dir {tmp_path}{root} " in first
    assert first.count(f"--images coco={tmp_path}/cache/coco/") == 2


def load_run_spec_of(name: str) -> RunSpec:
    """A recipe's spec as it ships."""
    from importlib.resources import files

    return load_run_spec(Path(str(files("rankzero") / "recipes" / name / "run.yaml")), env={}).spec


def test_every_folder_is_a_recipe_and_every_profile_is_there() -> None:
    from importlib.resources import files

    folders = {entry.name for entry in (files("rankzero") / "recipes").iterdir() if entry.is_dir()}
    assert folders - {"clusters", "default", "__pycache__"} == set(RECIPES)
    assert set(RECIPES.values()) <= set(profiles())


class TestVariables:
    def test_all_of_them_are_honoured(self, cli: Cli) -> None:
        cli("init --recipe qwen3-8b-alpaca-2gpu -o r")
        run = load_run_spec(Path("r/run.yaml"), env=SEED_3).spec
        assert not isinstance(run.data.train, str)
        assert (run.model.name, run.model.dtype, run.data.train[0].path) == ("o/m", "bfloat16", "o/d#7")
        assert run.lora is not None
        assert (run.lora.r, run.lora.alpha) == (6, 12)
        assert (run.data.max_length, run.train.num_train_epochs, run.train.learning_rate) == (1024, 4, 5e-5)
        assert run.train.global_batch_size == 2 * 3 * 8
        assert load_cluster("r/cluster.yaml", env=SEED_3).spec.nproc_per_node == 8

    @pytest.mark.parametrize(
        ("name", "size", "gpus"), [("qwen3-8b-alpaca-2gpu", 32, 2), ("qwen3-vl-32b-fire-4gpu", 64, 4)]
    )
    def test_the_batch_is_batch_by_accumulation_by_processes(self, cli: Cli, name: str, size: int, gpus: int) -> None:
        cli(f"init --recipe {name} -o r")
        made = plan("r", {})
        assert (made.run.train.global_batch_size, made.cluster.nproc_per_node) == (size, gpus)
        made = plan("r", {"NPROC": "1", "BATCH": "4"})
        assert (made.run.train.global_batch_size, made.cluster.nproc_per_node) == (4 * 16, 1)

    def test_the_smoke_phase_is_500_rows(self, cli: Cli) -> None:
        cli("init --recipe qwen3-8b-alpaca-2gpu -o r")
        source = load_run_spec(Path("r/run.yaml"), env={}).spec.data.train[0]
        assert not isinstance(source, str) and source.path.endswith("#500")

    @pytest.mark.parametrize("name", ["qwen3-vl-32b-fire-4gpu", "qwen3-vl-32b-volcano-4gpu"])
    def test_of_the_vision_recipes(self, cli: Cli, name: str) -> None:
        cli(f"init --recipe {name} -o r")
        run = load_run_spec(Path("r/run.yaml"), env={"IMAGE_MAX_TOKEN_NUM": "512", "MAX_LEN": "4096"}).spec
        assert (run.data.image_max_tokens, run.data.max_length, run.train.learning_rate) == (512, 4096, 1e-4)
        run = load_run_spec(Path("r/run.yaml"), env={}).spec
        assert run.lora is not None
        assert (run.data.image_max_tokens, run.data.max_length, run.lora.r) == (2048, 8192, 32)

    def test_places_of_the_jsonl_recipe(self, cli: Cli) -> None:
        cli("init --recipe lora-jsonl -o r")
        run = load_run_spec(Path("r/run.yaml"), env={"DATA_ROOT": "d", "CKPT_ROOT": "c"}).spec
        assert (run.data.train, run.data.eval, run.output_dir) == ("d/train.jsonl", "d/val.jsonl", "c")
        run = load_run_spec(Path("r/run.yaml"), env={}).spec
        assert (run.data.train, run.data.eval, run.output_dir) == ("./train.jsonl", "./val.jsonl", "runs"), (
            "on a laptop"
        )


class TestWriting:
    def test_the_list(self, cli: Cli) -> None:
        lines = cli("init --list").out.splitlines()
        assert [line.split()[0] for line in lines] == list(RECIPES)
        assert all(line.endswith(summary(line.split()[0])) for line in lines)

    def test_the_list_as_json(self, cli: Cli) -> None:
        found = json.loads(cli("init --list --json").out)
        assert {entry["name"]: entry["cluster"] for entry in found} == RECIPES
        assert all(entry["summary"] for entry in found)

    def test_what_was_written_as_json(self, cli: Cli) -> None:
        found: dict[str, Any] = json.loads(cli("init --recipe quickstart -o q --json").out)
        assert found["recipe"] == "quickstart"
        assert set(found["files"]) == {str(path) for path in Path("q").iterdir()}

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("init --recipe qlora", ["--recipe qlora: there is no such recipe", "did you mean qwen3-30b-qlora-2x8?"]),
            ("init --recipe lora-json", ["did you mean lora-jsonl?"]),
            ("init --recipe zzz", ["there are quickstart, lora-jsonl, "]),
            ("init --recipe ''", ["there is no such recipe", "there are quickstart"]),
            ("init --recipe ../default", ["there is no such recipe"]),
            ("init --recipe clusters", ["there is no such recipe"]),
            ("init --recipe lora-jsonl -o x.yaml", ["more than one file", "-o x"]),
            ("init --list --recipe lora-jsonl", ["--list writes nothing"]),
        ],
    )
    def test_what_is_refused(self, cli: Cli, line: str, words: list[str]) -> None:
        done = cli(line)
        assert done.code == 2
        assert all(word in done.err for word in words), done.err
        assert list(Path(".").iterdir()) == []

    @pytest.mark.parametrize("existing", ["run.yaml", "cluster.yaml"])
    def test_nothing_is_written_where_one_file_exists(self, cli: Cli, existing: str) -> None:
        Path("d").mkdir()
        Path("d", existing).write_text("mine")
        done = cli("init --recipe distilbert-sst2 -o d")
        assert done.code == 2
        assert f"d/{existing}: the file exists already" in done.err and "--force" in done.err
        assert {path.name: path.read_text() for path in Path("d").iterdir()} == {existing: "mine"}
        assert cli("init --recipe distilbert-sst2 -o d --force").code == 0
        assert {path.name: path.read_text() for path in Path("d").iterdir()} == recipe_files("distilbert-sst2")

    def test_what_is_written_names_no_place_of_this_machine(self, cli: Cli) -> None:
        """It is committed, and read by others. With --schema the schemas come along, named by their relative paths."""
        line = re.compile(r"^# yaml-language-server: \$schema=(.+)\n", re.MULTILINE)
        installed = Path(schema.__file__).parent
        for command in ("init", "init --recipe distilbert-sst2 -o d"):
            assert cli(command).code == 0 and cli(f"{command} --force --schema").code == 0
        assert cli("init -o mine.yaml --schema --force").code == 0
        for path in (Path("run.yaml"), Path("mine.yaml"), *Path("d").glob("*.yaml")):
            text = path.read_text()
            (name,) = line.findall(text)
            assert name == ("run.schema.json" if path.name == "mine.yaml" else f"{path.stem}.schema.json")
            assert (path.parent / name).read_text() == (installed / name).read_text()
            assert str(installed) not in text and str(Path.home()) not in text
        plain = {name: line.sub("", Path("d", name).read_text()) for name in recipe_files("distilbert-sst2")}
        assert plain == recipe_files("distilbert-sst2")
        assert cli("init --list --schema").code == 2

    def test_a_profile_alone_and_in_place_of_a_recipe_s(self, cli: Cli) -> None:
        assert "rankzero plan run.yaml --cluster slurm.yaml" in cli("init --cluster slurm -o slurm.yaml").out
        assert load_cluster("slurm.yaml", env={}).spec.kind == "slurm"
        assert cli("init --recipe lora-jsonl --cluster slurm -o d --schema").code == 0
        assert load_cluster("d/cluster.yaml", env={}).spec.kind == "slurm"
        assert cli("init --cluster slurm -o s.yaml --schema").code == 0
        assert "$schema=cluster.schema.json" in Path("s.yaml").read_text()
        done = cli("init --cluster slrum")
        assert done.code == 2 and "did you mean slurm?" in done.err and not Path("cluster.yaml").exists()

    def test_on_a_terminal_a_recipe_s_line_ends_between_words(self) -> None:
        text = listing(as_json=False, columns=80)
        assert max(map(len, text.splitlines())) <= 80
        assert " ".join(text.split()) == " ".join(listing(as_json=False).split())
        assert len(listing(as_json=False).splitlines()) == len(RECIPES), "a line each where a program reads"

    def test_no_schema_is_named_unasked(self, cli: Cli) -> None:
        assert cli("init").code == 0 and [path.name for path in Path(".").iterdir()] == ["run.yaml"]
        assert "$schema" not in Path("run.yaml").read_text()

    def test_a_link_that_leads_nowhere_is_not_replaced(self, cli: Cli) -> None:
        Path("run.yaml").symlink_to("gone.yaml")
        assert cli("init --recipe lora-jsonl").code == 2
        assert [path.name for path in Path(".").iterdir()] == ["run.yaml"]

    def test_not_even_by_force_where_a_directory_is_in_the_way(self, cli: Cli) -> None:
        Path("cluster.yaml").mkdir()
        assert cli("init --recipe lora-jsonl --force").code == 2
        assert [path.name for path in Path(".").iterdir()] == ["cluster.yaml"]

    def test_a_full_disk_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The second file cannot be written: the first does not appear either."""
        calls: list[int] = []

        def fails_at_the_second(descriptor: int) -> None:
            calls.append(descriptor)
            if len(calls) == 2:
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fails_at_the_second)
        with pytest.raises(StorageError, match="No space left"):
            write_all({tmp_path / "run.yaml": "a", tmp_path / "cluster.yaml": "b"}, force=False)
        assert list(tmp_path.iterdir()) == []

    def test_where_nothing_can_be_written(self, cli: Cli) -> None:
        Path("file").write_text("x")
        assert cli("init --recipe lora-jsonl -o file").code == 74
        assert Path("file").read_text() == "x"


class TestWithoutARecipe:
    def test_as_before(self, cli: Cli) -> None:
        done = cli("init")
        assert done.code == 0
        assert done.out == "wrote run.yaml\nnext: set model.name and data.train in it, then: rankzero train run.yaml\n"
        assert cli("init").code == 2
        Path("d").mkdir()
        assert cli("init -o d").code == 0
        assert Path("d/run.yaml").read_text() == Path("run.yaml").read_text()

    def test_a_slash_at_its_end_makes_it_a_directory(self, cli: Cli) -> None:
        assert cli("init -o new/").out.startswith("wrote new/run.yaml\n")
        assert cli("init --cluster slurm -o deep/new/").code == 0
        assert Path("new/run.yaml").is_file() and Path("deep/new/cluster.yaml").is_file()
        assert cli("init -o new.yaml").code == 0 and Path("new.yaml").is_file()
        assert cli("init --recipe lora-jsonl -o x.yaml/").code == 0 and Path("x.yaml/run.yaml").is_file()
