"""What a run directory says to somebody who looks at it: while it is written, and after every kind of end."""

from __future__ import annotations

import json
import math
import os
import socket
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rankzero.cli.local_runs import as_table, as_text
from rankzero.errors import NonFiniteError, RankzeroError, StoppedError
from rankzero.report import tables
from rankzero.report.page import run_page
from rankzero.report.run import read_run
from rankzero.run_dir.goodput import Ending, Start, StartLine
from rankzero.run_dir.handover import write_error
from rankzero.run_dir.lease import Lease, known_process
from rankzero.run_dir.view import curve, rows_from_end, view_run
from tests.support.forked import Ordeal, suffer
from tests.support.run_directory import leave_lease, run_directory
from tests.support.runs import run_here, run_root, small_spec
from tests.support.work import calls


def rows(root: Path, *values: dict[str, Any]) -> Path:
    root.mkdir(exist_ok=True)
    path = root / "metrics.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def start(root: Path, **changes: Any) -> None:
    root.mkdir(exist_ok=True)
    line = StartLine(root / "starts.jsonl", Start(begun=100.0, updated=100.0, **changes))
    line.write({"startup": 2.0, "step": 8.0})
    line.close()


@contextmanager
def held(root: Path) -> Iterator[str]:
    """Within, this process has the directory, by the name that is yielded."""
    lease = Lease(root)
    lease.acquire()
    try:
        yield lease.owner
    finally:
        lease.release()


def test_a_finished_run(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny, train__max_steps=2)
    report = run_here(spec)
    seen = view_run(run_root(spec))
    assert (seen.phase, seen.step, seen.total_steps, seen.resumable) == ("Succeeded", 2, 2, 2)
    assert seen.loss == report["train_loss_last"] and seen.eval_loss == report["eval_loss"]
    assert seen.goodput is not None and seen.goodput.starts == 1 and seen.is_over
    json.dumps(seen.to_json(), allow_nan=False)


def test_a_run_that_failed_says_why_until_it_is_started_again(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny, train__max_steps=3, eval_rows=0)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(NonFiniteError):
        run_here(spec, hooks=suffer(Ordeal(nan_in_step=2), patch))
    seen = view_run(run_root(spec))
    assert (seen.phase, seen.step, seen.total_steps) == ("Failed", 1, 3)
    assert seen.error.startswith("step 2: the loss is nan") and "train.jsonl:" in seen.error
    run_here(spec)
    assert (view_run(run_root(spec)).phase, view_run(run_root(spec)).error) == ("Succeeded", "")


def test_a_run_that_was_stopped(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny, train__max_steps=3, eval_rows=0)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(StoppedError):
        run_here(spec, hooks=suffer(Ordeal(stop_in_step=2), patch))
    seen = view_run(run_root(spec))
    assert (seen.phase, seen.step, seen.resumable) == ("Stopped", 2, 2)


