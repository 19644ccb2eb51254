"""`rankzero render` as typed."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.work import calls_of_command

RUN = "name: demo\nmodel: {name: org/m}\ndata: {train: /outputs/t.jsonl}\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("RANKZERO_CLUSTER", "RANKZERO_IMAGE", "RANKZERO_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    Path("run.yaml").write_text(RUN)
    return tmp_path


def test_stdout_is_yaml_and_nothing_else(cli: Any) -> None:
    done = cli("render run.yaml --cluster rook-ceph-1x2")
    objects = list(yaml.safe_load_all(done.out))
    assert (done.code, done.err) == (0, "")
    assert [manifest["kind"] for manifest in objects][-1] == "Job"


def test_kind_and_overrides(cli: Any) -> None:
    done = cli("render run.yaml --cluster nebius-2x1 --kind jobset cluster.num_nodes=7 train.max_steps=3")
    *_, jobset = yaml.safe_load_all(done.out)
    assert jobset["kind"] == "JobSet"
    assert jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"] == 7
    assert "max_steps: 3" in done.out


def test_one_file_an_object(cli: Any, here: Path) -> None:
    done = cli("render run.yaml --cluster nebius-2x1 -o out")
    files = sorted(path.name for path in (here / "out").iterdir())
    assert done.out.split() == [f"out/{name}" for name in files]
    assert files[-1].endswith("job-demo.yaml")


def test_the_home_of_who_submits_is_no_name_on_a_volume(cli: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~/runs` was a directory called ~ on the volume of results."""
    monkeypatch.setenv("HOME", "/home/me")
    (here / "run.yaml").write_text(f"{RUN}output_dir: ~/runs\n")
    done = cli("render run.yaml --cluster nebius-2x1 data.eval='~/e.jsonl' data.chat_template='~/t.jinja'")
    assert done.code == 78
    for words in (
        "output_dir: /home/me/runs is not on a volume",
        "pods have nothing at /home/me/e.jsonl",
        "me/t.jinja",
    ):
        assert words in done.err
    monkeypatch.setenv("HOME", "/outputs/me")
    assert "output_dir: /outputs/me/runs\n" in cli("render run.yaml --cluster nebius-2x1").out


def test_a_model_in_a_home_that_hosts_share(cli: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    place = {"kind": "slurm", "storage": {"outputs": {"mount": "/shared", "host_path": "/shared"}}}
    (here / "cluster.yaml").write_text(yaml.safe_dump(place))
    text = "model.name='~/m' data.train=org/rows"
    assert "name: ~/m" in cli(f"render run.yaml {text}").out
    for runtime, has_home in (("apptainer", True), ("pyxis", False)):
        done = cli(f"render run.yaml {text} cluster.slurm.runtime={runtime} cluster.slurm.image=i")
        assert ("name: ~/m" in done.out) == has_home
    assert "pods have nothing at /home/me/m" in done.err
    assert "pods have nothing at /home/me/m" in cli(f"render run.yaml --cluster nebius-2x1 {text}").err


def test_no_shell_sees_to_a_home_behind_an_equals_sign(cli: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here / "home"))
    for command in ("render run.yaml --cluster nebius-2x1 --output=~/out", "init --output=~/mine/run.yaml"):
        assert cli(command).code == 0
    assert list((here / "home").glob("out/*job-demo.yaml")) and (here / "home/mine/run.yaml").is_file()
    assert "home/nope.yaml: no such file" in cli("render ~/mine/run.yaml --cluster=~/nope.yaml").err
    assert not (here / "~").exists()


def test_a_run_on_slurm_that_is_prepared_is_two_scripts_and_the_second_works_alone(cli: Any, here: Path) -> None:
    volumes = {name: {"mount": f"/shared/{name}", "host_path": f"/shared/{name}"} for name in ("outputs", "cache")}
    place = {"kind": "slurm", "storage": volumes, "slurm": {"partition": "gpu", "prepare_partition": "cpu"}}
    (here / "cluster.yaml").write_text(yaml.safe_dump(place))
    (here / "run.yaml").write_text(RUN.replace("/outputs/", "/shared/outputs/"))
    done = cli("render run.yaml")
    assert done.code == 0 and done.out.count("#!/bin/bash") == 1 and "#SBATCH --partition=gpu" in done.out
    assert "-o DIR writes both" in done.err
    assert cli("render run.yaml -o out").code == 0
    first, second = sorted((here / "out").iterdir())
    assert first.name == "01-batchscript-demo-prepare.sbatch" and "#SBATCH --partition=cpu" in first.read_text()
    assert second.name == "02-batchscript-demo.sbatch" and second.read_text() == done.out


