"""check: counts, order, both ways of running."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rankzero.data.pool
from rankzero.data.validate import check
from rankzero.spec.run_spec import SourceSpec
from tests.unit.data.support import GOOD, GOOD_TEXT, check_file, write


def test_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", GOOD, b"", GOOD_TEXT, b'{"prompt":"p","completion":"c","origin":1}', GOOD_TEXT)
    counts = check_file(path).counts
    assert (counts.rows, counts.blank) == (4, 1)
    assert counts.formats == {"messages": 1, "text": 2, "prompt_completion": 1}
    assert counts.roles == {"user": 1, "assistant": 1} and counts.turns == {2: 1}
    assert counts.ignored_keys == {"origin": 1}


def test_every_key_that_is_not_read_is_counted(tmp_path: Path) -> None:
    repeated = write(tmp_path / "f.jsonl", GOOD[:-1] + b',"prompt":"q","text":null}')
    assert check_file(repeated).counts.ignored_keys == {"prompt": 1, "text": 1}


def test_json_report_holds_everything(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", GOOD, b"{")
    report = json.loads(json.dumps(check_file(path).as_json()))
    assert report["ok"] is False and report["rows"] == 2 and report["formats"] == {"messages": 1}
    assert report["problem_count"] == 1 and report["problems_by_reason"] == {"not valid JSON": 1}
    (problem,) = report["problems"]
    assert (problem["file"], problem["line"]) == (path, 2)


def test_files_and_rows_are_reported_together(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one.jsonl", GOOD, b"{"), write(tmp_path / "two.jsonl", b"{,", GOOD)
    report = check([SourceSpec(path=path) for path in (one, str(tmp_path / "none"), two)])
    where = [located.public().where for located in report.problems]
    assert where == [str(tmp_path / "none"), f"{one}:2", f"{two}:1"]
    assert report.counts.rows == 4


def test_processes_and_this_process_alone_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [GOOD if i % 7 else b'{"text":""}' for i in range(2000)]
    path = write(tmp_path / "f.jsonl", *lines)
    source = SourceSpec(path=path)
    alone, done = check([source]), []
    monkeypatch.setattr(rankzero.data.pool, "SMALL_BYTES", 0)
    together = check([source], workers=2, progress=done.append)
    assert together.as_json() == alone.as_json()
    assert sum(done) == Path(path).stat().st_size
