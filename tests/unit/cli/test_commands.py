"""The commands as a user types them: exit codes, messages, and what is handed on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankzero.cli.train import in_columns
from rankzero.errors import DataError, NonFiniteError, ServiceError, StoppedError
from rankzero.spec.load import load_run_spec
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from tests.support.cli import Cli
from tests.support.paper_model import paper_model
from tests.unit.run_dir.test_setting import save

SMALL = "model: {name: m}\ndata: {train: t.jsonl}\n"
REPORT = {
    "train_loss_first": 2.0,
    "train_loss_last": 1.0,
    "eval_loss": 1.5,
    "eval_loss_first": None,
    "perplexity": 4.48,
    "accuracy": None,
    "macro_f1": None,
    "final_step": 8,
    "last_evaluation": {"step": 8, "eval_loss": 1.5, "perplexity": 4.48},
    "spec": {"task": "sft"},
}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(SMALL, encoding="utf-8")
    Path("t.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    Path("cluster.yaml").write_text("image: i\nnum_nodes: 2\n", encoding="utf-8")
    paper_model(tmp_path / "m")
    return Cli(capfd, monkeypatch)


class Started:
    """Stands for the start of a run, and remembers what it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[RunSpec, RunOptions, int]] = []
        self.restarts: list[int] = []
        self.error: BaseException | None = None

    def __call__(
        self, spec: RunSpec, options: RunOptions, nproc: int, max_restarts: int, *, in_process: bool, begun: float
    ) -> dict[str, Any]:
        assert in_process == (nproc == 1 and not max_restarts) and begun > 0
        self.calls.append((spec, options, nproc))
        self.restarts.append(max_restarts)
        if self.error is not None:
            raise self.error
        return REPORT

    @property
    def last(self) -> tuple[RunSpec, RunOptions, int]:
        return self.calls[-1]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    started = Started()
    monkeypatch.setattr("rankzero.api.training.run_to_end", started)
    monkeypatch.setattr("rankzero.cli.first_line.say_step", lambda _text: None)
    return started


