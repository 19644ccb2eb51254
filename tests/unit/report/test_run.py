"""What a page knows of a run: everything in its directory, nothing that is not, whatever state the files are in."""

from __future__ import annotations

import json
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from rankzero.errors import DataError
from rankzero.report import tables
from rankzero.report.curves import charts
from rankzero.report.page import run_page
from rankzero.report.run import read_run
from rankzero.report.series import pieces
from rankzero.run_dir.goodput import Start, StartLine
from rankzero.run_dir.handover import write_error
from rankzero.run_dir.lease import Lease
from rankzero.run_dir.paths import RunDir
from tests.support.run_directory import BEGUN, run_directory


def test_everything_that_is_there(tmp_path: Path) -> None:
    run = read_run(run_directory(tmp_path / "made"), BEGUN)
    assert (run.name, run.state.word, run.step) == ("made", "finished", 60)
    facts = dict(tables.facts(run))
    assert facts["Loss"].endswith("→ 1.055") and facts["Eval loss"] == "4 → 1.5 (step 40)"
    assert facts["Peak memory"] == "64.4 GB" and facts["Wall time"] == "3:25"
    assert dict(tables.cost(run))["Device-hours"] == f"{8 * 195 / 3600:.4g}", "not of the 10 s between two starts"
    shares, kinds = tables.times(run)
    assert sum(share.part for share in shares) == pytest.approx(1)
    assert kinds[0][:3] == ("step", "170.0", "82.9 %")
    assert [row[3:] for row in tables.started(run)] == [("20", "1:35", "killed"), ("60", "1:40", "finished")]
    assert [(row[0], row[1], row[5]) for row in tables.saved(run)] == [
        ("step-60", "60", "last"),
        ("step-40", "40", "best, made into final/"),
        ("final", "40", ""),
    ]
    heads, rows = tables.data_rows(run)
    assert (
        heads == ("", "train", "eval")
        and ("Rows", "100", "7") in rows
        and ("Dropped: no trained token", "4", "4") in rows
    )
    (asked,) = tables.asked(run.samples)
    assert (asked.first.text, asked.last and asked.last.text, len(asked.between)) == ("Blue.", "Four.", 1)
    assert [(one.what, one.times) for one in run.notices] == [
        ("started again from step 20 after: rank 3: Xid 79 (2026-09-21T10:00:00+00:00)", 1),
        ("2 steps were skipped: their loss or gradient was not finite", 1),
        ("[DATA] 3 rows are odd", 2),
    ]


def test_evaluations_that_are_not_compared_stand_beside_none(tmp_path: Path) -> None:
    """Of a run that went on with other rows to evaluate on: 3.9 and 0.9 are no progress."""
    run = RunDir(run_directory(tmp_path / "r"))
    losses = ((20, 3.9), (40, 0.9), (60, 0.8))
    rows = [{"step": step, "loss": 1.0, "eval_loss": loss} for step, loss in losses]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = json.loads(run.report.read_text()) | {"eval_loss": 0.8}
    for since, span, saved in ((0, "3.9 → 0.8", "0.9"), (21, "0.9 → 0.8", "0.9"), (41, "0.8", "0.9, not compared")):
        run.report.write_text(json.dumps(report | {"compared_from": since}))
        page = read_run(run.root, BEGUN)
        assert dict(tables.facts(page))["Eval loss"] == span
        assert f"eval loss {span}" in tables.summary(page) and "loss 1," in tables.summary(page)
        assert {row[1]: row[2] for row in tables.saved(page)}["40"] == saved


def test_a_run_under_way_says_what_is_compared_as_well(tmp_path: Path) -> None:
    run = RunDir(run_directory(tmp_path / "r", ended=None))
    rows = [{"step": step, "eval_loss": loss} for step, loss in ((20, 3.9), (40, 0.9), (60, 0.8))]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    last = Start(begun=BEGUN + 300, updated=BEGUN + 301, from_step=20, step=60, compared_from=21)
    line = StartLine(run.starts, last)
    line.write({})
    line.close()
    page = read_run(run.root, BEGUN)
    assert not run.report.exists() and dict(tables.facts(page))["Eval loss"] == "0.9 → 0.8"
    assert [[step for step, _ in piece] for piece in pieces(page.metrics["eval_loss"])] == [[20], [40, 60]]