def test_a_process_that_has_the_directory_runs(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with held(root) as owner:
        start(root, step=4, total_steps=8, owner=owner)
        rows(root, {"step": 4, "loss": 2.0, "tokens_per_second": 10.0})
        seen = view_run(root)
        assert (seen.phase, seen.step, seen.total_steps) == ("Running", 4, 8)
        assert seen.eta_seconds is not None and seen.eta_seconds >= 8.0, "four steps took eight seconds, and until now"
        assert not seen.is_over


@pytest.mark.parametrize("ended", ["stopped", None])
def test_until_a_start_has_a_line_nothing_is_booked_to_the_one_before(ended: Ending | None, tmp_path: Path) -> None:
    """It holds the directory, and reads its data: the time since the last one is no step of that."""
    root = tmp_path / "run"
    start(root, step=4, total_steps=8, ended=ended)
    line = json.loads((root / "starts.jsonl").read_text())
    (root / "starts.jsonl").write_text(json.dumps(line | {"updated": line["updated"] - 3600}))
    leave_lease(root)
    with held(root):
        seen, page = view_run(root), read_run(root, time.time())
    assert seen.phase == "Running", "also where the process that looks is the one that holds it, and had a start before"
    assert seen.goodput is not None and seen.goodput.wall_seconds == 10.0 and seen.eta_seconds is None
    assert dict(tables.cost(page))["Held for"].startswith("0:10")
    assert tables.started(page)[0][-1] == (ended or "killed")


def test_a_clock_that_was_set_back_tells_no_other_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the hold on the directory and the first line."""
    root = tmp_path / "run"
    with held(root) as owner, monkeypatch.context() as patch:
        patch.setattr("time.time", lambda: 1000.0)
        start(root, step=4, total_steps=8, owner=owner)
        assert tables.started(read_run(root, 1000.0))[0][-1] == "running"


def test_of_an_older_version_the_line_that_is_as_new_as_its_lease_is_that_of_now(tmp_path: Path) -> None:
    """It says no owner. An older line may be that of the start before, or of one that is in a long step."""
    root = tmp_path / "run"
    with held(root):
        lease = json.loads((root / "lease.json").read_text())
        del lease["owner"]
        (root / "lease.json").write_text(json.dumps(lease))
        start(root, step=4, total_steps=8)
        seen, page = view_run(root), read_run(root, time.time())
        assert seen.phase == "Running" and seen.eta_seconds is not None
        assert tables.started(page)[0][-1] == "running"
        line = json.loads((root / "starts.jsonl").read_text())
        (root / "starts.jsonl").write_text(json.dumps(line | {"updated": line["updated"] - 3600}))
        seen, page = view_run(root), read_run(root, time.time())
    assert seen.phase == "Running" and seen.goodput is not None and seen.goodput.wall_seconds == 10.0
    assert seen.eta_seconds is None and tables.started(page)[0][-1] == "", "that it was killed nobody knows"


def test_what_is_left_is_by_the_steps_of_the_present_start(tmp_path: Path) -> None:
    """The one before did 100 in 1,000 s, half of which are lost, and this one does them again."""
    root = tmp_path / "run"
    lines = [Start(begun=100.0, updated=100.0, step=100, total_steps=1000), Start(begun=1200.0, updated=1200.0)]
    spent = [{"startup": 10.0, "step": 1000.0}, {"startup": 10.0}]
    with held(root) as lines[1].owner:
        for now, seconds in zip(lines, spent, strict=True):
            line = StartLine(root / "starts.jsonl", now)
            line.write(seconds)
        assert view_run(root).eta_seconds is None, "it has made no step"
        lines[1].from_step, lines[1].step, lines[1].total_steps = 50, 60, 1000
        line.write({"startup": 10.0, "repeated": 100.0})
        rows(root, *({"step": step, "loss": 2.0} for step in range(1, 61)))
        seen, page = view_run(root), read_run(root, time.time())
    assert seen.eta_seconds == pytest.approx(940 * 10, rel=0.05)
    assert dict(tables.facts(page))["Steps"] == "60" and tables.summary(page).startswith("60 steps"), "100 are no more"


def test_one_that_is_gone_without_a_word_was_killed(tmp_path: Path) -> None:
    start(tmp_path / "run", step=4)
    leave_lease(tmp_path / "run")
    assert view_run(tmp_path / "run").phase == "Killed"
    (tmp_path / "run/lease.json").write_text(json.dumps({"token": 1}))
    assert view_run(tmp_path / "run").phase == "Killed", "looked for in the store since"


@pytest.mark.parametrize("ended", ["failed", "stopped", None])
def test_one_whose_launcher_may_start_it_again_is_not_over(ended: Ending | None, tmp_path: Path) -> None:
    """Between the end of a start and the next one whoever watches waits: for a launcher that lives, and has not let
    go of the run, as a program does that goes on after it."""
    root, own = tmp_path / "run", tmp_path / "launcher"
    own.mkdir()
    lease = Lease(root, launcher={**known_process(os.getppid()), "directory": str(own)})
    lease.acquire()
    start(root, step=4, ended=ended)
    left = json.loads(lease.path.read_text()) | {"pid": 2**22 + 1, "process": "gone"}
    lease.release()
    if ended is None:
        lease.path.write_text(json.dumps(left))
    seen = view_run(root)
    assert (seen.is_over, seen.starts_again) == (False, True)
    here = json.loads(lease.path.read_text())
    for other in ({"process": "gone"}, {"host": "elsewhere"}, {"pid": "x"}, {"pid": 2**22 + 1, "process": None}):
        lease.path.write_text(json.dumps(here | {"launcher": here["launcher"] | other}))
        assert view_run(root).is_over, other
    lease.path.write_text(json.dumps(here | {"launcher": "x"}))
    assert view_run(root).is_over
    lease.path.write_text(json.dumps(here))
    own.rmdir()
    assert view_run(root).is_over


def test_a_copy_of_one_that_has_not_ended_may_run(tmp_path: Path) -> None:
    """As `pull` brings it, without the lease."""
    start(tmp_path / "run", step=4)
    seen = view_run(tmp_path / "run")
    assert seen.phase == "Unknown" and not seen.is_over


BESIDE = {"pid": "pid:[1]", "net": os.readlink("/proc/self/ns/net")}


@pytest.mark.parametrize("place", [{"host": "elsewhere"}, {"host": socket.gethostname(), "namespaces": BESIDE}])
def test_one_of_another_host_or_container_may_run(place: dict[str, Any], tmp_path: Path) -> None:
    start(tmp_path / "run", step=4)
    (tmp_path / "run/lease.json").write_text(json.dumps({"token": 1, "pid": 1, "beat": 3, **place}))
    seen = view_run(tmp_path / "run")
    assert seen.phase == "Unknown" and not seen.is_over
    assert tables.started(read_run(tmp_path / "run", 0.0))[0][-1] == "", "that it was killed nobody knows"


@pytest.mark.parametrize("name", ["metrics.jsonl", "starts.jsonl", "report.json", "lease.json", "error.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"a": 1}\n', b"null\n"])
def test_half_a_file_is_no_error(name: str, content: bytes, tmp_path: Path) -> None:
    start(tmp_path, ended="failed")
    rows(tmp_path, {"step": 1, "loss": 1.0})
    write_error(tmp_path / "error.json", RankzeroError("why"), "", lambda text: text)
    (tmp_path / name).write_bytes(content)
    json.dumps(view_run(tmp_path).to_json())


ODD = {
    "last": [b"\xff\xfe\x80", b"checkpoints/step-" + b"9" * 5000, b"\x00"],
    "report.json": [b'{"eval_loss": "x"}', b'{"eval_loss": NaN, "steps": NaN}', b'{"eval_loss": [1], "steps": "x"}'],
    "metrics.jsonl": [
        b'{"step": 1, "loss": "x", "tokens_per_second": "y"}',
        b'{"step": 1, "loss": 1, "time": "z", "tokens_per_second": NaN}',
    ],
    "error.json": [
        json.dumps({"type": "RankzeroError", "problems": problems, "traceback": ""}).encode()
        for problems in ([], [{"what": 3, "where": 4, "hint": None}])
    ],
}


@pytest.mark.parametrize(("name", "content"), [(name, content) for name, every in ODD.items() for content in every])
def test_what_nobody_wrote_so_is_no_error(name: str, content: bytes, tmp_path: Path) -> None:
    """Whole files with other things in them than they should have."""
    root = run_directory(tmp_path / "run", ended="failed" if name == "error.json" else "finished")
    (root / name).unlink(missing_ok=True)
    (root / name).write_bytes(content)
    seen = view_run(root)
    json.dumps(seen.to_json(), allow_nan=False)
    assert as_text(seen, 80, colour=False) and as_table([seen], 80, colour=False)
    assert run_page(read_run(root, time.time())).endswith("</html>")


@pytest.mark.parametrize("name", ["metrics.jsonl", "report.json", "error.json"])
def test_what_is_no_file_is_not_read(name: str, tmp_path: Path) -> None:
    """A device gives zeros without end, and a pipe nothing for ever."""
    start(tmp_path, ended="failed")
    (tmp_path / name).symlink_to("/dev/full")
    view_run(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    view_run(tmp_path)


def test_of_a_long_file_only_the_end_is_read(tmp_path: Path) -> None:
    path = rows(tmp_path, *({"step": step, "loss": 1.0 / step} for step in range(1, 100)))
    newest = list(rows_from_end(path, most_bytes=100))
    assert newest[0]["step"] == 99 and 1 < len(newest) < 5
    assert [step for step, _ in curve(path, "loss")] == list(range(1, 100))


def test_a_step_that_was_made_again_counts_once(tmp_path: Path) -> None:
    path = rows(tmp_path, {"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 2, "loss": 1.0}, {"step": 3})
    assert curve(path, "loss") == [(1, 3.0), (2, 1.0)]


@pytest.mark.parametrize("value", ["null", "NaN", "Infinity"])
def test_a_loss_that_is_not_finite_is_shown_as_it_is(value: str, tmp_path: Path) -> None:
    """A run that has gone wrong goes on: its step and its pace are those of now."""
    bad = f'{{"step": 3, "loss": {value}, "tokens_per_second": 5.0, "eval_loss": {value}}}\n{{"step": 3, "epoch": 1}}\n'
    before = {"step": 2, "loss": 3.0, "eval_loss": 2.0, "tokens_per_second": 9.0}
    path = rows(tmp_path, before)
    path.write_text(path.read_text() + bad)
    seen = view_run(tmp_path)
    assert (seen.step, seen.tokens_per_second) == (3, 5.0)
    assert seen.loss is not None and not math.isfinite(seen.loss)
    assert seen.eval_loss is not None and not math.isfinite(seen.eval_loss)
    plain = json.loads(json.dumps(seen.to_json(), allow_nan=False))
    assert plain["loss"] is None is plain["eval_loss"]


def test_the_newest_evaluation_may_be_far_back(tmp_path: Path) -> None:
    filler = ({"step": step, "loss": 1.0, "note": "x" * 500} for step in range(2, 400))
    rows(tmp_path, {"step": 1, "loss": 1.0, "eval_loss": 0.5}, *filler)
    assert view_run(tmp_path).eval_loss == 0.5


@pytest.mark.parametrize("more", [{"eval_loss": 1.0}, {"learning_rate": 1.0}])
def test_looking_is_cheap(more: dict[str, float], tmp_path: Path) -> None:
    """A list of a hundred runs of a hundred thousand steps each must not read them, nor those that never evaluate."""
    work: list[int] = []
    for steps in (10_000, 100_000):
        path = rows(tmp_path, *({"step": step, "loss": 1.0, **more} for step in range(1, steps + 1)))
        tracemalloc.start()
        work.append(calls(lambda: view_run(tmp_path)))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert work[1] < 1.2 * work[0] < 10 * 10_000
    assert most < path.stat().st_size / 3
