"""`list`, `status`, `logs`, `compare` and `watch` of runs of this machine."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankzero.api.specs import load_spec
from rankzero.cli import watch
from rankzero.cli.local_runs import as_table, as_text, local_runs, sparkline
from rankzero.cli.logs import log_lines
from rankzero.errors import RankzeroError
from rankzero.report.run import read_run
from rankzero.run_dir.goodput import Start, StartLine
from rankzero.run_dir.handover import write_error
from rankzero.run_dir.lease import Lease
from rankzero.run_dir.view import RunView, view_run
from tests.support.cli import Cli
from tests.support.evidence import named
from tests.support.run_directory import run_directory
from tests.support.unreadable import close, shut
from tests.support.work import calls
from tests.unit.run_dir.test_setting import save


def make_run(root: Path, *losses: float, eval_loss: float | None = None, **changes: Any) -> Path:
    """A run directory of so many steps."""
    (root / "logs").mkdir(parents=True)
    spec = {"name": root.name, "model": {"name": "m"}, "data": {"train": "t.jsonl"}, **changes}
    (root / "run.yaml").write_text(yaml.safe_dump(spec))
    rows: list[dict[str, Any]] = [{"step": step, "loss": loss} for step, loss in enumerate(losses, 1)]
    if eval_loss is not None:
        rows[-1]["eval_loss"] = eval_loss
    (root / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    line = StartLine(root / "starts.jsonl", Start(100.0, 100.0, step=len(losses), total_steps=10, ended="stopped"))
    line.write({"step": 5.0})
    line.close()
    (root / "logs/rank-0.log").write_text("one\ntwo\n\x1b]0;three\x07\n")
    return root


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capfd, monkeypatch)


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """./runs with `good` and `bad`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANKZERO_CLUSTER", raising=False)
    make_run(tmp_path / "runs/good", 3.0, 2.0, 1.0, eval_loss=0.5, train={"learning_rate": 0.1})
    make_run(tmp_path / "runs/bad", 3.0, 4.0, eval_loss=5.0, train={"learning_rate": 0.2})
    make_run(tmp_path / "runs/unknown", 3.0)
    return tmp_path / "runs"


def test_a_run_yaml_means_the_run_beside_the_one_that_has_its_name(cli: Cli, two: Path) -> None:
    """As `resume: new` has it: what is shown is what the same command would go on with."""
    (two.parent / "t.jsonl").write_text('{"text": "a"}\n')
    Path("mine.yaml").write_text("name: good\nresume: new\nmodel: {name: org/m}\ndata: {train: t.jsonl}\n")
    first = load_spec("mine.yaml")
    assert first.name == "good"
    save(first)
    Path("mine.yaml").write_text(Path("mine.yaml").read_text() + "train: {max_steps: 7}\n")
    beside = str(load_spec("mine.yaml").name)
    assert beside != "good"
    make_run(two / beside, 3.0, 2.0)
    assert cli("status mine.yaml").out == cli(f"status {two / beside}").out != cli("status good").out


def test_a_run_that_is_not_here_is_no_question_of_a_cluster(cli: Cli, two: Path) -> None:
    for command in ("status", "logs", "open tensorboard"):
        done = cli(f"{command} godo")
        assert done.code == 78 and "error: godo: there is no such run here" in done.err
        assert "did you mean runs/good?" in done.err and "--cluster" in done.err


@pytest.mark.parametrize(
    ("command", "instead"), [("describe", "status"), ("cancel", "SIGTERM"), ("delete", "directory")]
)
def test_what_only_clusters_do_is_said_of_a_run_of_this_machine(
    cli: Cli, two: Path, command: str, instead: str
) -> None:
    done = cli(f"{command} good")
    assert done.code == 2 and "error: runs/good: this run is of this machine" in done.err and instead in done.err