def test_each_starts_devices_are_counted(tmp_path: Path) -> None:
    """A run may go on with more of them; of a start that has not noted how many, nothing is guessed."""
    cost = dict(tables.cost(read_run(run_directory(tmp_path / "grown", processes=(2, 8)), BEGUN)))
    hours = (2 * 95 + 8 * 100) / 3600
    assert (cost["Devices"], cost["Device-hours"]) == ("2 to 8 × NVIDIA H100", f"{hours:.4g}")
    assert cost["Tokens for a device-hour"] == f"{60_000 / hours:,.0f}"
    unknown = dict(tables.cost(read_run(run_directory(tmp_path / "older", processes=(0, 8)), BEGUN)))
    assert unknown["Held for"] and not {"Devices", "Device-hours", "Tokens for a device-hour"} & set(unknown)
    alone = run_directory(tmp_path / "alone", processes=(0, 0))
    lines = (alone / "starts.jsonl").read_text().splitlines(keepends=True)
    (alone / "starts.jsonl").write_text(lines[1])
    of_one = dict(tables.cost(read_run(alone, BEGUN)))
    assert of_one["Device-hours"] == f"{8 * 100 / 3600:.4g}", "environment.json is of the only start"


def test_a_loss_that_is_not_finite_at_last_is_no_end_of_its_fall(tmp_path: Path) -> None:
    run = RunDir(run_directory(tmp_path / "run", ended="stopped"))
    with run.metrics.open("a") as file:
        file.write('{"step": 61, "loss": null, "eval_loss": null}\n')
    page = read_run(run.root, BEGUN)
    facts = dict(tables.facts(page))
    assert (facts["Loss"], facts["Eval loss"]) == ("3.807 → nan", "4 → nan")
    assert "loss 3.807 → nan" in tables.summary(page)
    (drawn,) = (chart for chart in charts([("run", page.metrics)])[0] if chart.key == "loss")
    assert [span[2] for span in drawn.spans] == ["nan", "nan"], "as in the table below the curve"
    run.metrics.write_text('{"step": 1, "loss": null}\n')
    assert dict(tables.facts(read_run(run.root, BEGUN)))["Loss"] == "nan"


def test_peak_memory_is_of_all_starts(tmp_path: Path) -> None:
    """report.json has the last one's over all processes, metrics.jsonl the main process's of each."""
    run = RunDir(run_directory(tmp_path / "run"))
    assert dict(tables.facts(read_run(run.root, BEGUN)))["Peak memory"] == "64.4 GB"
    rows = [{"step": step, "loss": 1.0, "peak_memory_bytes": 7e10 + step} for step in (1, 2)]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in (*rows, {"step": 3, "peak_memory_bytes": 3e9})))
    assert dict(tables.facts(read_run(run.root, BEGUN)))["Peak memory"] == "70.0 GB", "of a start before the last"
    run.report.unlink()
    assert dict(tables.facts(read_run(run.root, BEGUN)))["Peak memory"] == "70.0 GB", "also where it has not ended well"


def test_steps_are_those_that_the_result_has(tmp_path: Path) -> None:
    """A start that got further, and was killed, is gone beyond where the next one went on."""
    root = run_directory(tmp_path / "run", steps=30)
    line = StartLine(root / "starts.jsonl", Start(begun=BEGUN, updated=BEGUN, from_step=30, step=90))
    line.write({})
    line.close()
    assert read_run(root, BEGUN).step == 30, "as report.json has it"
    (root / "report.json").unlink()
    assert read_run(root, BEGUN).step == 90, "steps that were made, and not logged"