class TestTrain:
    def test_a_spec_file(self, cli: Cli, started: Started) -> None:
        done = cli("train run.yaml train.seed=3 lora.r=4")
        spec, options, nproc = started.last
        assert done.code == 0
        assert done.err == ""
        assert "train loss     2.0000 -> 1.0000" in done.out
        assert (spec.train.seed, spec.train.learning_rate) == (3, 2e-4)
        assert spec.name is not None
        assert spec.name.startswith("m-lora-")
        assert options == RunOptions()
        assert nproc >= 1

    def test_overrides_may_come_first(self, cli: Cli, started: Started) -> None:
        assert cli("train train.seed=3 run.yaml --seq-len 64").code == 0
        assert (started.last[0].train.seed, started.last[0].data.max_length) == (3, 64)

    def test_a_store_that_has_another_settings_run(self, cli: Cli, started: Started, tmp_path: Path) -> None:
        """Nothing of it is here, and with `resume: new` nothing of it is brought here."""
        new = f"train run.yaml name=r resume=new output_url=file://{tmp_path}/store"
        assert cli(f"{new} train.seed=3").code == 0
        other = started.last[0]
        assert other.name == "r"
        save(other)
        shutil.copytree("runs/r", tmp_path / "store/r")
        shutil.rmtree("runs/r")
        done = cli(f"{new} train.seed=4")
        assert done.code == 0, done.err
        name = str(started.last[0].name)
        assert name.startswith("r-") and f"run directory  runs/{name}" in done.out
        assert cli(f"{new} train.seed=3").code == 0 and started.last[0].name == "r"

    def test_the_seeds_flags_without_a_file(self, cli: Cli, started: Started) -> None:
        done = cli(
            "train --model m --data t.jsonl --output out/r --epochs 2 --seq-len 512 "
            "--batch 2 --grad-accum 4 --bf16 --lora --lora-r 16 --lora-alpha 32 --lora-dropout 0.1 "
            "--target-modules q_proj v_proj --log-level DEBUG --log-batches all --model-local-dir m "
            "--tokenizer-local-dir m --local-files-only --report-json r.json --nproc-per-node 3 "
            "--allow-change train.seed --allow-change data"
        )
        assert done.code == 0, done.err
        spec, options, nproc = started.last
        assert (spec.output_dir, spec.name, nproc) == (str(Path("out").resolve()), "r", 3)
        assert spec.train.global_batch_size == 2 * 4 * 3
        assert spec.lora is not None
        assert (spec.lora.r, spec.lora.target_modules) == (16, ("q_proj", "v_proj"))
        assert options == RunOptions("DEBUG", "all", "r.json", ("train.seed", "data"))

    @pytest.mark.parametrize("more", ["", " --dry-run"])
    def test_a_change_that_cannot_be_is_refused_before_anything_starts(
        self, more: str, cli: Cli, started: Started
    ) -> None:
        done = cli(f"train run.yaml --allow-change learning_rate{more}")
        assert done.code == 2 and "did you mean train.learning_rate?" in done.err
        assert not started.calls

    def test_what_final_scores_comes_first(self, cli: Cli, started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
        last = {"step": 12, "eval_loss": 12.26, "perplexity": 3.1}
        monkeypatch.setitem(REPORT, "last_evaluation", last)
        lines = cli("train run.yaml").out.splitlines()
        assert "eval loss      1.5000 (perplexity 4.48), of final/ (step 8)" in lines
        run = lines[0].split()[-1]
        assert f'next           rankzero generate {run} "a question"' in lines
        assert "               also: rankzero chat, eval, serve, export" in lines, (
            "its weights are whole: nothing to merge"
        )
        assert lines[lines.index("eval loss      1.5000 (perplexity 4.48), of final/ (step 8)") + 1] == (
            "               12.2600 (perplexity 3.1), of the last step (12)"
        )

    def test_the_world_of_a_torchrun(self, cli: Cli, started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in (("RANK", "1"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "6")):
            monkeypatch.setenv(name, value)
        done = cli("train run.yaml --batch 2")
        assert started.last[0].train.global_batch_size == 12
        assert started.last[2] == 1
        assert done.out == "", "only rank 0 reports"

    def test_what_is_left_over_of_another_launcher_is_no_world(
        self, cli: Cli, started: Started, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in (("LOCAL_RANK", "1"), ("WORLD_SIZE", "6"), ("MASTER_ADDR", "10.0.0.1")):
            monkeypatch.setenv(name, value)
        done = cli("train run.yaml --batch 2 data.train=nope.jsonl")
        assert done.code == 65 and "nope.jsonl" in done.err, "what is wrong here is found here"
        assert not started.calls
        cli("train run.yaml --batch 2")
        assert started.last[0].train.global_batch_size == 2

    def test_a_pod_starts_a_run_again_and_a_terminal_does_not(
        self, cli: Cli, started: Started, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cli("train run.yaml")
        cli("train run.yaml --max-restarts 2")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        cli("train run.yaml")
        cli("train run.yaml --max-restarts 0")
        monkeypatch.setenv("RANK", "0")
        cli("train run.yaml")
        assert started.restarts == [0, 2, 3, 0, 0]
        for wrong in ("-1", "two", "3"):  # 3: whoever set RANK starts processes again
            done = cli(f"train run.yaml --max-restarts {wrong}")
            assert done.code == 2 and "--max-restarts" in done.err

    def test_processes_cannot_be_asked_for_inside_a_torchrun(
        self, cli: Cli, started: Started, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RANK", "0")
        done = cli("train run.yaml --nproc-per-node 8")
        assert done.code == 2
        assert "already one process of several" in done.err
        monkeypatch.setenv("WORLD_SIZE", "two")
        assert cli("train run.yaml").code == 2
        assert not started.calls

    def test_json(self, cli: Cli, started: Started) -> None:
        assert cli("train run.yaml --json").out.startswith('{\n  "train_loss_first": 2.0')
        assert started.calls

    @pytest.mark.parametrize(
        ("line", "code", "words"),
        [
            ("train", 2, ["nothing to train", "did you mean run.yaml, which is here?"]),
            ("train a.yaml b.yaml", 2, ["one run spec, not 2"]),
            ("train nope.yaml", 78, ["nope.yaml: no such file"]),
            ("train run.yaml =4", 2, ["an override is one word: run.yaml=4"]),
            ("train =4", 2, ["cannot read '=4'"]),
            ("train run.yaml train.max_steps = 5", 2, ["write train.max_steps=5, without spaces"]),
            ("train run.yaml train.max_steps =5", 2, ["write train.max_steps=5, without spaces"]),
            ("train run.yaml train.max_steps= 5", 2, ["write train.max_steps=5, without spaces"]),
            ("train t.jsonl", 2, ["t.jsonl: this is data, not a run spec", "data.train=t.jsonl"]),
            ("train m", 2, ["m: this is a directory, not a run spec", "model.name=m"]),
            (
                "train cluster.yaml",
                78,
                ["cluster.yaml: this is a cluster spec, not a run spec", "--cluster cluster.yaml"],
            ),
            ("train run.yaml model.dtype=fp16", 78, ["bfloat16"]),
            ("train run.yaml model.dtype=bf16", 78, ["did you mean bfloat16?"]),
            ("train run.yaml model.quantization=4bit lora={}", 78, ["did you mean nf4?"]),
            ("train run.yaml --lr 1", 2, ["this is train.learning_rate here; write train.learning_rate=VALUE"]),
            ("train run.yaml data.max_length=4", 78, ["command line data.max_length: must be a whole number"]),
            ("train run.yaml --lora-r 4", 2, ["--lora-r needs --lora"]),
            ("train run.yaml --format alpaca", 2, ["--format says how the rows of --data look", "add --data"]),
            ("train run.yaml --data t.jsonl --format nope", 2, ["--format", "alpaca"]),
            (
                "train run.yaml --lora --target-modules all-linear q_proj",
                78,
                ["`all-linear` is not the name of a module"],
            ),
            ("train run.yaml --output .", 2, ["--output: ", "cannot be a run's name"]),
            ("train --model m", 78, ["data.train: required, but not set"]),
            ("train run.yaml --nproc-per-node 0", 2, ["--nproc-per-node"]),
            ("train run.yaml --nproc-per-node two", 2, ["'two' is not a number of processes"]),
            ("train run.yaml --batch 0", 2, ["--batch", "hint: rankzero train --help"]),
            ("train run.yaml --log-level LOUD", 2, ["LOUD"]),
            ("train run.yaml --target-modules", 2, ["--target-modules", "requires an argument"]),
            ("train run.yaml --modle x", 2, ["--modle: no such option", "did you mean", "--model"]),
            ("train run.yaml --learning_rate 1", 2, ["write train.learning_rate=VALUE, without dashes"]),
            ("train run.yaml --max_steps 3", 2, ["write train.max_steps=VALUE, without dashes"]),
            ("train run.yaml --train.max_steps 3", 2, ["write train.max_steps=VALUE, without dashes"]),
            ("train run.yaml --num-train-epochs 3", 2, ["write train.num_train_epochs=VALUE, without dashes"]),
            ("train run.yaml --seed 3", 2, ["write train.seed=VALUE, without dashes"]),
            ("train run.yaml --set train.max_steps=3", 2, ["write key=value alone, without --set"]),
            ("train --config run.yaml", 2, ["name the spec file alone: rankzero train RUN.yaml"]),
            ("train -c run.yaml", 2, ["name the spec file alone: rankzero train RUN.yaml"]),
            ("train run.yaml --resume", 2, ["which the same command does", "resume=new"]),
            ("train run.yaml --resume-from-checkpoint x", 2, ["the same command continues the run"]),
            ("train run.yaml --per_device_train_batch_size 1", 2, ["this is train.global_batch_size here"]),
            ("train run.yaml --load-in-4bit", 2, ["this is model.quantization here"]),
            ("train run.yaml --zzzzz", 2, ["--zzzzz: no such option", "hint: rankzero train --help"]),
            ("trian", 2, ["No such command 'trian'", "train"]),
        ],
    )
    def test_what_is_refused(self, cli: Cli, started: Started, line: str, code: int, words: list[str]) -> None:
        done = cli(line)
        assert done.code == code
        assert done.out == ""
        assert done.err.startswith("error: ")
        assert all(word in done.err for word in words), done.err
        assert not started.calls

    @pytest.mark.parametrize(
        ("error", "code", "first"),
        [
            (DataError("bad row", where="t.jsonl:3", hint="mend it"), 65, "error: t.jsonl:3: bad row\n  hint: mend it"),
            (ServiceError("no hub"), 69, "error: no hub"),
            (NonFiniteError("loss is nan"), 70, "error: loss is nan"),
            (StoppedError("saved at step 7"), 75, "stopped: saved at step 7"),
            (ZeroDivisionError("oops"), 70, "error: internal error: ZeroDivisionError: oops"),
            (KeyboardInterrupt(), 130, ""),
        ],
    )
    def test_how_a_run_ends(self, cli: Cli, started: Started, error: BaseException, code: int, first: str) -> None:
        started.error = error
        done = cli("train run.yaml")
        assert done.code == code
        assert done.err.startswith(first)
        assert "Traceback" not in done.err

    def test_places_below_here_are_shown_from_here(self, cli: Cli, started: Started) -> None:
        here = Path.cwd()
        started.error = NonFiniteError("loss is nan", where=f"{here}/t.jsonl:1, {here}/t.jsonl:2, /elsewhere:3")
        assert cli("train run.yaml").err.startswith("error: t.jsonl:1, t.jsonl:2, /elsewhere:3: loss is nan")

    def test_debug_shows_where(self, cli: Cli, started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
        started.error = ZeroDivisionError("oops")
        monkeypatch.setenv("RANKZERO_DEBUG", "1")
        assert "Traceback" in cli("train run.yaml").err

    def test_many_problems_are_counted(self, cli: Cli, started: Started) -> None:
        Path("run.yaml").write_text(SMALL + "".join(f"key{i}: 1\n" for i in range(40)), encoding="utf-8")
        done = cli("train run.yaml")
        assert done.err.count("error: ") == 25
        assert done.err.endswith("… and 15 more\n")
        assert not started.calls

    def test_no_colours_in_a_file(self, cli: Cli, started: Started) -> None:
        assert "\x1b" not in cli("train nope.yaml").err
        assert not started.calls


def test_what_a_file_says_does_not_drive_the_terminal(cli: Cli) -> None:
    row = '{"\\u001b]52;c;ZWNobw==\\u0007\\u001b[2Jkey": 1, "messages": [{"role": "\\u001b[31mred", "content": "x"}]}'
    Path("rows.jsonl").write_text(row + "\n" + row.replace("messages", "turns") + "\n", encoding="utf-8")
    done = cli("data check rows.jsonl")
    assert "rows.jsonl:1" in done.err and "rows.jsonl:2" in done.err and "key" in done.err
    assert "\x1b" not in done.err + done.out and "\x07" not in done.err + done.out


def test_errors_are_wrapped_between_words_on_a_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = cli("train run.yaml model.dtype=fp16").err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    coloured = cli("train run.yaml model.dtype=fp16").err
    wrapped = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert max(map(len, wrapped.splitlines())) <= 60 < max(map(len, plain.splitlines()))
    assert wrapped.split() == plain.split() and "\x1b[1;31merror:\x1b[0m" in coloured


class TestInit:
    def test_it_loads(self, cli: Cli) -> None:
        done = cli("init -o new.yaml")
        assert done.code == 0
        assert "wrote new.yaml" in done.out
        spec = load_run_spec(Path("new.yaml"), env={}).spec
        assert spec.lora is not None
        assert len(Path("new.yaml").read_text(encoding="utf-8").splitlines()) < 60

    def test_it_says_nothing_but_the_defaults(self, cli: Cli) -> None:
        cli("init -o new.yaml")
        written = load_run_spec(Path("new.yaml"), env={}).spec
        settings = [
            "model.name=Qwen/Qwen2.5-3B-Instruct",
            "data.train=train.jsonl",
            "data.eval.fraction=0.02",
            "lora={}",
        ]
        assert written == load_run_spec(None, settings, env={}).spec

    def test_it_overwrites_only_when_told(self, cli: Cli) -> None:
        done = cli("init")
        assert done.code == 2
        assert "--force" in done.err
        assert Path("run.yaml").read_text(encoding="utf-8") == SMALL
        assert cli("init --force").code == 0
        assert Path("run.yaml").read_text(encoding="utf-8") != SMALL

    def test_a_directory(self, cli: Cli) -> None:
        Path("d").mkdir()
        assert cli("init -o d").code == 0
        assert Path("d/run.yaml").is_file()

    def test_where_nothing_can_be_written(self, cli: Cli) -> None:
        done = cli("init -o run.yaml/x.yaml")
        assert done.code == 74 and "choose another place with -o" in done.err and "output_dir" not in done.err


@pytest.mark.parametrize("line", ["generate a q", "chat a", "eval a --data x", "merge a -o out", "export a -o out"])
def test_a_run_is_found_by_its_name_wherever_one_is_given(cli: Cli, line: str) -> None:
    Path("runs/a").mkdir(parents=True)
    Path("runs/a/run.yaml").write_text("model: {name: m}\ndata: {train: t.jsonl}\n", encoding="utf-8")
    done = cli(line)
    assert done.code == 78 and "error: runs/a: this run has no result yet" in done.err


def test_a_merge_refuses_a_place_that_is_taken_before_torch_is_imported(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("adapter").mkdir()
    Path("adapter/adapter_config.json").write_text('{"base_model_name_or_path": "base"}', encoding="utf-8")
    monkeypatch.setattr("rankzero.api.installed.require_engine", lambda: pytest.fail("too late"))
    done = cli("merge adapter -o adapter")
    assert done.code == 78 and "error: adapter: there is something already" in done.err


@pytest.mark.parametrize(
    ("line", "start"),
    [
        ("train nope.yaml", "`rankzero init` writes one"),
        ("sweep nope.yaml", "docs/sweeps.md has one"),
        ("cluster plan -f nope.yaml", "`rankzero init --recipe distilbert-sst2` writes one"),
    ],
)
def test_a_file_that_is_not_there_comes_from_somewhere(cli: Cli, line: str, start: str) -> None:
    done = cli(line)
    assert done.code == 78 and "no such file" in done.err and start in " ".join(done.err.split())


class TestRoot:
    def test_version(self, cli: Cli) -> None:
        assert re.fullmatch(r"rankzero 0\.1\.0 \(code [0-9a-f]{8}\)\n", cli("--version").out)

    def test_help(self, cli: Cli) -> None:
        done = cli("--help")
        assert done.code == 0
        assert "train" in done.out

    @pytest.mark.parametrize("line", ["", "data", "secret"])
    def test_help_where_a_command_is_missing(self, cli: Cli, line: str) -> None:
        done, asked = cli(line), cli(f"{line} --help")
        assert (done.code, done.out, asked.code) == (2, "", 0)
        assert done.err == asked.out and done.err.startswith("Usage: rankzero")

    def test_help_has_sections_of_whole_sentences(self, cli: Cli) -> None:
        for line, sections in (
            ("--help", ["Start", "Data", "Train", "Results", "Runs", "Cluster", "Options"]),
            ("data --help", ["Look", "Make", "Options"]),
        ):
            out = cli(line).out
            assert re.findall(r"^(\w+):$", out, re.MULTILINE) == sections
            commands = re.findall(r"^  ([a-z]+)  +(\S.*)$", out.partition("Options:")[0], re.MULTILINE)
            assert len(commands) >= 7 and "…" not in out and "..." not in out.partition("\n")[2]
            assert [sentence for _, sentence in commands if not re.fullmatch(r"[A-Z].{10,64}\.", sentence)] == []

    def test_flags_of_the_seed_have_a_section(self, cli: Cli) -> None:
        ours, seeds = cli("train --help").out.split("Instead of a spec, or on top of it:")
        assert "--allow-change" in ours and "--seq-len" not in ours
        assert "--seq-len" in seeds and "--allow-change" not in seeds

    def test_help_says_no_type_that_only_python_knows(self, cli: Cli) -> None:
        for command in ("train", "data check", "smoke", "dev sync", "cluster create", "secret set", "merge"):
            assert re.findall(r"<(?:int|str|float|list|path|bool)\b.*", cli(f"{command} --help").out) == []
        assert "--seq-len N " in cli("train --help").out and "\n  RUN.yaml|key=value  " in cli("train --help").out

    @pytest.mark.parametrize(
        ("line", "completed"),
        [
            ("da", ["data"]),
            ("chat cap", ["capitals"]),
            ("status cap", ["capitals"]),
            ("render run.yaml --cluster dock", ["docker"]),
            ("init --recipe lora", ["lora-jsonl"]),
            ("train run", []),  # the shell's own: files
        ],
    )
    def test_shells_complete(self, tmp_path: Path, line: str, completed: list[str]) -> None:
        (tmp_path / "runs/capitals").mkdir(parents=True)
        (tmp_path / "runs/capitals/run.yaml").touch()
        env = {**os.environ, "COMP_WORDS": f"rankzero {line}", "COMP_CWORD": str(len(line.split()))}
        env["_RANKZERO_COMPLETE"] = "complete_bash"
        words = [sys.executable, "-m", "rankzero"]
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert (done.stdout.split(), done.stderr) == (completed, "")

    @pytest.mark.parametrize("command", ["train", "init", "generate", "quickstart", "data check", "data show"])
    def test_every_command_has_help(self, cli: Cli, command: str) -> None:
        done = cli(f"{command} --help")
        assert done.code == 0
        assert done.out.startswith(f"Usage: rankzero {command}")


def test_a_long_line_of_the_summary_ends_between_words_on_a_terminal() -> None:
    words = "44.9 % of 5:05 in new steps; evaluation 1:02, down 0:46, start-up 0:42"
    assert in_columns("goodput        ", words, None) == [f"goodput        {words}"]
    first, second = in_columns("goodput        ", words, 80)
    assert len(first) <= 80 and first.startswith("goodput        44.9 %") and second.startswith(" " * 15)
    assert f"{first.removeprefix('goodput').strip()} {second.strip()}" == words


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("eval r --data t.jsonl --limit 2", "--limit"),
        ("eval r --data t.jsonl --batch-size 8", "--batch-size"),
        ("eval r --task t --judge http://j --judge-model m", "--judge, --judge-model"),
        ("eval r --task t --columns a=b --answers a.jsonl", "--columns, --answers"),
        ("serve run.yaml --cluster cluster.yaml --host 0.0.0.0", "--host"),
        ("serve run.yaml --cluster cluster.yaml --wait 1800 --print", "--wait, --print"),
        ("serve run.yaml --cluster cluster.yaml --ready-file up", "--ready-file"),
        ("serve r --gpus 1 --image i", "--image, --gpus"),
        ("smoke --cluster cluster.yaml --dry-run --nproc 2", "--nproc-per-node"),
        ("smoke --cluster cluster.yaml --dry-run --output out", "--output"),
        ("doctor --cluster cluster.yaml --online", "--online"),
        ("doctor --cluster cluster.yaml --output out", "--output"),
        ("pull r s3://bucket/runs --cluster cluster.yaml", "--cluster"),
    ],
)
def test_a_flag_that_would_do_nothing_is_refused(cli: Cli, line: str, where: str) -> None:
    done = cli(line)
    assert done.code == 2 and f"error: {where}: " in done.err and "hint: " in done.err, done.err
    assert done.out == ""