def test_a_run_is_found_by_the_spec_that_it_was_trained_by(cli: Cli, two: Path) -> None:
    Path("mine.yaml").write_text("name: good\nmodel: {name: m}\ndata: {train: t.jsonl}\n", encoding="utf-8")
    assert cli("status mine.yaml").out == cli(f"status {two / 'good'}").out


def test_list_in_order(cli: Cli, two: Path) -> None:
    done = cli("list --sort eval_loss")
    assert done.code == 0, done.err
    assert [line.split()[0] for line in done.out.splitlines()] == ["RUN", "good", "bad", "unknown"]
    assert done.out.splitlines()[1].split()[1:5] == ["Stopped", "3/10", "1.0000", "0.5000"]
    assert [line.split()[0] for line in cli("list --sort name").out.splitlines()][1:] == ["bad", "good", "unknown"]
    assert [row["eval_loss"] for row in json.loads(cli(f"list {two} --sort eval_loss --json").out)] == [0.5, 5.0, None]


@pytest.mark.parametrize("width", [200, 80, 60, 40])
def test_a_name_is_whole_at_any_width(width: int, two: Path) -> None:
    """It is typed again; what to do is there too."""
    name = "qwen2-5-coder-32b-instruct-lora-f03426"
    make_run(two / name, 3.0, eval_loss=0.5)
    lines = as_table(local_runs(two, "name"), width, colour=False).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(f"{name}  Stopped"))
    assert "stopped; rankzero" in "".join(lines[at : at + 2])
    assert all(len(line) <= max(width, len(name) + 17) for line in lines)
    assert ("EVAL LOSS" in lines[0]) == (width == 200) and ("VERDICT" in lines[0]) == (width >= 80)


def test_a_loss_that_is_not_finite_is_seen(cli: Cli, two: Path) -> None:
    root = make_run(two / "diverged", 3.0, 2.0)
    with (root / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "loss": null, "eval_loss": null}\n')
    lines = {line.split()[0]: line.split() for line in cli("list --sort loss").out.splitlines()}
    assert list(lines)[1:3] == ["good", "unknown"], "the best first"
    assert lines["diverged"][2:5] == ["3/10", "nan", "nan"]
    page = watch.page_of_here(root, 60)[0].splitlines()
    assert any(line.startswith("loss  ") and line.endswith("  nan") for line in page), page


def test_a_cluster_that_is_chosen_is_asked(cli: Cli, two: Path) -> None:
    (two.parent / "cluster.yaml").write_text("kind: nothing\n")
    assert "kind" in cli("list").err, "the cluster's file was read"
    assert "kind" in cli("status good").err
    assert cli("status runs/good").code == 0, "a path is of this machine"
    assert cli("list runs").code == 0
    assert cli("list runs --cluster x").code == 2


def test_status_and_compare(cli: Cli, two: Path) -> None:
    done = cli("status good")
    assert done.code == 0 and done.out.startswith("Stopped   stopped; rankzero train with the same spec begins again")
    assert json.loads(cli("status runs/good --json").out)["step"] == 3
    done = cli("compare good runs/bad")
    assert done.code == 0, done.err
    lines = {line.split("  ")[0]: line.split() for line in done.out.splitlines()}
    assert lines["train.learning_rate"][1:] == ["0.1", "0.2"]
    assert lines["eval loss"][2:] == ["0.5000", "5.0000"]
    assert lines["loss by step"][3:] == ["█▅▁", "▁█"] or lines["loss by step"][3:] == ["█▄▁", "▁█"]
    assert "name" not in lines
    assert json.loads(cli("compare good bad --json").out)["spec"] == {"train.learning_rate": ["0.1", "0.2"]}


def test_lists_are_compared_as_a_spec_has_them(cli: Cli, two: Path) -> None:
    for name, weight in (("one", 1.0), ("other", 2.0)):
        make_run(two / name, 1.0, name=name, data={"train": [{"path": "é.jsonl", "weight": weight}]})
    was, now = json.loads(cli("compare one other --json").out)["spec"]["data.train"]
    assert (json.loads(was)[0]["weight"], json.loads(now)[0]["weight"]) == (1.0, 2.0)
    assert "null" in was and "None" not in was and "é" in was


