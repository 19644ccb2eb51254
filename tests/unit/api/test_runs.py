"""A run as a value: what its directory says, without training anything."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rankzero
from rankzero.run_dir.named import runs_in
from tests.support.run_directory import run_directory
from tests.support.tiny import chat_rows, write_jsonl
from tests.support.unreadable import stale


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> rankzero.Run:
    monkeypatch.chdir(tmp_path)
    run_directory(tmp_path / "runs/made")
    return rankzero.Run.open("made")


def test_by_path_by_name_or_not_at_all(run: rankzero.Run, tmp_path: Path) -> None:
    assert rankzero.Run.open(tmp_path / "runs/made").name == run.name == "made"
    with pytest.raises(rankzero.ConfigError, match="did you mean runs/made"):
        rankzero.Run.open("mad")
    view = rankzero.status("made")
    assert view.phase == run.status.phase == "Succeeded"


@pytest.mark.parametrize(
    "ask",
    [
        lambda target: rankzero.generate(target, ["hello"]),
        rankzero.chat,
        lambda target: rankzero.evaluate(target, "rows.jsonl"),
    ],
)
def test_a_slip_in_a_runs_name_is_taken_for_one(ask: Callable[[str], object], run: rankzero.Run) -> None:
    """It has the shape of a Hub id; and what has none near it here is only that."""
    write_jsonl(Path("rows.jsonl"), chat_rows(2))
    for target, hint in (("mad", r"did you mean runs/made\? Else: run once with the network"), ("gpt2", "run once")):
        with pytest.raises(rankzero.ConfigError, match=f"{target} is not in the local cache.*\n  hint: {hint}"):
            ask(target)


@pytest.mark.parametrize("more", ["", "name: mine\n", "name: mine\noutput_dir: runs\n"])
def test_a_directory_to_train_in_is_no_run(more: str, run: rankzero.Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    spec = tmp_path / "mine/run.yaml"
    spec.write_text(f"{more}model: {{name: org/m}}\ndata: {{train: org/d}}\n")
    for ask in (rankzero.Run.open, rankzero.status):
        with pytest.raises(rankzero.ConfigError, match=r"run.yaml alone\n  hint: its runs are in the output_dir"):
            ask("mine")
    run_directory(tmp_path / "mine/runs/first")
    with pytest.raises(rankzero.ConfigError, match="name one of its runs: mine/runs/first"):
        rankzero.status("mine")
    run_directory(tmp_path / "runs/mine")
    assert rankzero.status("mine").root == rankzero.Run.open("mine").path == tmp_path / "runs/mine"


@pytest.mark.parametrize("layout", ["named", "cluster.yaml", "no name"])
def test_what_is_surely_to_train_with_is_no_run(layout: str, run: rankzero.Run, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    run_directory(mine / "runs/first")
    name = "" if layout == "no name" else "name: first\n"
    (mine / "run.yaml").write_text(f"{name}model: {{name: org/m}}\ndata: {{train: org/d}}\n")
    if layout == "cluster.yaml":
        (mine / layout).write_text("kind: docker\n")
        shutil.rmtree(mine / "runs")
    with pytest.raises(rankzero.ConfigError, match="run.yaml alone"):
        rankzero.status(str(mine))
    assert runs_in(tmp_path) == []
    with pytest.raises(rankzero.ConfigError, match="run.yaml alone"):
        rankzero.Run.open(shutil.copytree(mine, tmp_path / "runs/mine"))


@pytest.mark.parametrize("place", ["runs/r1", "r1", "renamed"])
def test_the_run_yaml_of_a_run_alone_is_one(place: str, run: rankzero.Run, tmp_path: Path) -> None:
    """So is what `rankzero pull --only report` brings of a run that has not ended."""
    part = tmp_path / place
    part.mkdir()
    (part / "run.yaml").write_text("model: {name: org/m}\ndata: {train: org/d}\nname: r1\noutput_dir: /gone/runs\n")
    assert rankzero.Run.open(place).path == part
    assert rankzero.status(place).root.absolute() == part
    assert str(part) in runs_in(part.parent)


PARTS = ["final", "best", "last", "report.json", "goodput.json", "checkpoints", ".lease.lock", "lease.json"]


@pytest.mark.parametrize("only", PARTS)
def test_whatever_part_of_a_run_is_there_it_is_one(only: str, run: rankzero.Run, tmp_path: Path) -> None:
    """A run that has just begun has its lease; a pull brings the result alone, or what says how it went."""
    part = tmp_path / "part"
    part.mkdir()
    for name in ("run.yaml", only):
        place = part / name
        place.mkdir() if only == name and "." not in name else place.write_text("{}")
    assert rankzero.Run.open(part).path == part
    assert rankzero.status(str(part)).root == part


def test_it_is_the_same_run_wherever_the_program_goes(
    run: rankzero.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for one in (run, rankzero.Run(Path("../runs/made"))):
        assert one.status.phase == "Succeeded" and one.summary["steps"] == 60 and len(one.checkpoints) == 2


@pytest.mark.parametrize("name", ["status", "summary", "metrics", "checkpoints", "result", "spec", "report"])
def test_of_a_run_that_is_gone_nothing_is_made_up(name: str, run: rankzero.Run) -> None:
    shutil.rmtree(run.path)
    with pytest.raises(rankzero.ConfigError) as caught:
        asked = getattr(run, name)
        asked()
    problem = caught.value.problems[0]
    assert str(run.path) in problem.where and "continues" not in problem.hint
    assert not run.path.exists()


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize(("name", "file"), [("summary", "report.json"), ("metrics", "metrics.jsonl")])
def test_what_cannot_be_read_is_not_empty(
    name: str, file: str, number: int, run: rankzero.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a run that has not ended, or has made no step."""
    stale(monkeypatch, run.path / file, number)
    with pytest.raises((rankzero.StorageError, rankzero.ConfigError), match=os.strerror(number)):
        getattr(run, name)
    monkeypatch.undo()
    (run.path / file).unlink()
    assert len(getattr(run, name)) == 0