def test_devices_of_a_run_under_way_are_held_up_to_now(tmp_path: Path) -> None:
    """In the middle of an evaluation, say, of which its line knows nothing yet."""
    before = run_directory(tmp_path / "run", processes=(2, 8))
    lines = [json.loads(line) for line in (before / "starts.jsonl").read_text().splitlines()]
    lines[1] |= {"ended": None, "updated": time.time() - 3600, "kind": "evaluation"}
    (before / "starts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    stopped = dict(tables.cost(read_run(before, BEGUN)))
    lease = Lease(before)
    lease.acquire()
    lines[1]["owner"] = lease.owner
    (before / "starts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    cost = dict(tables.cost(read_run(before, BEGUN)))
    lease.release()
    more = float(cost["Device-hours"]) - float(stopped["Device-hours"])
    assert more == pytest.approx(8, abs=0.1) and cost["Held for"] != stopped["Held for"]


def test_of_many_warnings_the_rest_is_counted(tmp_path: Path) -> None:
    root = run_directory(tmp_path / "made")
    (root / "logs/rank-0.log").write_text("".join(f"10:00:00 WARNING number {n}\n" for n in range(70)))
    (root / "report.json").write_text("[")
    notices = read_run(root, BEGUN).notices
    assert len(notices) == 51 and notices[-1].what == "and 23 more warnings"


def test_an_empty_directory_is_a_page(tmp_path: Path) -> None:
    run = read_run(tmp_path, BEGUN)
    assert run.state.word == "not started" and not run.notices and tables.facts(run) == []
    page = run_page(run)
    assert "<h2" not in page, "a part that is not there is left out, not shown empty"


FILES = ("run.yaml", "report.json", "environment.json", "data.json", "lease.json")
LINES = ("metrics.jsonl", "starts.jsonl", "restarts.jsonl", "samples.jsonl")
ODD = (
    *("", "null", "[]", "{", '"text"', "{}", "\x00", "[" * 5000, '{"model": 3, "lora": [], "train": {"lengths": 1}}'),
    json.dumps({"steps": "x", "stragglers": [1, {"rank": None}], "total_tokens": True, "world_size": "8", "pid": "x"}),
    json.dumps(
        {"train": {"lengths": [[1, "2", 3], [1, 2], None], "dropped": [], "notes": {"a": "b"}}, "device": {"a": {}}}
    ),
    json.dumps({"step": 1, "prompt": 3, "text": None, "loss": 10**400, "seconds": {}, "host": socket.gethostname()}),
    json.dumps({"pid": "x", "host": socket.gethostname(), "token": 1}),
)


@pytest.mark.parametrize("text", ODD)
def test_files_that_are_not_ours_are_said_and_end_nothing(text: str, tmp_path: Path) -> None:
    root = run_directory(tmp_path / "made")
    for name in (*FILES, *LINES):
        (root / name).write_text(text, encoding="utf-8")
    (root / "checkpoints/step-60/manifest.json").write_text(text, encoding="utf-8")
    run = read_run(root, BEGUN)
    page = run_page(run)
    assert page.endswith("</html>") and "[DATA] 3 rows are odd" in page
    assert "manifest" in " ".join(one.what for one in run.notices if one.where == "step-60")
    if text in ("[]", "{", '"text"'):
        said = {one.what.split(":")[0] for one in run.notices if one.where == "run directory"}
        assert {"run.yaml", "report.json", "data.json"} <= said


@pytest.mark.parametrize("name", FILES[:-1])
def test_a_part_that_is_missing_takes_no_other_along(name: str, tmp_path: Path) -> None:
    root = run_directory(tmp_path / "made")
    (root / name).unlink()
    run = read_run(root, BEGUN)
    assert not [one for one in run.notices if one.where == "run directory"]
    assert 'id="curves"' in run_page(run)


def test_how_a_run_is(tmp_path: Path) -> None:
    """By its last start, and by who holds its directory: a process that is gone holds nothing."""
    killed = run_directory(tmp_path / "killed", ended=None)
    assert read_run(killed, BEGUN).state.word == "killed"
    assert read_run(run_directory(tmp_path / "stopped", ended="stopped"), BEGUN).state.word == "stopped"
    failed = run_directory(tmp_path / "failed", ended="failed")
    write_error(failed / "error.json", DataError("a row is bad", where="rows.jsonl:3"), "", str)
    assert read_run(failed, BEGUN).state.text == "a row is bad (rows.jsonl:3); give its command again to continue"

    Lease(killed).acquire()  # of this process, as while it writes the page of a start that has ended
    taken = json.loads((killed / "lease.json").read_text())
    assert read_run(killed, BEGUN).state.word == "running"
    (failed / "lease.json").write_text(json.dumps(taken))
    line = json.loads((failed / "starts.jsonl").read_text().splitlines()[-1]) | {"owner": taken["owner"]}
    (failed / "starts.jsonl").write_text(json.dumps(line) + "\n")
    assert read_run(failed, BEGUN).state.word == "failed"
    (killed / "lease.json").write_text(json.dumps({**taken, "process": "another boot"}))
    assert read_run(killed, BEGUN).state.word == "killed", "the number was given to another process since"
    (killed / "lease.json").write_text(json.dumps({**taken, "host": "another-host"}))
    elsewhere = read_run(killed, BEGUN)
    assert elsewhere.state.word == "unknown" and elsewhere.goes_on

    shutil.copytree(run_directory(tmp_path / "good") / "final", tmp_path / "old/final")
    RunDir(tmp_path / "old").report.write_text('{"steps": 3, "ended_early": true}')
    assert read_run(tmp_path / "old", BEGUN).state.word == "ended early", "of a version that kept no starts"
    (tmp_path / "older").mkdir()
    RunDir(tmp_path / "older").metrics.write_text('{"step": 3, "loss": 1}')
    assert read_run(tmp_path / "older", BEGUN).state.word == "unknown"


def sets(count: int, **of_fifth: float) -> list[dict[str, Any]]:
    """Training sets as a spec has them."""
    one = {"path": "/data/a-directory-with-a-long-name/part.jsonl", "weight": 1.0}
    return [{**one, **(of_fifth if at == 5 else {})} for at in range(count)]


def test_what_tells_long_values_apart_is_shown() -> None:
    """Cut at their ends, two lists of data or two chat templates would be the same text."""
    data = [{"data": {"train": sets(9, weight=weight)}} for weight in (1.0, 2.0)]
    assert tables.differences(data) == [("data.train[5]", *(json.dumps(one["data"]["train"][5]) for one in data))]
    more = [{"data": {"train": sets(9)}}, {"data": {"train": sets(10)}}, {"data": {"train": sets(9)}}]
    last = json.dumps(sets(1)[0])
    assert tables.differences(more) == [("data.train[9]", "", last, "")]
    template = "{% if tools %}" * 500
    named = [{"t": template + f"{name} {{% endif %}}" + template} for name in ("one", "two", "two")]
    [(field, *parts)] = tables.differences(named)
    assert field == "t" and "one {% endif" in parts[0] and "two {% endif" in parts[1] == parts[2]
    assert all(part[0] == part[-1] == "…" and len(part) < 400 for part in parts)
    short = [{"lora": {"target_modules": names}} for names in (["q_proj"], ["q_proj", "v_proj"])]
    assert tables.differences(short) == [("lora.target_modules", '["q_proj"]', '["q_proj", "v_proj"]')]


def test_a_text_and_what_is_written_like_it_are_told_apart() -> None:
    kinds = [{"a": "1", "b": "true", "c": "", "d": "x"}, {"a": 1, "b": True, "d": "y"}]
    assert tables.differences(kinds) == [("a", '"1"', "1"), ("b", '"true"', "true"), ("c", '""', ""), ("d", "x", "y")]
    assert tables.differences([{"a": "1"}, {"a": 1}, {"a": None}, {}]) == [("a", '"1"', "1", "null", "")]


def test_of_three_long_texts_each_pair_is_told_apart() -> None:
    text = "x" * 1000
    three = [{"t": text}, {"t": "y" + text[1:]}, {"t": text[:-1] + "z"}]
    [(_, *parts)] = tables.differences(three)
    assert len(set(parts)) == 3