def test_what_a_run_failed_of_does_not_drive_a_terminal(cli: Cli, two: Path) -> None:
    """A library's words, with the escape sequences and the lines that it has; and those of a directory's name."""
    root = make_run(two / "\x1b[2Jo\nd\td", 3.0, name="odd", model={"name": "m\x1b]0;pwned\x07"})
    starts = root / "starts.jsonl"
    starts.write_text(starts.read_text().replace('"stopped"', '"failed"'))
    write_error(root / "error.json", RankzeroError("bad \x1b]0;pwned\x07thing\n[/b] twice", where="x"), "", str)
    listed, status = cli("list --sort name"), cli(f"status '{root}'")
    both = cli(f"compare good '{root}'")
    for done in (listed, status, both):
        assert done.code == 0 and done.out and not set("\x1b\x07") & set(done.out), done
    assert len(listed.out.splitlines()) == 5 and "o d d  " in listed.out and "bad thing [/b]" in status.out


def test_no_such_run(cli: Cli, two: Path) -> None:
    done = cli("compare good god")
    assert done.code == 78 and "there is no such run here" in done.err and "runs/good" in done.err
    assert cli("list nowhere").code == 78


@pytest.mark.parametrize(
    "command", ["list theirs/runs", "status theirs/runs/good", "report theirs/runs", "report --live theirs"]
)
def test_a_place_that_may_not_be_looked_at_is_said_with_the_way_out(
    command: str, cli: Cli, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(two.parent / "theirs/runs/good", 3.0)
    close(monkeypatch, two.parent / "theirs")
    done = cli(command)
    assert done.code == 74, done.err
    assert "theirs" in done.err and "Permission denied\n  hint: name another place" in done.err


@pytest.mark.parametrize("name", ["lease.json", "starts.jsonl", "report.json", "checkpoints"])
def test_a_run_that_cannot_be_read_takes_no_other_along(
    name: str, cli: Cli, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is made up of it: it is not "stopped" for what cannot be seen."""
    run_directory(two / "theirs")
    (two / "theirs/lease.json").write_text('{"token": 2}')
    shut(monkeypatch, two / "theirs" / name)
    done = cli("list --sort name")
    assert done.code == 0, done.err
    assert [line.split()[0] for line in done.out.splitlines()][1:] == ["bad", "good", "theirs", "unknown"]
    assert f"Unknown   {name}: Permission denied" in cli("status theirs").out
    (theirs,) = (row for row in json.loads(cli("list --json").out) if row["run"].endswith("theirs"))
    assert (theirs["phase"], theirs["unread"]) == ("Unknown", [f"{name}: Permission denied"])


def test_logs(cli: Cli, two: Path) -> None:
    assert cli("logs good --tail 2").out.splitlines()[0] == "two"
    assert "\x1b" not in cli("logs good").out
    assert json.loads(cli("logs good --tail 2 --json").out.splitlines()[0]) == {"rank": 0, "text": "two"}
    done = cli("logs good --rank 3")
    assert done.code == 78 and "rank-0.log" in done.err
    assert cli("logs good --since 10m").code == 2
    assert cli("logs good --tail 0").out == ""


HOLDS = """
import sys
from pathlib import Path
from rankzero.run_dir.lease import Lease
lease = Lease(Path(sys.argv[1]))
lease.acquire()
print("held", flush=True)
sys.stdin.read()
lease.release()
"""


def test_logs_are_followed_to_the_end_of_the_run(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a line that is written in two parts, and one between the last look and the end. Another process runs it."""
    monkeypatch.setattr("rankzero.cli.logs.FOLLOW_SECONDS", 0.0)
    root = two / "good"
    words = [sys.executable, "-c", HOLDS, str(root)]
    heard: list[str] = []
    seen = threading.Event()

    def follow() -> None:
        for line in log_lines(root, 0, 1, follow=True):
            heard.append(line)
            seen.set()

    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stdout.readline() == "held\n"
        thread = threading.Thread(target=follow)
        thread.start()
        assert seen.wait(300)
        seen.clear()
        with (root / "logs/rank-0.log").open("ab", buffering=0) as file:
            for part in (b"fo", b"ur\n"):
                file.write(part)
            assert seen.wait(300)
            file.write(b"five\n")
        assert thread.is_alive(), "until the run has ended"
        running.communicate("")
    thread.join(300)
    assert heard[1:] == ["four", "five"]


def test_logs_of_a_run_that_cannot_be_read_end_with_the_reason(
    cli: Cli, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is over will not be known. Seen once, that may pass."""
    monkeypatch.setattr("rankzero.cli.logs.FOLLOW_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        shut(patch, two / "good/starts.jsonl")
        done = cli("logs good --tail 2 --follow")
    assert (done.code, done.out.split()) == (74, ["two"]) and "starts.jsonl: Permission denied" in done.err
    looks, real = itertools.count(), view_run

    def look(root: Path) -> RunView:
        seen = real(root)
        return seen if next(looks) else replace(seen, phase="Unknown", unread=["report.json: Input/output error"])

    monkeypatch.setattr("rankzero.run_dir.view.view_run", look)
    assert cli("logs good --tail 1 --follow").code == 0 and next(looks) == 2


def test_a_run_that_goes_on_runs_whatever_else_cannot_be_read(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = run_directory(two / "theirs")
    lease = Lease(root)
    lease.acquire()
    shut(monkeypatch, root / "report.json")
    seen, page = view_run(root), read_run(root, time.time())
    lease.release()
    assert (seen.phase, page.state.word) == ("Running", "running")
    assert [one.what for one in page.notices if one.where == "run directory"] == ["report.json: Permission denied"]
    assert view_run(root).phase == "Unknown"


def test_the_page_of_a_run(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "gpu_lines", lambda: ["GPU  0   97 %  1,000 of 80,000 MiB"])
    text, over = watch.page_of_here(two / "good", 60)
    assert over
    lines = text.splitlines()
    assert any(line.startswith("loss  ") and line.endswith("▁  1.0000") for line in lines), text
    assert "GPU  0   97 %  1,000 of 80,000 MiB" in lines
    assert "two" in lines
    assert all(len(line) <= 60 for line in lines if "\x1b" not in line and str(two) not in line)


def test_a_look_reads_what_is_new(two: Path) -> None:
    """Of a run of many steps and lines, at each look once more all of it would be seconds."""
    root = two / "good"
    row = {"learning_rate": 1e-4, "grad_norm": 1.0, "tokens_per_second": 5.0, "note": "x" * 200}
    (root / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": n, "loss": 9.0, **row}) + "\n" for n in range(5000))
    )
    (root / "logs/rank-0.log").write_text("".join(f"line {n}\n" for n in range(100_000)))
    seen = watch.Curves(root)
    first = calls(lambda: watch.page_of_here(root, 60, seen))
    with (root / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 5000, "loss": 1.0, **row}) + '\n{"step": 5001, "lo')
    assert calls(lambda: watch.page_of_here(root, 60, seen)) < first / 5
    text, _ = watch.page_of_here(root, 60, seen)
    assert text.splitlines()[-6:] == [f"line {n}" for n in range(99_994, 100_000)]
    assert seen.look()["loss"][-2:] == [9.0, 1.0], "what is being written is read when it is whole"


def test_curves_of_a_run_that_went_back(tmp_path: Path) -> None:
    """A start that goes on from a checkpoint writes the file anew; one without that makes steps again."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}, "loss": {step}}}\n' for step in range(1, 6)))
    seen = watch.Curves(tmp_path)
    assert seen.look()["loss"] == [1.0, 2.0, 3.0, 4.0, 5.0]
    with path.open("a") as file:
        file.write('{"step": 3, "loss": 30, "eval_loss": null}\n[]\n{"loss": 7}\n{\n')
    assert seen.look()["loss"] == [1.0, 2.0, 30.0] and math.isnan(seen.look()["eval_loss"][0])
    (tmp_path / "other").write_text('{"step": 1, "loss": 8}\n' + " " * 1000 + "\n")
    (tmp_path / "other").rename(path)
    assert seen.look()["loss"] == [8.0] and not seen.look()["eval_loss"]
    path.unlink()
    assert not seen.look()["loss"]


def test_a_command_is_in_one_line_however_narrow_a_terminal(two: Path) -> None:
    (two / "good/report.json").write_text(json.dumps({"spec": {"task": "sft"}}), encoding="utf-8")
    text = as_text(replace(view_run(two / "good"), phase="Succeeded"), 30, colour=False)
    assert f'rankzero generate {two / "good"} "a question"\n' in text


@pytest.mark.parametrize("width", [1, 10, 20, 33, 34, 35])
def test_a_page_fits_into_a_narrow_terminal(width: int, two: Path) -> None:
    """A pane beside others: there is no room for curves, and for what they say last there is."""
    text, _ = watch.page_of_here(two / "good", width)
    assert "1.0000" in text and ("▁" in text) == (width > 34)
    watch.page_of_cluster(named("healthy_running").evidence, width)


def test_the_page_of_a_run_elsewhere_ends_with_what_its_nodes_said_last() -> None:
    """However many there are, each line with its node instead of the time that it was fetched with."""
    evidence = named("healthy_running").evidence
    first, second = (pod["metadata"]["name"] for pod in evidence.pods)
    one = "\n".join(f"2026-11-21T12:29:{second:02}.000000001Z [TRAIN] step {second}" for second in range(10, 20))
    other = "".join(f"2026-11-21T12:1{minute}:00Z waits {minute}\n" for minute in range(9)) + "\nno time"
    text, over = watch.page_of_cluster(replace(evidence, logs={first: one, second: other}), 60)
    assert not over
    assert text.splitlines()[-6:] == [f"[node 0] [TRAIN] step {second}" for second in range(14, 20)]
    text, _ = watch.page_of_cluster(replace(evidence, logs={second: other}), 60)
    assert text.splitlines()[-3:] == ["[node 1] waits 8", "[node 1] ", "[node 1] no time"]


SMI = f"""#!{sys.executable}
import sys
fields = sys.argv[1].removeprefix("--query-gpu=").split(",")
busy = {{"index": "0", "name": "A", "utilization.gpu": "97", "memory.used": "1000", "memory.total": "80000"}}
for gpu in (busy, {{"index": "1", "name": "B"}}):
    print(", ".join(gpu.get(field, "[N/A]") for field in fields))
"""
"""The second is of those that share their memory with the processor, or are divided."""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)


def test_a_page_shows_what_a_gpu_says(two: Path, smi: None) -> None:
    lines = watch.page_of_here(two / "good", 80)[0].splitlines()
    assert "GPU  0   97 %  1,000 of 80,000 MiB" in lines and "GPU  1    ? %  ? of ? MiB" in lines


@pytest.mark.parametrize("error", [subprocess.TimeoutExpired("nvidia-smi", 10), PermissionError(13, "no")])
def test_a_driver_that_does_not_answer_ends_no_page(
    error: Exception, two: Path, smi: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", run)
    assert "two" in watch.page_of_here(two / "good", 60)[0].splitlines()


def test_watch_leaves_at_once_when_a_run_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    looks = iter([False, True])
    watch.show(lambda width: ("", next(looks)), 5.0)
    assert slept == [5.0]


def test_nothing_is_drawn_where_there_is_no_terminal(cli: Cli, two: Path) -> None:
    done = cli("watch good")
    assert done.code == 2 and "rankzero status" in done.err


@pytest.mark.parametrize(
    ("values", "bars"),
    [([], ""), ([1.0], "▁"), ([1.0, 2.0], "▁█"), ([1.0, float("nan"), 8.0], "▁█"), ([float("inf")], "")],
)
def test_sparklines(values: list[float], bars: str) -> None:
    assert sparkline(values, 8) == bars
    assert sparkline(values, 0) == sparkline(values, -3) == ""
    assert len(sparkline([float(n) for n in range(1000)], 40)) == 40


def _no_files(final: Path) -> None:
    shutil.rmtree(final)


def _cut(final: Path) -> None:
    os.truncate(final / "model/adapter_model.safetensors", 2000)


def _no_file(final: Path) -> None:
    (final / "model/adapter_model.safetensors").unlink()


def _edited(final: Path) -> None:
    manifest = json.loads((final / "manifest.json").read_text())
    manifest["files"]["README.md"] = {"size": 4, "sha256": "0" * 64}
    (final / "manifest.json").write_text(json.dumps(manifest))
    (final / "README.md").write_text("a card in their own words")


def _no_manifest(final: Path) -> None:
    (final / "manifest.json").unlink()


@pytest.mark.parametrize("change", [_edited, _no_manifest])
def test_a_result_that_people_have_changed_is_one(change: Callable[[Path], None], cli: Cli, tmp_path: Path) -> None:
    """As `eval` and `export` take it."""
    root = run_directory(tmp_path / "done")
    change(root / "final")
    done = json.loads(cli(f"status {root} --json").out)
    assert (done["phase"], done["has_result"], done["result_fault"]) == ("Succeeded", True, "")
    assert "the result is in final/" in cli(f"status {root}").out


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_no_files, "final/ is gone"),
        (_cut, "final/ is damaged: adapter_model.safetensors: 2000 bytes where 2048 were saved"),
        (_no_file, "final/ is damaged: adapter_model.safetensors: a file of the checkpoint is missing"),
    ],
)
def test_a_result_that_is_of_no_use_is_not_offered(
    harm: Callable[[Path], None], words: str, cli: Cli, tmp_path: Path
) -> None:
    root = run_directory(tmp_path / "done")
    report = json.loads((root / "report.json").read_text())
    (root / "report.json").write_text(json.dumps(report | {"spec": {"task": "sft"}}))
    done = cli(f"status {root}")
    assert "the result is in final/" in done.out and "rankzero chat" in done.out, done.out
    (root / "lease.json").write_text('{"token": 1}')
    harm(root / "final")
    done = cli(f"status {root} --json")
    assert (json.loads(done.out)["phase"], done.code) == ("Succeeded", 0)
    assert json.loads(done.out)["result_fault"].startswith(words)
    done = cli(f"status {root}")
    said = " ".join(done.out.split())
    assert f"trained to its end, but {words}" in said and "makes it anew" in said and "rankzero chat" not in said, said
    assert "trained to its end" in cli(f"list {tmp_path}").out
    assert words in read_run(root, time.time()).state.text


def test_a_copy_of_reports_alone_is_no_loss(cli: Cli, tmp_path: Path) -> None:
    """As `rankzero pull --only report` makes it."""
    root = run_directory(tmp_path / "done")
    _no_files(root / "final")
    (root / "lease.json").unlink(missing_ok=True)
    done = json.loads(cli(f"status {root} --json").out)
    assert (done["phase"], done["has_result"], done["result_fault"]) == ("Succeeded", False, "")
    said = " ".join(cli(f"status {root}").out.split())
    assert "trained to its end; this copy has no result: rankzero pull" in said and "rankzero train" not in said
    assert read_run(root, time.time()).state.word == "finished"


def test_a_result_that_cannot_be_looked_at_is_not_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = run_directory(tmp_path / "done")
    shut(monkeypatch, root / "final/manifest.json")
    run = view_run(root)
    assert (run.phase, run.result_fault) == ("Unknown", "") and run.unread == ["final: Permission denied"]