def test_metrics_are_a_list_without_pandas(run: rankzero.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    again = [{"step": 60, "loss": 9.0, "learning_rate": 0.5}]
    with (run.path / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in again)
    rows = run.metrics
    assert [row["step"] for row in rows] == list(range(61))
    assert rows[60]["loss"] == 9.0 and rows[60]["eval_loss"] > 0, "made again: as it was made last"


def test_metrics_are_a_frame_with_pandas(run: rankzero.Run) -> None:
    pandas = pytest.importorskip("pandas", reason="the extra `notebook` is not installed")
    frame = run.metrics
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 61
    assert frame.set_index("step").loss[1] > frame.set_index("step").loss[60]


def test_checkpoints_and_result(run: rankzero.Run) -> None:
    assert [(one.step, one.best, one.last) for one in run.checkpoints] == [(40, True, False), (60, False, True)]
    assert all((one.path / "manifest.json").is_file() for one in run.checkpoints)
    assert run.result == run.path / "final"
    assert run.summary["steps"] == 60


def test_the_page_is_shown_in_a_frame(run: rankzero.Run) -> None:
    page = run.report()
    shown = page._repr_html_()
    assert page.path.is_file() and shown.startswith("<iframe srcdoc=") and shown.count("<") == 2, "nothing leaks out"


def test_files_that_were_changed_are_warned_of(run: rankzero.Run) -> None:
    from rankzero.api.results import warn

    with pytest.warns(UserWarning, match="tokenizer.json is not as the run wrote it"):
        warn(("tokenizer.json",))


def test_such_a_warning_is_of_the_line_that_asked() -> None:
    """Also where that is text that was executed, which has no module's name, as an example of a page."""
    from rankzero.api.results import warn

    with pytest.warns(UserWarning) as caught:
        exec(compile("ask(('x.json',))", "<asked>", "exec"), {"ask": warn})
    assert [one.filename for one in caught] == ["<asked>"]