def test_the_cluster_of_the_environment_or_the_folder(cli: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("render run.yaml").code == 2
    (here / "cluster.yaml").write_text("image: mine\nstorage: {outputs: {mount: /outputs, claim: c}}\n")
    assert "image: mine" in cli("render run.yaml").out
    monkeypatch.setenv("RANKZERO_CLUSTER", "docker")
    assert "kind: Pod" in cli("render run.yaml").out


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("render", 2, "one run spec is needed"),
        ("render run.yaml other.yaml --cluster docker", 2, "one run spec, not 2"),
        ("render run.yaml --cluster nowhere", 78, "no such profile"),
        ("render run.yaml --cluster dokcer", 78, "did you mean docker?"),
        ("render run.yaml --cluster nope.yaml", 78, "`rankzero init --recipe NAME` writes one"),
        ("render run.yaml --cluster run.yaml", 78, "this is a run spec, not a cluster spec"),
        ("render run.yaml --cluster .", 78, "this is a directory"),
        ("render run.yaml --cluster docker cluster.num_nodes=0", 78, "command line cluster.num_nodes: must be"),
        ("render run.yaml --cluster docker cluster.nodes=2", 78, "this is num_nodes here"),
        ("render run.yaml --cluster docker --kind deployment", 78, "kind"),
        ("render run.yaml --cluster docker data.train=/data/x.jsonl", 78, "pods have nothing at /data/x.jsonl"),
        ("render run.yaml --cluster docker data.train=x.jsonl", 78, "no such file"),
    ],
)
def test_problems(cli: Any, line: str, code: int, text: str) -> None:
    done = cli(line)
    assert done.code == code
    assert text in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    "arguments", [["render", "--help"], ["render", "run.yaml", "--cluster", "nebius-2x1", "cluster.num_nodes=1000"]]
)
def test_it_answers_at_once_and_without_torch(arguments: list[str], here: Path) -> None:
    """At most a million calls, imports and all: 0.35 s of an idle machine."""
    code = (
        "import sys; from rankzero.cli.main import main; sys.argv[1:] = " + repr(arguments) + "\n"
        "try: main()\nexcept SystemExit as end: assert not end.code, end.code\n"
        "assert not {'torch', 'transformers', 'lightkube'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    assert calls_of_command(*arguments, cwd=here) < 1_000_000


def test_from_another_directory(cli: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, and the cluster.yaml, are those beside the run spec; the objects are the same wherever it is typed."""
    (here / "run.yaml").write_text("model: {name: org/m}\ndata: {train: t.jsonl}\n")
    (here / "t.jsonl").write_text('{"text": "a"}\n')
    (here / "cluster.yaml").write_text("image: mine\nstorage: {outputs: {mount: /outputs, claim: c}}\n")
    beside = cli("render run.yaml")
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    done = cli("render ../run.yaml")
    assert (done.code, done.out) == (0, beside.out), done.err
    (here / "elsewhere/cluster.yaml").write_text("image: other\n")
    two = cli("render ../run.yaml")
    assert two.code == 2 and "one is beside the run spec and one in the working directory" in two.err
    assert cli("render ../run.yaml --cluster ../cluster.yaml").out == beside.out
    assert "/outputs/mine" in cli("render ../run.yaml --cluster ../cluster.yaml output_dir=mine").out


def test_a_file_of_the_wrong_directory_is_not_shipped(cli: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "run.yaml").write_text(RUN.replace("/outputs/t.jsonl", "t.jsonl"))
    (here / "elsewhere").mkdir()
    (here / "elsewhere/t.jsonl").write_text('{"text": "a"}\n')
    monkeypatch.chdir(here / "elsewhere")
    done = cli("render ../run.yaml --cluster docker")
    assert done.code == 78 and "only the working directory has t.jsonl" in done.err
    typed = cli("render ../run.yaml --cluster docker data.train=t.jsonl")
    assert typed.code == 0 and "elsewhere/t.jsonl" in typed.out, typed.err


def test_a_terminal_is_spared_what_is_shipped(cli: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = '{"text": "a"}\n' * 1000
    (here / "t.jsonl").write_text(rows)
    line = "render run.yaml --cluster docker data.train=t.jsonl"
    piped = cli(line)
    assert base64.b64encode(rows.encode()).decode() in piped.out and piped.err == ""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    short, dry, full = cli(line), cli(line.replace("render", "submit --dry-run")), cli(f"{line} --full")
    assert "<18,668 characters>" in short.out and "--full" in short.err and dry.out == short.out
    assert max(map(len, short.out.splitlines())) < 1000
    assert (full.out, full.err) == (piped.out, "")
    assert len(list(yaml.safe_load_all(short.out))) == len(list(yaml.safe_load_all(full.out)))
